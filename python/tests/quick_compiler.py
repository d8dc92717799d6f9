"""An export without its compiler: what a program's methods share is decided around the compiler, and shows in a second or two.

The library is a text, and the trace has one kernel per probe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from weightstream._export.compile import lower_method
from weightstream._export.compile.inductor import Compiled
from weightstream._export.compile.trace import KERNEL, PROBE, RELEASE, CompiledTrace, Constant


@contextmanager
def quick_compiler() -> Iterator[list[dict[str, Any]]]:
    """Takes the compiler's place inside the block; gives a list that holds what each compilation was given."""
    calls: list[dict[str, Any]] = []

    def compile_program(module: Any, inputs: Any, probes: list[str], mutable: set[str], target: Any) -> Compiled:
        calls.append({"probes": probes, "mutable": set(mutable), "target": target})
        constants = constants_of(module, set(probes), mutable)
        events = [event for probe in range(len(probes)) for event in ((PROBE, probe), (KERNEL, probe), (RELEASE, probe))]
        library = f"{module.code}{sorted(constants)}".encode()
        return Compiled(library, CompiledTrace(events, probes, constants, 0, {}))

    apart = lower_method.cross.Apart

    def in_this_process(program: Any, sm: str, compile_here: Any) -> Any:
        return apart(program, sm, compile_here) if sm else Here(program, compile_here)

    with (
        mock.patch.object(lower_method, "compile_program", compile_program),
        mock.patch.object(lower_method.cross, "Apart", in_this_process),
    ):
        yield calls


class Here:
    """In the place of a child process, whose list nobody would see."""

    def __init__(self, program: Any, compile_here: Any):
        self.result = lambda: compile_here(program)

    def stop(self) -> None:
        pass


def constants_of(module: Any, probed: set[str], mutable: set[str]) -> dict[str, Constant]:
    """The user's names, and those that AOTInductor gives the others."""
    named = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}
    found = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(value := attribute(module, node.target), torch.Tensor):
            literal = node.target not in named or "tensor_constant" in node.target
            fqn = f"_tensor_constant{sum(name.startswith('_tensor_constant') for name in found)}" if literal else node.target
            found[fqn] = Constant(fqn, value, tuple(value.shape), value.stride(), fqn in probed, fqn in mutable)
    return found


def attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
