"""Parameters of tensor subclasses: the tensors that they consist of, and what stands in their place while these are on the device.

One that flattens (``__tensor_flatten__``: torchao, DTensor) has no bytes of its own, but inner tensors, which are shown as any weight is::

    module._parameters["weight"]   between passes: outer ──► qdata, scale   (the host's bytes)
                                   in a call:      stand-in ──► the same two objects (the device's bytes)

The outer tensor goes on saying that it is on the CPU. So a stand-in, made once of the same inner tensors while they are on the device, takes
its place for the call. It is the same object in every pass: compiled code sees no other tensor.

One that has bytes itself (GGUF of diffusers, bitsandbytes) is shown as any weight is, and so are the tensors that its attributes and those
of its module keep (``quant_state``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._native.errors import Error

#: ``quant_state.state2.absmax`` is three attributes away from a parameter of bitsandbytes.
_DEPTH = 3


class Inner(NamedTuple):
    """A tensor that a parameter consists of, and the attribute that has it."""

    name: str
    tensor: torch.Tensor
    owner: Any
    attribute: str

    def is_there(self) -> bool:
        """Whether the attribute has it still."""
        return not self.attribute or getattr(self.owner, self.attribute, None) is self.tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """Memory with sizes, and nothing more."""
    return type(tensor) in (nn.Parameter, torch.Tensor)


def flattens(tensor: torch.Tensor) -> bool:
    """Whether it is nothing but inner tensors."""
    return not is_plain(tensor) and is_traceable_wrapper_subclass(tensor)


def _parts(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    """The inner tensors of one that flattens. A DTensor flattens to its mesh too, which is none."""
    named = ((one, getattr(tensor, one)) for one in tensor.__tensor_flatten__()[0])
    return [(name, one) for name, one in named if isinstance(one, torch.Tensor)]


def plain_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with bytes that a tensor consists of."""
    if not flattens(tensor):
        yield tensor
        return
    for _, one in _parts(tensor):
        yield from plain_of(one)


def _outer_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """It, and those of its inner tensors that have some themselves."""
    if flattens(tensor):
        yield tensor
        for _, one in _parts(tensor):
            yield from _outer_of(one)


def bytes_of(tensor: torch.Tensor) -> int:
    """Those of all that it consists of."""
    return sum(one.numel() * one.element_size() for one in plain_of(tensor))


def holders_of(module: nn.Module) -> dict[int, list[nn.Module]]:
    """Of each parameter and buffer, by identity, the modules that have it."""
    holders: dict[int, list[nn.Module]] = {}
    for one in module.modules():
        for tensor in (*one._parameters.values(), *one._buffers.values()):
            holders.setdefault(id(tensor), []).append(one)
    return holders


def inner_of(name: str, parameter: torch.Tensor, holders: list[nn.Module]) -> list[Inner]:
    """What a parameter of a subclass, which these modules have, consists of: each tensor once."""
    found = {id(one.tensor): one for one in _inner(name, parameter, None, "")}
    if not flattens(parameter):
        package, seen = _package(parameter), {id(parameter)}
        for owner in (parameter, *holders):
            for one in _in_attributes(name, owner, package, seen, _DEPTH):
                found.setdefault(id(one.tensor), one)
    return list(found.values())


def _inner(name: str, tensor: torch.Tensor, owner: Any, attribute: str) -> Iterator[Inner]:
    if flattens(tensor):
        for part, one in _parts(tensor):
            yield from _inner(f"{name}.{part}", one, tensor, part)
        return
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Error(
            f"offload: parameter '{name}' is a {type(tensor).__name__}, whose bytes cannot be found: it has a __torch_dispatch__ of its own, and "
            "no __tensor_flatten__ that gives its inner tensors; give a plain nn.Parameter, or a subclass that flattens"
        )
    yield Inner(name, tensor, owner, attribute)


def _in_attributes(name: str, owner: Any, package: str, seen: set[int], depth: int) -> Iterator[Inner]:
    """Tensors that an object has as attributes, and those of objects of the same library below it."""
    for attribute, value in list(vars(owner).items()):
        if id(value) in seen or isinstance(value, (nn.Module, nn.Parameter)):
            continue
        if isinstance(value, torch.Tensor):
            seen.add(id(value))
            if is_plain(value):
                yield Inner(f"{name}.{attribute}", value, owner, attribute)
        elif depth > 1 and hasattr(value, "__dict__") and _package(value) == package:
            seen.add(id(value))
            yield from _in_attributes(f"{name}.{attribute}", value, package, seen, depth - 1)


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def rebuilt(name: str, tensor: torch.Tensor, by: dict[int, torch.Tensor]) -> torch.Tensor:
    """A tensor of the same subclass of other inner tensors, given by the identity of those that it has. One that is not given stays."""
    if not flattens(tensor):
        return by.get(id(tensor), tensor)
    attributes, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = {one: getattr(tensor, one) for one in attributes}
    inner |= {part: rebuilt(name, one, by) for part, one in _parts(tensor)}
    try:
        made = type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())  # type: ignore[attr-defined]
    except Exception as error:
        raise Error(f"offload: parameter '{name}', a {type(tensor).__name__}, cannot be made of other inner tensors: {error}") from error
    for one, expected in inner.items():
        if getattr(made, one) is not expected:
            raise Error(
                f"offload: parameter '{name}', a {type(tensor).__name__}, copies its inner tensor '{one}' when it is made of others: "
                "its bytes cannot be on a device for a while"
            )
    return made


class Outer:
    """A parameter or buffer that flattens, and its places in modules."""

    __slots__ = ("_counted", "_name", "_places", "_stand_in", "tensor")

    def __init__(self, name: str, tensor: torch.Tensor, holders: list[nn.Module]):
        self._name, self.tensor = name, tensor
        held = [names for one in holders for names in (one._parameters, one._buffers)]
        self._places = [(names, key) for names in held for key, one in names.items() if one is tensor]
        self._stand_in: torch.Tensor | None = None
        self._counted = list(_outer_of(tensor))

    def writes(self) -> int:
        """How often it was written, in its place or by itself. PyTorch counts what is written through it here, and not at its inner tensors."""
        return sum(one._version for one in self._counted if not one.is_inference())

    def shown(self) -> torch.Tensor:
        """The same parameter where its inner tensors are now: on the device."""
        if self._stand_in is None:
            self._stand_in = rebuilt(self._name, self.tensor, {})
            self._stand_in._is_param = isinstance(self.tensor, nn.Parameter)
            self._counted += _outer_of(self._stand_in)
        return self._stand_in

    def show(self) -> None:
        """From now on the modules have what is on the device."""
        stand_in = self.shown()
        for names, key in self._places:
            names[key] = stand_in

    def hide(self) -> None:
        """They have the parameter again, but where somebody has put another one."""
        for names, key in self._places:
            if names.get(key) is self._stand_in:
                names[key] = self.tensor
