"""Sorting for CUDA, where the runtime has none: an element's place is how many elements come before it.

Every pair of elements of a row is compared, inside one kernel and without memory for the pairs. A row of a million takes a while.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, descending, None)


def sort_stable(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, descending, None)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, largest, k)


def _sort(x: Tensor, dim: int, descending: bool, count: int | None) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    rows = x.movedim(dim, -1)
    places = _places(rows, descending)
    # The compiler has no kernel that scatters int64.
    numbers = torch.arange(rows.shape[-1], dtype=torch.int32, device=x.device).expand(rows.shape)
    order = torch.empty_like(places, dtype=torch.int32).scatter(-1, places, numbers).to(torch.int64)
    if count is not None:
        order = order[..., :count]
    # Readers of the results were traced with torch's results, which have no gaps.
    return rows.gather(-1, order).movedim(-1, dim).contiguous(), order.movedim(-1, dim).contiguous()


def _places(rows: Tensor, descending: bool) -> Tensor:
    """Equal elements stay in their order; NaN is larger than any number, and equal to itself."""
    own, other = rows.unsqueeze(-1), rows.unsqueeze(-2)
    low, high = (own, other) if descending else (other, own)
    before, after = _less(low, high), _less(high, low)
    number = torch.arange(rows.shape[-1], device=rows.device)
    return (before | ~after & (number < number.unsqueeze(-1))).sum(-1)


def _less(a: Tensor, b: Tensor) -> Tensor:
    return (a < b) | (b.isnan() & ~a.isnan())
