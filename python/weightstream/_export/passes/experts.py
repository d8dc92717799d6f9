"""The operators by which a mixture of experts is computed: each row times the matrix, of many, that its number names.

    x [T, K], numbers [T * each], matrices [E, N, K]   ──►   [T * each, N]: row i is x[i // each] times the matrix numbers[i]

One operator has the numbers and the matrices of all experts. So the runtime knows that a pass reads some rows of a weight [E, …], as it
does of an embedding: those that nobody names need not be there.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.library import custom_op

from ..._native.errors import ExportError
from .dequantized import name_of
from .nodes import call
from .outputs import rename_outputs
from .quantized import MUCH_SHARED

Tensor = torch.Tensor

_DENSE, _QUANTIZED = "weightstream::expert_mm", "weightstream::expert_quantized_mm"


@custom_op("weightstream::expert_mm", mutates_args=())
def expert_mm(x: Tensor, numbers: Tensor, matrices: Tensor, each: int, transposed: bool) -> Tensor:
    """``x`` [T, K], ``numbers`` [T * each], ``matrices`` [E, N, K], or [E, K, N] if ``transposed``: [T * each, N]."""
    return torch.stack([_row(x[i // each], matrices[number], transposed) for i, number in enumerate(numbers.tolist())])


def _row(x: Tensor, matrix: Tensor, transposed: bool) -> Tensor:
    return x @ matrix if transposed else matrix @ x


@expert_mm.register_fake
def _(x: Tensor, numbers: Tensor, matrices: Tensor, each: int, transposed: bool) -> Tensor:
    return x.new_empty(numbers.shape[0], matrices.shape[2 if transposed else 1])


@custom_op("weightstream::expert_quantized_mm", mutates_args=())
def expert_quantized_mm(x: Tensor, numbers: Tensor, packed: Tensor, scales: Tensor, each: int, group: int) -> Tensor:
    """The same with matrices that ``quantized_mm`` takes: ``packed`` [E, N, K / 2] of four bits or [E, N, K], ``scales`` [E, N, K / group]."""
    rows = [
        torch.ops.weightstream.quantized_mm(x[i // each].unsqueeze(0), packed[number], scales[number], group)
        for i, number in enumerate(numbers.tolist())
    ]
    return torch.cat(rows)


@expert_quantized_mm.register_fake
def _(x: Tensor, numbers: Tensor, packed: Tensor, scales: Tensor, each: int, group: int) -> Tensor:
    return x.new_empty(numbers.shape[0], packed.shape[1])


EXPERT_MM = torch.ops.weightstream.expert_mm.default
EXPERT_QUANTIZED_MM = torch.ops.weightstream.expert_quantized_mm.default

#: Of each operator, also of those that take their places on a GPU, the places of its matrices among its arguments. The numbers are the
#: second argument.
MATRICES = {_DENSE: (2,), _QUANTIZED: (2, 3), "weightstream::expert_few_rows": (2, 3), "weightstream::expert_many_rows": (2, 3)}


def on_a_gpu(program: ExportedProgram, shared_memory: int) -> None:
    """Lets kernels in Triton compute the products. The program's values are on the GPU, whose blocks share so many bytes."""
    found = [node for node in program.graph.nodes if name_of(node) in (_DENSE, _QUANTIZED)]
    if not found:
        return
    from . import experts_triton

    for node in found:
        if name_of(node) == _QUANTIZED:
            x, numbers, packed, scales, each, group = node.args
            transposed = False
        else:
            (x, numbers, packed, each, transposed), scales, group = node.args, None, 0
        if (dtype := x.meta["val"].dtype) is not torch.bfloat16:
            raise ExportError(
                f"experts on a GPU are for bfloat16, and these are {str(dtype).removeprefix('torch.')}; model.bfloat16() makes them so"
            )
        x = call(program.graph, node, torch.ops.aten.contiguous.default, x)
        given, count = (x, numbers, packed, scales, group, each, transposed), numbers.meta["val"].shape[0]
        if isinstance(count, int) and count <= experts_triton.FEW:
            product = call(program.graph, node, torch.ops.weightstream.expert_few_rows.default, *given)
        else:
            many, tile = torch.ops.weightstream.expert_many_rows.default, _tile(count, packed.meta["val"].shape[0])
            product = call(program.graph, node, many, *given, tile, shared_memory < MUCH_SHARED)
        node.replace_all_uses_with(product)
        program.graph.erase_node(node)
    program.graph_module.recompile()
    rename_outputs(program)


def _tile(rows: int | torch.SymInt, experts: int) -> int:
    """Rows of a tile: about as many as an expert has, in the example where they vary."""
    each = (rows if isinstance(rows, int) else rows.node.hint or 128) // experts
    return min(max(16, 1 << each.bit_length()), 64)
