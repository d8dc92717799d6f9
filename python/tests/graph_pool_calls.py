"""What PyTorch's allocator calls of a graph pool, without PyTorch."""

from __future__ import annotations

import ctypes

from weightstream._native.bindings import library
from weightstream._run.graph_pool import GraphPool

MB = 1 << 20
CPU = -1


def callback(name: str, result: type | None, *arguments: type):
    function = getattr(library(), name)
    function.restype, function.argtypes = result, arguments
    return function


SIZES = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


def alloc(kind: str, size: int, device: int = CPU) -> int | None:
    return callback(f"ws_{kind}_alloc", ctypes.c_void_p, *SIZES)(size, device, None)


def free(kind: str, at: int | None, device: int = CPU) -> None:
    callback(f"ws_{kind}_free", None, ctypes.c_void_p, *SIZES)(at, 0, device, None)


def capture(pool: GraphPool, *sizes: int, device: int = CPU) -> tuple[int, list[int]]:
    """What the allocator asks for in a capture."""
    number = pool._begin()
    pieces = [alloc("graph_pool", size, device) for size in sizes]
    pool._call("end", 1)
    assert None not in pieces
    return number, pieces
