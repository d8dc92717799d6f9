"""Weights that are much larger than the others: a head, and the table that it is tied to.

A budget has room for the largest weight, so that one head would set the least budget of a model. It becomes pieces of rows, each a weight
of its own::

    linear(x, head, bias)     cat([linear(x, head rows 0 … n, bias 0 … n), …], -1)
    embedding(head, tokens)   the rows of the piece that has them; each piece is read as a table is

Which weights are cut, and where, follows from their shape alone: methods that are exported apart cut the same weight alike.
"""

from __future__ import annotations

import itertools
import re

import torch
from torch.export import ExportedProgram

from ..._native.rows import cuts, rows_name
from .nodes import add, call, constants, drop, value_of

_ATEN = torch.ops.aten
_PIECE = re.compile(r"\.rows_\d+_\d+$")


def split(program: ExportedProgram) -> int:
    """Cuts the giant weights of ``program`` whose readers are products and lookups of rows; returns how many they were."""
    found = 0
    for node, spec in constants(program).items():
        value = value_of(program, spec)
        bounds = [] if value is None or _PIECE.search(spec.target) else cuts(value)
        if bounds and node.users and all(_reads_rows(user, node) for user in node.users):
            _cut(program, node, spec.target, value, bounds)
            found += 1
    return found


def _reads_rows(user: torch.fx.Node, weight: torch.fx.Node) -> bool:
    target = user.target
    if target is _ATEN.linear.default:
        return user.args[1] is weight and weight not in (user.args[0], *user.args[2:])
    return target is _ATEN.embedding.default and user.args[0] is weight and user.args[1] is not weight


def piece_name(fqn: str, begin: int, end: int) -> str:
    return f"{fqn}.{rows_name(begin, end)}"


def table_of(fqn: str) -> str:
    """The weight of which ``fqn`` is a piece, or ``fqn`` itself."""
    return re.sub(r"\.rows_\d+_\d+(?=$|\.)", "", fqn)


def _cut(program: ExportedProgram, node: torch.fx.Node, fqn: str, value: torch.Tensor, bounds: list[int]) -> None:
    parts = [(piece_name(fqn, begin, end), _alone(value[begin:end])) for begin, end in itertools.pairwise(bounds)]
    pieces = [add(program, node, *part) for part in parts]
    for user in list(node.users):
        write = _product if user.target is _ATEN.linear.default else _lookup
        user.replace_all_uses_with(write(program.graph, user, pieces, bounds))
        program.graph.erase_node(user)
    drop(program, node)


def _alone(rows: torch.Tensor) -> torch.Tensor:
    """The rows as a tensor whose storage has nothing else, as constants do. What a checkpoint has mapped is not copied."""
    if rows.device.type != "cpu":
        return rows.clone()
    return torch.from_numpy(rows.view(torch.uint8).numpy()).view(rows.dtype)


def _product(graph: torch.fx.Graph, user: torch.fx.Node, pieces: list[torch.fx.Node], bounds: list[int]) -> torch.fx.Node:
    given, bias = user.args[0], user.args[2] if len(user.args) > 2 else None
    parts = []
    for piece, begin, end in zip(pieces, bounds, bounds[1:], strict=False):
        add = None if bias is None else call(graph, user, _ATEN.slice.Tensor, bias, 0, begin, end)
        parts.append(call(graph, user, _ATEN.linear.default, given, piece, add))
    return call(graph, user, _ATEN.cat.default, parts, -1)


def _lookup(graph: torch.fx.Graph, user: torch.fx.Node, pieces: list[torch.fx.Node], bounds: list[int]) -> torch.fx.Node:
    rows, found = user.args[1], None
    for piece, begin, end in zip(pieces, bounds, bounds[1:], strict=False):
        number = call(graph, user, _ATEN.clamp.default, call(graph, user, _ATEN.sub.Tensor, rows, begin), 0, end - begin - 1)
        here = call(graph, user, _ATEN.embedding.default, piece, number)
        if found is not None:
            reached = call(graph, user, _ATEN.unsqueeze.default, call(graph, user, _ATEN.ge.Scalar, rows, begin), -1)
            here = call(graph, user, _ATEN.where.self, reached, here, found)
        found = here
    return found
