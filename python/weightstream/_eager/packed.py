"""Packed copies of weights: in host memory, beside the bytes that the module shows.

    parameter ──► its bytes ────────► show between passes, and what a change is seen on
                   └─ packed copy ──► what a plan copies from, in fewer bytes

A copy is made once, for the first plan. It ends when its weight changes, moves or goes: plans that come later have the weight as it is then.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from .._native import progress
from .._native.bindings import last_error, library
from .._native.errors import Error
from .mapping import Mapping, files_of
from .packed_file import FilePart, FileWeight, PackedFile
from .weights import Shown, Weight, Weights

#: Fewer bytes stay raw: decoding them costs more than their copy.
_LEAST = 1 << 16
#: ScalarType numbers of the types that can be packed, as in weightstream.h.
_TYPES = {
    torch.bfloat16: 15,
    torch.float16: 5,
    torch.float32: 6,
    torch.float8_e4m3fn: 24,
    torch.float8_e4m3fnuz: 26,
    torch.float8_e5m2: 23,
    torch.float8_e5m2fnuz: 25,
}
#: From so many bytes on, packing says that it takes a while; and how often, in seconds, it says how far it is.
_SLOW, _EVERY = 1 << 30, 5.0


class PackedCopy:
    """The packed copy of one weight, in memory of the runtime or in a file."""

    def __init__(self, weight: Weight, shown: list[Shown], handle: ctypes.c_void_p, file: Mapping | None = None):
        #: ``None``: it would gain less than 5 %.
        self.bytes, self.handle, self.file = weight.bytes, handle.value, file
        self.stored = library().ws_packed_stored_bytes(handle)
        #: The tensors that show the weight, which nobody else's take the place of unseen. Their memory stays where it is, since the storage
        #: is held, unless its owner moves it.
        self._tensors = [one.tensor for one in shown]
        self._raw = [(storage := one.host.untyped_storage(), storage.data_ptr()) for one in shown]
        weakref.finalize(self, _destroy, handle, file)

    @staticmethod
    def make(weight: Weight, shown: list[Shown]) -> PackedCopy:
        handle, dtype = ctypes.c_void_p(), _TYPES[shown[0].host.dtype]
        if library().ws_packed_create(weight.name.encode(), dtype, weight.start, weight.bytes, ctypes.byref(handle)) != 0:
            raise Error(f"offload: {last_error()}")
        return PackedCopy(weight, shown, handle)

    @staticmethod
    def read(weight: Weight, shown: list[Shown], key: str, file: PackedFile) -> PackedCopy:
        """The copy that a file has by a key. Whoever changes the weight from now on is seen, as with one that is made."""
        handle, dtype = ctypes.c_void_p(), shown[0].host.dtype
        part = file.part(key, FileWeight(dtype, weight.bytes))
        called = key.encode(errors="replace")
        given = (called, _TYPES[dtype], weight.start, weight.bytes, *part, ctypes.byref(handle)) if part else None
        if given and library().ws_packed_read(*given) != 0:
            raise file.refused(last_error())
        return PackedCopy(weight, shown, handle, file.mapping)

    def part(self) -> FilePart | None:
        """What a file keeps of it."""
        if self.handle is None:
            return None
        stored, exponents = ctypes.c_void_p(), ctypes.create_string_buffer(13)
        if library().ws_packed_parts(self.handle, ctypes.byref(stored), exponents) != 0:
            raise Error(f"offload: {last_error()}")
        return FilePart(stored.value or 0, self.stored, exponents.raw)

    def is_of(self, shown: list[Shown]) -> bool:
        """Whether these tensors are among those that the copy was made of, and their memory is where it was."""
        mine = {id(one) for one in self._tensors}
        return all(id(one.tensor) in mine for one in shown) and all(storage.data_ptr() == at for storage, at in self._raw)


class PackedCopies:
    """Those of a module, by where their weights are on the host."""

    def __init__(self, wanted: bool | Path):
        #: Whether they are still to be made.
        self.wanted = bool(wanted)
        self._file = PackedFile(wanted) if isinstance(wanted, Path) else None
        self._all: dict[tuple[int, int], PackedCopy] = {}

    def check(self, name: str, root: nn.Module, weights: Weights) -> None:
        """Refuses a module of which nothing may be packed, and a file that is none of its."""
        if not self.wanted:
            return
        found = _packable(root, weights)
        if not found:
            raise _none(name)
        if self._file and self._file.look():
            # Giants may be whole or in pieces, which the first pass tells: then each is looked for.
            self._file.check_some({key: FileWeight(shown[0].host.dtype, weight.bytes) for _, weight, shown, key in _keyed(found, weights)})

    def make(self, name: str, root: nn.Module, weights: Weights, raw: Collection[int]) -> None:
        """Of all weights that gain by it, but for ``raw``, by index: once, for the first plan."""
        if not self.wanted:
            return
        every, file = _keyed(_packable(root, weights), weights), self._file
        found = [one for one in every if one.index not in raw]
        if file and not file.mapping and not file.look():
            # Of all: which rows are read where they are is known from passes, and these may be others the next time.
            _write(name, every, file)
            if not file.look():
                raise Error(f"offload: {file.path} is gone; name a file that stays")
        if file:
            copies = _made(name, "comparing packed copies of", found, lambda one: PackedCopy.read(one.weight, one.shown, one.key, file))
        else:
            copies = _made(name, "packing", found, lambda one: PackedCopy.make(one.weight, one.shown))
        self._all = {_key(one.weight): copy for one, copy in copies if copy.handle is not None}
        if not self:
            raise _none(name)
        self.wanted = False

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def raw_bytes(self) -> int:
        """Of the weights that have a copy."""
        return sum(copy.bytes for copy in list(self._all.values()))

    @property
    def stored_bytes(self) -> int:
        """Of the copies."""
        return sum(copy.stored for copy in list(self._all.values()))

    def of(self, weight: Weight) -> PackedCopy | None:
        return self._all.get(_key(weight))

    def forget(self, weights: Iterable[Weight]) -> bool:
        """These have changed, or are read in place. Whether one had a copy: a plan that brings it has to end."""
        return bool([copy for weight in weights if (copy := self._all.pop(_key(weight), None))])

    def keep_only(self, weights: Weights) -> None:
        """Copies of what the module has now, in the same tensors: of another one over the same memory nobody knows what was written before."""
        shown = _shown_of(weights)
        present = {_key(weights.all[index]): these for index, these in shown.items()}
        self._all = {key: copy for key, copy in self._all.items() if key in present and copy.is_of(present[key])}


class Packable(NamedTuple):
    """A weight that may be packed, what shows it, and what files call it."""

    index: int
    weight: Weight
    shown: list[Shown]
    key: str


def _keyed(found: dict[int, list[Shown]], weights: Weights) -> list[Packable]:
    """No two have the same key: names are attributes of tensors too, and those of different ones may be equal."""
    keys, all = {"__metadata__"}, []
    for index in sorted(found):
        name = key = weights.all[index].name
        for number in itertools.count(2):
            if key not in keys:
                break
            key = f"{name} ({number})"
        keys.add(key)
        all.append(Packable(index, weights.all[index], found[index], key))
    return all


def _made(name: str, doing: str, found: list[Packable], one_of: Callable[[Packable], PackedCopy]) -> list[tuple[Packable, PackedCopy]]:
    """The copy of each weight, one on each core."""
    whole, done, copies = sum(one.weight.bytes for one in found), 0, []
    begin = said = time.monotonic()
    if whole >= _SLOW:
        progress.note(f"{name}: {doing} {whole / (1 << 30):.1f} GB of weights ...")
    # The largest first: none of them is the last one that all wait for.
    found = sorted(found, key=lambda one: -one.weight.bytes)
    threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "weightstream-pack")
    try:
        for one, copy in zip(found, threads.map(one_of, found)):
            copies.append((one, copy))
            done, now = done + copy.bytes, time.monotonic()
            if whole >= _SLOW and now - said >= _EVERY:
                progress.note(f"{name}: {doing} weights: {done / whole:.0%}")
                said = now
    finally:
        threads.shutdown(cancel_futures=True)
    if whole >= _SLOW:
        packed = [copy for _, copy in copies if copy.handle is not None]
        ratio = sum(copy.stored for copy in packed) / max(1, sum(copy.bytes for copy in packed))
        progress.note(f"{name}: packed copies have {ratio:.1%} of the bytes; this took {time.monotonic() - begin:.1f} s")
    return copies


def _write(name: str, every: list[Packable], file: PackedFile) -> None:
    """Makes a file of the copies of all weights. The copies in memory are needed no more."""
    copies = _made(name, "packing", every, lambda one: PackedCopy.make(one.weight, one.shown))
    kept = {one.key: FileWeight(one.shown[0].host.dtype, one.weight.bytes, copy.part()) for one, copy in copies}
    if not any(weight.part for weight in kept.values()):
        raise _none(name)
    file.write(kept, _mode([one.weight for one in every]))


def _mode(weights: list[Weight]) -> int:
    """Who may read the files of the weights may read their copies."""
    files = files_of(weight.start for weight in weights)
    for file in files:
        file.check_unchanged()
    return functools.reduce(operator.and_, (os.stat(file.path).st_mode & 0o666 for file in files), 0o666)


def _destroy(handle: ctypes.c_void_p, file: Mapping | None) -> None:
    """``file``: the copy's bytes, which are there until its end."""
    library().ws_packed_destroy(handle)


def _none(name: str) -> Error:
    return Error(
        f"offload: packed=True packs weights of bfloat16, float16, float32 and float8 from {_LEAST:,} bytes on that gain 5 %, and {name} has none; "
        "leave packed out"
    )


def _key(weight: Weight) -> tuple[int, int]:
    return weight.start, weight.bytes


def _packable(root: nn.Module, weights: Weights) -> dict[int, list[Shown]]:
    """The weights that may be packed, by index, and what shows each. Rows of tables are read where they are on the host."""
    tables = [module for module in root.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    of_tables = {one.weight for table in tables for parameter in table.parameters(recurse=False) for one in weights.of(parameter)}
    return {
        index: shown
        for index, shown in _shown_of(weights).items()
        if index not in of_tables
        and weights.all[index].bytes >= _LEAST
        and len({one.host.dtype for one in shown}) == 1
        and all(one.host.dtype in _TYPES and not one.is_buffer for one in shown)
    }


def _shown_of(weights: Weights) -> dict[int, list[Shown]]:
    """What shows each weight, by index."""
    found: dict[int, list[Shown]] = {}
    for one in weights.shown.values():
        if one.weight is not None:
            found.setdefault(one.weight, []).append(one)
    return found
