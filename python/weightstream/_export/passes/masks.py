"""Boolean masks become lists of places, for which the runtime has code.

    y[mask]            ->   i, j = nonzero(mask); y[i, j]
    y[mask] = number   ->   where(mask, number, y)

The size of what ``nonzero`` gives is a symbol of its own, at most as large as the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
_MASKS = (torch.bool, torch.uint8)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For the trace of the prepared program."""
    return {
        aten.index.Tensor: _index,
        aten.index_put.default: _index_put,
        aten.masked_select.default: _masked_select,
        aten.where.default: _where,
        aten.nonzero_numpy.default: _where,
        aten.argwhere.default: aten.nonzero.default,
        aten._unique2.default: _unique,
    }


def _places(indices: list[Tensor | None]) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            found.append(index)
        else:
            found += aten.nonzero.default(index).unbind(1)
    return found


def _has_mask(indices: list[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in _MASKS for index in indices)


def _index(x: Tensor, indices: list[Tensor | None]) -> Any:
    return aten.index.Tensor(x, _places(indices)) if _has_mask(indices) else NotImplemented


def _index_put(x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    if not _has_mask(indices):
        return NotImplemented
    if len(indices) == 1 and values.dim() == 0 and not accumulate:
        mask = indices[0].to(torch.bool)
        return torch.where(mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim())), values.to(x.dtype), x)
    return aten.index_put.default(x, _places(indices), values, accumulate)


def _masked_select(x: Tensor, mask: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    return aten.index.Tensor(x, _places([mask])) if x.dim() else torch.masked_select(x.reshape(1), mask.reshape(1))


def _where(x: Tensor) -> list[Tensor]:
    return list(aten.nonzero.default(x if x.dim() else x.reshape(1)).unbind(1))


def _unique(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted, the first of each run of equal values is kept."""
    values, order = x.reshape(-1).sort()
    place = torch.arange(values.shape[0], device=x.device)
    first = (place == 0) | (values != values.roll(1))
    (starts,) = aten.nonzero.default(first).unbind(1)
    run = first.to(torch.int64).cumsum(0) - 1
    inverse = torch.empty_like(order).scatter(0, order, run).reshape(x.shape)
    counts = torch.zeros_like(starts).scatter_add(0, run, torch.ones_like(run))
    return values[starts], inverse, counts
