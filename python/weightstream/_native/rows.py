"""Where weights that are much larger than the others are cut: a head, and the table that it is tied to. Programs and eager modules cut alike."""

from __future__ import annotations

import torch

_MIB = 1 << 20
#: A table has more rows than columns, by so many times, and more bytes. Products that are less tall are cut above `_HUGE` bytes.
_TALL, _LARGE, _HUGE = 8, 16 * _MIB, 256 * _MIB
#: Pieces have a sixteenth of the bytes, between these: the least budget holds three of them.
_LEAST_PIECE, _MOST_PIECE = 4 * _MIB, 64 * _MIB
#: Pieces begin at whole tiles of a kernel.
_TILE = 128


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


def rows_name(begin: int, end: int) -> str:
    return f"rows_{begin}_{end}"
