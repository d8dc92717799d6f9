"""One method, from what ExecuTorch gives for it to what the program needs of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from typing import Any

import torch
from executorch.backends.aoti.passes.replace_view_copy_with_view import ReplaceViewCopyWithViewPass
from executorch.exir.delegate import executorch_call_delegate
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from ..._native.progress import note
from ..._torch import cross
from ..._torch.shapes import forget_pending
from ..passes import attention, convolution, prepare, quantized, weight_reads
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


def lower(method: str, program: ExportedProgram, target: Target, offload: bool, state: Set[str], spool: Spool) -> Lowered:
    """Compiles a method. ``state``: the FQNs of buffers that it or another method of the program writes."""
    weight_reads.refuse_mixed_devices(program)

    def compile_here(program: ExportedProgram) -> tuple[Compiled, describe.Facts]:
        return _compile(program, offload, target, state)

    if target.sm:
        compiled, facts = cross.compile_apart(program, target.sm, compile_here)
    else:
        compiled, facts = compile_here(move_to_device_pass(program, target.device))
    for remark in facts.remarks:
        note(f"method '{method}': {remark}")
    _keep_calls_without_outputs(program)
    constants = describe.stored(compiled, offload, spool)
    for constant in compiled.trace.constants.values():
        # On a GPU the next method needs the room.
        constant.tensor = constant.tensor.new_empty(0)
    return Lowered(method, target, compiled, facts, constants)


def _compile(program: ExportedProgram, offload: bool, target: Target, state: Set[str]) -> tuple[Compiled, describe.Facts]:
    """Compiles what ``to_edge`` left, whose values are on the target's device."""
    # Signature, mutation and ties are final here; the user's probes served to show and to mark.
    weight_reads.remove_probes(program)
    prepare.forget_same(program)
    ReplaceViewCopyWithViewPass()(program.graph_module)
    if target.device == "cuda":
        convolution.widen(program)
        quantized.on_a_gpu(program, target.shared_memory())
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
