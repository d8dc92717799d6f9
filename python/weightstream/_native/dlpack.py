"""Tensors that come from the library as DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

#: PyCapsule keeps the address.
_CAPSULE_NAME = ctypes.create_string_buffer(b"dltensor")


class _Tensor(ctypes.Structure):
    """``DLManagedTensor``, of which only the deleter is used here."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Tensor))
_Tensor._fields_ = [("view", ctypes.c_uint64 * 6), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


def consume(pointer: ctypes.c_void_p, consumer: Any) -> Any:
    """What the consumer makes of a DLPack tensor. It calls the deleter when that ends; if it fails, nobody else would."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    try:
        return consumer(make(pointer, ctypes.addressof(_CAPSULE_NAME), None))
    except BaseException:
        tensor = ctypes.cast(pointer, ctypes.POINTER(_Tensor))
        tensor.contents.deleter(tensor)
        raise
