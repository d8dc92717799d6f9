"""Inputs for kernels that are tuned while a program is compiled for a GPU."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor.codegen.wrapper import PythonWrapperCodegen


@contextlib.contextmanager
def harmless_indices() -> Iterator[None]:
    """Gives each tuned kernel integers of its own, which are zeros.

    Kernels are tuned one after the other, and each gets what the ones before it wrote. Operators between them are not run, so that a
    kernel may get row numbers that no operator would make. Its bounds check then fails on the device, and the compiler's CUDA context
    is lost (a mixture of experts: token numbers after a sort). Zero is a row of every table.
    """
    original = PythonWrapperCodegen._generate_kernel_call_helper

    def with_fresh_integers(self: Any, kernel_name: str, call_args: Any, *, arg_types: Any = None, **others: Any) -> Any:
        for argument, kind in zip(call_args, arg_types or ()):
            if isinstance(kind, torch.dtype) and not kind.is_floating_point:
                self.kernel_autotune_example_args.pop(argument, None)
        return original(self, kernel_name, call_args, arg_types=arg_types, **others)

    with unittest.mock.patch.object(PythonWrapperCodegen, "_generate_kernel_call_helper", with_fresh_integers):
        yield
