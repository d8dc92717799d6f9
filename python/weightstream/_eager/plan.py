"""Recorded passes as the runtime takes them, and what each call of a module does under the plan that was made of them."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import weakref
from typing import Any

import torch
from torch import nn

from .._native.bindings import (
    OffloadEntry,
    OffloadEvent,
    OffloadFile,
    OffloadNeeds,
    OffloadPass,
    OffloadRecorded,
    OffloadWeight,
    Options,
    last_error,
    library,
    options_of,
)
from .._native.errors import Error
from .compiled import compiled_as, inside_compiled
from .escaped import Escaped
from .mapping import Mapping, files_of, source_of
from .packed import PackedCopies, PackedCopy
from .recording import Call
from .watch import show_all
from .weights import Shown, Weights, Written, tensor_at

# As in weightstream.h.
FLOOR, SHARED = 2**64 - 1, 2**64 - 2
_READ, _KERNEL, _READ_END = 0, 1, 2
_FOUND_NOTHING = 2


class PlannedCall:
    """A call of a module: what it reads, and where that was when it was last called."""

    __slots__ = (
        *("_addresses", "_device", "_escaped", "_found", "_host", "_outer", "reads", "count", "first", "module", "parent", "shown"),
        "written",
    )

    def __init__(self, module: nn.Module, parent: int | None, shown: list[Shown], weights: Weights, first: int, reads: list[int]):
        self.module, self.parent, self.shown, self._outer = module, parent, shown, weights.outer(shown)
        self.first, self.count, self.reads = first, len(reads), reads
        self._addresses = (ctypes.c_uint64 * len(reads))()
        self._found = ctypes.c_int32(1)
        self._host = [(one.tensor, one.host) for one in shown]
        self._device: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.written = Written(shown, weights)

    def enter(self, plan: Plan) -> bool:
        """Its parameters show the device's bytes from now on. Not where the weights of this pass gave way."""
        if plan.read(plan.handle, self.first, self.count, self._addresses, self._found):
            raise Error(plan.said())
        if self._found.value == _FOUND_NOTHING:
            return False
        try:
            if self._found.value or not self._device:
                self._device = plan.on_device(self.shown, dict(zip(self.reads, self._addresses)))
                self._escaped = Escaped(self._device, self.module.modules() if compiled_as(self.module) else [self.module])
            show_all(self._device)
            for outer in self._outer:
                outer.show()
        except BaseException:
            self._hide(plan)
            raise
        return True

    def own(self, result: Any) -> Any:
        """What the call returns, without a view of what it was shown: no caller was seen to take one."""
        return self._escaped.own_all(result, outermost=self.parent is None)

    def leave(self, plan: Plan) -> list[Shown]:
        """They show those of the host again; what was issued so far is the last that reads the device's. What it wrote to."""
        try:
            written = self.written.to_host(plan.weights.lending)
            self._escaped.keep_buffers()
        finally:
            self._hide(plan)
        return written

    def _hide(self, plan: Plan) -> None:
        try:
            for outer in self._outer:
                outer.hide()
            show_all(self._host)
        finally:
            # Whatever else fails, a read that has begun ends.
            if plan.release(plan.handle, self.first, self.count):
                raise Error(plan.said())

    def forget(self) -> None:
        self._device = []


class PlannedEntry:
    """The order of an entry, as the plan has it."""

    def __init__(self, calls: list[Call], weights: Weights):
        #: Its place among the entries of the plan; what was recorded of it.
        self.index, self.of = 0, calls
        #: The weight of each read, and the reads that take rows: they may find their weight in host memory.
        self.reads: list[int] = []
        self.rows: list[int] = []
        self.calls = self._planned(calls, weights)
        self.called = {call.module for call in calls}
        #: Modules that ran and read nothing: their calls are no steps of the order.
        self.silent = self.called - {call.module for call in self.calls}
        shown = {id(one.tensor): one for call in self.calls for one in call.shown}
        self._shown, self._hosts = list(shown.values()), [(one.tensor, one.host) for one in shown.values()]
        self._outer = weights.outer(self._shown)
        self._generation = -1
        self._everything: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.written = Written(self._shown, weights)

    def _planned(self, calls: list[Call], weights: Weights) -> list[PlannedCall]:
        """The calls that read something, and the entry's own. What a caller holds, the calls in it do not show again."""
        planned: list[PlannedCall] = []
        held: list[set[int]] = []
        place: list[int] = []
        for call in calls:
            above = held[call.parent] if call.parent is not None else set()
            mine = {key: one for key, one in call.reads.items() if key not in above}
            held.append(above | mine.keys())
            parent = None if call.parent is None else place[call.parent]
            if not mine and parent is not None:
                place.append(parent)
                continue
            reads = list(dict.fromkeys(one.weight for one in mine.values() if one.weight is not None))
            wholes = {one.weight for key, one in mine.items() if key not in call.rows or key in call.wholes}
            self.rows += [len(self.reads) + n for n, weight in enumerate(reads) if weight not in wholes]
            place.append(len(planned))
            planned.append(PlannedCall(call.module, parent, list(mine.values()), weights, len(self.reads), reads))
            self.reads += reads
        return planned

    def _events(self) -> list[tuple[int, int]]:
        events: list[tuple[int, int]] = []
        open_calls: list[int] = []

        def kernel() -> None:
            if events and events[-1][0] != _KERNEL:
                events.append((_KERNEL, len(events)))

        def end(until: int | None) -> None:
            while open_calls and open_calls[-1] != until:
                call = self.calls[open_calls.pop()]
                kernel()
                events.extend((_READ_END, call.first + n) for n in range(call.count))

        for index, call in enumerate(self.calls):
            end(call.parent)
            open_calls.append(index)
            events += [(_READ, call.first + n) for n in range(call.count)]
            kernel()
        end(None)
        return events

    def native(self) -> OffloadEntry:
        """As the runtime takes it."""
        events = self._events()
        return OffloadEntry(
            reads=(ctypes.c_uint32 * len(self.reads))(*self.reads),
            num_reads=len(self.reads),
            events=(OffloadEvent * len(events))(*events),
            num_events=len(events),
            rows=(ctypes.c_uint32 * len(self.rows))(*self.rows),
            num_rows=len(self.rows),
        )

    def show_everything(self, plan: Plan, generation: int) -> None:
        """All parameters that its passes read show the device's bytes from now on."""
        if generation != self._generation or not self._everything:
            addresses = (ctypes.c_uint64 * len(self.reads))()
            if library().ws_offload_addresses(plan.handle, self.index, addresses, len(self.reads)) != 0:
                raise Error(plan.said())
            # A weight whose rows are read in one place, and all of it in another, is on the device for both.
            by_read = sorted(zip(self.reads, addresses, range(len(self.reads))), key=lambda read: read[2] not in self.rows)
            at = {weight: address for weight, address, _ in by_read}
            self._everything, self._generation = plan.on_device(self._shown, at), generation
            self._escaped = Escaped(self._everything, self.called | inside_compiled(self.called))
        show_all(self._everything)
        for outer in self._outer:
            outer.show()

    def own(self, result: Any) -> Any:
        """What a pass returns that showed everything, without a view of a weight."""
        return self._escaped.own_all(result, outermost=True)

    def hide_everything(self, plan: Plan) -> list[Shown]:
        """They show those of the host again. What the pass wrote to."""
        written = self.written.to_host(plan.weights.lending)
        if self._everything:
            self._escaped.keep_buffers()
        for outer in self._outer:
            outer.hide()
        show_all(self._hosts)
        return written

    def count_writes(self) -> None:
        """What was written so far is known."""
        self.written.count()
        for call in self.calls:
            call.written.count()

    def forget(self) -> None:
        """Keeps no tensor of the device."""
        self._everything = []
        for call in self.calls:
            call.forget()


class Plan:
    """The weights of a module on its device. It ends with :meth:`close`, or when it is collected."""

    def __init__(
        self,
        weights: Weights,
        packed: PackedCopies,
        first: PlannedEntry,
        device: torch.device,
        stream: int,
        options: dict[str, Any],
        of_files: dict[str, Any],
    ):
        native = library()
        self.weights, self.stream, self.entries = weights, stream, [first]
        self._device, self._name = device, options["name"].decode()
        self.generation, self.is_resident = -1, False
        files = files_of(one.start for one in weights.all)
        copies = [packed.of(one) for one in weights.all]
        files += dict.fromkeys(copy.file for copy in copies if copy and copy.file)
        self.handle = self._create(native, first, options, of_files, files, copies)
        # A weight that a pass writes shows other memory than its file's from then on, and the plan has the file until its end.
        hosts = [*(one.host for one in weights.shown.values()), *files, *copies]
        self._end = weakref.finalize(self, _destroy, self.handle, hosts)
        #: Other threads may ask for counters, or set the place, while a pass ends the plan.
        self._asked = threading.Lock()
        self.read, self.release = native.ws_offload_read, native.ws_offload_release

    def said(self) -> str:
        """The runtime's last error, and whose it is."""
        return f"offload: {self._name}: {as_arguments(last_error())}"

    def _create(
        self,
        native: ctypes.CDLL,
        first: PlannedEntry,
        options: dict[str, Any],
        of_files: dict[str, Any],
        files: list[Mapping],
        copies: list[PackedCopy | None],
    ) -> ctypes.c_void_p:
        given = zip(self.weights.all, copies)
        weights = [
            OffloadWeight(one.name.encode(), source_of(one.start, files), one.bytes, copy.handle if copy else None) for one, copy in given
        ]
        for file in files:
            file.check_unchanged()
        # Of a module that has lost its files since `offload` took these, nobody asks for them.
        chosen = options_of(of_files if files else {})
        recorded = OffloadRecorded(
            device=str(self._device).encode(),
            stream=self.stream,
            weights=(OffloadWeight * len(weights))(*weights),
            num_weights=len(weights),
            entry=first.native(),
            files=(OffloadFile * len(files))(*((os.fsencode(one.path), one.source, len(one)) for one in files)),
            num_files=len(files),
            options=ctypes.pointer(Options(chosen, len(chosen))),
            **options,
        )
        handle = ctypes.c_void_p()
        if native.ws_offload_create(ctypes.byref(recorded), ctypes.byref(handle)) != 0:
            raise Error(self.said())
        try:
            # It has opened them by their paths.
            for file in files:
                file.check_unchanged()
        except BaseException:
            native.ws_offload_destroy(handle)
            raise
        return handle

    def join(self, entry: PlannedEntry) -> None:
        """Another entry over the same weights. What is on the device stays there as far as the new plan has it there."""
        index, given = ctypes.c_uint32(), entry.native()
        if library().ws_offload_add_entry(self.handle, ctypes.byref(given), ctypes.byref(index)) != 0:
            raise Error(self.said())
        entry.index = index.value
        self.entries.append(entry)

    def replace(self, before: PlannedEntry, entry: PlannedEntry) -> None:
        """An entry whose calls have another order now."""
        given = entry.native()
        if library().ws_offload_replace_entry(self.handle, before.index, ctypes.byref(given)) != 0:
            raise Error(self.said())
        before.forget()
        entry.index = before.index
        self.entries[self.entries.index(before)] = entry

    def on_device(self, shown: list[Shown], addresses: dict[int, int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Parameters and buffers, and the tensors over their weights at these addresses."""
        tensors = []
        for one in shown:
            with one.mode():
                if one.weight is None:
                    tensor = torch.empty_like(one.host, device=self._device)
                else:
                    at, size = addresses[one.weight] + one.offset, self.weights.all[one.weight].bytes - one.offset
                    tensor = tensor_at(at, size - size % one.host.element_size(), one.host, self._device)
                self.weights.lending.addresses.add(tensor.untyped_storage().data_ptr())
            tensors.append((one.tensor, tensor))
        return tensors

    def begin(self, entry: PlannedEntry, needs: OffloadNeeds) -> bool:
        """A pass of an entry begins. Whether everything stays: then it shows everything, and its calls ask for nothing."""
        begun = OffloadPass()
        if library().ws_offload_begin(self.handle, entry.index, ctypes.byref(needs), ctypes.byref(begun)) != 0:
            raise Error(self.said())
        self.generation, self.is_resident = begun.generation, bool(begun.resident)
        return self.is_resident

    def end(self, completed: bool) -> None:
        """The pass is over, and went as recorded or not."""
        if library().ws_offload_end(self.handle, int(completed)) != 0:
            raise Error(self.said())

    def set_budget(self, bytes: int) -> None:
        if library().ws_offload_set_budget(self.handle, bytes) != 0:
            raise Error(self.said())

    def set_place(self, priority: int, turn: int) -> None:
        """In the order of the device."""
        with self._asked:
            if self._end.alive and library().ws_offload_set_place(self.handle, priority, turn) != 0:
                raise Error(self.said())

    def copy_again(self, changed: list[torch.Tensor]) -> None:
        """The bytes of these weights on the host are others than before: what the device has of them is copied again."""
        found = {self.weights.shown[id(one)].weight for one in changed} - {None}
        if library().ws_offload_copy_again(self.handle, (ctypes.c_uint32 * len(found))(*found), len(found)) != 0:
            raise Error(self.said())
        for entry in self.entries:
            entry.count_writes()

    def stats(self) -> dict[str, Any]:
        """Its counters; none of a plan that has ended."""
        text = ctypes.c_char_p()
        with self._asked:
            if self._end.alive and library().ws_offload_stats(self.handle, ctypes.byref(text)) != 0:
                raise Error(self.said())
        counters = json.loads(text.value or b"{}")
        counters.pop("options", None)
        return counters

    def largest_call(self) -> tuple[nn.Module, int]:
        """The call that holds most weights at once, and their bytes: the least budget is about two of them."""
        held = [(sum(self.weights.all[one].bytes for one in call.reads), call) for entry in self.entries for call in entry.calls]
        bytes, call = max(held, key=lambda one: one[0])
        return call.module, bytes

    def close(self) -> None:
        """Gives the device's memory back."""
        for entry in self.entries:
            entry.forget()
        with self._asked:
            self._end()


def as_arguments(said: str) -> str:
    """A message of the runtime, with options of programs as the arguments of ``offload``."""
    return said.replace("weight_offload_host", "host").replace("weight_offload_staging_mb", "staging_mb")


def _destroy(handle: ctypes.c_void_p, _hosts: list[Any]) -> None:
    """The bytes on the host live until here: copies may be reading them."""
    library().ws_offload_destroy(handle)
