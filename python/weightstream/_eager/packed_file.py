"""A file of packed copies: a safetensors file that has the stored bytes of each, as bytes, and says in its metadata what they are.

Its copies are mapped. Each is decoded and compared with its weight before it is used: one of another weight, or a damaged one, is an error.
A file that is there is never replaced.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
from collections.abc import Mapping as Items
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._native import progress
from .._native.errors import Error
from .checkpoint import Stored, header_of
from .mapping import Mapping

#: What the metadata are called, and the version of the code that they are written for.
_KEY, _VERSION = "weightstream_packed", 2
#: How many exponents a copy has.
_EXPONENTS = 13
#: Copies begin at pages: drivers register memory by these.
_PAGE = 4096
_OUT = "name another file, or remove this one: then it is made again"


class FilePart(NamedTuple):
    """What a file keeps of a copy."""

    stored: int
    bytes: int
    exponents: bytes


class FileWeight(NamedTuple):
    """A weight as a file knows it: type, bytes, and its copy; ``None`` if it gains nothing."""

    dtype: torch.dtype
    bytes: int
    part: FilePart | None = None

    def known(self) -> list[Any]:
        part = [self.part.bytes, self.part.exponents.hex()] if self.part else []
        return [str(self.dtype).removeprefix("torch."), self.bytes, *part]


class PackedFile:
    """The file at a path, which may not be there yet."""

    def __init__(self, path: Path):
        self.path = path
        self.mapping: Mapping | None = None
        self._stored: dict[str, Stored] = {}
        self._known: dict[str, Any] = {}

    def look(self) -> bool:
        """Maps it, if it is there. Errors name it."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            folder = self.path.parent
            if not folder.is_dir() or not os.access(folder, os.W_OK):
                raise Error(f"offload: packed={str(self.path)!r}: no file can be made in {folder}; name a folder that is there") from None
            return False
        except (OSError, ValueError) as error:
            raise Error(f"offload: packed={str(self.path)!r}: {getattr(error, 'strerror', None) or error}") from None
        if not os.path.isfile(self.path):
            raise Error(f"offload: packed={str(self.path)!r}: this is no file; give a path that packed copies are kept at")
        if found.st_size == 0:
            raise Error(f"offload: {self.path} is empty, and is left as it is; name another file, or remove it")
        mapping = Mapping.of(self.path)
        self._stored, beside = header_of(mapping)
        try:
            written = json.loads(beside[_KEY])
            version, self._known = written["version"], dict(written["weights"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Error(f"offload: {self.path} is no file of packed copies, and is left as it is; name another file") from error
        if version != _VERSION:
            raise Error(f"offload: {self.path} has packed copies of version {version}, and this release has {_VERSION}; {_OUT}")
        self.mapping = mapping
        return True

    def check_some(self, wanted: Items[str, FileWeight]) -> None:
        """Refuses a file that has none of these weights."""
        if not any(self._says(name, weight) for name, weight in wanted.items()):
            raise Error(f"offload: {self.path} is of another module: it has none of the {len(wanted)} weights that may be packed; {_OUT}")

    def part(self, name: str, weight: FileWeight) -> FilePart | None:
        """What is kept of a weight's copy; ``None`` if it gains nothing."""
        if not self._says(name, weight):
            dtype, count, *_ = weight.known()
            has = "another one" if name in self._known else "none"
            raise Error(f"offload: {self.path} is of another module: '{name}' is {count} bytes of {dtype}, and it has {has}; {_OUT}")
        part, stored = self._known[name][2:], self._stored.get(name)
        if not part:
            return None
        try:
            count, exponents = int(part[0]), bytes.fromhex(part[1])
        except (IndexError, TypeError, ValueError, OverflowError):
            count, exponents = -1, b""
        shape = stored.shape if stored and stored.dtype == torch.uint8 else ()
        if len(exponents) != _EXPONENTS or len(shape) != 1 or not 0 < count <= shape[0]:
            raise Error(f"offload: {self.path} is malformed: it does not say what the copy of '{name}' is; {_OUT}")
        return FilePart(self.mapping.source + stored.begin, count, exponents)

    def _says(self, name: str, weight: FileWeight) -> bool:
        found = self._known.get(name)
        return isinstance(found, list) and found[:2] == weight.known()[:2]

    def refused(self, why: str) -> Error:
        """A copy is not what it should be."""
        return Error(f"offload: {self.path}: {why}; {_OUT}")

    def write(self, weights: Items[str, FileWeight], mode: int) -> None:
        """Makes the file, as a whole or not at all. If somebody else has made it meanwhile, that one stays."""
        text, whole = _header(weights)
        new = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}.part")
        made = False
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made = True
            with open(descriptor, "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for part in (weight.part for weight in weights.values() if weight.part):
                    file.write((ctypes.c_uint8 * part.bytes).from_address(part.stored))
                    file.write(bytes(-part.bytes % _PAGE))
                file.flush()
                os.fsync(file.fileno())
            _publish(new, self.path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise Error(
                f"offload: cannot write {whole} bytes of packed copies to {self.path}: {why}; name another file, or give packed=True"
            ) from error
        finally:
            if made:
                new.unlink(missing_ok=True)
        progress.note(f"{whole / (1 << 20):,.1f} MB of packed copies are in {self.path}")


def _publish(new: Path, path: Path) -> None:
    """Gives a file its name, which a file that is there keeps."""
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError:
        # A file system without links.
        if not path.exists():
            os.replace(new, path)


def _header(weights: Items[str, FileWeight]) -> tuple[bytes, int]:
    """The header, after which the first copy begins at a page, and the bytes of the whole file."""
    tensors, at = {}, 0
    for name, weight in weights.items():
        if weight.part:
            end = at + weight.part.bytes + -weight.part.bytes % _PAGE
            tensors[name] = {"dtype": "U8", "shape": [end - at], "data_offsets": [at, end]}
            at = end
    known = {name: weight.known() for name, weight in weights.items()}
    metadata = {"format": "pt", _KEY: json.dumps({"version": _VERSION, "weights": known})}
    text = json.dumps({"__metadata__": metadata, **tensors}).encode()
    text += b" " * (-(8 + len(text)) % _PAGE)
    return text, 8 + len(text) + at
