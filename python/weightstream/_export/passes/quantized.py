"""Products with quantized weights: in the file, over the link and in the kernel with the bits that they have.

What :mod:`dequantized` finds becomes::

    quantized_mm(x, packed, scale, group)  + group sums of x · offsetsᵀ, if zero points are not the middle  + bias

    packed   [N, K] int8 or float8_e4m3fn; or, of four bits, [N, K / 2] int8: columns j and K / 2 + j of a row in the low and the high half
             of byte j, each plus 8
    scale    [N, K / group]
    offsets  [N, K / group]: what a zero point adds to each weight of its group

No kernel writes the whole dequantized weight. On a GPU the product is in Triton (`quantized_triton.py`), on the CPU one of the runtime.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.library import custom_op

from ..._native.progress import note
from ..._native.rows import cuts
from . import giants
from .dequantized import Product, Weight, find, name_of
from .nodes import add, call, constants, drop
from .outputs import rename_outputs

_ATEN = torch.ops.aten
_MIDDLE = 8
#: Bytes for the larger blocks of the kernels for many rows.
MUCH_SHARED = 160 << 10


@custom_op("weightstream::quantized_mm", mutates_args=())
def quantized_mm(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """``x`` [..., K] times the weight of ``packed`` [N, K], or [N, K / 2] of four bits, and ``scales`` [N, K / group]: [..., N]."""
    values = packed if packed.shape[1] == x.shape[-1] else torch.cat((packed & 15, (packed >> 4) & 15), -1) - _MIDDLE
    weight = values.to(scales.dtype).unflatten(-1, (-1, group)) * scales.unsqueeze(-1)
    return x @ weight.flatten(-2).to(x.dtype).t()


@quantized_mm.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


QUANTIZED_MM = torch.ops.weightstream.quantized_mm.default


def pack_halves(values: torch.Tensor) -> torch.Tensor:
    """Integers from 0 to 15, two to a byte along the last dimension: one of its first half and one of its second half."""
    low, high = values.to(torch.uint8).chunk(2, -1)
    return (low | (high << 4)).view(torch.int8)


def pack(program: ExportedProgram, device: str, sms: Callable[[], str] = str) -> int:
    """Has products on ``device`` read the quantized weights of ``program`` as they are; returns how many weights these are.

    ``sms`` tells the compute capability of a GPU, ``90`` for 9.0, or of several, ``86,90``.
    """
    packed, others = {4: 0, 8: 0}, []
    for weight, products in find(program):
        if why := _unsuited(weight, products, device, sms):
            does = "keeps its integers of four bits in eight" if weight.bits == 4 else "is dequantized by the compiled code"
            others.append(f"'{weight.fqn}' {does}: {why}")
            continue
        _pack(program, weight, products)
        packed[weight.bits] += 1
    for line in dict.fromkeys(others):
        note(line)
    for bits, count in packed.items():
        if count:
            note(f"{count} weights are stored and multiplied in {'four' if bits == 4 else 'eight'} bits")
    if found := sum(packed.values()):
        for node in [node for node in constants(program) if not node.users and "parametrizations" in node.name]:
            drop(program, node)
        program.graph.lint()
        program.graph_module.recompile()
        rename_outputs(program)
    return found


def on_a_gpu(program: ExportedProgram, shared_memory: int) -> None:
    """Lets kernels in Triton compute the products. The program's values are on the GPU, whose blocks share so many bytes."""
    found = [node for node in program.graph.nodes if name_of(node) == "weightstream::quantized_mm"]
    if not found:
        return
    from . import quantized_triton

    graph, few = program.graph, torch.ops.weightstream.quantized_few_rows.default
    for node in found:
        x, packed, scales, group = node.args
        *leading, columns = x.meta["val"].shape
        bits, floats = (8 if packed.meta["val"].shape[1] == columns else 4), {x.meta["val"].dtype, scales.meta["val"].dtype}
        if _not_on_a_gpu(bits, columns, group, floats if bits == 4 else {x.meta["val"].dtype}):
            node.replace_all_uses_with(_written_out(graph, node, bits))
            graph.erase_node(node)
            continue
        rows = call(graph, node, _ATEN.contiguous.default, call(graph, node, _ATEN.reshape.default, x, [-1, columns]))
        count = math.prod(leading)
        if isinstance(count, int) and count <= quantized_triton.FEW:
            product = call(graph, node, few, rows, packed, scales, group)
        else:
            many, little = torch.ops.weightstream.quantized_many_rows.default, shared_memory < MUCH_SHARED
            product = call(graph, node, many, rows, packed, scales, group, _tile(count), little)
        sizes = [size if isinstance(size, int) else call(graph, node, _ATEN.sym_size.int, x, at) for at, size in enumerate(leading)]
        node.replace_all_uses_with(call(graph, node, _ATEN.reshape.default, product, [*sizes, packed.meta["val"].shape[0]]))
        graph.erase_node(node)
    program.graph_module.recompile()
    rename_outputs(program)


def _tile(rows: int | torch.SymInt) -> int:
    """Rows of a tile: of the example's, where they vary."""
    count = rows if isinstance(rows, int) else rows.node.hint or 128
    return min(max(16, 1 << (count - 1).bit_length()), 128)


def _unsuited(weight: Weight, products: list[Product], device: str, sms: Callable[[], str]) -> str | None:
    columns, group = weight.stored.shape[1], weight.group
    if columns % group or (weight.bits == 4 and columns % 2):
        return f"rows of {columns} elements do not divide into pairs and into groups of {group}"
    if device == "cpu":
        return None
    if weight.stored.dtype is torch.float8_e4m3fn and (sm := min(filter(None, sms().split(",")), key=int, default="")) and int(sm) < 89:
        return f"GPUs of SM {sm[:-1]}.{sm[-1]} have no floats of eight bits"
    types = {product.x.meta["val"].dtype for product in products} | ({weight.scales.dtype} if weight.bits == 4 else set())
    return _not_on_a_gpu(weight.bits, columns, group, types)


def _not_on_a_gpu(bits: int, columns: int, group: int, types: set[torch.dtype]) -> str | None:
    """Why the kernels on a GPU do not compute a product."""
    if types != {torch.bfloat16}:
        return f"the kernel on a GPU is for bfloat16, not {', '.join(sorted(str(one).removeprefix('torch.') for one in types))}"
    if bits == 8 and group != columns:
        return f"the kernel on a GPU takes one scale for a row, not for {group} elements"
    if group != columns and (group < 32 or group & (group - 1)):
        return f"the kernel on a GPU takes groups of a power of two from 32 on, or a whole row, not {group}"
    return None


def _written_out(graph: torch.fx.Graph, node: torch.fx.Node, bits: int) -> torch.fx.Node:
    """The same product with a dequantized weight, for the compiler."""
    x, values, scales, _ = node.args
    rows, groups = scales.meta["val"].shape

    def then(operator: Any, *args: Any) -> torch.fx.Node:
        return call(graph, node, operator, *args)

    if bits == 4:
        low = then(_ATEN.bitwise_and.Scalar, values, 15)
        high = then(_ATEN.bitwise_and.Scalar, then(_ATEN.__rshift__.Scalar, values, 4), 15)
        values = then(_ATEN.sub.Scalar, then(_ATEN.cat.default, [low, high], -1), _MIDDLE)
    dense = then(_ATEN.reshape.default, then(_ATEN.to.dtype, values, scales.meta["val"].dtype), [rows, groups, -1])
    dense = then(_ATEN.mul.Tensor, dense, then(_ATEN.unsqueeze.default, scales, -1))
    dense = then(_ATEN.to.dtype, then(_ATEN.reshape.default, dense, [rows, -1]), x.meta["val"].dtype)
    return then(_ATEN.linear.default, x, dense)


def _pack(program: ExportedProgram, weight: Weight, products: list[Product]) -> None:
    packed, rows = pack_halves(weight.stored) if weight.bits == 4 else weight.stored, weight.stored.shape[0]
    kind = "int4" if weight.bits == 4 else "int8" if packed.dtype is torch.int8 else "fp8"
    bounds = cuts(packed) or [0, rows]
    parts = {kind: packed, "scales": weight.scales, "offsets": weight.offsets}
    pieces = []
    for begin, end in itertools.pairwise(bounds):
        name = weight.fqn if len(bounds) == 2 else giants.piece_name(weight.fqn, begin, end)
        pieces.append(
            [
                None if whole is None else add(program, weight.node, f"{name}.{part}", whole[begin:end].clone())
                for part, whole in parts.items()
            ]
        )
    for product in products:
        x, bias, result = product.x, product.bias, product.result
        found = [_product(program.graph, result, x, piece, weight.group) for piece in pieces]
        whole = found[0] if len(found) == 1 else call(program.graph, result, _ATEN.cat.default, found, -1)
        if bias is not None:
            whole = call(program.graph, result, _ATEN.add.Tensor, whole, bias)
        result.replace_all_uses_with(whole)
        _erase(program, result)


def _erase(program: ExportedProgram, node: torch.fx.Node) -> None:
    """Removes a node that nothing reads, and what only it read."""
    if node._erased:
        return
    checks = [user for user in node.users if user.target is _ATEN._assert_tensor_metadata.default]
    if len(checks) < len(node.users):
        return
    for check in checks:
        program.graph.erase_node(check)
    if node.op == "placeholder":
        if node.name in {spec.arg.name for spec in program.graph_signature.input_specs if spec.target}:
            drop(program, node)
        return
    inputs = node.all_input_nodes
    program.graph.erase_node(node)
    for one in inputs:
        _erase(program, one)


def _product(graph: torch.fx.Graph, before: torch.fx.Node, x: torch.fx.Node, piece: list[Any], group: int) -> torch.fx.Node:
    packed, scales, offsets = piece
    result = call(graph, before, QUANTIZED_MM, x, packed, scales, group)
    if offsets is None:
        return result
    rows, groups = scales.meta["val"].shape
    sums = call(graph, before, _ATEN.sum.dim_IntList, call(graph, before, _ATEN.unflatten.int, x, -1, [groups, group]), [-1])
    if groups == 1:
        added = call(graph, before, _ATEN.mul.Tensor, sums, call(graph, before, _ATEN.reshape.default, offsets, [rows]))
    else:
        added = call(graph, before, _ATEN.linear.default, sums, offsets)
    return call(graph, before, _ATEN.add.Tensor, result, added)
