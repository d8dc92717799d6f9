"""Tensor subclasses for tests: one of two inner tensors, one that copies them, and one whose bytes nobody can find."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map


class Halves(torch.Tensor):
    """A sum of two tensors, which it keeps apart."""

    @staticmethod
    def __new__(cls, high: torch.Tensor, low: torch.Tensor) -> Halves:
        return torch.Tensor._make_wrapper_subclass(
            cls, high.size(), strides=high.stride(), dtype=high.dtype, device=high.device, requires_grad=False
        )

    def __init__(self, high: torch.Tensor, low: torch.Tensor):
        self.high, self.low = high, low

    @classmethod
    def of(cls, whole: torch.Tensor) -> Halves:
        high = whole.detach().clone()
        # Binary fractions: the sum has the bits of the whole.
        return cls(high / 2, high / 2)

    def whole(self) -> torch.Tensor:
        return self.high + self.low

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["high", "low"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], _context: None, _size: Any, _stride: Any) -> Halves:
        return cls(inner["high"], inner["low"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.clone.default, aten._to_copy.default, aten.alias.default):
            parts = [func(one, *args[1:], **(kwargs or {})) for one in (args[0].high, args[0].low)]
            return cls(*parts)
        if func is aten.copy_.default:
            args[0].high.copy_(args[1].high)
            args[0].low.copy_(args[1].low)
            return args[0]
        if func._schema.is_mutable:
            args[0].high, args[0].low = (func(one, *args[1:]) for one in (args[0].high, args[0].low))
            return args[0]
        args, kwargs = tree_map(lambda one: one.high + one.low if isinstance(one, Halves) else one, (args, kwargs or {}))
        return func(*args, **kwargs)


class Copies(Halves):
    """One that does not keep the inner tensors that it is made of."""

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], _context: None, _size: Any, _stride: Any) -> Halves:
        return cls(inner["high"].clone(), inner["low"].clone())


class Closed(torch.Tensor):
    """One that does not say what it consists of."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Closed:
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=inner.device)

    @classmethod
    def of(cls, whole: torch.Tensor) -> Closed:
        made = cls(whole)
        made.__dict__["hidden"] = whole.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls.of(args[0].hidden)
        args = tree_map(lambda one: one.hidden if isinstance(one, Closed) else one, args)
        return func(*args, **(kwargs or {}))


def halve(module: nn.Module) -> nn.Module:
    """All weights of linear layers are two halves; where they are already, their halves are."""
    for one in module.modules():
        if isinstance(one, nn.Linear):
            weight = one.weight
            parts = Halves(Halves.of(weight.high), Halves.of(weight.low)) if isinstance(weight, Halves) else Halves.of(weight)
            one.weight = nn.Parameter(parts, requires_grad=False)
    return module
