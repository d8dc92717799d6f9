"""The graph pass: which constants become weights, and the probes before their reads.

It runs twice. :func:`apply_weight_offload` is the user's line: it checks the program and puts a probe before every weight read, so
that the graph shows what will happen. Lowering may still add constants, tie weights and make mutation functional, so
the backend removes these probes in its ``preprocess`` and inserts them again where all of that is final.
"""

from __future__ import annotations

from collections.abc import Set

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ..._native.errors import ExportError
from ..._torch.executorch import refuse_probes_in_files
from ..._torch.probe import PROBE, is_probe
from .experts import is_places
from .outputs import rename_outputs
from .places import writes_to
from .prepare import prepare

_CONTROL_FLOW = ("cond", "while_loop", "map_impl", "scan", "associative_scan")
_WEIGHT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def apply_weight_offload(program: ExportedProgram) -> ExportedProgram:
    """Marks ``program`` for weight offloading: every weight is read through a probe.

    Returns a new program with the same inputs, outputs and values; ``program`` is left as it is. Mutable buffers, tensor literals
    and 0-dimensional constants are not probed: they stay resident and count against the budget.

    Raises :class:`ExportError` if the pass was applied already, or if the program has control flow, constants on a device other
    than the CPU's or the target's, or an in-place operator on a weight.
    """
    if not isinstance(program, ExportedProgram):
        raise TypeError(
            f"apply_weight_offload takes what torch.export.export returns (an ExportedProgram), not {type(program).__name__}; "
            "apply it before to_edge_transform_and_lower"
        )
    if has_probes(program):
        raise ExportError("apply_weight_offload was applied to this program already; apply it once")
    refuse_control_flow(program)
    refuse_mixed_devices(program)
    # Right after export an in-place buffer update is not functional yet, and `buffers_to_mutate` is empty: probing now would send
    # the update to a temporary.
    program = prepare(program)
    if not weights_of(program):
        raise ExportError("this program has no weights to offload: it has no parameters or buffers that are read and never written")
    insert_probes(program)
    refuse_probes_in_files()
    return program


def has_probes(program: ExportedProgram) -> bool:
    """Whether the graph reads any constant through a probe."""
    return any(is_probe(node) for node in program.graph.nodes)


def refuse_control_flow(program: ExportedProgram) -> None:
    """The trace of a pass must be the same each time; a branch or a loop would make it depend on data."""
    for node in program.graph.nodes:
        name = getattr(node.target, "__name__", str(node.target))
        higher_order = isinstance(node.target, torch._ops.HigherOrderOperator)
        if node.op == "call_function" and higher_order and any(word in name for word in _CONTROL_FLOW):
            raise ExportError(
                f"control flow cannot be offloaded: operator '{name}' (node '{node.name}') makes the order of weight reads depend "
                "on data; rewrite it without control flow (torch.where, masks) or export the branches as separate programs"
            )


def refuse_mixed_devices(program: ExportedProgram, allowed: tuple[str, ...] = ("cpu", "cuda")) -> None:
    """All constants must be on one device that holds bytes."""
    seen: dict[str, str] = {}
    for name, tensor in {**program.state_dict, **program.constants}.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        kind = tensor.device.type
        if kind not in allowed:
            raise ExportError(
                f"constant '{name}' is on device '{tensor.device}', which holds no bytes to export; "
                f"move the model to one of {', '.join(allowed)} before torch.export.export"
            )
        seen.setdefault(kind, name)
    if len(seen) > 1:
        where = ", ".join(f"'{name}' is on {kind}" for kind, name in seen.items())
        raise ExportError(f"constants are on more than one device ({where}); move the whole model to one device before export")


def weights_of(program: ExportedProgram, state: Set[str] = frozenset()) -> dict[str, str]:
    """Placeholder name to FQN of every constant that is read through probes.

    Left out, and thus direct: places of experts, buffers that the program writes or that other methods write (``state``), tensor literals (they have no
    name of the user's), and 0-dimensional constants (the alias claim of the probe's lowering does not hold for them).
    """
    signature = program.graph_signature
    mutated = {*signature.buffers_to_mutate.values(), *state}
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found = {}
    for spec in signature.input_specs:
        if spec.kind not in _WEIGHT_KINDS or spec.target is None or spec.target in mutated:
            continue
        node = placeholders.get(spec.arg.name)
        value = None if node is None else node.meta.get("val")
        literal = spec.kind is InputKind.CONSTANT_TENSOR
        if isinstance(value, torch.Tensor) and value.dim() > 0 and node.users and not literal and not is_places(spec.target):
            found[spec.arg.name] = spec.target
    return found


def remove_probes(program: ExportedProgram) -> int:
    """Takes every probe out again, and returns how many there were."""
    probes = [node for node in program.graph.nodes if is_probe(node)]
    for node in probes:
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    if probes:
        program.graph_module.recompile()
    return len(probes)


def drop_probes(program: ExportedProgram, ids: set[int]) -> list[str]:
    """Takes the probes ``ids`` out, renumbers the others, and returns the FQN of each."""
    weights = weights_of(program)
    fqns: list[str] = []
    for node in [node for node in program.graph.nodes if is_probe(node)]:
        source, probe_id = node.args
        if probe_id in ids:
            node.replace_all_uses_with(source)
            program.graph.erase_node(node)
            continue
        node.args = (source, len(fqns))
        fqns.append(weights[source.name])
    program.graph_module.recompile()
    return fqns


def insert_probes(program: ExportedProgram, state: Set[str] = frozenset()) -> list[str]:
    """Puts a probe before every read of every weight, and returns the FQN of each probe id; buffers of ``state`` are no weights.

    One probe per reader and weight, numbered in graph order. The output node is a reader too: a returned weight would otherwise be
    cloned from its placeholder.
    """
    weights = weights_of(program, state)
    fqns: list[str] = []
    for node in list(program.graph.nodes):
        if node.op not in ("call_function", "output"):
            continue
        for source in list(node.all_input_nodes):
            if source.name not in weights:
                continue
            _refuse_in_place(node, source, weights[source.name])
            with program.graph.inserting_before(node):
                read = program.graph.call_function(PROBE, (source, len(fqns)))
            read.meta["val"] = source.meta["val"]
            node.replace_input_with(source, read)
            fqns.append(weights[source.name])
    program.graph_module.recompile()
    rename_outputs(program)
    return fqns


def _refuse_in_place(node: torch.fx.Node, source: torch.fx.Node, fqn: str) -> None:
    if writes_to(node, source):
        raise ExportError(
            f"operator '{node.target}' (node '{node.name}') writes into weight '{fqn}' in place; weights are read-only: "
            "register it as a buffer and assign to it, so that export sees a mutation, or work on a clone"
        )
