"""Inputs for kernels that are tuned while a program is compiled for a GPU."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.virtualized import V

from .probe import is_probe_kernel


@contextlib.contextmanager
def held_integers() -> Iterator[None]:
    """Gives a kernel that is tuned the integers that the program holds, read through a probe or not.

    The compiler would take zeros. Row numbers may come from a division by such a number: a mixture of experts divides by how many
    experts a token has. No row has that quotient, so the kernel's bounds check fails on the device, and the compiler's CUDA context is
    lost.
    """
    original = PythonWrapperCodegen.generate_example_arg_value

    def with_held_integers(self: Any, arg: Any, arg_type: Any, raw_arg: Any = None, **storage: Any) -> Any:
        made = original(self, arg, arg_type, raw_arg, **storage)
        source = _source(arg, self.args_to_buffers.get(arg)) if isinstance(arg_type, torch.dtype) else None
        if source in V.graph.constants and not arg_type.is_floating_point:
            self.kernel_autotune_calls.writeline(f"{made}.copy_(torch._inductor.virtualized.V.graph.constants[{source!r}])")
        return made

    with unittest.mock.patch.object(PythonWrapperCodegen, "generate_example_arg_value", with_held_integers):
        yield


def _source(name: str, buffer: Any) -> str:
    """The name of the constant that a probe reads, if the buffer is a probe's."""
    kernel = buffer.inputs[0] if isinstance(buffer, ir.MultiOutput) else buffer
    return kernel.inputs[0].get_name() if is_probe_kernel(kernel) else name
