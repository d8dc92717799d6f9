"""Runs exported programs with torch tensors."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import threading
from pathlib import Path
from typing import Any

from .._native.bindings import CallInput, Options, Value, as_priority, last_error, library, options_of
from .._native.errors import Error
from .call import Argument, Call
from .values import from_value, to_value

__all__ = ["Module", "register", "required_budget", "set_options"]


def register() -> None:
    """Lets ExecuTorch's own Python runtime load programs of WeightStream in this process: its ``WeightStreamBackend`` is registered.

    Options come from :func:`set_options`, the environment or the program then. Other calls of this package do the same.
    """
    library()


def set_options(**specs: Any) -> None:
    """Sets defaults of this process for programs that are loaded later, by whatever runner: the runtime specs by name.

    A load that gives an option itself is stronger; environment variables (``WEIGHTSTREAM_BUDGET_MB`` for ``weight_offload_budget_mb``)
    and the program's own defaults are weaker. One that cannot apply to a program is left out there, and a log line says so.
    """
    array = options_of(specs)
    if library().ws_set_options(ctypes.byref(Options(array, len(array)))) != 0:
        raise Error(last_error())


def command(arguments: list[str]) -> tuple[int, str]:
    """Runs the command ``weightstream``, but for what needs Python; its exit status, and its text."""
    given = (ctypes.c_char_p * len(arguments))(*[os.fsencode(argument) for argument in arguments])
    status = ctypes.c_int32()
    text = library().wsm_command(given, len(arguments), ctypes.byref(status))
    if text is None:
        raise Error(last_error())
    return status.value, text.decode()


class Module:
    """A program and its weights, loaded with a budget.

    Without ``ptd`` the weights are the file of the program's name that ends in ``.ptd``, or the one ``.ptd`` beside it that belongs to it.

    A call takes what the model's ``forward`` took at export: ``m.forward(ids, mask=mask)``. See :meth:`execute`.

    A program may have several methods. They share weights, budget and state (KV caches), and each is called by its name:
    ``m.prefill(tokens)``, ``m.decode(token)``; :attr:`methods` lists them. ``method`` loads only that one; otherwise all are loaded.
    :meth:`new_session` gives another state over the same weights.

    The keywords are the runtime specs by name: ``weight_offload_budget_mb``, ``weight_offload_budget_bytes``
    or ``weight_offload_budget="auto"``, ``weight_offload_policy``, ``weight_offload_host``,
    ``weight_offload_staging_mb``, ``weight_offload_gather``, ``weight_offload_link_gbps``, ``weight_offload_kernel_times``,
    ``weight_offload_device``, ``weight_offload_verify``, ``weight_offload_sync``, ``weight_offload_cuda_graph``, ``weight_offload_graph_mb``,
    ``weight_offload_graph_shapes``, ``weight_offload_pte_sha256``. An unknown one is an error. Without a budget the least possible one is used; ``"auto"`` is what is free on the device, less
    what the method takes beside its weights, and at most what all of them occupy.

    ``weight_offload_policy="planned"``, the default, decides at load what stays and what streams, and copies less in each
    pass than ``"lru"``. ``weightstream plan`` tells both figures before anything is loaded.

    ``weight_offload_link_gbps="25"`` says what the link to a GPU carries, in GB/s of 1,000,000,000 bytes; ``"auto"``, the default, has
    it timed at load. Plans stream fewer and larger pieces where a copy costs much beside its bytes.

    ``weight_offload_kernel_times="times.txt"`` keeps how long kernels of a GPU run: without it they are timed in the second pass of every
    load, and the store replans where that is worth it. If the file is there plans go by it from the first pass on; if it is not it is
    written. ``weightstream plan --kernel-times`` reads it too.

    ``weight_offload_gather="auto"``, the default, lets kernels that look rows of a table up (embeddings) find them in
    host memory, if a pass takes at most half of it: the table is neither copied nor part of the budget. ``"on"`` does so
    however many rows a pass takes, ``"off"`` never.

    ``weight_offload_verify="load"`` compares every weight with its checksum at load; ``"every_read"`` does so
    on the device before each read too, which is slow and meant for debugging.
    ``weight_offload_sync=True`` waits for every kernel of a GPU: where one stores into a weight, or reads outside of its
    arguments, the device's context is lost, and the error names the weights that were leased since the last kernel that is
    known to have ended. Without it those are all that the pass had read so far.
    ``weight_offload_cuda_graph=True`` captures the second pass over some shapes as a CUDA graph, copies included, and replays it from
    then on. Each set of shapes has its own graph; ``weight_offload_graph_mb`` is the most memory that all of them take beside their
    activations, 128 without it. What cannot be captured is an error. ``weight_offload_graph_shapes="tokens=1,2,4"`` captures the graphs of
    these shapes at load, over inputs of zeros; the state stays as it is, and the first call over each of them is a replay.
    ``weight_offload_pte_sha256=`` takes 64 hexadecimal digits: a program whose bytes have another SHA-256 is
    refused before any of its code runs.

    Inputs and outputs are on the CPU, or, for a program that was saved with ``device_io``, on the GPU that it names. Inputs there are
    used in place, after torch's current stream has made them.

    A module runs one call at a time; a second one from another thread raises. Use it as a context manager,
    or call :meth:`close`, to free its memory at a known moment.

    A module does not survive ``fork``: in a child (``os.fork``, multiprocessing's "fork") every call raises, and closing it does nothing.
    The child can load a module of its own for the CPU, and for a GPU only if nothing was loaded for one before the fork.
    """

    def __init__(self, pte: str | os.PathLike, ptd: str | os.PathLike | None = None, method: str | None = None, **specs: Any):
        self._begin()
        ptd = _weights_beside(Path(pte)) if ptd is None else ptd
        array = options_of(specs)
        handle = self._lib.wsm_open(os.fsencode(pte), os.fsencode(ptd), array, len(array))
        if not handle:
            raise Error(last_error())
        self._handle = ctypes.c_void_p(handle)
        try:
            # A program without methods of ours fails as ExecuTorch says.
            self._methods = [method] if method is not None else _methods_of(pte) or ["forward"]
            for name in self._methods:
                self._load(name)
                self._calls[name] = _call_of(pte, name)
        except Error:
            self.close()
            raise

    def _begin(self) -> None:
        self._handle = None
        self._methods: list[str] = []
        self._calls: dict[str, Call] = {}
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._lib = library()

    @property
    def methods(self) -> tuple[str, ...]:
        """The loaded methods, in the order of their names."""
        return tuple(self._methods)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._methods:
            raise AttributeError(f"this module has no attribute and no method '{name}'; its methods are {', '.join(self._methods)}")
        return functools.partial(self.execute, name)

    def _only(self) -> str:
        """The method that is meant where none is named."""
        if len(self._methods) == 1:
            return self._methods[0]
        if "forward" in self._methods:
            return "forward"
        raise Error(f"this program has the methods {', '.join(self._methods)}: call one by its name")

    def new_session(self) -> Module:
        """A module over the same weights and budget, with buffers (KV caches) of its own, in their initial state.

        They lie outside of the budget: ``stats()["session_bytes"]``. Passes of all sessions take turns, or are refused with
        ``weight_offload_concurrent="refuse"``. This module may be closed before the session.
        """
        self._check_process()
        with self._turn:
            handle = self._lib.wsm_new_session(self._open_handle())
            if not handle:
                raise Error(last_error())
        session = Module.__new__(Module)
        session._begin()
        session._handle = ctypes.c_void_p(handle)
        try:
            for name in self._methods:
                session._load(name)
                session._methods.append(name)
                session._calls[name] = self._calls[name]
        except Error:
            session.close()
            raise
        return session

    def reset_state(self) -> None:
        """Gives the buffers that the methods write (KV caches) their initial bytes back: those of this session."""
        self._check_process()
        with self._turn:
            if self._lib.wsm_reset_state(self._open_handle()) != 0:
                raise Error(last_error())

    def set_budget(self, bytes: int) -> None:
        """Another budget for all methods and sessions of the program, from the next pass on.

        ``bytes`` is device memory for weights and direct constants. Weights that stay under both budgets are kept where the device can
        do that; the others are loaded before this returns. A budget below the least one is an error that names it, and leaves the budget
        as it was. The program has to run under ``weight_offload_policy="planned"``, the default.
        """
        if isinstance(bytes, bool) or not isinstance(bytes, int) or not 0 <= bytes < 1 << 64:
            raise Error(f"set_budget: a number of bytes from 0 up is expected, found {bytes!r}")
        self._check_process()
        with self._turn:
            if self._lib.wsm_set_budget(self._open_handle(), bytes) != 0:
                raise Error(last_error())

    def set_priority(self, priority: int) -> None:
        """The module's place among those that share its device (``weight_offload_budget="shared"``): memory of a lower number goes first.

        It is ``weight_offload_priority`` at first, and counts from the next pass of any module on.
        """
        self._reorder(0, as_priority(priority))

    def prioritize(self) -> None:
        """Comes first of its priority from now on: before all modules and ranges that were not prioritized later."""
        self._reorder(1)

    def deprioritize(self) -> None:
        """Comes last of its priority from now on."""
        self._reorder(2)

    def _reorder(self, to: int, priority: int = 0) -> None:
        if self._lib.wsm_reorder(self._open_handle(), to, priority) != 0:
            raise Error(last_error())

    def _load(self, method: str) -> None:
        if self._lib.wsm_load_method(self._open_handle(), method.encode()) != 0:
            raise Error(last_error())

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

    def forward(self, /, *inputs: Any, **keywords: Any) -> Any:
        """Runs the program's only method, or the one of this name. See :meth:`execute`."""
        return self.execute(self._only(), *inputs, **keywords)

    __call__ = forward

    def execute(self, method: str, /, *inputs: Any, **keywords: Any) -> Any:
        """Runs a method and returns its output, a tuple if there are several, or None if there are none.

        Arguments are those of the model's ``forward``, nested as at export. What was given by position then may be given by name; what was
        a keyword (``kwargs`` of the export) is one here. ``weightstream inspect`` lists them.

        Tensors may have any strides. None, numbers and strings are part of the program: what was given at export has to be given
        again.
        """
        self._check_process()
        if not self._turn.acquire(blocking=False):
            raise Error("this module is executing already: one call at a time; load a second one for a second thread")
        try:
            return self._execute(method, inputs, keywords)
        finally:
            self._turn.release()

    def _execute(self, method: str, given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        handle = self._open_handle()
        call = self._calls.get(method) or Call(method, [])
        native = [to_value(call.name(index), value) for index, value in enumerate(call.inputs(given, keywords))]
        inputs = (Value * len(native))(*[value for value, _ in native])
        failed = self._lib.wsm_execute(handle, method.encode(), inputs, len(native))
        if failed != 0:
            raise Error(last_error())
        outputs = [from_value(self._output(index)) for index in range(self._lib.wsm_num_outputs(handle))]
        if not outputs:
            return None
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _output(self, index: int) -> Value:
        value = Value()
        if self._lib.wsm_output(self._open_handle(), index, ctypes.byref(value)) != 0:
            raise Error(last_error())
        return value

    def stats(self, method: str | None = None) -> dict[str, Any]:
        """Counters of the program by name, for all its methods; ``weightstream counters`` tells what each counts.

        ``options`` holds each option of the load with its value and who gave it: ``load``, ``set_option``, ``environment``, ``program``
        or ``default``.
        """
        text = self._lib.wsm_stats_json(self._open_handle(), (method or self._methods[0]).encode())
        if text is None:
            raise Error(last_error())
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


def _weights_beside(pte: Path) -> Path:
    named = pte.with_suffix(".ptd")
    if named.is_file() or not pte.is_file():
        return named
    # `inspect` compares build ids.
    beside = sorted(pte.parent.glob("*.ptd"))
    fitting = [one for one in beside if command(["inspect", str(pte), str(one)])[0] == 0]
    if len(fitting) == 1:
        return fitting[0]
    found = ", ".join(one.name for one in fitting or beside) or "none"
    belong = "several belong to it" if fitting else "none belongs to it"
    raise Error(
        f"'{pte}' needs its weights: there is no '{named}', and of the .ptd files beside it ({found}) {belong}; give the file that it has"
    )


def _methods_of(pte: str | os.PathLike) -> list[str]:
    """The methods of a program that run here, in the order of their names; none if the file cannot be read."""
    native, names, name = library(), [], ctypes.c_char_p()
    while native.ws_method_name(os.fsencode(pte), len(names), ctypes.byref(name)) == 0:
        names.append(name.value.decode())
    return names


def _call_of(pte: str | os.PathLike, method: str) -> Call:
    """How a method is called."""
    inputs, count = ctypes.POINTER(CallInput)(), ctypes.c_size_t()
    if library().wsm_call_inputs(os.fsencode(pte), method.encode(), ctypes.byref(inputs), ctypes.byref(count)) != 0:
        raise Error(last_error())
    found = [inputs[index] for index in range(count.value)]
    return Call(method, [Argument(one.name.decode(), one.place if one.place >= 0 else None, one.constant.decode()) for one in found])


def required_budget(pte: str | os.PathLike, method: str | None = None, *, ptd: str | os.PathLike | None = None) -> int:
    """The least budget with which a program can be loaded, in bytes: its methods share one. Loads nothing.

    ``method`` names one of them; then it has to be there. ``ptd``: the weights. On a GPU packed ones need memory in which they are decoded,
    which counts then.

    Tables of which a pass looks few rows up count as read in place; where they are not (``weight_offload_gather="off"``,
    ``weight_offload_host="staged"``) a load needs more, and its refusal names the budget.
    """
    native = library()
    budget = ctypes.c_uint64()
    name = None if method is None else method.encode()
    if ptd is None:
        status = native.ws_required_budget(os.fsencode(pte), name, ctypes.byref(budget))
    else:
        status = native.ws_required_budget_with_data(os.fsencode(pte), os.fsencode(ptd), name, ctypes.byref(budget))
    if status != 0:
        raise Error(last_error())
    return budget.value
