"""Packed copies of weights: in host memory, beside the bytes that the module shows.

    parameter ──► its bytes ────────► show between passes, and what a change is seen on
                   └─ packed copy ──► what a plan copies from, in fewer bytes

A copy is made once, for the first plan. It ends when its weight changes, moves or goes: plans that come later have the weight as it is then.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from .._native import progress
from .._native.bindings import last_error, library
from .._native.errors import Error
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
    """The packed copy of one weight, in memory of the runtime."""

    def __init__(self, weight: Weight, shown: list[Shown]):
        self.bytes, handle = weight.bytes, ctypes.c_void_p()
        dtype = _TYPES[shown[0].host.dtype]
        if library().ws_packed_create(weight.name.encode(), dtype, weight.start, weight.bytes, ctypes.byref(handle)) != 0:
            raise Error(f"offload: {last_error()}")
        #: ``None``: it would gain less than 5 %.
        self.handle = handle.value
        self.stored = library().ws_packed_stored_bytes(handle)
        #: The tensors that show the weight, which nobody else's take the place of unseen. Their memory stays where it is, since the storage
        #: is held, unless its owner moves it.
        self._tensors = [one.tensor for one in shown]
        self._raw = [(storage := one.host.untyped_storage(), storage.data_ptr()) for one in shown]
        weakref.finalize(self, library().ws_packed_destroy, handle)

    def is_of(self, shown: list[Shown]) -> bool:
        """Whether these tensors are among those that the copy was made of, and their memory is where it was."""
        mine = {id(one) for one in self._tensors}
        return all(id(one.tensor) in mine for one in shown) and all(storage.data_ptr() == at for storage, at in self._raw)


class PackedCopies:
    """Those of a module, by where their weights are on the host."""

    def __init__(self, wanted: bool):
        #: Whether they are still to be made.
        self.wanted = wanted
        self._all: dict[tuple[int, int], PackedCopy] = {}

    def check(self, name: str, root: nn.Module, weights: Weights) -> None:
        """Refuses a module of which nothing may be packed."""
        if self.wanted and not _packable(root, weights):
            raise _none(name)

    def make(self, name: str, root: nn.Module, weights: Weights, raw: Collection[int]) -> None:
        """Of all weights that gain by it, but for ``raw``, by index: once, for the first plan."""
        if not self.wanted:
            return
        found = [(weights.all[index], shown) for index, shown in _packable(root, weights).items() if index not in raw]
        whole, done = sum(weight.bytes for weight, _ in found), 0
        begin = said = time.monotonic()
        if whole >= _SLOW:
            progress.note(f"{name}: packing {whole / (1 << 30):.1f} GB of weights ...")
        # The largest first: none of them is the last one that all wait for.
        found.sort(key=lambda one: -one[0].bytes)
        threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "weightstream-pack")
        try:
            for weight, copy in threads.map(lambda one: (one[0], PackedCopy(*one)), found):
                if copy.handle is not None:
                    self._all[_key(weight)] = copy
                done, now = done + weight.bytes, time.monotonic()
                if whole >= _SLOW and now - said >= _EVERY:
                    progress.note(f"{name}: packed {done / whole:.0%}")
                    said = now
        finally:
            threads.shutdown(cancel_futures=True)
        if not self:
            raise _none(name)
        self.wanted = False
        if whole >= _SLOW:
            progress.note(f"{name}: packed to {self.stored_bytes / self.raw_bytes:.1%} in {time.monotonic() - begin:.1f} s")

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


def _none(name: str) -> Error:
    return Error(
        f"offload: packed=True packs weights of floating-point numbers from {_LEAST:,} bytes on that gain 5 %, and {name} has none; "
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
