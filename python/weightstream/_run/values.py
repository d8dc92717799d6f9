"""Inputs and outputs between torch and the library. torch is imported with the first tensor, not before."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from .._native.bindings import BOOL, CPU, CUDA, FLOAT, INT, NONE, STRING, TENSOR, Tensor, Value
from .._native.errors import Error


@functools.cache
def dtypes() -> dict[Any, int]:
    """torch's dtypes and their numbers in ExecuTorch."""
    import torch

    return {
        torch.uint8: 0,
        torch.int8: 1,
        torch.int16: 2,
        torch.int32: 3,
        torch.int64: 4,
        torch.float16: 5,
        torch.float32: 6,
        torch.float64: 7,
        torch.bool: 11,
        torch.bfloat16: 15,
        torch.float8_e5m2: 23,
        torch.float8_e4m3fn: 24,
        torch.uint16: 27,
        torch.uint32: 28,
        torch.uint64: 29,
    }


@functools.cache
def dtype_of_number() -> dict[int, Any]:
    return {number: dtype for dtype, number in dtypes().items()}


def to_value(name: str, value: Any) -> tuple[Value, Any]:
    """An input as the library takes it, and what it points into. ``name`` is what errors call it."""
    if value is None:
        return Value(kind=NONE), None
    if isinstance(value, bool):
        return Value(kind=BOOL, integer=int(value)), None
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise Error(f"invalid input: {name}: {value} does not fit into an integer of 64 bits")
        return Value(kind=INT, integer=value), None
    if isinstance(value, float):
        return Value(kind=FLOAT, number=value), None
    if isinstance(value, str):
        text = value.encode()
        kept = ctypes.create_string_buffer(text, len(text) + 1)
        return Value(kind=STRING, text=ctypes.addressof(kept), length=len(text)), kept
    view, kept = to_native(name, value)
    return Value(kind=TENSOR, tensor=view), kept


def _is_inside(tensor: Any) -> bool:
    """Whether all elements lie inside of the tensor's storage, where the library may read them."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    end = (tensor.storage_offset() + reach) * tensor.element_size()
    return tensor.numel() == 0 or end <= tensor.untyped_storage().nbytes()


def to_native(name: str, tensor: Any) -> tuple[Tensor, Any]:
    """The view of a tensor, and what it points into. One on the CPU is taken with its strides; the library copies and counts it."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise Error(f"invalid input: {name}: expected a torch.Tensor, found {type(tensor).__name__}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise Error(f"invalid input: {name}: expected a tensor on the cpu or on an NVIDIA GPU, found it on {tensor.device}")
    number = dtypes().get(tensor.dtype)
    if number is None:
        raise Error(f"invalid input: {name}: dtype {tensor.dtype} is not supported")
    dense = tensor.detach().resolve_conj().resolve_neg()
    strides = None
    if dense.layout == torch.strided and dense.device.type == "cpu" and not dense.is_contiguous() and _is_inside(dense):
        strides = (ctypes.c_int64 * dense.dim())(*dense.stride())
        nbytes = (1 + sum((size - 1) * stride for size, stride in zip(dense.shape, dense.stride()))) * dense.element_size()
    else:
        dense = dense.contiguous()
        nbytes = dense.numel() * dense.element_size()
    sizes = (ctypes.c_int64 * dense.dim())(*dense.shape)
    device = CPU, 0
    if dense.is_cuda:
        device = CUDA, dense.device.index
        # The method runs on a stream of its own, which knows nothing of the one that makes the input.
        torch.cuda.current_stream(dense.device).synchronize()
    view = Tensor(dense.data_ptr(), nbytes, number, dense.dim(), sizes, strides, *device)
    return view, (dense, sizes, strides)


def from_value(value: Value) -> Any:
    """An output: a copy of a tensor, or what the program holds."""
    if value.kind == TENSOR:
        return to_torch(value.tensor)
    if value.kind == STRING:
        return ctypes.string_at(value.text, value.length).decode()
    values = {NONE: None, INT: value.integer, FLOAT: value.number, BOOL: bool(value.integer)}
    return values[value.kind]


def to_torch(view: Tensor) -> Any:
    """A copy of an output as a tensor."""
    import torch

    dtypes = dtype_of_number()
    if view.dtype not in dtypes:
        raise Error(f"an output has dtype number {view.dtype}, which torch tensors cannot take here")
    sizes, strides = view.sizes[: view.ndim], view.strides[: view.ndim]
    if view.device_type == CUDA:
        return _device_copy(view).view(dtypes[view.dtype]).as_strided(sizes, strides)
    tensor = torch.empty_strided(sizes, strides, dtype=dtypes[view.dtype])
    if view.nbytes:
        ctypes.memmove(tensor.data_ptr(), view.data, view.nbytes)
    return tensor


class _DeviceBytes:
    """Memory of a GPU, as torch takes it over from other libraries."""

    def __init__(self, address: int, nbytes: int):
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def _device_copy(view: Tensor) -> Any:
    """A copy of the bytes of an output on a GPU, done when this returns: the next call writes to the same memory."""
    import torch

    device = torch.device("cuda", view.device_index)
    if view.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    copy = torch.as_tensor(_DeviceBytes(view.data, view.nbytes), device=device).clone()
    torch.cuda.current_stream(device).synchronize()
    return copy
