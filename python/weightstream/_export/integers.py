"""Layers whose weights are integers, for files and checkpoints that have them. `quantized_mm` multiplies by them."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import nn

from .._native.rows import cuts, rows_name
from .passes.quantized import pack_halves


class Integers(NamedTuple):
    """A weight [N, K]: ``(stored - 8) * scales + offsets`` of four bits, ``stored * scales + offsets`` of eight."""

    bits: int
    #: [N, K]; [N, K / group]; the same, or None.
    stored: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None

    @property
    def group(self) -> int:
        """Elements of a row that have one scale."""
        return self.stored.shape[1] // self.scales.shape[1]

    def rows(self, at: slice | torch.Tensor) -> Integers:
        return Integers(self.bits, *(None if part is None else part[at] for part in self[1:]))

    @property
    def kind(self) -> str:
        return f"int{self.bits}"

    def packed(self) -> torch.Tensor:
        """Four bits two to a byte: [N, K / 2]."""
        return pack_halves(self.stored) if self.bits == 4 else self.stored


class Product(nn.Module):
    """A product by some rows of a weight. Its buffers have the names that weights get which :mod:`passes.quantized` packs."""

    def __init__(self, weight: Integers, dtype: torch.dtype):
        super().__init__()
        self.group, self.kind = weight.group, weight.kind
        self.register_buffer(self.kind, weight.packed())
        self.register_buffer("scales", weight.scales.to(dtype))
        self.register_buffer("offsets", None if weight.offsets is None else weight.offsets.to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.weightstream.quantized_mm(x, getattr(self, self.kind), self.scales, self.group)
        if self.offsets is None:
            return y
        return y + nn.functional.linear(x.unflatten(-1, (-1, self.group)).sum(-1), self.offsets)


class Pieces(nn.ModuleDict):
    """Products by the rows of one weight, one after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.values()], -1)


class QuantizedLinear(nn.Module):
    """A linear layer with a weight of integers. One that is large is in pieces, so that it does not set the least budget."""

    def __init__(self, weight: Integers, bias: torch.Tensor | None, dtype: torch.dtype):
        super().__init__()
        self.out_features, self.in_features = weight.stored.shape
        ends = list(itertools.pairwise(cuts(weight.packed())))
        pieces = {rows_name(*one): Product(weight.rows(slice(*one)), dtype) for one in ends}
        self.weight = Pieces(pieces) if pieces else Product(weight, dtype)
        self.bias = bias

    @classmethod
    def from_integers(
        cls,
        values: torch.Tensor,
        scales: torch.Tensor,
        zero_points: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        bits: int = 4,
    ) -> QuantizedLinear:
        """A layer with the weight ``(values - zero_points) * scales``, as GPTQ and AWQ have it.

        ``values`` [N, K]: integers from 0 to 2**bits - 1; ``bits`` is 4 or 8. ``scales`` and ``zero_points`` [N, K / group]: floats of
        the type of the activations, and integers; without them the zero point is 2**(bits - 1). ``bias`` [N]. Raises ``ValueError``.
        """
        if bits not in (4, 8):
            raise ValueError(f"bits is 4 or 8, not {bits}")
        rows, columns = values.shape if values.dim() == 2 else (0, 0)
        if values.is_floating_point() or not rows or values.min() < 0 or values.max() >= 1 << bits or columns % (8 // bits):
            raise ValueError(f"values are integers [N, K] from 0 to {(1 << bits) - 1}, K even; found {_said(values)}")
        fits = scales.is_floating_point() and scales.dim() == 2 and scales.shape[0] == rows
        if not fits or not scales.shape[1] or columns % scales.shape[1]:
            raise ValueError(f"scales are floats [N, K / group], N = {rows} and K = {columns}; found {_said(scales)}")
        if zero_points is not None and zero_points.shape != scales.shape:
            raise ValueError(f"zero_points have the shape of the scales, {list(scales.shape)}; found {_said(zero_points)}")
        if bias is not None and bias.shape != (rows,):
            raise ValueError(f"bias has a number for each of {rows} rows; found {_said(bias)}")
        middle = 1 << bits - 1
        stored = values.to(torch.uint8) if bits == 4 else (values.to(torch.int16) - middle).to(torch.int8)
        offsets = None if zero_points is None else (middle - zero_points.to(scales.dtype)) * scales
        return cls(Integers(bits, stored, scales, offsets), bias, scales.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.weight(x)
        return y if self.bias is None else y + self.bias


def _said(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


class QuantizedTable(nn.Module):
    """A table of integers, which are those of the linear layer that it is tied to: the file has one copy."""

    def __init__(self, weight: Integers, dtype: torch.dtype):
        super().__init__()
        self.kind, self.group, self.dtype = weight.kind, weight.group, dtype
        self.register_buffer(self.kind, weight.packed())
        self.register_buffer("scales", weight.scales)
        self.register_buffer("offsets", weight.offsets)

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        rows = nn.functional.embedding(at, getattr(self, self.kind))
        if self.kind == "int4":
            rows = torch.cat((rows & 15, (rows >> 4) & 15), -1) - 8
        found = rows.to(self.scales.dtype).unflatten(-1, (-1, self.group)) * nn.functional.embedding(at, self.scales).unsqueeze(-1)
        if self.offsets is not None:
            found = found + nn.functional.embedding(at, self.offsets).unsqueeze(-1)
        return found.flatten(-2).to(self.dtype)


def is_table_of(table: nn.Module, weights: set[int]) -> bool:
    """Whether this is an embedding, and nothing more, of one of these weights."""
    return type(table) is nn.Embedding and table.max_norm is None and id(table.weight) in weights
