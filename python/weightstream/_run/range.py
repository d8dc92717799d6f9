"""Ranges: device addresses of a model in eager code, whose memory comes and goes by faults."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._native.bindings import NO_LIMIT, Fault, Freed, as_priority, device_name, last_error, library, whole
from .._native.dlpack import consume
from .._native.errors import Error

__all__ = ["Fault", "Range", "Watermark"]

# As in weightstream.h.
_ALL = 2**32 - 1
#: ScalarType numbers of the types that DLPack knows. Others are views of bytes.
_DTYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
}
#: Handles of ranges that were dropped while tensors of them lived.
_left: list[ctypes.c_void_p] = []


class Watermark(NamedTuple):
    """Up to where faults take memory, and what set it; ``why`` is empty while nothing was evicted."""

    bytes: int
    why: str


class Batch:
    """Allocations that are faulted and unpinned together, by one call each. Made by :meth:`Range.batch`."""

    def __init__(self, range: Range, allocs: Sequence[int]):
        self._range = range
        self._count = len(allocs)
        self._allocs = (ctypes.c_uint32 * self._count)(*map(_number, allocs))
        self._faults = (Fault * self._count)()
        #: The answers of the last fault, in the order of the allocations.
        self.faults = list(self._faults)
        for fault in self.faults:
            fault.words = range._why
        self._fault = library().ws_range_fault_many

    def fault(self, stream: Any = None) -> Sequence[Fault]:
        """Faults all of them. The answers are valid until the next fault of this batch."""
        handle = self._range._handle
        if handle is None or self._fault(handle, self._allocs, self._count, self._range._stream(stream), self._faults):
            self._range._fail(handle)
        return self.faults

    def unpin(self, stream: Any = None) -> None:
        """Ends the faults that were not refused."""
        self._range.unpin([alloc for alloc, fault in zip(self._allocs, self.faults, strict=True) if not fault.refused], stream)


class Range:
    """Device addresses of one model. Weights are allocated in the order of their importance, and cost no memory before a fault.

    ``device`` is ``"cpu"``, ``"cuda:0"`` and so on. ``bytes`` is what will be allocated; each allocation takes a multiple of 256. A new
    range comes before older ones of priority 0. ``ring`` is bytes of memory for weights whose fault was refused, in whole units; it is taken now, and
    :meth:`slot` gives parts of it. A ``stream`` is a ``torch.cuda.Stream``, its handle, or None for the current one::

        w = range.alloc(nbytes)
        fault = range.fault(w)
        if fault.refused:
            w, fault = range.slot(w)                    # with ring=…; else a temporary, and no unpin
        weight = range.tensor(w, dtype, shape)
        if fault.fill:
            weight.copy_(host_weight)
        y = layer(x, weight)
        del weight
        range.unpin(w)
    """

    def __init__(self, device: str, bytes: int, name: str = "range", *, ring: int = 0):
        self._handle: ctypes.c_void_p | None = None
        device = device_name(device)
        self.device, self.name = device, name
        self._gpu = device.startswith("cuda")
        _end_left()
        handle = ctypes.c_void_p()
        if library().ws_range_create(device.encode(), name.encode(), whole("bytes", bytes), ctypes.byref(handle)) != 0:
            raise Error(last_error())
        self._handle = handle
        # "cuda" alone is the first GPU, as everywhere.
        self._index = int(device.partition(":")[2] or 0) if self._gpu else 0
        if whole("ring", ring):
            self._call("set_ring", ring)

    def alloc(self, bytes: int) -> int:
        """The number of the next allocation: from low addresses, which stay longest, up."""
        alloc = ctypes.c_uint32()
        self._call("alloc", whole("bytes", bytes), ctypes.byref(alloc))
        return alloc.value

    def fault(self, alloc: int, stream: Any = None) -> Fault:
        """The contents of an allocation (``hit``), memory to write them to (``fill``), or ``refused``, with ``why``. Never waits.

        Unless it was refused, :meth:`unpin` ends it. After a ``fill`` that failed, call :meth:`invalidate` before that.
        """
        fault = Fault()
        self._call("fault", _number(alloc), self._stream(stream), ctypes.byref(fault))
        fault.words = self._why
        return fault

    def batch(self, allocs: Iterable[int]) -> Batch:
        """Allocations that are always faulted together, as those of a layer: one call for all of them."""
        return Batch(self, list(allocs))

    def slot(self, alloc: int, stream: Any = None) -> tuple[int, Fault]:
        """Memory of the ring for an allocation whose fault was refused, and its number, which :meth:`unpin` and :meth:`tensor` take.

        It is a ``fill``: write it on ``stream``. The slot is leased until it is unpinned and its tensors are gone. Never waits; an error
        if too much of the ring is leased, which says by whom, and if the allocation is larger than the ring.
        """
        slot, fault = ctypes.c_uint32(), Fault()
        self._call("slot", _number(alloc), self._stream(stream), ctypes.byref(slot), ctypes.byref(fault))
        return slot.value, fault

    def unpin(self, allocs: int | Sequence[int], stream: Any = None) -> None:
        """What was issued to ``stream`` so far uses the allocation, or each of several, and nothing later does."""
        every = [allocs] if isinstance(allocs, int) else allocs
        self._call("unpin", (ctypes.c_uint32 * len(every))(*map(_number, every)), len(every), self._stream(stream))

    def tensor(self, alloc: int, dtype: Any, shape: Sequence[int], stream: Any = None) -> Any:
        """A tensor over an allocation that is resident. The memory stays as long as the tensor lives, and until its kernels are done.

        ``stream`` is where it is used; :meth:`used_on` names further ones. ``record_stream`` does nothing for such a tensor.
        """
        import torch

        name = str(dtype).removeprefix("torch.")
        sizes = [int(size) for size in shape]
        known = name in _DTYPES
        if not known and dtype.itemsize > 1:
            raise Error(f"Range.tensor: DLPack has no type for {dtype}; take uint8 and view it")
        pointer = ctypes.c_void_p()
        array = (ctypes.c_int64 * len(sizes))(*sizes)
        self._call("tensor", _number(alloc), _DTYPES[name] if known else 0, array, len(sizes), self._stream(stream), ctypes.byref(pointer))
        tensor = consume(pointer, torch.utils.dlpack.from_dlpack)
        return tensor if known else tensor.view(dtype)

    def used_on(self, alloc: int, stream: Any) -> None:
        """Tensors of the allocation that live are used on this stream too. Streams that nobody names are not waited for."""
        self._call("used_on", _number(alloc), self._stream(stream))

    def prioritize(self) -> None:
        """Comes first of its priority from now on, before modules too, and what was evicted may come back: the model is used again."""
        self._call("prioritize")

    def deprioritize(self) -> None:
        """Comes last of its priority from now on."""
        self._call("deprioritize")

    def set_priority(self, priority: int) -> None:
        """Memory of ranges and modules of a lower number goes first. It is 0 at first. What was evicted may come back."""
        self._call("set_priority", as_priority(priority))

    def free_bytes(self, bytes: int, *, wait: bool = True) -> dict[str, int]:
        """Frees so many bytes, high addresses first: what was ``freed``, what is ``pinned``, and what is ``pending`` on kernels."""
        freed = Freed()
        self._call("free_bytes", whole("bytes", bytes), int(wait), ctypes.byref(freed))
        return {name: getattr(freed, name) for name, _ in Freed._fields_}

    def set_limit(self, bytes: int | None) -> None:
        """Holds at most so many bytes; None for no limit."""
        self._call("set_limit", NO_LIMIT if bytes is None else whole("bytes", bytes))

    def invalidate(self, alloc: int | None = None) -> None:
        """The contents of an allocation, or of all, are worth nothing: the next fault has them written. For weights that change."""
        self._call("invalidate", _ALL if alloc is None else _number(alloc))

    def watermark(self) -> Watermark:
        """Up to where faults take memory, and why."""
        bytes, why = ctypes.c_uint64(), ctypes.c_char_p()
        self._call("watermark", ctypes.byref(bytes), ctypes.byref(why))
        return Watermark(bytes.value, (why.value or b"").decode())

    def _why(self, reason: int) -> str:
        """A refusal in words."""
        why = ctypes.c_char_p()
        self._call("why", reason, ctypes.byref(why))
        return (why.value or b"").decode()

    def residency(self) -> dict[str, Any]:
        """What the range holds, unit by unit, and what happened to it."""
        text = ctypes.c_char_p()
        self._call("residency", ctypes.byref(text))
        return json.loads(text.value or b"{}")

    def close(self) -> None:
        """Gives memory and addresses back. An error while a fault is open or a tensor lives; then the range stays."""
        if self._handle is not None:
            self._call("destroy")
            self._handle = None

    def __enter__(self) -> Range:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None and library().ws_range_destroy(handle) != 0:
            # The memory is that of tensors which live.
            _left.append(handle)

    def _stream(self, stream: Any) -> int:
        if not self._gpu:
            return 0
        if stream is None:
            from .._native.gpus import current_stream

            return current_stream(self._index)
        return stream if isinstance(stream, int) else stream.cuda_stream

    def _call(self, name: str, *arguments: Any) -> None:
        handle = self._handle
        if handle is None or getattr(library(), f"ws_range_{name}")(handle, *arguments) != 0:
            self._fail(handle)

    def _fail(self, handle: ctypes.c_void_p | None) -> None:
        raise Error(f"range '{self.name}' is closed" if handle is None else last_error())


def _number(alloc: Any) -> int:
    """A number as :meth:`Range.alloc` gives it: others would be cut to 32 bits."""
    if type(alloc) is not int or not 0 <= alloc < _ALL:
        raise Error(f"range: the number of an allocation, as alloc() gives it, is expected, found {alloc!r}")
    return alloc


def _end_left() -> None:
    """Ends ranges that were dropped before their tensors."""
    _left[:] = [handle for handle in _left if library().ws_range_destroy(handle) != 0]
