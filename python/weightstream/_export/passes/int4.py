"""Products with weights of four bits: two to a byte, in the file, over the link and in the kernel.

torchao keeps such a weight in eight bits, and writes the product with a weight that it dequantizes::

    linear(x, dequantize_affine(q, [1, group], scale, zero_point, …), bias)

becomes::

    int4_mm(x, packed, scale, group)  + group sums of x · offsetsᵀ, if zero points are not the middle  + bias

    packed   [N, K / 2] int8: columns j and K / 2 + j of a row in the low and the high half of byte j, each plus 8
    scale    [N, K / group]
    offsets  [N, K / group]: what a zero point adds to each weight of its group

No kernel writes the whole dequantized weight. On a GPU the product is in Triton (`int4_triton.py`), on the CPU one of the runtime.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.library import custom_op

from ..._native.progress import note
from ..._torch.probe import is_probe
from . import giants
from .nodes import add, call, constants, drop, value_of
from .outputs import rename_outputs
from .places import operator_of

_ATEN = torch.ops.aten
_MIDDLE = 8
_SUFFIX = ".parametrizations.weight.original0"


@custom_op("weightstream::int4_mm", mutates_args=())
def int4_mm(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """``x`` [..., K] times the weight of ``packed`` [N, K / 2] and ``scales`` [N, K / group]: [..., N]."""
    halves = torch.cat((packed & 15, (packed >> 4) & 15), -1) - _MIDDLE
    weight = halves.unflatten(-1, (-1, group)).to(scales.dtype) * scales.unsqueeze(-1)
    return x @ weight.flatten(-2).to(x.dtype).t()


@int4_mm.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


INT4_MM = torch.ops.weightstream.int4_mm.default


def pack_halves(values: torch.Tensor) -> torch.Tensor:
    """Integers from 0 to 15, two to a byte along the last dimension: one of its first half and one of its second half."""
    low, high = values.to(torch.uint8).chunk(2, -1)
    return (low | (high << 4)).view(torch.int8)


class Weight(NamedTuple):
    """A quantized weight of a program."""

    node: torch.fx.Node
    fqn: str
    #: [N, K], from 0 to 15; [N, K / group]; the same, or None.
    values: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    group: int


def pack(program: ExportedProgram, device: str) -> int:
    """Packs the weights of four bits of ``program`` whose readers are products on ``device``; returns how many they are."""
    found, others = 0, []
    for node in list(program.graph.nodes):
        if _name(node) != "torchao::dequantize_affine":
            continue
        weight = _weight(program, node)
        if weight is None or not node.users or not all(_is_product(user, node) for user in node.users):
            continue
        if why := _unsuited(weight, node, device):
            others.append(f"'{weight.fqn}' keeps its integers of four bits in eight: {why}")
            continue
        _pack(program, node, weight)
        found += 1
    for line in dict.fromkeys(others):
        note(line)
    if found:
        for node in [node for node in constants(program) if not node.users and "parametrizations" in node.name]:
            drop(program, node)
        program.graph.lint()
        program.graph_module.recompile()
        rename_outputs(program)
        note(f"{found} weights of four bits are stored in four bits")
    return found


def on_a_gpu(program: ExportedProgram) -> None:
    """Lets kernels in Triton compute the products. The program's values are on the GPU."""
    found = [node for node in program.graph.nodes if _name(node) == "weightstream::int4_mm"]
    if not found:
        return
    from . import int4_triton

    graph, few = program.graph, torch.ops.weightstream.int4_few_rows.default
    for node in found:
        x, packed, scales, group = node.args
        *leading, columns = x.meta["val"].shape
        rows = call(graph, node, _ATEN.contiguous.default, call(graph, node, _ATEN.reshape.default, x, [-1, columns]))
        count = math.prod(leading)
        if isinstance(count, int) and count <= int4_triton.FEW:
            product = call(graph, node, few, rows, packed, scales, group)
        else:
            product = call(graph, node, torch.ops.weightstream.int4_many_rows.default, rows, packed, scales, group, _tile(count))
        sizes = [size if isinstance(size, int) else call(graph, node, _ATEN.sym_size.int, x, at) for at, size in enumerate(leading)]
        node.replace_all_uses_with(call(graph, node, _ATEN.reshape.default, product, [*sizes, packed.meta["val"].shape[0]]))
        graph.erase_node(node)
    program.graph_module.recompile()
    rename_outputs(program)


def _tile(rows: int | torch.SymInt) -> int:
    """Rows of a tile: of the example's, where they vary."""
    count = rows if isinstance(rows, int) else rows.node.hint or 128
    return min(max(16, 1 << (count - 1).bit_length()), 256)


def _name(node: torch.fx.Node) -> str:
    found = operator_of(node)
    return "" if found is None else found._schema.name


def _source(node: Any) -> Any:
    return node.args[0] if isinstance(node, torch.fx.Node) and is_probe(node) else node


def _is_product(user: torch.fx.Node, weight: torch.fx.Node) -> bool:
    return user.target is _ATEN.linear.default and user.args[1] is weight and weight not in (user.args[0], *user.args[2:])


def _weight(program: ExportedProgram, node: torch.fx.Node) -> Weight | None:
    """What the node dequantizes, if it is a constant of four bits."""
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    known = constants(program)
    source, scale, zero = (_source(given.get(name)) for name in ("input", "scale", "zero_point"))
    low, high, block = given.get("quant_min"), given.get("quant_max"), list(given["block_size"])
    if source not in known or scale not in known or (zero is not None and zero not in known) or (low, high) not in ((-8, 7), (0, 15)):
        return None
    values, scales = value_of(program, known[source]), value_of(program, known[scale])
    zeros = None if zero is None else value_of(program, known[zero])
    if values is None or scales is None or values.dim() != 2 or len(block) != 2 or block[0] != 1:
        return None
    group = block[1]
    offsets = scales.new_full(scales.shape, low + _MIDDLE) if zeros is None else low + _MIDDLE - zeros.to(scales.dtype)
    offsets = (offsets * scales).reshape(values.shape[0], -1) if offsets.any() else None
    fqn = known[source].target
    fqn = fqn.removesuffix(_SUFFIX) + ".weight" if fqn.endswith(_SUFFIX) else fqn
    return Weight(source, fqn, values.to(torch.int16) - low, scales.reshape(values.shape[0], -1), offsets, group)


def _unsuited(weight: Weight, node: torch.fx.Node, device: str) -> str | None:
    columns, group = weight.values.shape[1], weight.group
    if columns % 2 or columns % group:
        return f"rows of {columns} elements do not divide into pairs and into groups of {group}"
    if device == "cpu":
        return None
    given = {user.args[0].meta["val"].dtype for user in node.users} | {weight.scales.dtype}
    if given != {torch.bfloat16}:
        return f"the kernel on a GPU is for bfloat16, not {', '.join(sorted(str(one).removeprefix('torch.') for one in given))}"
    if group != columns and (group < 32 or group & (group - 1)):
        return f"the kernel on a GPU takes groups of a power of two from 32 on, or a whole row, not {group}"
    return None


def _pack(program: ExportedProgram, node: torch.fx.Node, weight: Weight) -> None:
    packed, rows = pack_halves(weight.values), weight.values.shape[0]
    bounds = giants.cuts(packed) or [0, rows]
    pieces = []
    for begin, end in itertools.pairwise(bounds):
        name = weight.fqn if len(bounds) == 2 else giants.piece_name(weight.fqn, begin, end)
        parts = {"int4": packed, "scales": weight.scales, "offsets": weight.offsets}
        pieces.append(
            [
                None if whole is None else add(program, weight.node, f"{name}.{part}", whole[begin:end].clone())
                for part, whole in parts.items()
            ]
        )
    for user in list(node.users):
        given, bias = user.args[0], user.args[2] if len(user.args) > 2 else None
        found = [_product(program.graph, user, given, piece, weight.group) for piece in pieces]
        result = found[0] if len(found) == 1 else call(program.graph, user, _ATEN.cat.default, found, -1)
        if bias is not None:
            result = call(program.graph, user, _ATEN.add.Tensor, result, bias)
        user.replace_all_uses_with(result)
        program.graph.erase_node(user)
    inputs = node.all_input_nodes
    program.graph.erase_node(node)
    for probe in inputs:
        if not probe.users and is_probe(probe):
            program.graph.erase_node(probe)
    for source in map(_source, inputs):
        if not source.users:
            drop(program, source)


def _product(graph: torch.fx.Graph, user: torch.fx.Node, x: torch.fx.Node, piece: list[Any], group: int) -> torch.fx.Node:
    packed, scales, offsets = piece
    result = call(graph, user, INT4_MM, x, packed, scales, group)
    if offsets is None:
        return result
    groups = scales.meta["val"].shape[1]
    sums = call(graph, user, _ATEN.sum.dim_IntList, call(graph, user, _ATEN.unflatten.int, x, -1, [groups, group]), [-1])
    return call(graph, user, _ATEN.add.Tensor, result, call(graph, user, _ATEN.linear.default, sums, offsets))
