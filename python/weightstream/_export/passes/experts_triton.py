"""Products by experts on a GPU: the kernels of :mod:`quantized_triton`, with a matrix for each row or for each tile of rows.

numbers   2 0 2 1 0        counts of each expert      2 1 2
order     1 4 | 3 . | 0 2  rows of one expert, in their order, in whole tiles
owner      0     1     2   the expert of each tile
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from .quantized_triton import _few, _many, _tiles

#: Up to so many rows each is computed by itself: most have an expert of their own.
FEW = 64
#: Numbers that a program looks at at once.
_BLOCK = 1024


@triton.jit
def _count(NUMBERS, COUNTS, ROWS, BLOCK: tl.constexpr):
    """How many rows an expert has."""
    expert = tl.program_id(0)
    count = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, ROWS, BLOCK):
        at = start + tl.arange(0, BLOCK)
        count += (tl.load(NUMBERS + at, mask=at < ROWS, other=-1) == expert).to(tl.int32)
    tl.store(COUNTS + expert, tl.sum(count, 0))


@triton.jit
def _sort(NUMBERS, COUNTS, ORDER, OWNER, ROWS, EXPERTS: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Puts the rows of an expert behind those of the experts before it."""
    expert = tl.program_id(0)
    others = tl.arange(0, WIDE)
    counts = tl.load(COUNTS + others, mask=others < EXPERTS, other=0)
    tiles = (counts + TILE - 1) // TILE
    first = tl.sum(tl.where(others < expert, tiles, 0), 0)
    mine = tl.sum(tl.where(others == expert, tiles, 0), 0)
    for tile in range(mine):
        tl.store(OWNER + first + tile, expert)
    place = first * TILE
    for start in range(0, ROWS, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_mine = (tl.load(NUMBERS + at, mask=at < ROWS, other=-1) == expert).to(tl.int32)
        tl.store(ORDER + place + tl.cumsum(is_mine, 0) - 1, at, mask=is_mine != 0)
        place += tl.sum(is_mine, 0)


@triton_op("weightstream::expert_few_rows", mutates_args={})
def expert_few_rows(
    x: torch.Tensor,
    numbers: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor | None,
    group: int,
    each: int,
    transposed: bool,
    places: torch.Tensor | None,
    scale_places: torch.Tensor | None,
) -> torch.Tensor:
    """``expert_mm`` and ``expert_quantized_mm``, as :mod:`experts` has them, of dense bfloat16. A number that names no expert gives NaN."""
    return _few(x, packed, packed if scales is None else scales, group, numbers, each, transposed, (places, scale_places))


@triton_op("weightstream::expert_many_rows", mutates_args={})
def expert_many_rows(
    x: torch.Tensor,
    numbers: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor | None,
    group: int,
    each: int,
    transposed: bool,
    tile: int,
    little_memory: bool,
) -> torch.Tensor:
    """The same for more rows, those of an expert together in tiles of so many."""
    experts, rows = packed.shape[0], numbers.shape[0]
    most = triton.cdiv(rows + experts * (tile - 1), tile)
    counts = numbers.new_empty(experts, dtype=torch.int32)
    order, owner = (numbers.new_full((size,), -1, dtype=torch.int32) for size in (most * tile, most))
    wrap_triton(_count)[(experts,)](numbers, counts, rows, BLOCK=_BLOCK)
    wide = triton.next_power_of_2(experts)
    wrap_triton(_sort)[(experts,)](numbers, counts, order, owner, rows, experts, wide, TILE=tile, BLOCK=_BLOCK)
    out = x.new_full((rows, packed.shape[2 if transposed else 1]), float("nan"))
    blocks = _tiles(packed, x, tile, little_memory, transposed)
    return _many(x, packed, packed if scales is None else scales, group, out, (order, owner, most * tile, each), blocks, transposed)


def _empty(x: torch.Tensor, numbers: torch.Tensor, packed: torch.Tensor, transposed: bool) -> torch.Tensor:
    return x.new_empty(numbers.shape[0], packed.shape[2 if transposed else 1])


@expert_few_rows.register_fake
def _(x, numbers, packed, scales, group, each, transposed, places, scale_places):
    return _empty(x, numbers, packed, transposed)


@expert_many_rows.register_fake
def _(x, numbers, packed, scales, group, each, transposed, tile, little_memory):
    return _empty(x, numbers, packed, transposed)
