"""Parameters that notice who takes their ``.data``: PyTorch counts no writes to what that gives, and PEFT merges adapters through it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

#: ``parameter.data`` as PyTorch has it.
set_data = torch.Tensor.data.__set__
get_data = torch.Tensor.data.__get__


class _Lent:
    """What was given out of a parameter's bytes on the host since they were last copied."""

    __slots__ = ("aliases", "at", "noted", "written")

    def __init__(self, at: int, noted: dict[int, nn.Parameter]):
        self.at, self.noted, self.written = at, noted, False
        #: Each tensor, and its count of writes when it was given.
        self.aliases: list[tuple[weakref.ref[torch.Tensor], int]] = []

    def was_written(self) -> bool:
        """Whether bytes may have changed since the last call. What lives no longer may have been written before."""
        written, self.written = self.written, False
        kept = []
        for alias, version in self.aliases:
            tensor = alias()
            if tensor is not None:
                kept.append((alias, _version(tensor)))
            written |= tensor is None or version < 0 or _version(tensor) != version
        self.aliases = kept
        return written


_LENT: Any = WeakIdKeyDictionary()


class _Watched(nn.Parameter):
    """A parameter that notes what it gives. It is called what a parameter is called."""

    @property
    def data(self) -> torch.Tensor:
        alias = get_data(self)
        lent = _LENT.get(self)
        # In a pass it shows the device's bytes, which nobody can write.
        if lent is not None and alias.device.type == "cpu" and alias.data_ptr() == lent.at:
            lent.aliases.append((weakref.ref(alias), _version(alias)))
            lent.noted[id(self)] = self
        return alias

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        set_data(self, value)
        lent = _LENT.get(self)
        if lent is not None:
            lent.written = True
            lent.noted[id(self)] = self

    def __repr__(self) -> str:
        return repr(nn.Parameter(get_data(self), self.requires_grad))


_Watched.__name__, _Watched.__qualname__, _Watched.__module__ = nn.Parameter.__name__, nn.Parameter.__qualname__, nn.Parameter.__module__


def watch(parameters: Iterable[torch.Tensor]) -> dict[int, nn.Parameter]:
    """From now on these parameters are watched. Those whose ``.data`` was asked for are noted in what is returned."""
    noted: dict[int, nn.Parameter] = {}
    for one in parameters:
        if type(one) is nn.Parameter:
            one.__class__ = _Watched
        if type(one) is _Watched:
            _LENT[one] = _Lent(one.data_ptr(), noted)
    return noted


def leave(parameters: Iterable[torch.Tensor]) -> None:
    """They are plain parameters again."""
    for one in parameters:
        _LENT.pop(one, None)
        if type(one) is _Watched:
            one.__class__ = nn.Parameter


def is_plain(parameter: torch.Tensor) -> bool:
    """Whether it is nothing more than memory with sizes."""
    return type(parameter) in (nn.Parameter, torch.Tensor, _Watched)


def may_be_written(noted: dict[int, nn.Parameter]) -> list[nn.Parameter]:
    """Those whose bytes may have been written through ``.data`` since the last call."""
    found = []
    for key, one in list(noted.items()):
        lent = _LENT.get(one)
        if lent is not None and lent.was_written():
            found.append(one)
        if lent is None or not lent.aliases:
            del noted[key]
    return found


def _version(tensor: torch.Tensor) -> int:
    """Tensors of inference mode count no writes: for them it is -1."""
    return -1 if tensor.is_inference() else tensor._version
