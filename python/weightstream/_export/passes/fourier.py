"""Fourier transforms as products with tables of cosines and sines."""

from __future__ import annotations

import math
from typing import Any

import torch

from .inline import Pair, Refusal, Tensor, number

#: Points of a transform: its table has that many rows and columns.
LARGEST_TRANSFORM = 4096


def _turns(n: int, rows: int, columns: int, like: Tensor) -> Pair:
    """cos and sin of 2 pi r c / n, from whole turns and one period."""
    angle = torch.arange(n, device=like.device, dtype=torch.float64) * (2 * math.pi / n)
    place = torch.outer(torch.arange(rows, device=like.device), torch.arange(columns, device=like.device)) % n
    return Pair(torch.cos(angle).to(like.dtype)[place], torch.sin(angle).to(like.dtype)[place])


def _points(n: Any) -> int:
    if number(n, "the number of points") > LARGEST_TRANSFORM:
        raise Refusal(f"a Fourier transform of {n} points; at most {LARGEST_TRANSFORM} are computed")
    return n


def _scaled(x: Pair, sizes: list[int], normalization: int) -> Pair:
    factor = math.prod(sizes) ** (-normalization / 2)
    return x if normalization == 0 else Pair(x.re * factor, x.im * factor)


def _transform(x: Pair, dim: int, sign: int, columns: int | None = None) -> Pair:
    """The sums of x[k] exp(sign 2 pi i k c / n) for the first ``columns`` c."""
    n = _points(x.re.shape[dim])
    table = _turns(n, n, columns or n, x.re)
    re, im = x.re.movedim(dim, -1), x.im
    if isinstance(im, Tensor):
        im = im.movedim(dim, -1)
        out = (re @ table.re - sign * (im @ table.im), im @ table.re + sign * (re @ table.im))
    else:
        out = (re @ table.re, sign * (re @ table.im))
    return Pair(*(half.movedim(-1, dim) for half in out))


def r2c(x: Tensor, dims: list[int], normalization: int, onesided: bool) -> Pair:
    sizes = [_points(x.shape[dim]) for dim in dims]
    out = _transform(Pair(x, 0), dims[-1], -1, sizes[-1] // 2 + 1 if onesided else None)
    for dim in dims[:-1]:
        out = _transform(out, dim, -1)
    return _scaled(out, sizes, normalization)


def c2c(x: Pair, dims: list[int], normalization: int, forward: bool) -> Pair:
    sizes = [_points(x.re.shape[dim]) for dim in dims]
    for dim in dims:
        x = _transform(x, dim, -1 if forward else 1)
    return _scaled(x, sizes, normalization)


def c2r(x: Pair, dims: list[int], normalization: int, last: int) -> Tensor:
    """The last dimension holds one half; the other one is its mirror image, so that most elements count twice."""
    last = _points(last)
    sizes = [*(_points(x.re.shape[dim]) for dim in dims[:-1]), last]
    for dim in dims[:-1]:
        x = _transform(x, dim, 1)
    half = last // 2 + 1
    k = torch.arange(half, device=x.re.device).unsqueeze(1)
    twice = torch.where((k == 0) | (2 * k == last), 1, 2)
    table = _turns(last, half, last, x.re)
    re, im = (part.movedim(dims[-1], -1)[..., :half] for part in x)
    out = re @ (table.re * twice) - im @ (table.im * twice)
    return _scaled(Pair(out, out), sizes, normalization).re.movedim(-1, dims[-1])
