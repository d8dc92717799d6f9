"""Weights that are much larger than the others: a head, and the table that it is tied to.

A budget has room for the largest weight, so that one head would set the least budget of a model. It becomes pieces of rows, each a weight
of its own::

    linear(x, head, bias)     cat([linear(x, head rows 0 … n, bias 0 … n), …], -1)
    embedding(head, tokens)   the rows of the piece that has them; each piece is read as a table is

Which weights are cut, and where, follows from their shape alone: methods that are exported apart cut the same weight alike.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

_ATEN = torch.ops.aten
_MIB = 1 << 20
#: A table has more rows than columns, by so many times, and more bytes. Products that are less tall are cut above `_HUGE` bytes.
_TALL, _LARGE, _HUGE = 8, 16 * _MIB, 256 * _MIB
#: Pieces have a sixteenth of the bytes, between these: the least budget holds three of them.
_LEAST_PIECE, _MOST_PIECE = 4 * _MIB, 64 * _MIB
#: Pieces begin at whole tiles of a kernel.
_TILE = 128
_PIECE = re.compile(r"\.rows_\d+_\d+$")


def split(program: ExportedProgram) -> int:
    """Cuts the giant weights of ``program`` whose readers are products and lookups of rows; returns how many they were."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)}
    written = set(program.graph_signature.buffers_to_mutate.values())
    found = 0
    for node in list(program.graph.nodes):
        spec = specs.get(node.name) if node.op == "placeholder" else None
        if spec is None or spec.target in written or _PIECE.search(spec.target):
            continue
        value = program.state_dict.get(spec.target)
        bounds = cuts(value) if isinstance(value, torch.Tensor) else []
        if bounds and node.users and all(_reads_rows(user, node) for user in node.users):
            _cut(program, node, spec, value.detach(), bounds)
            found += 1
    return found


def cuts(weight: torch.Tensor) -> list[int]:
    """The first rows of the pieces of a weight, and its end; none for a weight that stays whole."""
    if weight.dim() != 2 or not weight.is_contiguous():
        return []
    rows, columns = weight.shape
    tall = rows >= _TALL * columns and weight.nbytes > _LARGE
    if not tall and weight.nbytes <= _HUGE:
        return []
    piece = min(max(weight.nbytes // 16, _LEAST_PIECE), _MOST_PIECE)
    step = max(piece * rows // weight.nbytes // _TILE, 1) * _TILE
    return [*range(0, rows, step), rows]


def _reads_rows(user: torch.fx.Node, weight: torch.fx.Node) -> bool:
    target = user.target
    if target is _ATEN.linear.default:
        return user.args[1] is weight and weight not in (user.args[0], *user.args[2:])
    return target is _ATEN.embedding.default and user.args[0] is weight and user.args[1] is not weight


def _cut(program: ExportedProgram, node: torch.fx.Node, spec: InputSpec, value: torch.Tensor, bounds: list[int]) -> None:
    pieces = []
    fake = node.meta["val"]
    position = program.graph_signature.input_specs.index(spec)
    del program.graph_signature.input_specs[position]
    for begin, end in zip(bounds, bounds[1:]):
        fqn = f"{spec.target}.rows_{begin}_{end}"
        with program.graph.inserting_before(node):
            piece = program.graph.placeholder(f"{node.name}_rows_{begin}_{end}")
        piece.meta = {**node.meta, "val": fake.new_empty(end - begin, fake.shape[1])}
        program.graph_signature.input_specs.insert(
            position + len(pieces), InputSpec(spec.kind, TensorArgument(name=piece.name), fqn, spec.persistent)
        )
        rows = value[begin:end].clone()
        program._state_dict[fqn] = torch.nn.Parameter(rows, requires_grad=False) if spec.kind is InputKind.PARAMETER else rows
        pieces.append(piece)
    del program._state_dict[spec.target]
    for user in list(node.users):
        write = _product if user.target is _ATEN.linear.default else _lookup
        user.replace_all_uses_with(write(program.graph, user, pieces, bounds))
        program.graph.erase_node(user)
    program.graph.erase_node(node)


def _product(graph: torch.fx.Graph, user: torch.fx.Node, pieces: list[torch.fx.Node], bounds: list[int]) -> torch.fx.Node:
    given, bias = user.args[0], user.args[2] if len(user.args) > 2 else None
    parts = []
    for piece, begin, end in zip(pieces, bounds, bounds[1:]):
        add = None if bias is None else _call(graph, user, _ATEN.slice.Tensor, bias, 0, begin, end)
        parts.append(_call(graph, user, _ATEN.linear.default, given, piece, add))
    return _call(graph, user, _ATEN.cat.default, parts, -1)


def _lookup(graph: torch.fx.Graph, user: torch.fx.Node, pieces: list[torch.fx.Node], bounds: list[int]) -> torch.fx.Node:
    rows, found = user.args[1], None
    for piece, begin, end in zip(pieces, bounds, bounds[1:]):
        number = _call(graph, user, _ATEN.clamp.default, _call(graph, user, _ATEN.sub.Tensor, rows, begin), 0, end - begin - 1)
        here = _call(graph, user, _ATEN.embedding.default, piece, number)
        if found is not None:
            reached = _call(graph, user, _ATEN.unsqueeze.default, _call(graph, user, _ATEN.ge.Scalar, rows, begin), -1)
            here = _call(graph, user, _ATEN.where.self, reached, here, found)
        found = here
    return found


def _call(graph: torch.fx.Graph, before: torch.fx.Node, operator: torch._ops.OpOverload, *args: Any) -> torch.fx.Node:
    """A node with its value. Not traced: a tracer makes copies of views, and a product's weight is one."""
    with graph.inserting_before(before):
        node = graph.call_function(operator, args)
    values = torch.fx.map_arg(args, lambda one: one.meta["val"])
    mode = torch._guards.detect_fake_mode([one.meta["val"] for one in node.all_input_nodes])
    with mode, torch.no_grad():
        node.meta["val"] = operator(*values)
    node.meta.update({key: before.meta[key] for key in ("nn_module_stack", "stack_trace") if key in before.meta})
    return node
