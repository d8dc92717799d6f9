"""Weights that are much larger than the others: a head, and the table that it is tied to.

The least budget has room for what a call of a module reads, so that one head would set it. Its rows are in pieces, each of a module of its
own that nobody sees, and the product is that of the pieces, at every budget::

    head(x)       cat([piece(linear, x), …], -1)          a call of each piece reads its rows, and no others
    table(words)  the rows of the piece that has them

The parameter stays where it is, and what it is.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .._native.rows import cuts, rows_name
from .compiled import compiled_as, inside_compiled
from .subclasses import holders_of, is_plain


class Piece(nn.Module):
    """Some rows of a weight."""

    def __init__(self, rows: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(rows, requires_grad=False)

    def forward(self, product: Callable[..., torch.Tensor], given: torch.Tensor, *more: Any) -> torch.Tensor:
        return product(given, self.weight, *more)


class Giant(NamedTuple):
    """A weight in pieces: where it was, and in what form, when it was cut."""

    name: str
    weight: nn.Parameter
    form: tuple[int, torch.Size, tuple[int, ...]]
    bounds: list[int]
    pieces: list[Piece]

    def has_moved(self) -> bool:
        return form_of(self.weight) != self.form

    def rows(self) -> list[tuple[str, Piece]]:
        ends = itertools.pairwise(self.bounds)
        return [(f"{self.name}.{rows_name(*end)}", piece) for end, piece in zip(ends, self.pieces)]

    def product(self, given: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``linear`` with the whole weight."""
        ends = itertools.pairwise(self.bounds)
        of_bias = (None if bias is None else bias[begin:end] for begin, end in ends)
        return torch.cat([piece(functional.linear, given, part) for piece, part in zip(self.pieces, of_bias)], -1)

    def lookup(self, numbers: torch.Tensor) -> torch.Tensor:
        """``embedding`` in the whole weight."""
        rows, step = self.bounds[-1], self.bounds[1]
        begins = torch.arange(0, rows, step, device=numbers.device).view(-1, *[1] * numbers.dim())
        within, reached = numbers - begins, (numbers >= begins).unsqueeze(-1)
        # A number that names no row of the whole names none of the first piece, or of the last one.
        within[:-1].clamp_(max=step - 1)
        within[1:].clamp_(min=0)
        found = self.pieces[0](_rows, within[0])
        for piece, number, here in zip(self.pieces[1:], within[1:], reached[1:]):
            found = torch.where(here, piece(_rows, number), found)
        return found


def _rows(numbers: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return functional.embedding(numbers, table)


class Giants:
    """Those of one module, by the identity of the parameter."""

    def __init__(self) -> None:
        self.all: dict[int, Giant] = {}
        #: The modules that have one, which compute in pieces.
        self.holders: set[nn.Module] = set()
        #: Parameters that somebody reads in another way.
        self._whole: dict[int, torch.Tensor] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self.all

    def look(self, root: nn.Module, shared: Collection[int]) -> None:
        """Which there are now. Those that ``shared`` has share memory with others, and stay whole."""
        before, self.all = self.all, {}
        found, compiled = holders_of(root), inside_compiled(list(root.modules()))
        for name, parameter in root.named_parameters():
            holders = found[id(parameter)]
            if id(parameter) in self._whole or id(parameter) in shared or not _is_large(parameter):
                continue
            if not any(isinstance(one, nn.Linear) for one in holders) or not all(_computes_rows(one, compiled) for one in holders):
                continue
            known = before.get(id(parameter))
            self.all[id(parameter)] = known if known and not known.has_moved() else _cut(name, parameter)
        self.holders = {one for key in self.all for one in found[key]}

    def pieces(self) -> dict[nn.Module, str]:
        """All of them, with their names."""
        return {piece: name for giant in self.all.values() for name, piece in giant.rows()}

    def have_moved(self) -> bool:
        """Whether one has other memory than when it was cut, or another form."""
        return any(giant.has_moved() for giant in self.all.values())

    def keep_whole(self, tensors: Collection[torch.Tensor]) -> None:
        """From the next look on."""
        self._whole |= {id(one): one for one in tensors}

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward of a holder, computed in pieces."""
        return functools.partial(_in_pieces, self, forward)


class _InPieces(TorchFunctionMode):
    """Where code asks for a product with a giant, or for rows of one, it gets those of the pieces."""

    def __init__(self, giants: Giants):
        super().__init__()
        self._giants = giants.all

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        giant = self._giants.get(id(args[1])) if len(args) > 1 and func in (functional.linear, functional.embedding) else None
        if giant is None:
            return func(*args, **(kwargs or {}))
        given, _, *more = args
        return giant.product(given, *more, **(kwargs or {})) if func is functional.linear else giant.lookup(given)


def _in_pieces(giants: Giants, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _InPieces(giants):
        return forward(*args, **kwargs)


def form_of(tensor: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Where it is, and in what form."""
    return tensor.data_ptr(), tensor.size(), tensor.stride()


def _is_large(parameter: torch.Tensor) -> bool:
    """Whether it is cut. Of tensors that were made in inference mode nobody counts the writes."""
    plain = is_plain(parameter) and parameter.layout is torch.strided and not parameter.is_inference()
    return plain and parameter.device.type == "cpu" and not parameter.is_quantized and bool(cuts(parameter))


def _computes_rows(module: nn.Module, compiled: Collection[nn.Module]) -> bool:
    """Whether its code multiplies by its weight, or looks rows up, as far as its class tells."""
    if module in compiled or compiled_as(module) is not None:
        return False
    # Tables of subclasses scale what the class gives. Products of subclasses may be anything.
    is_product = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    return is_product or (isinstance(module, nn.Embedding) and module.max_norm is None)


def _cut(name: str, parameter: nn.Parameter) -> Giant:
    bounds = cuts(parameter)
    with torch.no_grad():
        # What shows the same memory has the same count of writes.
        pieces = [Piece(parameter.detach()[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return Giant(name, parameter, form_of(parameter), bounds, pieces)
