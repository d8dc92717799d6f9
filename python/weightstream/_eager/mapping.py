"""Files that are mapped for the tensors of a module::

    file ── mapped, private ──► tensors over the bytes
         └─ mapped, shared ───► what plans copy from

- Both mappings are the file's pages in the system's cache. Who writes to a weight gets pages of his own: that is what the private mapping
  is for. What a driver registers is the shared one, since it would copy all pages of the other.
- A tensor over a mapping keeps both alive. What a plan copies from is known by its address (:func:`files_of`).
- A weight that was written has memory of its own from then on (:func:`writable`, :meth:`Mapping.own`): plans copy from the file.
"""

from __future__ import annotations

import bisect
import math
import mmap
import os
import warnings
import weakref
from collections.abc import Iterable
from pathlib import Path

import torch

from .._native.errors import Error
from .subclasses import is_plain
from .watch import get_data, set_data


class Mapping(mmap.mmap):
    """A file, mapped as a whole for tensors. Their writes do not reach it."""

    path: str
    #: Where the bytes of tensors are, and where plans find the same bytes.
    address: int
    source: int
    _shared: torch.Tensor
    _facts: tuple[int, ...]

    @staticmethod
    def of(path: Path) -> Mapping:
        """Errors name the file."""
        try:
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_size < 8:
                    raise Error(f"offload: {path} is no safetensors file: it has {facts.st_size} bytes")
                # Nothing is set aside for pages of their own, which few weights ever get.
                flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
                mapping = Mapping(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                shared = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except OSError as error:
            raise Error(f"offload: cannot map {path}: {error.strerror or error}") from error
        mapping.path, mapping._facts = str(path.absolute()), _facts(facts)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            mapping._shared = torch.frombuffer(shared, dtype=torch.uint8)
        mapping.address, mapping.source = mapping.tensor(torch.uint8, (1,), 0).data_ptr(), mapping._shared.data_ptr()
        _MAPPED.add(mapping)
        return mapping

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], begin: int) -> torch.Tensor:
        """A tensor over bytes of the file. It keeps the mapping."""
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        # Of a view somebody would seem to have another one.
        return get_data(torch.frombuffer(self, dtype=dtype, count=count, offset=begin).view(shape))

    def own(self, address: int, count: int) -> torch.Tensor | None:
        """A copy of some bytes that tensors have, if they are not those of the file."""
        begin = address - self.address
        bytes = self.tensor(torch.uint8, (count,), begin)
        return None if torch.equal(bytes, self._shared[begin : begin + count]) else bytes.clone()

    def check_unchanged(self) -> None:
        """Whether the path leads to the file that was mapped, as it was."""
        try:
            now = _facts(os.stat(self.path))
        except FileNotFoundError:
            now = ()
        if now != self._facts:
            raise Error(
                f"offload: {self.path} is gone or has changed since it was mapped; offload the module again, over files that stay as they are"
            )


def _facts(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


#: Those that a tensor keeps alive.
_MAPPED: weakref.WeakSet[Mapping] = weakref.WeakSet()


def files_of(addresses: Iterable[int]) -> list[Mapping]:
    """The files whose mappings some addresses lie in."""
    mappings = sorted(_MAPPED, key=lambda one: one.address)
    starts = [one.address for one in mappings]
    found = {}
    for address in addresses:
        at = bisect.bisect_right(starts, address) - 1
        if at >= 0 and address < starts[at] + len(mappings[at]):
            found[at] = mappings[at]
    return list(found.values())


def maybe_written(files: list[Mapping]) -> list[Mapping]:
    """Those of which tensors may not have the file's bytes any more: who writes gets pages that are no file's."""
    untouched = set()
    if files:
        try:
            with open("/proc/self/smaps") as maps:
                begin = 0
                for line in maps:
                    head = line.split(maxsplit=1)[0]
                    if not head.endswith(":"):
                        begin = int(head.partition("-")[0], 16)
                    elif head == "Anonymous:" and line.endswith(" 0 kB\n"):
                        untouched.add(begin)
        except OSError:
            # Then all are compared with their files.
            pass
    return [file for file in files if file.address not in untouched]


def source_of(address: int, files: list[Mapping]) -> int:
    """Where plans find the bytes that tensors have at an address."""
    found = next((file for file in files if file.address <= address < file.address + len(file)), None)
    return address if found is None else found.source + address - found.address


def is_of_file(tensor: torch.Tensor) -> bool:
    """Whether its bytes are a file's."""
    return bool(_files_of(tensor))


def _files_of(tensor: torch.Tensor) -> list[Mapping]:
    is_memory = is_plain(tensor) and tensor.device.type == "cpu" and tensor.layout is torch.strided
    return files_of([tensor.data_ptr()]) if _MAPPED and is_memory else []


def writable(host: torch.Tensor) -> torch.Tensor:
    """A weight on the host, to be written as a whole. One over a file shows memory of its own from then on."""
    if is_of_file(host):
        set_data(host, torch.empty_like(host))
    return host
