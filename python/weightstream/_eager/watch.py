"""Who takes the ``.data`` of weights that are offloaded: PyTorch counts no writes to what that gives, and PEFT merges adapters through it.

While anything is watched, ``torch.Tensor.data`` is a property that notes this. Parameters keep their type.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from .._native.errors import Error
from .subclasses import flattens, plain_of

#: ``tensor.data`` as PyTorch has it.
set_data = torch.Tensor.data.__set__
get_data = torch.Tensor.data.__get__


def show_all(shown: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Each first tensor shows the bytes of its second one from now on."""
    with torch._C.DisableTorchFunctionSubclass():
        for tensor, bytes in shown:
            set_data(tensor, bytes)


class Writes:
    """Which groups of tensors were written since that was counted. PyTorch counts no writes to tensors of inference mode. A group may get more
    tensors, which nobody has written yet."""

    __slots__ = ("_each", "_groups", "_total")

    def __init__(self, groups: list[list[torch.Tensor]]):
        # The same lists, of which some grow.
        self._groups = [group if not any(one.is_inference() for one in group) else [] for group in groups]
        self.count()

    def count(self) -> None:
        """What was written so far is known."""
        # Subclasses are not asked: they would look at each question in Python.
        with torch._C.DisableTorchFunctionSubclass():
            self._each = [sum([one._version for one in group]) for group in self._groups]
        self._total = sum(self._each)

    def found(self) -> list[int]:
        """The places of the groups that were written."""
        with torch._C.DisableTorchFunctionSubclass():
            if sum([one._version for group in self._groups for one in group]) == self._total:
                return []
            now = [sum([one._version for one in group]) for group in self._groups]
        return [index for index, (one, before) in enumerate(zip(now, self._each)) if one != before]


class Lending:
    """The weights of one module whose ``.data`` was asked for since their bytes were last copied."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]):
        self.noted: dict[int, torch.Tensor] = {}
        #: While a pass runs: what weights show then is not their owner's to replace.
        self.in_pass = False
        #: Where weights are shown in passes; and what this pass was given of these bytes, with its count of writes then.
        self.addresses: set[int] = set()
        self.in_use: dict[int, list[tuple[torch.Tensor, int]]] = {}
        lent = {id(one): _Lent(name, None if flattens(one) else one.data_ptr(), self) for name, one in named}
        for key, one in lent.items():
            _LENT.setdefault(key, []).append(one)
        self._end = weakref.finalize(self, _forget, {key: weakref.ref(one) for key, one in lent.items()})
        if lent:
            torch.Tensor.data = _NOTING

    def was_written(self, shown: torch.Tensor) -> bool:
        """Whether this pass wrote to what it was given of the bytes that a weight shows now."""
        given = self.in_use.pop(shown.untyped_storage().data_ptr(), ())
        return any(version < 0 or _version(alias) != version for alias, version in given)

    def may_be_written(self) -> list[torch.Tensor]:
        """Those whose bytes may have been written through ``.data`` since the last call."""
        found = []
        for key, one in list(self.noted.items()):
            lent = self._lent(key)
            if lent is not None and lent.was_written():
                found.append(one)
            if lent is None or not lent.aliases:
                del self.noted[key]
        return found

    def take_over(self, before: Lending) -> None:
        """What was given out of weights that are where they were is watched on."""
        for key, tensor in before.noted.items():
            old, new = before._lent(key), self._lent(key)
            if old is not None and new is not None and old.at == new.at:
                new.aliases, new.warned = [*new.aliases, *old.aliases], old.warned
                self.noted[key] = tensor

    def _lent(self, key: int) -> _Lent | None:
        return next((lent for lent in _LENT.get(key, ()) if lent.lending() is self), None)

    def end(self) -> None:
        """They are watched no more."""
        self._end()


class _Lent:
    """What was given out of a parameter's bytes on the host."""

    __slots__ = ("__weakref__", "aliases", "at", "lending", "name", "warned", "written")

    def __init__(self, name: str, at: int | None, lending: Lending):
        #: Where the bytes are; of what flattens nowhere, and nothing else looks like it.
        self.name, self.at, self.lending, self.written = name, at, weakref.ref(lending), False
        self.warned = False
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
                self._warn(version)
            written |= tensor is None or version < 0 or _version(tensor) != version
        self.aliases = kept
        return written

    def _warn(self, version: int) -> None:
        if version < 0 and not self.warned:
            self.warned = True
            warnings.warn(
                f"offload: somebody holds the .data of '{self.name}', a tensor of inference mode, whose writes PyTorch does not count: each "
                "pass takes it for written, and is many times slower; let go of it, or make or move the module outside of inference mode",
                stacklevel=2,
            )


#: By the identity of the tensor; of each module that has it.
_LENT: dict[int, list[_Lent]] = {}
#: Of passes that run: what they show of buffers.
_RUNNING: list[Lending] = []


@contextmanager
def running(lending: Lending) -> Iterator[None]:
    """While a pass runs."""
    lending.in_pass = True
    _RUNNING.append(lending)
    try:
        yield
    finally:
        lending.in_pass = False
        lending.in_use.clear()
        _RUNNING.remove(lending)


def ours(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that a weight is made to show. Where a function mode is at work, PyTorch hands what :data:`set_data` does to the property."""
    tensor._shown_by_weightstream = True
    return tensor


def _read(tensor: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_dynamo_compiling():
        # The compiler would find this property again in what it makes of the next line.
        return tensor.detach()
    alias = get_data(tensor)
    for lent in _LENT.get(id(tensor), ()):
        if not (lending := lent.lending()):
            continue
        if lent.at is None or (alias.device.type == "cpu" and alias.data_ptr() == lent.at):
            lent.aliases.append((weakref.ref(alias), _version(alias)))
            lending.noted[id(tensor)] = tensor
    # Of a weight, or of a view of one; what flattens is its inner tensors, of which PyTorch counts no writes through it.
    for lending in _RUNNING:
        for one in plain_of(tensor) if flattens(tensor) else (alias,):
            at = _address(one)
            if at in lending.addresses:
                lending.in_use.setdefault(at, []).append((alias, _version(alias)))
    return alias


def _address(tensor: torch.Tensor) -> int:
    """Where its storage begins; 0 of what has none, as fake tensors."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def _write(tensor: torch.Tensor, value: torch.Tensor) -> None:
    for lent in () if "_shown_by_weightstream" in value.__dict__ else _LENT.get(id(tensor), ()):
        if not (lending := lent.lending()):
            continue
        # bitsandbytes gives a weight the data of another tensor over the same bytes of the host.
        if lending.in_pass and lent.at is not None and any(one.at == lent.at for one in _LENT.get(id(value), ())):
            return
        if lending.in_pass:
            raise Error(
                f"offload: the forward, or a hook of it, replaces the data of the weight '{lent.name}'; take off hooks that cast or move weights "
                "(layerwise casting, group offloading); what passes change has to be a buffer that they assign or write in place"
            )
        lent.written = True
        lending.noted[id(tensor)] = tensor
    set_data(tensor, value)


_NOTING = property(_read, _write)


def _forget(lent: dict[int, weakref.ref[_Lent]]) -> None:
    for key, one in lent.items():
        left = [other for other in _LENT.pop(key, ()) if other is not one()]
        if left:
            _LENT[key] = left
    if not _LENT and "data" in torch.Tensor.__dict__:
        del torch.Tensor.data


def _version(tensor: torch.Tensor) -> int:
    """Tensors of inference mode count no writes: for them it is -1."""
    return -1 if tensor.is_inference() else tensor._version
