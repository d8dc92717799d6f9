"""Mutable state: what a program returns or stores of a buffer is the value that it read, whatever the program writes later.

In the graph that lowering sees, updates are functional: all of them happen after the last read. The compiler then removes copies
that change nothing, and what was a copy of the old state becomes the buffer itself, which is written before it is read. So a
snapshot is taken of each value that could become the buffer: an output, or the new value of a buffer.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..._torch.snapshot import SNAPSHOT
from .outputs import rename_outputs
from .places import packet_of

_ATEN = torch.ops.aten
#: Operators whose result is never one of their inputs as it is, whatever their sizes and numbers. A walk back ends there.
_COMPUTE = {
    _ATEN.mm,
    _ATEN.bmm,
    _ATEN.addmm,
    _ATEN.baddbmm,
    _ATEN.linear,
    _ATEN.convolution,
    _ATEN.embedding,
    _ATEN.native_layer_norm,
    _ATEN.native_group_norm,
    _ATEN._softmax,
    _ATEN._log_softmax,
    _ATEN.scaled_dot_product_attention,
    _ATEN.exp,
    _ATEN.tanh,
    _ATEN.sigmoid,
    _ATEN.gelu,
    _ATEN.silu,
    _ATEN.sin,
    _ATEN.cos,
    _ATEN.sqrt,
    _ATEN.rsqrt,
    _ATEN.logical_not,
    _ATEN.neg,
    _ATEN.argmax,
}


def keep_old_values(program: ExportedProgram) -> int:
    """Puts a snapshot after each result that may be a buffer's old value, and returns how many there are.

    A result that is a placeholder gets one too: an operator has to make it (``state.copy_(x)``, two buffers that are swapped). So does
    one that is a buffer's new value: lowering takes a node for the update of one buffer, and for nothing else.
    """
    signature = program.graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    buffers = {name: fqn for name, fqn in signature.inputs_to_buffers.items() if fqn in mutated}
    output = next(node for node in program.graph.nodes if node.op == "output")
    results, taken, updates = list(output.args[0]), 0, set()
    for place, (spec, value) in enumerate(zip(signature.output_specs, results)):
        if not isinstance(value, torch.fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            continue
        stored = spec.kind is OutputKind.BUFFER_MUTATION
        bare = value.op == "placeholder" and (stored or value.name not in signature.user_inputs)
        own = {spec.target} if stored else set()
        if bare or value in updates or not {buffers[name] for name in _may_be(value, buffers)} <= own:
            results[place] = snapshot_before(output, value)
            taken += 1
        elif stored:
            updates.add(value)
    if taken:
        output.args = (type(output.args[0])(results), *output.args[1:])
        program.graph_module.recompile()
        rename_outputs(program)
    return taken


def separate_stores(program: ExportedProgram) -> None:
    """Writes out what ``copy_`` does, before mutation is functional: the trace drops the copy, and with it its cast and its broadcast.

    What is left has to be a value of its own, too. One value as the update of several buffers has no room in the signature, a table by
    value, and a placeholder as an update cannot be traced again.
    """
    stored: set[torch.fx.Node] = set()
    for node in program.graph.nodes:
        if node.target is _ATEN.copy_.default and isinstance(node.args[1], torch.fx.Node):
            target, source = node.args[:2]
            with program.graph.inserting_before(node):
                own = _as_stored(program.graph, target, source)
                if target.op == "placeholder" and (source in stored or source.op == "placeholder" or own.target is _ATEN.expand_as.default):
                    own = program.graph.call_function(SNAPSHOT, (own,))
            node.args = (target, own, *node.args[2:])
            stored.add(source)


def _as_stored(graph: torch.fx.Graph, target: torch.fx.Node, source: torch.fx.Node) -> torch.fx.Node:
    """``source`` with the dtype and the shape of ``target``."""
    wanted, found = target.meta["val"], source.meta["val"]
    own = source
    if found.dtype != wanted.dtype:
        own = graph.call_function(_ATEN._to_copy.default, (own,), {"dtype": wanted.dtype})
    if found.dim() != wanted.dim() or not all(statically_known_true(a == b) for a, b in zip(found.shape, wanted.shape)):
        own = graph.call_function(_ATEN.expand_as.default, (own, target))
    return own


def snapshot_before(before: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
    """A snapshot of ``value`` that is taken right before ``before``."""
    with before.graph.inserting_before(before):
        taken = before.graph.call_function(SNAPSHOT, (value,))
    taken.meta["val"] = torch.empty_like(value.meta["val"], memory_format=torch.contiguous_format)
    return taken


def _may_be(value: torch.fx.Node, buffers: dict[str, str]) -> set[str]:
    """The mutable buffers, by placeholder, whose elements ``value`` may hold as they are."""
    found, seen, left = set(), set(), [value]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name in buffers:
            found.add(node.name)
        if node.target is SNAPSHOT:
            continue
        if node.op == "call_function" and packet_of(node) not in _COMPUTE:
            left += node.all_input_nodes
    return found
