"""Binding of libweightstream.so: the library is a part of this package; the environment variable WEIGHTSTREAM_LIBRARY names another one."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import operator
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import Error


class Option(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("number", ctypes.c_int64),
        ("text", ctypes.c_char_p),
    ]


class Options(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(Option)), ("count", ctypes.c_size_t)]


class Tensor(ctypes.Structure):
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


class Value(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("integer", ctypes.c_int64),
        ("number", ctypes.c_double),
        ("text", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("tensor", Tensor),
    ]


class CallInput(ctypes.Structure):
    """An input of a method as its callers name it."""

    _fields_ = [("name", ctypes.c_char_p), ("place", ctypes.c_int64), ("constant", ctypes.c_char_p)]


class Fault(ctypes.Structure):
    """What a fault came to."""

    _fields_ = [
        ("outcome", ctypes.c_int32),
        ("reason", ctypes.c_int32),
        ("generation", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_uint64),
    ]
    #: What a refusal asks for its words: the range's.
    words: Callable[[int], str]

    @property
    def hit(self) -> bool:
        """The contents are there."""
        return self.outcome == 0

    @property
    def fill(self) -> bool:
        """The memory is there, and the caller writes the contents."""
        return self.outcome == 1

    @property
    def refused(self) -> bool:
        """There is no memory."""
        return self.outcome == 2

    @property
    def why(self) -> str:
        """Why it was refused, and who holds the memory now; empty if it was not refused."""
        return self.words(self.reason) if self.refused else ""


class Freed(ctypes.Structure):
    _fields_ = [("freed", ctypes.c_uint64), ("pinned", ctypes.c_uint64), ("pending", ctypes.c_uint64)]


class OffloadWeight(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("nbytes", ctypes.c_uint64), ("packed", ctypes.c_void_p)]


class OffloadEvent(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_uint32)]


class OffloadEntry(ctypes.Structure):
    _fields_ = [
        ("reads", ctypes.POINTER(ctypes.c_uint32)),
        ("num_reads", ctypes.c_size_t),
        ("events", ctypes.POINTER(OffloadEvent)),
        ("num_events", ctypes.c_size_t),
        ("rows", ctypes.POINTER(ctypes.c_uint32)),
        ("num_rows", ctypes.c_size_t),
    ]


class OffloadFile(ctypes.Structure):
    _fields_ = [("path", ctypes.c_char_p), ("data", ctypes.c_void_p), ("nbytes", ctypes.c_uint64)]


class OffloadRecorded(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("stream", ctypes.c_void_p),
        ("weights", ctypes.POINTER(OffloadWeight)),
        ("num_weights", ctypes.c_size_t),
        ("entry", OffloadEntry),
        ("budget", ctypes.c_uint64),
        ("beside", ctypes.c_uint64),
        ("priority", ctypes.c_int64),
        ("files", ctypes.POINTER(OffloadFile)),
        ("num_files", ctypes.c_size_t),
        ("options", ctypes.POINTER(Options)),
    ]


class OffloadPass(ctypes.Structure):
    _fields_ = [("generation", ctypes.c_uint64), ("resident", ctypes.c_int32)]


class OffloadNeeds(ctypes.Structure):
    _fields_ = [("room", ctypes.c_uint64), ("gives_way", ctypes.c_int32), ("by_reads", ctypes.c_int32)]


#: No limit of bytes, as in weightstream.h.
NO_LIMIT = 2**64 - 1

TENSOR, NONE, INT, FLOAT, BOOL, STRING = range(6)

CPU, CUDA = 0, 1
# Types of options.
_BOOL, _INT, _STRING = 0, 1, 2

# Function: (result, arguments).
_SIGNATURES = {
    "ws_last_error": (ctypes.c_char_p, []),
    "ws_version": (ctypes.c_char_p, []),
    "ws_required_budget": (
        ctypes.c_int,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)],
    ),
    "ws_required_budget_with_data": (
        ctypes.c_int,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)],
    ),
    "ws_method_name": (
        ctypes.c_int,
        [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)],
    ),
    "ws_set_device_budget": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_uint64]),
    "ws_device_report": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)]),
    "ws_range_create": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)]),
    "ws_range_alloc": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint32)]),
    "ws_range_fault": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.POINTER(Fault)]),
    "ws_range_fault_many": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(Fault)],
    ),
    "ws_range_unpin": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t, ctypes.c_void_p]),
    "ws_range_tensor": (
        ctypes.c_int,
        [
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_int32,
            ctypes.POINTER(ctypes.c_int64),
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_void_p),
        ],
    ),
    "ws_range_used_on": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]),
    "ws_range_prioritize": (ctypes.c_int, [ctypes.c_void_p]),
    "ws_range_deprioritize": (ctypes.c_int, [ctypes.c_void_p]),
    "ws_range_set_priority": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64]),
    "ws_range_free_bytes": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32, ctypes.POINTER(Freed)]),
    "ws_range_set_limit": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ws_range_invalidate": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32]),
    "ws_range_watermark": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_char_p)]),
    "ws_range_why": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_char_p)]),
    "ws_range_residency": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)]),
    "ws_graph_pool_create": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)]),
    "ws_graph_pool_begin": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]),
    "ws_graph_pool_end": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
    "ws_graph_pool_enter": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
    "ws_graph_pool_resume": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ws_graph_pool_release": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ws_graph_pool_report": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)]),
    "ws_graph_pool_destroy": (ctypes.c_int, [ctypes.c_void_p]),
    "ws_range_set_ring": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ws_range_slot": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(Fault)],
    ),
    "ws_range_destroy": (ctypes.c_int, [ctypes.c_void_p]),
    "ws_packed_create": (
        ctypes.c_int,
        [ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)],
    ),
    "ws_packed_read": (
        ctypes.c_int,
        [
            ctypes.c_char_p,
            ctypes.c_int32,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_void_p),
        ],
    ),
    "ws_packed_parts": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p]),
    "ws_packed_stored_bytes": (ctypes.c_uint64, [ctypes.c_void_p]),
    "ws_packed_destroy": (None, [ctypes.c_void_p]),
    "ws_offload_create": (ctypes.c_int, [ctypes.POINTER(OffloadRecorded), ctypes.POINTER(ctypes.c_void_p)]),
    "ws_offload_add_entry": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(OffloadEntry), ctypes.POINTER(ctypes.c_uint32)]),
    "ws_offload_replace_entry": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(OffloadEntry)]),
    "ws_offload_begin": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(OffloadNeeds), ctypes.POINTER(OffloadPass)]),
    "ws_segment_bytes": (ctypes.c_uint64, [ctypes.c_int]),
    "ws_offload_read": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int32)],
    ),
    "ws_offload_release": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]),
    "ws_offload_end": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
    "ws_offload_addresses": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]),
    "ws_next_turn": (ctypes.c_int64, []),
    "ws_offload_set_place": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]),
    "ws_offload_set_budget": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ws_offload_copy_again": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t]),
    "ws_offload_stats": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)]),
    "ws_offload_destroy": (None, [ctypes.c_void_p]),
    "ws_set_options": (ctypes.c_int, [ctypes.POINTER(Options)]),
    "wsm_check_defaults": (ctypes.c_int32, [ctypes.POINTER(Option), ctypes.c_size_t]),
    "wsm_command": (ctypes.c_char_p, [ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.POINTER(ctypes.c_int32)]),
    "wsm_open": (
        ctypes.c_void_p,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Option), ctypes.c_size_t],
    ),
    "wsm_load_method": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_char_p]),
    "wsm_execute": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(Value), ctypes.c_size_t]),
    "wsm_call_inputs": (
        ctypes.c_int32,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.POINTER(CallInput)), ctypes.POINTER(ctypes.c_size_t)],
    ),
    "wsm_num_outputs": (ctypes.c_size_t, [ctypes.c_void_p]),
    "wsm_output": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(Value)]),
    "wsm_stats_json": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "wsm_new_session": (ctypes.c_void_p, [ctypes.c_void_p]),
    "wsm_reset_state": (ctypes.c_int32, [ctypes.c_void_p]),
    "wsm_set_budget": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_uint64]),
    "wsm_reorder": (ctypes.c_int32, [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64]),
    "wsm_close": (None, [ctypes.c_void_p]),
}


#: The release of ExecuTorch that the library is built with. The C++ classes of another one may be laid out otherwise.
EXECUTORCH = "1.5.1"
#: Its shared libraries that ours needs, in the order of loading.
_RUNTIME = ("libexecutorch.so", "libexecutorch_threadpool.so")


def executorch_package() -> Path | None:
    """The folder of the installed package executorch; None if there is none. Raises :class:`Error` for another release than ours."""
    spec = importlib.util.find_spec("executorch")
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        # A folder that is called executorch and lies on Python's path would do for a package.
        if (folder / "lib" / _RUNTIME[0]).is_file():
            found = re.search(r'^__version__ = "([^"+]*)', (folder / "version.py").read_text(), re.MULTILINE)
            if found is None or found[1] != EXECUTORCH:
                raise Error(
                    f"{folder} is executorch {found[1] if found else 'of an unknown release'}; weightstream was built with {EXECUTORCH}, "
                    f"and a process holds only one: pip install executorch=={EXECUTORCH}, or pip uninstall executorch to run without it"
                )
            return folder
    return None


def _executorch_libraries() -> list[Path]:
    """ExecuTorch's C++ runtime, which is loaded by its path before ours: that of the installed package, so that its Python extension and
    our library share one copy and with it one registry of backends; without that package the copy that lies beside our library."""
    package = executorch_package()
    folder = package / "lib" if package is not None else _library_path().parent / "executorch"
    libraries = [folder / name for name in _RUNTIME]
    for path in libraries:
        if not path.is_file():
            raise Error(f"{path} is missing: install weightstream's wheel with pip, or pip install executorch=={EXECUTORCH}")
    return libraries


def _library_path() -> Path:
    chosen = os.environ.get("WEIGHTSTREAM_LIBRARY")
    if chosen:
        return Path(chosen)
    path = Path(__file__).parents[1] / "lib" / "libweightstream.so"
    if not path.is_file():
        raise Error(f"{path} is missing: install the package with pip, or set WEIGHTSTREAM_LIBRARY to a libweightstream.so")
    return path


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library. RTLD_LOCAL, the default: its symbols must not meet torch's."""
    for path in (*_executorch_libraries(), _library_path()):
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
        library()
    except (Error, OSError):
        return False
    return True


def last_error() -> str:
    return (library().ws_last_error() or b"").decode("utf-8", "replace")


def plain(key: str, value: Any) -> bool | int | str | os.PathLike:
    """The value of an option as a type that options have. The library says which values are right."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(float(value))
    if isinstance(value, (bool, int, str, os.PathLike)):
        return value
    if key == "weight_offload_device" and type(value).__name__ == "device":  # of torch, which need not be loaded here
        return str(value)
    if hasattr(value, "__index__"):
        return operator.index(value)
    raise Error(f"option '{key}': takes a number, a str or a bool, not {type(value).__name__}")


def option(key: str, value: Any) -> Option:
    name, value = key.encode(), plain(key, value)
    if isinstance(value, bool):
        return Option(name, _BOOL, int(value), None)
    if isinstance(value, int):
        if key == "weight_offload_budget_bytes":
            # ExecuTorch's integers have 32 bits; this key is a decimal string for that reason.
            return Option(name, _STRING, 0, str(value).encode())
        if not -(2**63) <= value < 2**63:
            raise Error(f"option '{key}': {value} does not fit into an integer of 64 bits")
        return Option(name, _INT, value, None)
    return Option(name, _STRING, 0, os.fsencode(value))


def options_of(specs: dict[str, Any]) -> ctypes.Array:
    options = [option(key, value) for key, value in specs.items()]
    return (Option * len(options))(*options)


def check_defaults(specs: dict[str, Any]) -> None:
    """Raises :class:`Error` for what cannot be a program's default."""
    array = options_of(specs)
    if library().wsm_check_defaults(array, len(array)) != 0:
        raise Error(last_error())


def device_name(device: Any) -> str:
    """The name of a device: a text, or a ``torch.device``."""
    if isinstance(device, str):
        return device
    if hasattr(device, "type") and hasattr(device, "index"):
        return f"{device}"
    raise Error(f"device: a name as 'cpu' or 'cuda:0', or a torch.device, is expected, found {device!r}")


def as_priority(value: Any) -> int:
    """A priority."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise Error(f"priority: a whole number of 64 bits is expected, found {value!r}")
    return value


def whole(name: str, value: Any) -> int:
    """A number of bytes. ``name`` is what errors call it."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < NO_LIMIT:
        raise Error(f"{name}: a number of bytes from 0 up is expected, found {value!r}")
    return value
