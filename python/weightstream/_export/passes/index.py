"""Indices that are tensors of one number: ``cache[place]``.

Export reads the number (``item``) and selects by it. Lowering traces the program again, gets a number that it knows nothing about,
and cannot tell whether it is in range. ``aten.index`` takes the tensor itself.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

_ATEN = torch.ops.aten
NUMBERS = (_ATEN.item.default, _ATEN._local_scalar_dense.default)
_INTEGERS = (torch.int64, torch.int32)


def index_by_tensors(program: ExportedProgram) -> int:
    """Lets ``program``, whose mutation is functional, select by tensors, and returns in how many places. Then it has to be traced again."""
    changed = 0
    for node in list(program.graph.nodes):
        if node.target is _ATEN.select.int and (index := _tensor_of(node.args[2])) is not None:
            changed += _replace(node, _ATEN.index.Tensor, (node.args[0], _at(node, node.args[1], index)))
        elif node.target is _ATEN.select_scatter.default and (index := _tensor_of(node.args[3])) is not None:
            changed += _replace(node, _ATEN.index_put.default, (node.args[0], _at(node, node.args[2], index), node.args[1]))
    for node in reversed(list(program.graph.nodes)):
        if node.target in NUMBERS and not node.users:
            program.graph.erase_node(node)
    return changed


def _tensor_of(index: object) -> torch.fx.Node | None:
    if isinstance(index, torch.fx.Node) and index.target in NUMBERS and index.args[0].meta["val"].dtype in _INTEGERS:
        return index.args[0]
    return None


def _at(node: torch.fx.Node, dim: int, index: torch.fx.Node) -> list[torch.fx.Node | None]:
    return [None] * (dim % node.args[0].meta["val"].dim()) + [index]


def _replace(node: torch.fx.Node, target: torch._ops.OpOverload, args: tuple) -> int:
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, args)
    new.meta.update(node.meta)
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
    return 1
