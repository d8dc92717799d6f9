"""Writes whose source or target is memory of something else that is still wanted.

The compiler turns a functional update (``index_copy``, a slice that is assigned) into one in place where the old value is not read
later. It does not ask whether the update itself reads it: ``y[i] = y[:2]`` then copies rows that it has just written. And a target
that is a buffer's clone becomes the buffer, once the clone is removed.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from ..._torch.snapshot import SNAPSHOT
from .places import packet_of
from .state import snapshot_before

_ATEN = torch.ops.aten
#: Operators that give a changed copy of their first argument.
_UPDATES = {
    _ATEN.index_copy,
    _ATEN.index_put,
    _ATEN._unsafe_index_put,
    _ATEN.index_add,
    _ATEN.index_fill,
    _ATEN.index_reduce,
    _ATEN.scatter,
    _ATEN.scatter_add,
    _ATEN.scatter_reduce,
    _ATEN.masked_scatter,
    _ATEN.masked_fill,
    _ATEN.slice_scatter,
    _ATEN.select_scatter,
    _ATEN.diagonal_scatter,
    _ATEN.as_strided_scatter,
    _ATEN.copy,
}
#: Operators whose result is, or may become, their first argument's memory.
_SAME_MEMORY = {
    _ATEN.view,
    _ATEN.reshape,
    _ATEN._unsafe_view,
    _ATEN.slice,
    _ATEN.select,
    _ATEN.permute,
    _ATEN.transpose,
    _ATEN.t,
    _ATEN.squeeze,
    _ATEN.unsqueeze,
    _ATEN.expand,
    _ATEN.expand_as,
    _ATEN.view_as,
    _ATEN.reshape_as,
    _ATEN.diagonal,
    _ATEN.unfold,
    _ATEN.flatten,
    _ATEN.unflatten,
    _ATEN.movedim,
    _ATEN.narrow,
    _ATEN.alias,
    _ATEN.as_strided,
    _ATEN.clone,
    _ATEN.contiguous,
    _ATEN._to_copy,
    _ATEN.to,
    _ATEN.split,
    _ATEN.split_with_sizes,
    _ATEN.chunk,
    _ATEN.unbind,
}
_COPIES = {_ATEN.clone, _ATEN.contiguous, _ATEN._to_copy, _ATEN.to, _ATEN.reshape}


def separate(program: ExportedProgram) -> int:
    """Puts snapshots before updates that would read what they write, and returns how many there are."""
    signature = program.graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    buffers = {name for name, fqn in signature.inputs_to_buffers.items() if fqn in mutated}
    taken = 0
    for node in list(program.graph.nodes):
        if node.op != "call_function" or packet_of(node) not in _UPDATES or not isinstance(node.args[0], torch.fx.Node):
            continue
        target, copied = _root(node.args[0])
        if copied and target.name in buffers:
            node.replace_input_with(node.args[0], snapshot_before(node, node.args[0]))
            taken += 1
            continue
        for source in [one for one in node.all_input_nodes if one is not node.args[0]]:
            if _root(source)[0] is target:
                node.replace_input_with(source, snapshot_before(node, source))
                taken += 1
    if taken:
        program.graph_module.recompile()
    return taken


def _root(node: torch.fx.Node) -> tuple[torch.fx.Node, bool]:
    """Whose memory ``node`` is or may become, and whether a copy lies between."""
    copied = False
    while node.op == "call_function" and node.target is not SNAPSHOT:
        getitem = getattr(node.target, "__name__", "") == "getitem"
        if not getitem and packet_of(node) not in _SAME_MEMORY:
            break
        copied = copied or packet_of(node) in _COPIES
        if not isinstance(node.args[0], torch.fx.Node):
            break
        node = node.args[0]
    return node, copied
