"""Convolutions for a GPU: Triton's templates know 2 and 3 dimensions, and one number for each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from .places import operator_of

_ATEN = torch.ops.aten
#: stride, padding, dilation and output padding: their places among the arguments, and what an added dimension has.
_LISTS = {3: 1, 4: 0, 5: 1, 7: 0}


def written_out() -> dict[Any, Any]:
    """Decompositions of convolutions with words, or of one dimension, to the one operator that has numbers only."""
    table = torch.export.default_decompositions()
    names = ("conv1d", "conv2d", "conv3d", "conv_transpose1d")
    operators = [getattr(getattr(_ATEN, name), kind, None) for name in names for kind in ("default", "input", "padding")]
    found = {operator: table[operator] for operator in operators if operator is not None and operator in table}
    return {**found, _ATEN._convolution_mode.default: _with_numbers}


def _with_numbers(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: str, dilation: list[int], groups: int
) -> torch.Tensor:
    """A convolution whose padding is a word. What "same" cannot halve goes to the end, as in eager mode."""
    dims = x.dim() - 2
    stride, dilation = (list(one) * (dims if len(one) == 1 else 1) for one in (stride, dilation))
    totals = [step * (size - 1) if padding == "same" else 0 for step, size in zip(dilation, weight.shape[2:])]
    if any(total % 2 for total in totals):
        x = _ATEN.constant_pad_nd.default(x, [side for total in reversed(totals) for side in (0, total % 2)], 0.0)
    halves = [total // 2 for total in totals]
    return _ATEN.convolution.default(x, weight, bias, stride, halves, dilation, False, [0] * dims, groups)


def transposed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    is_transposed: bool,
    output_padding: list[int],
    groups: int,
) -> torch.Tensor:
    """A transposed convolution as a plain one: zeros between the input's elements, and a weight that is turned around."""
    if not is_transposed:
        return NotImplemented
    if x.dim() < weight.dim():
        return transposed(x.unsqueeze(0), weight, bias, stride, padding, dilation, True, output_padding, groups).squeeze(0)
    dims = x.dim() - 2
    stride, padding, dilation, output_padding = (
        list(one) * (dims if len(one) == 1 else 1) for one in (stride, padding, dilation, output_padding)
    )
    for dim, step in enumerate(stride, start=2):
        x = _spread(x, dim, step)
    before = [step * (size - 1) - inner for step, size, inner in zip(dilation, weight.shape[2:], padding)]
    sides = [side for start, more in zip(reversed(before), reversed(output_padding)) for side in (start, start + more)]
    x = _ATEN.constant_pad_nd.default(x, sides, 0.0)
    turned = weight.flip(list(range(2, weight.dim()))).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return _ATEN.convolution.default(x, turned, bias, [1] * dims, [0] * dims, dilation, False, [0] * dims, groups)


def _spread(x: torch.Tensor, dim: int, step: int) -> torch.Tensor:
    if step == 1:
        return x
    size = x.shape[dim]
    wide = _ATEN.constant_pad_nd.default(x.unsqueeze(dim + 1), [0, 0] * (x.dim() - 1 - dim) + [0, step - 1], 0.0)
    return wide.flatten(dim, dim + 1).narrow(dim, 0, (size - 1) * step + 1)


def widen(program: ExportedProgram) -> int:
    """Gives convolutions of one dimension a second one of size 1, and each list a number a dimension; returns how many were changed."""
    changed = 0
    for node in list(program.graph.nodes):
        if node.op != "call_function" or operator_of(node) is not _ATEN.convolution.default:
            continue
        dims = node.args[0].meta["val"].dim() - 2
        arguments = [*node.args]
        for place in _LISTS:
            given = list(arguments[place])
            arguments[place] = given * dims if len(given) == 1 else given
        node.args = tuple(arguments)
        if dims == 1:
            _widen(program.graph, node)
            changed += 1
    program.graph_module.recompile()
    return changed


def _widen(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    with graph.inserting_before(node):
        wide = [_call(graph, _ATEN.unsqueeze.default, source, 2) for source in node.args[:2]]
    arguments = [*wide, *node.args[2:]]
    for place, filler in _LISTS.items():
        arguments[place] = [filler, *arguments[place]]
    node.args = tuple(arguments)
    value = node.meta["val"]
    node.meta["val"] = value.unsqueeze(2)
    with graph.inserting_after(node):
        narrow = graph.call_function(_ATEN.squeeze.dim, (node, 2))
    narrow.meta["val"] = value
    node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)


def _call(graph: torch.fx.Graph, operator: Any, source: torch.fx.Node, *others: Any) -> torch.fx.Node:
    made = graph.call_function(operator, (source, *others))
    made.meta["val"] = operator(source.meta["val"], *others)
    return made
