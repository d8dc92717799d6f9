"""``offload``: an eager ``nn.Module`` whose weights stay in host memory, on the layout of the planner.

The first pass is recorded. From its order comes a plan, and each later pass follows it::

    root's forward ──► begin ──► a module's forward: read, show, run, hide, release ──► … ──► end
                         └─ everything stays: show all, run, hide all; only the root's forward is wrapped

Between passes every parameter shows its host bytes. A pass that leaves the recorded order goes on with copies in PyTorch's memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ._eager_module import Buffers, Forward, check_module, device_of
from ._eager_plan import FLOOR, SHARED, Plan
from ._eager_record import Call, Recorder, show_copies, show_host
from ._eager_weights import Weights
from ._native import Error
from ._range import _whole

#: After so many passes in a row that left the recorded order, another order is recorded.
_ASTRAY = 2


def offload(
    module: nn.Module,
    *,
    budget: int | None = None,
    shared: bool = False,
    priority: int = 0,
    device: Any = None,
    name: str | None = None,
    example: tuple[Any, ...] | None = None,
) -> Offloaded:
    """Runs a module whose weights stay in host memory: ``device`` never holds more than ``budget`` bytes of them.

    ``module`` is on the CPU, its inputs are on the device. ``budget=None`` is the least budget that does. With ``shared=True`` the module
    shares the device with all that does (:func:`weightstream.set_device_budget`); ``priority`` says whose bytes come first, and ``name``
    what reports call it. The first pass is recorded; with ``example``, a tuple of arguments, that is done here. ``device`` is ``"cuda:0"``
    unless there is no GPU, then ``"cpu"``. Buffers are on the device all the time, and count in the budget. Inference only::

        handle = ws.torch.offload(model, budget=4 << 30)
        with torch.inference_mode():
            y = model(x.cuda())
    """
    if not isinstance(module, nn.Module):
        raise Error(f"offload: an nn.Module is expected, found {type(module).__name__}")
    if shared and budget is not None:
        raise Error("offload: give either a budget or shared=True; what a shared device holds is set by set_device_budget")
    bytes = SHARED if shared else FLOOR if budget is None else _whole("offload: budget", budget)
    if device is None:
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    handle = Offloaded(module, bytes, priority, device_of(device), name or type(module).__name__)
    if example is not None:
        try:
            with torch.no_grad():
                module(*example)
        except BaseException:
            handle.remove()
            raise
    return handle


class Offloaded:
    """A module that is offloaded, until :meth:`remove`. As a context manager it is removed at the end."""

    def __init__(self, module: nn.Module, budget: int, priority: int, device: torch.device, name: str):
        self.module, self.device, self.name = module, device, name
        self._budget, self._priority = budget, priority
        self._busy, self._thread = threading.Lock(), 0
        self._names = {one: name for name, one in module.named_modules()}
        check_module(module, self._names)
        self._weights = _weights_of(module)
        self._buffers = Buffers(module, device)
        #: What the last recorded pass called, and what was made of it.
        self._recorded: list[Call] | None = None
        self._plan: Plan | None = None
        #: While a pass is recorded.
        self._recorder: Recorder | None = None
        #: In a pass by plan: the next call, the innermost one that has not returned, and whether the order was left.
        self._next, self._inside, self._astray = 0, 0, False
        self._astray_in_a_row = 0
        self._counted = {"passes": 0, "plans": 0, "astray": 0, "recorded": 0, "bytes_copied": 0}
        #: Which modules are wrapped: in passes that read, and where everything stays; and whether the second holds.
        self._wrapped_by_plan: list[nn.Module] = []
        self._never_called: list[nn.Module] = []
        self._wrapped_resident = False
        self._forwards = {one: Forward(self, one) for one in self._names}
        self._wrap(self._names)

    def __enter__(self) -> Offloaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<Offloaded {self.name} on {self.device}>"

    def __deepcopy__(self, _memo: object) -> Offloaded:
        raise Error(f"offload: {self.name} is offloaded, and a copy of it would not be; remove() the handle first, then copy")

    def __reduce_ex__(self, _protocol: object) -> Any:
        raise Error(f"offload: {self.name} is offloaded, and cannot be pickled so; save its state_dict(), or remove() the handle first")

    # -- for the user --

    def stats(self) -> dict[str, Any]:
        """Counters: those of the present plan (see docs/counters.md), and of all passes since ``offload``.

        ``passes``, and those that were ``recorded`` or left the recorded order (``astray``); ``plans``; ``bytes_copied`` by all plans;
        ``resident``: everything stays; ``buffer_bytes``: of the budget, for buffers.
        """
        now = self._plan.stats() if self._plan else {}
        copied = self._counted["bytes_copied"] + now.get("bytes_copied", 0)
        resident = self._plan is not None and self._plan.is_resident
        return now | self._counted | {"bytes_copied": copied, "resident": resident, "buffer_bytes": self._buffers.bytes}

    def set_budget(self, bytes: int) -> None:
        """Another budget, from the next pass on. One below the least budget is an error that names it, and changes nothing."""
        if self._budget == SHARED:
            raise Error(f"offload: {self.name} shares its device; set_device_budget changes what all that share it may hold")
        with self._alone():
            bytes = _whole("set_budget: bytes", bytes)
            if self._plan:
                self._plan.set_budget(bytes)
            self._budget = bytes

    def invalidate(self, *changed: str | nn.Parameter) -> None:
        """The bytes of weights on the host have changed, as when a LoRA is merged: they are copied again before they are read.

        Names or parameters; without any, all of them. What PyTorch counts as a write (``copy_`` under ``no_grad``, ``load_state_dict``), or
        other memory (``parameter.data = …``), is seen without this call. A write to ``parameter.data`` is not.
        """
        with self._alone():
            present = dict(self.module.named_parameters(remove_duplicate=False))
            parameters = list(present.values())
            for one in changed:
                if isinstance(one, str) and one not in present:
                    raise Error(f"invalidate: {self.name} has no parameter '{one}'")
                if not isinstance(one, str) and all(one is not parameter for parameter in parameters):
                    raise Error(f"invalidate: the name of a parameter of {self.name}, or one of its parameters, is expected")
            named = [present[one] if isinstance(one, str) else one for one in changed]
            if {id(one) for one in parameters} != self._weights.shown.keys():
                self._take_weights()
            else:
                self._copy_again([*(named or parameters), *self._weights.written()])

    def remove(self) -> None:
        """Gives the device's memory back, and the module as it was: weights on the host, buffers where they were."""
        with self._alone():
            self._close_plan()
            self._wrap([])
            self._buffers.give_back()

    # -- passes --

    def _run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A pass: the forward of the root."""
        with self._alone():
            self._check_caller()
            if self._recorded is None:
                result = self._record(forward, args, kwargs)
            else:
                result = self._run_by_plan(self._plan or self._make_plan(), forward, args, kwargs)
            self._counted["passes"] += 1
            return result

    def _record(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._close_plan()
        self._wrap(self._names)
        recorder = Recorder(self._weights, self._names, self.device)
        self._recorder, self._thread = recorder, threading.get_ident()
        try:
            with recorder:
                result = recorder.call(self.module, forward, args, kwargs)
        finally:
            self._recorder, self._thread = None, 0
        self._recorded = recorder.calls
        self._counted["recorded"] += 1
        try:
            self._make_plan()
        except BaseException:
            self._recorded = None
            self._wrap([])
            self._buffers.give_back()
            raise
        return result

    def _make_plan(self) -> Plan:
        options = {
            "name": self.name.encode(),
            "budget": self._budget,
            "beside": self._buffers.bytes,
            "priority": self._priority,
        }
        calls = [_of_weights(call, self._weights) for call in self._recorded or []]
        self._plan = plan = Plan(self._weights, calls, self.device, self._stream(), options)
        self._counted["plans"] += 1
        called = {call.module for call in calls}
        reads = {call.module for call in plan.calls}
        self._wrapped_by_plan = [one for one in self._names if one in reads or one not in called]
        self._never_called = [one for one in self._names if one not in called]
        self._wrap(self._wrapped_by_plan)
        self._wrapped_resident = False
        return plan

    def _run_by_plan(self, plan: Plan, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if plan.begin():
            return self._run_resident(plan, forward, args, kwargs)
        if self._wrapped_resident:
            self._wrap(self._wrapped_by_plan)
            self._wrapped_resident = False
        self._next, self._inside, self._astray = 1, 0, False
        self._thread, completed = threading.get_ident(), False
        try:
            result = self._by_plan(plan, plan.calls[0], 0, forward, args, kwargs)
            completed = not self._astray and self._next == len(plan.calls)
            self._note_order(completed)
        finally:
            self._thread = 0
            plan.end(completed)
        return result

    def _run_resident(self, plan: Plan, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._wrapped_resident:
            self._wrap([self.module, *self._never_called])
            self._wrapped_resident = True
        self._astray, self._thread = False, threading.get_ident()
        try:
            plan.show_everything()
            result = forward(*args, **kwargs)
            self._note_order(not self._astray)
        finally:
            self._thread = 0
            plan.hide_everything()
            plan.end(True)
        return result

    def _note_order(self, kept: bool) -> None:
        """Where passes leave the order again and again, the next one is recorded. Not where one does now and then."""
        self._astray_in_a_row = 0 if kept else self._astray_in_a_row + 1
        self._counted["astray"] += not kept
        if self._astray_in_a_row >= _ASTRAY:
            self._astray_in_a_row, self._recorded = 0, None

    # -- calls of modules in a pass --

    def _call(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward of a module that is not the root."""
        if self._thread != threading.get_ident():
            self._refuse_call(module)
        if self._recorder is not None:
            return self._recorder.call(module, forward, args, kwargs)
        plan, at = self._plan, self._next
        assert plan is not None
        if not self._astray and at < len(plan.calls):
            call = plan.calls[at]
            if call.module is module and call.parent == self._inside:
                self._next = at + 1
                return self._by_plan(plan, call, at, forward, args, kwargs)
        self._astray = True
        return self._by_copies(module, forward, args, kwargs)

    def _by_plan(self, plan: Plan, call: Any, at: int, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if plan.stream != self._stream():
            raise Error(
                f"offload: '{self._names[call.module]}' of {self.name} runs on another stream than its plan was made for; run the whole "
                "module on one stream"
            )
        call.enter()
        before, self._inside = self._inside, at
        try:
            return forward(*args, **kwargs)
        finally:
            self._inside = before
            call.leave()

    def _by_copies(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that was not recorded at this place: its weights are copied to PyTorch's memory."""
        known = {id(one.parameter): one for call in self._recorded or [] if call.module is module for one in call.reads.values()}
        shown = [one for one in (known.values() if known else self._weights.below(module)) if one.is_on_host()]
        show_copies(shown, self.device)
        try:
            return forward(*args, **kwargs)
        finally:
            show_host(shown)

    # -- what has to hold --

    def _alone(self) -> _Alone:
        return _Alone(self)

    def _check_caller(self) -> None:
        if torch.is_grad_enabled():
            for name, parameter in self.module.named_parameters():
                if parameter.requires_grad:
                    raise Error(
                        f"offload: {self.name} is for inference, and gradients of '{name}' would be computed; run it under "
                        "torch.inference_mode() or torch.no_grad(), or call module.requires_grad_(False)"
                    )
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise Error(f"offload: {self.name} cannot be captured in a CUDA graph: its weights move")
        if written := self._weights.written():
            self._copy_again(written)
        elif self._weights.are_elsewhere():
            self._take_weights()
        if self._plan is not None and self._plan.stream != self._stream():
            # Copies are ordered with the kernels of one stream.
            self._close_plan()

    def _refuse_call(self, module: nn.Module) -> None:
        what = "on another thread" if self._thread else "outside of its forward"
        raise Error(f"offload: '{self._names[module]}' of {self.name} was called {what}; its weights are there while {self.name} runs")

    def _stream(self) -> int:
        return 0 if self.device.type == "cpu" else torch._C._cuda_getCurrentRawStream(self.device.index)

    # -- what is kept --

    def _wrap(self, modules: Any) -> None:
        """Wraps the forwards of these modules, and of no others."""
        wanted = set(modules)
        for module, forward in self._forwards.items():
            forward.wrap(module) if module in wanted else forward.unwrap(module)

    def _take_weights(self) -> None:
        """The parameters as they are now; a plan of them before the next read."""
        # What the plan has registered with the driver would be taken for pinned memory.
        self._close_plan()
        weights = _weights_of(self.module)
        if weights.shown.keys() != self._weights.shown.keys():
            self._recorded = None
        self._weights = weights

    def _copy_again(self, changed: list[nn.Parameter]) -> None:
        """Their bytes have changed. Where these lie, and how many they are, is what a plan is made of."""
        if self._weights.are_elsewhere():
            self._take_weights()
        elif self._plan is not None:
            try:
                self._plan.copy_again(changed)
            except BaseException:
                # Nobody remembers what changed: a plan of the bytes as they are now comes before the next pass.
                self._take_weights()
                raise

    def _close_plan(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            self._counted["bytes_copied"] += plan.stats().get("bytes_copied", 0)
            plan.close()


class _Alone:
    """One pass, or one change, at a time."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Offloaded):
        self._handle = handle

    def __enter__(self) -> None:
        if not self._handle._busy.acquire(blocking=False):
            raise Error(f"offload: {self._handle.name} is running already, on this thread or another one; one pass at a time")

    def __exit__(self, *_: object) -> None:
        self._handle._busy.release()


def _weights_of(module: nn.Module) -> Weights:
    with torch.inference_mode(False), torch.no_grad():
        return Weights(module)


def _of_weights(call: Call, weights: Weights) -> Call:
    """The call with its reads as the parameters are now."""
    return Call(call.module, call.parent, {key: weights.shown[key] for key in call.reads})
