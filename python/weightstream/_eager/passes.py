"""The passes of an offloaded module: each outermost call of a module is a pass of an *entry*, with an order of its own.

A pass is recorded once. Later ones follow the plan, which is one for all entries::

    an entry's forward ──► begin ──► a module's forward: read, show, run, hide, release ──► … ──► end
                             └─ everything stays: show all, run, hide all

Between passes every parameter shows its host bytes. A pass that leaves the recorded order goes on with copies in PyTorch's memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._native import progress
from .._native.bindings import OffloadNeeds
from .._native.errors import Error
from .._native.gpus import current_stream
from .activations import Activations, beside, key_of
from .entries import Alone, Entry
from .module import refuse_compiler, refuse_gradients
from .plan import SHARED, Plan, PlannedCall, PlannedEntry
from .recording import Call, Recorder, show_copies, show_host
from .state import ModuleState
from .watch import running
from .weights import Shown, Weights, Written
from .where import moved

#: After so many passes in a row that left the recorded order, another order is recorded.
_ASTRAY = 2
#: From so many bytes on, recording and the first plan say that they take a while.
_SLOW = 1 << 30


class Passes(ModuleState):
    """Runs the passes of all modules below ``root``. The caller sees to it that one thing happens at a time."""

    def __init__(
        self,
        root: nn.Module,
        budget: int,
        priority: int,
        device: torch.device,
        name: str,
        of_files: dict[str, Any],
        activations: Activations | None = None,
        packed: bool | Path = False,
    ):
        self.budget, self.priority = budget, priority
        #: How weights of files are held on the host.
        self.of_files = of_files
        #: Where passes take PyTorch's memory from; ``None`` for its own.
        self.activations = activations
        self.alone = Alone(name)
        #: The thread of the pass that runs, and the modules whose calls need nothing in it.
        self.thread = 0
        self.through: Set[nn.Module] = frozenset()
        self.in_compiled = False
        #: While a pass is recorded.
        self._recorder: Recorder | None = None
        #: In a pass by plan: its entry, the next call, the innermost one that has not returned, and whether the order was left.
        self._running: PlannedEntry | None = None
        self._next, self._inside, self._astray, self._gave_way = 0, 0, False, False
        #: What the pass wrote to.
        self._wrote: dict[int, Shown] = {}
        #: With the priority its place in the order of the device, which plans that are made later have too.
        self._turn = 0
        #: What the caller was given.
        self.handle: Any = None
        super().__init__(root, device, name, packed)

    # -- passes --

    def enter(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a module: from outside, or in a pass on this thread."""
        refuse_compiler(self.name, self.tree.names.get(module, ""))
        if self.thread == threading.get_ident():
            return self._call(module, forward, args, kwargs)
        with self.alone:
            return self._run(module, forward, args, kwargs)

    def _run(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._prepare((args, kwargs))
        entry = self.entries.get(module)
        if entry is None:
            entry = self.entries[module] = Entry(module, self.tree.names[module])
        args, kwargs = moved(args, self.device), moved(kwargs, self.device)
        pass_of = self._record if entry.recorded is None else self._run_by_plan
        result = pass_of(entry, forward, args, kwargs)
        if torch.is_grad_enabled():
            refuse_gradients(self.name, result)
        self.counted["passes"] += 1
        return result

    def _record(self, entry: Entry, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = Recorder(self.weights, self.tree.names, self.device)
        if self.device.type != "cpu" and sum(one.host.nbytes for one in self.weights.below(entry.module)) >= _SLOW:
            progress.note(f"{self.name}: recording a pass of {entry.name or 'the whole'}; its weights are copied one module at a time")
        self._recorder, self.thread, self.through = recorder, threading.get_ident(), frozenset()
        try:
            with self._memory(), running(self.weights.lending), recorder:
                result = recorder.call(entry.module, forward, args, kwargs)
        finally:
            self._recorder, self.thread = None, 0
            if recorder.whole:
                self.giants.keep_whole(recorder.whole.values())
                self.tree.look_again()
            self._forget_reads(self.weights.settle(), recorder.calls)
            self._keep_buffers(recorder.kept, recorder.calls)
        self.counted["recorded"] += 1
        if recorder.whole:
            # The next pass is recorded with these whole.
            return result
        entry.recorded = recorder.calls
        if self.activations and self.plan is None:
            # What the copies took is the plan's.
            self.activations.pool.drop()
        try:
            self._plan_of(entry)
        except BaseException:
            entry.recorded = None
            if not self.counted["plans"]:
                self.leave()
            raise
        return result

    def _plan_of(self, entry: Entry) -> tuple[Plan, PlannedEntry]:
        """The plan, with this entry's order in it."""
        plan, planned = self.plan, entry.planned
        if plan is not None and planned is not None and planned in plan.entries and planned.of is entry.recorded:
            return plan, planned
        recorded = entry.recorded or []
        fresh = PlannedEntry([_of_weights(call, self.weights) for call in recorded], self.weights)
        fresh.of = recorded
        # They are read in place, of raw bytes.
        tables = {fresh.reads[read] for read in fresh.rows}
        self.packed.make(self.name, self.root, self.weights, tables)
        if self.packed.forget(self.weights.all[index] for index in tables):
            self.close_plan()
            plan = None
        if plan is None:
            plan = self._first_plan(fresh)
        elif planned is not None and planned in plan.entries:
            plan.replace(planned, fresh)
        else:
            plan.join(fresh)
        entry.planned = fresh
        self.counted["plans"] += 1
        return plan, fresh

    def _first_plan(self, entry: PlannedEntry) -> Plan:
        options = {"name": self.name.encode(), "budget": self.budget, "beside": self.buffers.bytes, "priority": self.priority}
        whole = sum(weight.bytes for weight in self.weights.all)
        if self.device.type == "cpu" or whole < _SLOW:
            self.plan = Plan(self.weights, self.packed, entry, self.device, self._stream(), options, self.of_files)
        else:
            with progress.step(f"{self.name}: taking {whole / (1 << 30):.1f} GB of weights in host memory under the driver, and loading"):
                self.plan = Plan(self.weights, self.packed, entry, self.device, self._stream(), options, self.of_files)
        if self.budget == SHARED:
            self.plan.set_place(self.priority, self._turn)
        return self.plan

    def set_place(self, priority: int | None, turn: int) -> None:
        """Another place in the order of the device: a number, or the one that it has, and a turn. While a pass runs too."""
        self.check_here()
        if self.budget != SHARED:
            raise Error(
                f"offload: {self.name} has a budget of its own, and no place in the order of its device: offload it with shared=True"
            )
        self.priority, self._turn = self.priority if priority is None else priority, turn
        if self.plan:
            self.plan.set_place(self.priority, turn)

    def _run_by_plan(self, entry: Entry, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan, planned = self._plan_of(entry)
        key = key_of(entry, (args, kwargs)) if self.activations else None
        resident = plan.begin(planned, self.activations.needs(key, plan.is_resident) if self.activations else OffloadNeeds())
        self._running, self._next, self._inside, self._astray, self._gave_way = planned, 1, 0, False, False
        self.through = planned.called if resident else planned.silent
        self.thread, completed = threading.get_ident(), False
        try:
            with self._memory(), running(self.weights.lending):
                if resident:
                    result = self._run_resident(plan, planned, forward, args, kwargs)
                    completed = not self._astray
                else:
                    result = self._by_plan(plan, planned.calls[0], 0, forward, args, kwargs)
                    completed = not self._astray and self._next == len(planned.calls)
            if not self._gave_way:
                self._note_order(entry, completed)
            if self.activations:
                self.activations.learn(key)
        finally:
            self.thread, self._running = 0, None
            plan.end(completed or resident)
            self._keep_buffers({key: one for key, one in self._wrote.items() if one.is_buffer})
        return result

    def _memory(self) -> AbstractContextManager[None]:
        """Where a pass has its activations."""
        return self.activations.use() if self.activations else beside(self.name, self.device, self.budget == SHARED)

    def _run_resident(
        self, plan: Plan, planned: PlannedEntry, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A pass while everything stays."""
        try:
            planned.show_everything(plan, plan.generation)
            return planned.own(forward(*args, **kwargs))
        finally:
            self._note_written(planned.hide_everything(plan))

    def _note_written(self, written: list[Shown]) -> None:
        """The pass wrote to these, and the host has the bytes. Copies of the bytes before may be under way: the plan's are used no more."""
        if written:
            self._astray = True
            self._wrote |= {id(one.tensor): one for one in written}

    def _note_order(self, entry: Entry, kept: bool) -> None:
        """Where passes leave the order again and again, the next one is recorded. Not where one does now and then."""
        entry.astray_in_a_row = 0 if kept else entry.astray_in_a_row + 1
        self.counted["astray"] += not kept
        if entry.astray_in_a_row >= _ASTRAY:
            entry.astray_in_a_row, entry.recorded = 0, None

    # -- calls of modules in a pass --

    def run_compiled(self, code: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A block's compiled code. What it calls is shown already."""
        before, self.in_compiled = self.in_compiled, True
        try:
            return code(*args, **kwargs)
        finally:
            self.in_compiled = before

    def _call(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward of a module, inside of a pass."""
        if self._recorder is not None:
            return self._recorder.call(module, forward, args, kwargs)
        plan, running, at = self.plan, self._running, self._next
        assert plan is not None
        assert running is not None
        if not self._astray and at < len(running.calls):
            call = running.calls[at]
            if call.module is module and call.parent == self._inside and not self._was_written(call):
                self._next = at + 1
                return self._by_plan(plan, call, at, forward, args, kwargs)
        self._astray = True
        return self._by_copies(module, forward, args, kwargs)

    def _was_written(self, call: PlannedCall) -> bool:
        """Whether the pass has written to the host's bytes of what the call is about to read."""
        written = call.written.found()
        if self.weights.lending.noted:
            changed = {id(one): one for one in self.weights.lending.may_be_written()}
            written += [one for tensor in changed.values() for one in self.weights.of(tensor)]
        self._note_written(written)
        return bool(written)

    def _by_plan(self, plan: Plan, call: Any, at: int, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if plan.stream != self._stream():
            raise Error(
                f"offload: '{self.tree.names[call.module]}' of {self.name} runs on another stream than its plan was made for; run the whole "
                "module on one stream"
            )
        if not call.enter(plan):
            # Memory was needed: the rest of the pass runs with copies of one module at a time.
            self._astray = self._gave_way = True
            return self._by_copies(call.module, forward, args, kwargs)
        before, self._inside = self._inside, at
        try:
            return call.own(forward(*args, **kwargs))
        finally:
            self._inside = before
            self._note_written(call.leave(plan))

    def _by_copies(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that was not recorded at this place: its weights are copied to PyTorch's memory."""
        recorded = [call for entry in self.entries.values() for call in entry.recorded or [] if call.module is module]
        known = {key: self.weights.shown[key] for call in recorded for key in call.reads}
        shown = [one for one in (known.values() if known else self.weights.below(module)) if one.is_on_host()]
        show_copies(self.weights, shown, self.device)
        writes = Written(shown, self.weights)
        try:
            return forward(*args, **kwargs)
        finally:
            self._note_written(writes.to_host(self.weights.lending))
            show_host(self.weights, shown)

    # -- what has to hold before a pass --

    def _prepare(self, given: Any) -> None:
        if torch.is_grad_enabled():
            refuse_gradients(self.name, given, self.root)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise Error(f"offload: {self.name} cannot run inside of a transform of torch.func, as vmap or grad: its weights move")
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise Error(f"offload: {self.name} cannot be captured in a CUDA graph: its weights move")
        self.notice_changes(one.tensor for one in self._wrote.values())
        # If that fails, the next call has to know.
        self._wrote = {}
        if self.plan is not None and self.plan.stream != self._stream():
            # Copies are ordered with the kernels of one stream.
            self.close_plan()

    def _stream(self) -> int:
        return 0 if self.device.type == "cpu" else current_stream(self.device.index)


def _of_weights(call: Call, weights: Weights) -> Call:
    """The call with its reads as the parameters are now."""
    reads = {key: weights.shown[key] for key in call.reads}
    return Call(call.module, call.parent, reads, call.rows, call.wholes)
