"""Methods, from what ExecuTorch gives for them to what the program needs of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import torch
from executorch.backends.aoti.passes.replace_view_copy_with_view import ReplaceViewCopyWithViewPass
from executorch.exir.delegate import executorch_call_delegate
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from ..._native.progress import note
from ..._torch import cross
from ..._torch.shapes import forget_pending
from ..passes import attention, convolution, experts, prepare, quantized, weight_reads
from . import describe
from .inductor import Compiled, compile_program
from .spool import Spool
from .target import Target
from .trace import DroppedProbes


@dataclasses.dataclass
class Lowered:
    """A compiled method whose weights were taken out."""

    method: str
    target: Target
    compiled: Compiled
    facts: describe.Facts
    constants: list[describe.Stored]


class Wanted(NamedTuple):
    """What is asked of a method. ``state``: the FQNs of buffers that it or another method of the program writes."""

    target: Target
    offload: bool
    state: Set[str] = frozenset()


def lower(programs: dict[str, ExportedProgram], wanted: dict[str, Wanted], spool: Spool) -> dict[str, Lowered]:
    """Compiles methods: several at a time, each in a child of this process, but where a GPU of this machine is asked."""
    for program in programs.values():
        weight_reads.refuse_mixed_devices(program)
    here = len(programs) == 1 or any(one.target.device != "cpu" for one in wanted.values())
    apart = [name for name in programs if wanted[name].target.sm or not here]
    at_a_time, found = len(os.sched_getaffinity(0)), {}
    with contextlib.ExitStack() as stack:
        running: dict[str, cross.Apart] = {}
        for method, program in programs.items():
            for other in apart[: len(found) + at_a_time]:
                if other not in running and other not in found:
                    running[other] = cross.Apart(
                        _on_its_device(programs[other], wanted[other]), wanted[other].target.sm, _compiling(wanted[other])
                    )
                    stack.callback(running[other].stop)
            compiled, facts = (
                running[method].result() if method in running else _compiling(wanted[method])(_on_its_device(program, wanted[method]))
            )
            found[method] = _finished(method, program, wanted[method], compiled, facts, spool)
    return found


def _on_its_device(program: ExportedProgram, wanted: Wanted) -> ExportedProgram:
    """One for a GPU that is not there stays where it is until its child moves it."""
    return program if wanted.target.sm else move_to_device_pass(program, wanted.target.device)


def _compiling(wanted: Wanted) -> Callable[[ExportedProgram], tuple[Compiled, describe.Facts]]:
    return lambda program: _compile(program, wanted.offload, wanted.target, wanted.state)


def _finished(method: str, program: ExportedProgram, wanted: Wanted, compiled: Compiled, facts: describe.Facts, spool: Spool) -> Lowered:
    for remark in facts.remarks:
        note(f"method '{method}': {remark}")
    _keep_calls_without_outputs(program)
    constants = describe.stored(compiled, wanted.offload, spool)
    for constant in compiled.trace.constants.values():
        # On a GPU the next method needs the room.
        constant.tensor = constant.tensor.new_empty(0)
    return Lowered(method, wanted.target, compiled, facts, constants)


def _compile(program: ExportedProgram, offload: bool, target: Target, state: Set[str]) -> tuple[Compiled, describe.Facts]:
    """Compiles what ``to_edge`` left, whose values are on the target's device."""
    # Signature, mutation and ties are final here; the user's probes served to show and to mark.
    weight_reads.remove_probes(program)
    prepare.forget_same(program)
    ReplaceViewCopyWithViewPass()(program.graph_module)
    if target.device == "cuda":
        convolution.widen(program)
        quantized.on_a_gpu(program, target.shared_memory())
        experts.on_a_gpu(program, target.shared_memory())
    if target.fuses_attention():
        attention.fuse(program)
    probes = weight_reads.insert_probes(program, state) if offload else []
    compiled = _compile_until_probes_stay(program, probes, target, state)
    return compiled, describe.facts_of(program, offload)


def _keep_calls_without_outputs(program: ExportedProgram) -> None:
    """ExecuTorch removes the call of a method that only changes its state, unless calls of delegates are known to do more than return."""
    if not program.graph_signature.user_outputs:
        torch.fx.node.has_side_effect(executorch_call_delegate)


def _compile_until_probes_stay(program: ExportedProgram, probes: list[str], target: Target, state: Set[str]) -> Compiled:
    mutable = {*program.graph_signature.buffers_to_mutate.values(), *state}
    while True:
        forget_pending(program)
        try:
            return compile_program(program.module(), _example_inputs(program), probes, mutable, target)
        except DroppedProbes as dropped:
            note(f"{dropped}; compiling again without them")
            probes = weight_reads.drop_probes(program, dropped.ids)
        except Exception:
            if not cross.another_try():
                raise


def _example_inputs(program: ExportedProgram) -> tuple[Any, ...]:
    user_inputs = set(program.graph_signature.user_inputs)
    return tuple(n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name in user_inputs)
