"""Bytes of weights on disk, between compiling a program and writing it: a program's weights need not be in memory twice.

    weights of the model  --put-->  one file without a name, in $TMPDIR  --read-->  the `.ptd`

Equal bytes are kept once. The file has no name, so nothing is left of it, however the process ends. It lives as long as one of
its :class:`Slice` does.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from executorch.exir._serialize._cord import FileBackedData

from ..._native.errors import ExportError


class Slice(FileBackedData):
    """A part of a :class:`Spool`, for ExecuTorch's writers. It never changes, so that a copy is the same."""

    def __init__(self, file: IO[bytes], start: int, size: int, sha256: bytes) -> None:
        # Not the base's: that one owns a file with a name.
        self._file, self._start, self._size, self._sha256 = file, start, size, sha256

    def __len__(self) -> int:
        return self._size

    def __copy__(self) -> Slice:
        return self

    def __deepcopy__(self, memo: Any) -> Slice:
        return self

    def _chunks(self, size: int) -> Iterator[bytes]:
        at, end = self._start, self._start + size
        while at < end:
            chunk = os.pread(self._file.fileno(), min(self._COPY_CHUNK_SIZE, end - at), at)
            if not chunk:
                raise OSError(errno.EIO, "the temporary file of the weights ended early")
            yield chunk
            at += len(chunk)

    def prefix(self, size: int) -> bytes:
        return b"".join(self._chunks(min(size, self._size)))

    def sha256(self) -> bytes:
        return self._sha256

    def to_bytes(self) -> bytes:
        return self.prefix(self._size)

    def write_to_file(self, outfile: Any) -> None:
        for chunk in self._chunks(self._size):
            outfile.write(chunk)

    def close(self) -> None:
        """Nothing to do: the file goes with its last slice."""


class Spool:
    """Takes bytes, and gives slices of its file."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="weightstream-", buffering=0)  # noqa: SIM115 (the slices close it)
        self._end = 0
        self._known: dict[bytes, Slice] = {}

    def put(self, data: memoryview) -> Slice:
        """Keeps ``data``, unless these bytes are here already."""
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._write(data)
            self._known[digest] = Slice(self._file, self._end, data.nbytes, digest)
            self._end += data.nbytes
        return self._known[digest]

    def _write(self, data: memoryview) -> None:
        try:
            left = data
            while left.nbytes:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise ExportError(
                f"the temporary file for the weights, in {tempfile.gettempdir()}, takes no more than {self._end} bytes: "
                f"{error.strerror}; TMPDIR names another folder"
            ) from error
