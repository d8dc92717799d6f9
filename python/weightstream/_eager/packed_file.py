"""A file of packed copies: a safetensors file that has the stored bytes of each, as bytes, and says in its metadata what they are.

Its copies are mapped. Each is decoded and compared with its weight before it is used: one of another weight, or a damaged one, is an error.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping as Items
from pathlib import Path
from typing import NamedTuple

import torch

from .._native import progress
from .._native.errors import Error
from .checkpoint import Stored, header_of
from .mapping import Mapping

#: What the metadata are called, and the version of the code that they are written for.
_KEY, _VERSION = "weightstream_packed", 2
#: How many exponents a copy has.
_EXPONENTS = 13
_OUT = "name another file, or remove this one: then it is made again"


class FilePart(NamedTuple):
    """What a file keeps of a copy."""

    stored: int
    bytes: int
    exponents: bytes


class PackedFile:
    """The file at a path, which may not be there yet."""

    def __init__(self, path: Path):
        self.path = path
        self.mapping: Mapping | None = None
        self._stored: dict[str, Stored] = {}
        self._known: dict[str, list] = {}

    def look(self) -> bool:
        """Maps it, if it is there. Errors name it, before anything is packed."""
        if not self.path.exists():
            if not self.path.parent.is_dir():
                raise Error(f"offload: packed={str(self.path)!r}: there is no folder {self.path.parent}")
            return False
        if not self.path.is_file():
            raise Error(f"offload: packed={str(self.path)!r}: this is no file; give a path that the packed copies are kept at")
        self.mapping = Mapping.of(self.path)
        self._stored, beside = header_of(self.mapping)
        try:
            written = json.loads(beside[_KEY])
            version, self._known = written["version"], dict(written["weights"])
        except (ValueError, KeyError, TypeError) as error:
            raise Error(f"offload: {self.path} is no file of packed copies, and is left as it is; name another file") from error
        if version != _VERSION:
            raise Error(f"offload: {self.path} has packed copies of version {version}, and this release has {_VERSION}; {_OUT}")
        return True

    def part(self, name: str, dtype: torch.dtype, count: int) -> FilePart | None:
        """What is kept of the copy of a weight of so many bytes; ``None`` if it gains nothing."""
        wanted = [_named(dtype), count]
        found = self._known.get(name)
        if not isinstance(found, list) or found[:2] != wanted:
            has = "another one" if found else "none"
            raise Error(f"offload: {self.path} is of another module: '{name}' is {count} bytes of {wanted[0]}, and it has {has}; {_OUT}")
        if found[2:] == [None]:
            return None
        stored = self._stored.get(name)
        try:
            exponents = bytes.fromhex(found[2])
        except (IndexError, TypeError, ValueError):
            exponents = b""
        if stored is None or stored.dtype != torch.uint8 or len(exponents) != _EXPONENTS:
            raise Error(f"offload: {self.path} is malformed: it does not say what the copy of '{name}' is; {_OUT}")
        return FilePart(self.mapping.source + stored.begin, stored.shape[0], exponents)

    def refused(self, why: str) -> Error:
        """A copy is not what it should be."""
        return Error(f"offload: {self.path}: {why}; {_OUT}")

    def write(self, parts: Items[str, tuple[torch.dtype, int, FilePart | None]], mode: int) -> None:
        """Writes what is kept of each weight: its type, its bytes, its copy. The file is there as a whole or not at all."""
        header, known, at = {}, {}, 0
        for name, (dtype, count, part) in parts.items():
            known[name] = [_named(dtype), count, part.exponents.hex() if part else None]
            if part:
                header[name] = {"dtype": "U8", "shape": [part.bytes], "data_offsets": [at, at + part.bytes]}
                at += part.bytes
        metadata = {"format": "pt", _KEY: json.dumps({"version": _VERSION, "weights": known})}
        text = json.dumps({"__metadata__": metadata, **header}).encode()
        text += b" " * (-len(text) % 8)
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for _, _, part in parts.values():
                    if part:
                        file.write((ctypes.c_uint8 * part.bytes).from_address(part.stored))
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
        except OSError as error:
            raise Error(f"offload: cannot write packed copies of {at} bytes to {self.path}: {error.strerror or error}") from error
        finally:
            new.unlink(missing_ok=True)
        progress.note(f"{at / (1 << 30):.1f} GB of packed copies are in {self.path}")


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
