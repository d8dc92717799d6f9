"""Binding of libweightstream.so: runs exported programs with torch tensors.

The library is a part of this package; the environment variable WEIGHTSTREAM_LIBRARY names another one.
torch is imported with the first tensor, not before.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import threading
from pathlib import Path
from typing import Any

from ._meanwhile import Callback, Meanwhile

__all__ = ["Error", "Module", "required_budget", "set_options"]


class Error(RuntimeError):
    """What the runtime refused or failed at; the text names the thing, what was expected and found."""


class _Option(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("number", ctypes.c_int64),
        ("text", ctypes.c_char_p),
    ]


class _Options(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(_Option)), ("count", ctypes.c_size_t)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
    ]


class _Value(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("integer", ctypes.c_int64),
        ("number", ctypes.c_double),
        ("text", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("tensor", _Tensor),
    ]


_TENSOR_KIND, _NONE_KIND, _INT_KIND, _FLOAT_KIND, _BOOL_KIND, _STRING_KIND = range(6)

# Larger tensors are left alone while a call waits.
_BRIEF = 1 << 20

_CPU, _CUDA = 0, 1
_BOOL, _INT, _STRING = 0, 1, 2

# Function: (result, arguments).
_SIGNATURES = {
    "ws_last_error": (ctypes.c_char_p, []),
    "ws_version": (ctypes.c_char_p, []),
    "ws_required_budget": (
        ctypes.c_int,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)],
    ),
    "ws_set_options": (ctypes.c_int, [ctypes.POINTER(_Options)]),
    "wsm_check_defaults": (ctypes.c_int32, [ctypes.POINTER(_Option), ctypes.c_size_t]),
    "wsm_command": (ctypes.c_char_p, [ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.POINTER(ctypes.c_int32)]),
    "wsm_open": (
        ctypes.c_void_p,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Option), ctypes.c_size_t],
    ),
    "wsm_load_method": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_char_p]),
    "wsm_execute": (
        ctypes.c_int32,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Value), ctypes.c_size_t, Callback],
    ),
    "wsm_num_outputs": (ctypes.c_size_t, [ctypes.c_void_p]),
    "wsm_output": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(_Value)]),
    "wsm_stats_json": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "wsm_close": (None, [ctypes.c_void_p]),
}


def _executorch_libraries() -> list[Path]:
    """The shared libraries of the executorch wheel that the runtime needs, in the order of loading.

    They are loaded by path first, so that ours and ExecuTorch's own Python extension share one copy and
    with it one registry of backends.
    """
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise Error("the package executorch is not installed; install executorch==1.5.1")
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    runtime = folder / "libexecutorch.so"
    if not runtime.is_file():
        raise Error(f"{runtime} is missing: this executorch package has no C++ runtime")
    threadpool = folder / "libexecutorch_threadpool.so"
    return [runtime] + ([threadpool] if threadpool.is_file() else [])


def _library_path() -> Path:
    chosen = os.environ.get("WEIGHTSTREAM_LIBRARY")
    if chosen:
        return Path(chosen)
    path = Path(__file__).parent / "lib" / "libweightstream.so"
    if not path.is_file():
        raise Error(f"{path} is missing: install the package with pip, or set WEIGHTSTREAM_LIBRARY to a libweightstream.so")
    return path


@functools.cache
def _library() -> ctypes.CDLL:
    """The loaded library. RTLD_LOCAL, the default: its symbols must not meet those of torch."""
    for path in _executorch_libraries():
        ctypes.CDLL(str(path))
    path = _library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Error(f"cannot load {path}: {error}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def is_here() -> bool:
    """Whether the library can be loaded."""
    try:
        _library()
    except (Error, OSError):
        return False
    return True


def _last_error() -> str:
    return (_library().ws_last_error() or b"").decode("utf-8", "replace")


def _option(key: str, value: Any) -> _Option:
    name = key.encode()
    if isinstance(value, bool):
        return _Option(name, _BOOL, int(value), None)
    if isinstance(value, int):
        if key == "weight_offload_budget_bytes":
            # ExecuTorch's integers have 32 bits; this key is a decimal string for that reason.
            return _Option(name, _STRING, 0, str(value).encode())
        if not -(2**63) <= value < 2**63:
            raise Error(f"option '{key}': {value} does not fit into an integer of 64 bits")
        return _Option(name, _INT, value, None)
    if isinstance(value, (str, os.PathLike)):
        return _Option(name, _STRING, 0, os.fsencode(value))
    raise Error(f"option '{key}': takes an int, a str or a bool, not {type(value).__name__}")


@functools.cache
def _dtypes() -> dict[Any, int]:
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
    }


@functools.cache
def _dtype_of_number() -> dict[int, Any]:
    return {number: dtype for dtype, number in _dtypes().items()}


def _to_value(index: int, value: Any) -> tuple[_Value, Any]:
    """An input as the library takes it, and what it points into."""
    if value is None:
        return _Value(kind=_NONE_KIND), None
    if isinstance(value, bool):
        return _Value(kind=_BOOL_KIND, integer=int(value)), None
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise Error(f"invalid input: input {index}: {value} does not fit into an integer of 64 bits")
        return _Value(kind=_INT_KIND, integer=value), None
    if isinstance(value, float):
        return _Value(kind=_FLOAT_KIND, number=value), None
    if isinstance(value, str):
        text = value.encode()
        kept = ctypes.create_string_buffer(text, len(text) + 1)
        return _Value(kind=_STRING_KIND, text=ctypes.addressof(kept), length=len(text)), kept
    view, kept = _to_native(index, value)
    return _Value(kind=_TENSOR_KIND, tensor=view), kept


def _is_inside(tensor: Any) -> bool:
    """Whether all elements lie inside of the tensor's storage, where the library may read them."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    end = (tensor.storage_offset() + reach) * tensor.element_size()
    return tensor.numel() == 0 or end <= tensor.untyped_storage().nbytes()


def _to_native(index: int, tensor: Any) -> tuple[_Tensor, Any]:
    """The view of a tensor, and what it points into. One on the CPU is taken with its strides; the library copies and counts it."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise Error(f"invalid input: input {index}: expected a torch.Tensor, found {type(tensor).__name__}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise Error(f"invalid input: input {index}: expected a tensor on the cpu or on an NVIDIA GPU, found it on {tensor.device}")
    number = _dtypes().get(tensor.dtype)
    if number is None:
        raise Error(f"invalid input: input {index}: dtype {tensor.dtype} is not supported")
    dense = tensor.detach().resolve_conj().resolve_neg()
    strides = None
    if dense.layout == torch.strided and dense.device.type == "cpu" and not dense.is_contiguous() and _is_inside(dense):
        strides = (ctypes.c_int64 * dense.dim())(*dense.stride())
        nbytes = (1 + sum((size - 1) * stride for size, stride in zip(dense.shape, dense.stride()))) * dense.element_size()
    else:
        dense = dense.contiguous()
        nbytes = dense.numel() * dense.element_size()
    sizes = (ctypes.c_int64 * dense.dim())(*dense.shape)
    device = _CPU, 0
    if dense.is_cuda:
        device = _CUDA, dense.device.index
        # The method runs on a stream of its own, which knows nothing of the one that makes the input.
        torch.cuda.current_stream(dense.device).synchronize()
    view = _Tensor(dense.data_ptr(), nbytes, number, dense.dim(), sizes, strides, *device)
    return view, (dense, sizes, strides)


def _from_value(value: _Value) -> Any:
    """An output: a copy of a tensor, or what the program holds."""
    if value.kind == _TENSOR_KIND:
        return _to_torch(value.tensor)
    if value.kind == _STRING_KIND:
        return ctypes.string_at(value.text, value.length).decode()
    values = {_NONE_KIND: None, _INT_KIND: value.integer, _FLOAT_KIND: value.number, _BOOL_KIND: bool(value.integer)}
    return values[value.kind]


def _to_torch(view: _Tensor) -> Any:
    """A copy of an output as a tensor."""
    import torch

    dtypes = _dtype_of_number()
    if view.dtype not in dtypes:
        raise Error(f"an output has dtype number {view.dtype}, which torch tensors cannot take here")
    sizes, strides = view.sizes[: view.ndim], view.strides[: view.ndim]
    if view.device_type == _CUDA:
        return _device_copy(view).view(dtypes[view.dtype]).as_strided(sizes, strides)
    tensor = torch.empty_strided(sizes, strides, dtype=dtypes[view.dtype])
    if view.nbytes:
        ctypes.memmove(tensor.data_ptr(), view.data, view.nbytes)
    return tensor


class _DeviceBytes:
    """Memory of a GPU, as torch takes it over from other libraries."""

    def __init__(self, address: int, nbytes: int):
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def _device_copy(view: _Tensor) -> Any:
    """A copy of the bytes of an output on a GPU, done when this returns: the next call writes to the same memory."""
    import torch

    device = torch.device("cuda", view.device_index)
    if view.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    copy = torch.as_tensor(_DeviceBytes(view.data, view.nbytes), device=device).clone()
    torch.cuda.current_stream(device).synchronize()
    return copy


def _options(specs: dict[str, Any]) -> ctypes.Array:
    options = [_option(key, value) for key, value in specs.items()]
    return (_Option * len(options))(*options)


def set_options(**specs: Any) -> None:
    """Sets defaults of this process for programs that are loaded later, by whatever runner: the runtime specs by name.

    A load that gives an option itself is stronger; environment variables (``WEIGHTSTREAM_BUDGET_MB`` for ``weight_offload_budget_mb``)
    and the program's own defaults are weaker. One that cannot apply to a program is left out there, and a log line says so.
    """
    array = _options(specs)
    if _library().ws_set_options(ctypes.byref(_Options(array, len(array)))) != 0:
        raise Error(_last_error())


def check_defaults(specs: dict[str, Any]) -> None:
    """Raises :class:`Error` for what cannot be a program's default."""
    array = _options(specs)
    if _library().wsm_check_defaults(array, len(array)) != 0:
        raise Error(_last_error())


def command(arguments: list[str]) -> tuple[int, str]:
    """Runs the command ``weightstream``, but for what needs Python; its exit status, and its text."""
    given = (ctypes.c_char_p * len(arguments))(*[os.fsencode(argument) for argument in arguments])
    status = ctypes.c_int32()
    text = _library().wsm_command(given, len(arguments), ctypes.byref(status))
    if text is None:
        raise Error(_last_error())
    return status.value, text.decode()


class Module:
    """A program and its weights, loaded with a budget.

    The keywords are the runtime specs by name: ``weight_offload_budget_mb``, ``weight_offload_budget_bytes``
    or ``weight_offload_budget="auto"``, ``weight_offload_policy``, ``weight_offload_host``,
    ``weight_offload_staging_mb``, ``weight_offload_gather``, ``weight_offload_link_gbps``, ``weight_offload_kernel_times``,
    ``weight_offload_device``, ``weight_offload_verify``, ``weight_offload_sync``, ``weight_offload_cuda_graph``, ``weight_offload_pte_sha256``. An
    unknown one is an error. Without a budget the least possible one is used; ``"auto"`` is what is free on the device, less
    what the method takes beside its weights, and at most what all of them occupy.

    ``weight_offload_policy="planned"``, the default, decides at load what stays and what streams, and copies less in each
    pass than ``"lru"``. ``weightstream plan`` tells both figures before anything is loaded.

    ``weight_offload_link_gbps="25"`` says what the link to a GPU carries, in GB/s of 1,000,000,000 bytes; ``"auto"``, the default, has
    it timed at load. Plans stream fewer and larger pieces where a copy costs much beside its bytes.

    ``weight_offload_kernel_times="times.txt"`` keeps how long kernels of a GPU run: without it they are timed in the second pass of every
    load, and the plan made anew where that is worth it. If the file is there plans go by it from the first pass on; if it is not it is
    written. ``weightstream plan --kernel-times`` reads it too.

    ``weight_offload_gather="auto"``, the default, lets kernels that look rows of a table up (embeddings) find them in
    host memory, if a pass takes at most half of it: the table is neither copied nor part of the budget. ``"on"`` does so
    however many rows a pass takes, ``"off"`` never.

    ``weight_offload_verify="load"`` compares every weight with its checksum at load; ``"every_read"`` does so
    on the device before each read too, which is slow and meant for debugging.
    ``weight_offload_sync=1`` waits for every kernel of a GPU: where one stores into a weight, or reads outside of its
    arguments, the device's context is lost, and the error names the weights that were leased since the last kernel that is
    known to have ended. Without it those are all that the pass had read so far.
    ``weight_offload_cuda_graph=1`` captures a pass of a GPU as a CUDA graph, copies included, behind two passes over the
    same shapes, and replays it from then on; other shapes are captured anew. What cannot be captured is an error.
    ``weight_offload_pte_sha256=`` takes 64 hexadecimal digits: a program whose bytes have another SHA-256 is
    refused before any of its code runs.

    Inputs and outputs are on the CPU, or, for a program that was saved with ``device_io``, on the GPU that it names. Inputs there are
    used in place, after torch's current stream has made them.

    While a call waits for a GPU its thread goes through what comes next, on small tensors and to no effect, so that it is quick then.

    A module runs one call at a time; a second one from another thread raises. Use it as a context manager,
    or call :meth:`close`, to free its memory at a known moment.

    A module does not survive ``fork``: in a child (``os.fork``, multiprocessing's "fork") every call raises, and closing it does nothing.
    The child can load a module of its own for the CPU, and for a GPU only if nothing was loaded for one before the fork.
    """

    def __init__(self, pte: str | os.PathLike, ptd: str | os.PathLike, method: str = "forward", **specs: Any):
        self._handle = None
        self._method = method
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._meanwhile = Meanwhile(self._again)
        self._given: tuple[Any, ...] = ()
        self._spare = (ctypes.c_char * _BRIEF)()
        self._lib = _library()
        array = _options(specs)
        handle = self._lib.wsm_open(os.fsencode(pte), os.fsencode(ptd), array, len(array))
        if not handle:
            raise Error(_last_error())
        self._handle = ctypes.c_void_p(handle)
        try:
            self._load(method)
        except Error:
            self.close()
            raise

    def _load(self, method: str) -> None:
        if self._lib.wsm_load_method(self._open_handle(), method.encode()) != 0:
            raise Error(_last_error())

    def _open_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise Error("this module is closed")
        self._check_process()
        return self._handle

    def _is_here(self) -> bool:
        """Whether this process has loaded the module: a child has the parent's memory, and neither its threads nor its locks."""
        return os.getpid() == self._process

    def _check_process(self) -> None:
        if not self._is_here():
            raise Error(
                f"this module was loaded in process {self._process}, and this is process {os.getpid()}, forked from it: threads and GPU "
                "contexts do not survive fork; load it again after the fork"
            )

    def forward(self, *inputs: Any) -> Any:
        """Runs the method this module was loaded for. See :meth:`execute`."""
        return self.execute(self._method, *inputs)

    __call__ = forward

    def execute(self, method: str, *inputs: Any) -> Any:
        """Runs a method and returns its output, a tuple if there are several, or None if there are none.

        Tensors may have any strides. None, numbers and strings are part of the program: what was given at export has to be given
        again.
        """
        self._check_process()
        if not self._turn.acquire(blocking=False):
            raise Error("this module is executing already: one call at a time; load a second one for a second thread")
        try:
            return self._execute(method, inputs)
        finally:
            self._turn.release()

    def _execute(self, method: str, given: tuple[Any, ...]) -> Any:
        handle = self._open_handle()
        native = [_to_value(index, value) for index, value in enumerate(given)]
        inputs = (_Value * len(native))(*[value for value, _ in native])
        self._given = given
        failed = self._lib.wsm_execute(handle, method.encode(), inputs, len(native), self._meanwhile.callback)
        self._given = ()
        self._meanwhile.finish()
        if failed != 0:
            raise Error(_last_error())
        outputs = [_from_value(self._output(index)) for index in range(self._lib.wsm_num_outputs(handle))]
        if not outputs:
            return None
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _output(self, index: int) -> _Value:
        value = _Value()
        if self._lib.wsm_output(self._open_handle(), index, ctypes.byref(value)) != 0:
            raise Error(_last_error())
        return value

    def _again(self) -> None:
        """Goes through what is behind the wait of a call and in front of the next one's, with the inputs of this call and outputs like those of the
        one before: the small ones in host memory. Where those were may be nothing any more: an input that was returned as it is, is gone."""
        for index, given in enumerate(self._given):
            if not hasattr(given, "is_cuda") or (not given.is_cuda and given.nbytes <= _BRIEF):
                _to_value(index, given)
        for index in range(self._lib.wsm_num_outputs(self._open_handle())):
            output = self._output(index)
            if output.kind == _TENSOR_KIND and output.tensor.device_type == _CPU and output.tensor.nbytes <= _BRIEF:
                output.tensor.data = ctypes.addressof(self._spare)
                _to_torch(output.tensor)

    def stats(self, method: str | None = None) -> dict[str, Any]:
        """Counters of a loaded method: budget, peak, hits, misses, bytes copied, and so on.

        ``options`` holds each option of the load with its value and who gave it: ``load``, ``set_option``, ``environment``, ``program``
        or ``default``.

        Not part of the budget: ``activation_peak_bytes``, the most bytes of activations at one time, outputs
        included; ``io_bytes``, the most device memory that a call took for its inputs (0 on the CPU, where they
        are read in place); ``host_pinned_bytes`` and ``host_mapped_bytes``, host memory
        (pinned: a copy of the weights or the staging ring, and 1 MiB that outputs go through).
        """
        text = self._lib.wsm_stats_json(self._open_handle(), (method or self._method).encode())
        if text is None:
            raise Error(_last_error())
        return json.loads(text)

    def close(self) -> None:
        """Frees the module. Harmless if it is closed already."""
        if not self._is_here():
            self._handle = None
            return
        with self._turn:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._lib.wsm_close(handle)

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None and self._is_here():
            self._lib.wsm_close(handle)


def required_budget(pte: str | os.PathLike, method: str = "forward") -> int:
    """The least budget with which a method can be loaded, in bytes. Loads nothing.

    Tables of which a pass looks few rows up count as read in place; where they are not (``weight_offload_gather="off"``,
    ``weight_offload_host="staged"``) a load needs more, and its refusal names the budget.
    """
    library = _library()
    budget = ctypes.c_uint64()
    if library.ws_required_budget(os.fsencode(pte), method.encode(), ctypes.byref(budget)) != 0:
        raise Error(_last_error())
    return budget.value
