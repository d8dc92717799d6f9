"""The operators by which a mixture of experts is computed: each row times the matrix, of many, that its number names.

    x [T, K], numbers [T * each], matrices [E, N, K]   ──►   [T * each, N]: row i is x[i // each] times the matrix numbers[i]

One operator has the numbers and the matrices of all experts. So the runtime knows that a pass reads some rows of a weight [E, …], as it
does of an embedding: those that nobody names need not be there.

A program has, beside the matrices of a product, their *places*: E numbers of bytes, from the address that the kernel is given to each
matrix; an address; and E counts. The runtime changes the places: a matrix that is on the device is read there, and the others in host
memory. If it writes the address of the counts, kernels count there how often they read each matrix.
"""

from __future__ import annotations

import re

import torch
from torch.export import ExportedProgram
from torch.library import custom_op

from ..._native.errors import ExportError
from .dequantized import name_of
from .nodes import add, call, constants, value_of
from .outputs import rename_outputs
from .quantized import MUCH_SHARED

Tensor = torch.Tensor

_DENSE, _QUANTIZED = "weightstream::expert_mm", "weightstream::expert_quantized_mm"
_PLACED_DENSE, _PLACED_QUANTIZED = "weightstream::placed_expert_mm", "weightstream::placed_expert_quantized_mm"
_FEW, _MANY = "weightstream::expert_few_rows", "weightstream::expert_many_rows"
_PLACES = re.compile(r"_places_(any|\d+)$")


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


@custom_op(_PLACED_DENSE, mutates_args=())
def placed_expert_mm(x: Tensor, numbers: Tensor, matrices: Tensor, places: Tensor, each: int, transposed: bool) -> Tensor:
    """``expert_mm`` where the runtime says in ``places`` [2 E + 1], int64, how many bytes after the first matrix each lies."""
    return expert_mm(x, numbers, matrices, each, transposed)


@placed_expert_mm.register_fake
def _(x: Tensor, numbers: Tensor, matrices: Tensor, places: Tensor, each: int, transposed: bool) -> Tensor:
    return x.new_empty(numbers.shape[0], matrices.shape[2 if transposed else 1])


@custom_op(_PLACED_QUANTIZED, mutates_args=())
def placed_expert_quantized_mm(
    x: Tensor, numbers: Tensor, packed: Tensor, scales: Tensor, places: Tensor, scale_places: Tensor, each: int, group: int
) -> Tensor:
    """``expert_quantized_mm`` with such places of both."""
    return expert_quantized_mm(x, numbers, packed, scales, each, group)


@placed_expert_quantized_mm.register_fake
def _(x: Tensor, numbers: Tensor, packed: Tensor, scales: Tensor, places: Tensor, scale_places: Tensor, each: int, group: int) -> Tensor:
    return x.new_empty(numbers.shape[0], packed.shape[1])


PLACED_MM = torch.ops.weightstream.placed_expert_mm.default
PLACED_QUANTIZED_MM = torch.ops.weightstream.placed_expert_quantized_mm.default

#: Of each operator, also of those for a GPU, where its matrices are among its arguments, and where the places of each are. The numbers are
#: the second argument.
MATRICES: dict[str, dict[int, int | None]] = {
    _DENSE: {2: None},
    _QUANTIZED: {2: None, 3: None},
    _PLACED_DENSE: {2: 3},
    _PLACED_QUANTIZED: {2: 4, 3: 5},
    _FEW: {2: 7, 3: 8},
    _MANY: {2: None, 3: None},
}


def is_places(fqn: str) -> bool:
    """Whether a constant says where matrices are. The runtime writes to it, and it never streams."""
    return _PLACES.search(fqn) is not None


def place(program: ExportedProgram) -> None:
    """Gives the products of ``program`` the places of their matrices."""
    specs, made = constants(program), {}
    for node in [node for node in program.graph.nodes if name_of(node) in (_DENSE, _QUANTIZED)]:
        x, numbers, *matrices = node.args[: 3 if name_of(node) == _DENSE else 4]
        count = numbers.meta["val"].shape[0]
        places = []
        for one in matrices:
            each = one.meta["val"].stride(0) * one.meta["val"].element_size()
            whole = 0, each * one.meta["val"].shape[0], each
            rest = [0, one.meta["val"].shape[0] + 1]
            if one not in specs or (value := value_of(program, specs[one])) is None:
                # They are computed in each pass.
                own = call(program.graph, node, torch.ops.aten.arange.start_step, *whole)
                places.append(call(program.graph, node, torch.ops.aten.constant_pad_nd.default, own, rest))
                continue
            # Methods that read in place and such that do not have places of their own.
            name = f"{specs[one].target}_places_{count if isinstance(count, int) else 'any'}"
            if name not in made:
                table = torch.nn.functional.pad(torch.arange(*whole, device=value.device), rest)
                made[name] = add(program, one, name, table)
            places.append(made[name])
        operator = PLACED_MM if name_of(node) == _DENSE else PLACED_QUANTIZED_MM
        product = call(program.graph, node, operator, x, numbers, *matrices, *places, *node.args[2 + len(matrices) :])
        node.replace_all_uses_with(product)
        program.graph.erase_node(node)
    program.graph_module.recompile()
    rename_outputs(program)


def on_a_gpu(program: ExportedProgram, shared_memory: int) -> None:
    """Lets kernels in Triton compute the products. The program's values are on the GPU, whose blocks share so many bytes."""
    found = [node for node in program.graph.nodes if name_of(node) in (_DENSE, _QUANTIZED, _PLACED_DENSE, _PLACED_QUANTIZED)]
    if not found:
        return
    from . import experts_triton

    for node in found:
        places: list[torch.fx.Node | None] = [None, None]
        if name_of(node) in (_QUANTIZED, _PLACED_QUANTIZED):
            x, numbers, packed, scales, *places, each, group = node.args
            transposed = False
        else:
            (x, numbers, packed, *places, each, transposed), scales, group = node.args, None, 0
        # The kernels load 16 bytes at once.
        told = [one for one, matrices in zip(places, (packed, scales), strict=False) if _is_aligned(matrices)]
        places = [one if one in told else None for one in [*places, None, None][:2]]
        if (dtype := x.meta["val"].dtype) is not torch.bfloat16:
            raise ExportError(
                f"experts on a GPU are for bfloat16, and these are {str(dtype).removeprefix('torch.')}; model.bfloat16() makes them so"
            )
        x = call(program.graph, node, torch.ops.aten.contiguous.default, x)
        given, count = (x, numbers, packed, scales, group, each, transposed), numbers.meta["val"].shape[0]
        if isinstance(count, int) and count <= experts_triton.FEW:
            product = call(program.graph, node, torch.ops.weightstream.expert_few_rows.default, *given, *places)
        else:
            many, tile = torch.ops.weightstream.expert_many_rows.default, _tile(count, packed.meta["val"].shape[0])
            product = call(program.graph, node, many, *given, tile, shared_memory < MUCH_SHARED)
        node.replace_all_uses_with(product)
        program.graph.erase_node(node)
    program.graph_module.recompile()
    rename_outputs(program)


def _is_aligned(matrices: torch.fx.Node) -> bool:
    value = matrices.meta["val"]
    return value.stride(0) * value.element_size() % 16 == 0


def _tile(rows: int | torch.SymInt, experts: int) -> int:
    """Rows of a tile: about as many as an expert has, in the example where they vary."""
    each = (rows if isinstance(rows, int) else rows.node.hint or 128) // experts
    return min(max(16, 1 << each.bit_length()), 64)
