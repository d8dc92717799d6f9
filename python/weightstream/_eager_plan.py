"""A recorded pass as the runtime takes it, and what each call of a module does under the plan that was made of it."""

from __future__ import annotations

import ctypes
import json
import weakref
from typing import Any

import torch
from torch import nn

from ._eager_record import Call
from ._eager_weights import Shown, Weights, tensor_at
from ._native import Error, OffloadEntry, OffloadEvent, OffloadPass, OffloadRecorded, OffloadWeight, last_error, library

# As in weightstream.h.
FLOOR, SHARED = 2**64 - 1, 2**64 - 2
_READ, _KERNEL, _READ_END = 0, 1, 2


class PlannedCall:
    """A call of a module: what it reads, and where that was when it was last called."""

    __slots__ = ("_addresses", "_device", "_host", "_moved", "_plan", "_reads", "count", "first", "module", "parent", "shown")

    def __init__(self, plan: Plan, module: nn.Module, parent: int | None, shown: list[Shown], first: int, reads: list[int]):
        self._plan, self.module, self.parent, self.shown = plan, module, parent, shown
        self.first, self.count, self._reads = first, len(reads), reads
        self._addresses = (ctypes.c_uint64 * len(reads))()
        self._moved = ctypes.c_int32(1)
        self._host = [(one.parameter, one.host) for one in shown]
        self._device: list[tuple[nn.Parameter, torch.Tensor]] = []

    def enter(self) -> None:
        """Its parameters show the device's bytes from now on."""
        plan = self._plan
        if plan.read(plan.handle, self.first, self.count, self._addresses, self._moved):
            raise Error(last_error())
        if self._moved.value or not self._device:
            try:
                self._device = plan.on_device(self.shown, dict(zip(self._reads, self._addresses)))
            except BaseException:
                plan.release(plan.handle, self.first, self.count)
                raise
        for parameter, tensor in self._device:
            parameter.data = tensor

    def leave(self) -> None:
        """They show those of the host again; what was issued so far is the last that reads the device's."""
        for parameter, tensor in self._host:
            parameter.data = tensor
        plan = self._plan
        if plan.release(plan.handle, self.first, self.count):
            raise Error(last_error())


class Plan:
    """The weights of a module on its device. It ends with :meth:`close`, or when it is collected."""

    def __init__(self, weights: Weights, calls: list[Call], device: torch.device, stream: int, options: dict[str, Any]):
        native = library()
        self.weights, self.stream, self.reads = weights, stream, []
        self._device = device
        self._generation, self.is_resident = -1, False
        self._everything: list[tuple[nn.Parameter, torch.Tensor]] = []
        self.calls = self._planned(calls)
        shown = {id(one.parameter): one for call in self.calls for one in call.shown}
        self._shown, self._hosts = list(shown.values()), [(one.parameter, one.host) for one in shown.values()]
        self.handle = self._create(native, self._events(), options)
        hosts = [one.host for one in weights.shown.values()]
        self._end = weakref.finalize(self, _destroy, self.handle, hosts)
        self.read, self.release = native.ws_offload_read, native.ws_offload_release

    def _planned(self, calls: list[Call]) -> list[PlannedCall]:
        """The calls that read something, and the root's. What a caller holds, the calls in it do not show again."""
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
            place.append(len(planned))
            planned.append(PlannedCall(self, call.module, parent, list(mine.values()), len(self.reads), reads))
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

    def _create(self, native: ctypes.CDLL, events: list[tuple[int, int]], options: dict[str, Any]) -> ctypes.c_void_p:
        weights = self.weights.all
        entry = OffloadEntry(
            reads=(ctypes.c_uint32 * len(self.reads))(*self.reads),
            num_reads=len(self.reads),
            events=(OffloadEvent * len(events))(*events),
            num_events=len(events),
        )
        recorded = OffloadRecorded(
            device=str(self._device).encode(),
            stream=self.stream,
            weights=(OffloadWeight * len(weights))(*((one.name.encode(), one.start, one.bytes) for one in weights)),
            num_weights=len(weights),
            entry=entry,
            **options,
        )
        handle = ctypes.c_void_p()
        if native.ws_offload_create(ctypes.byref(recorded), ctypes.byref(handle)) != 0:
            raise Error(last_error())
        return handle

    def on_device(self, shown: list[Shown], addresses: dict[int, int]) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Parameters, and the tensors over their weights at these addresses."""
        tensors = []
        for one in shown:
            with one.mode():
                if one.weight is None:
                    tensor = torch.empty_like(one.host, device=self._device)
                else:
                    at, size = addresses[one.weight] + one.offset, self.weights.all[one.weight].bytes - one.offset
                    tensor = tensor_at(at, size - size % one.host.element_size(), one.host, self._device)
            tensors.append((one.parameter, tensor))
        return tensors

    def begin(self) -> bool:
        """A pass begins. Whether everything stays: then :meth:`show_everything` does what calls would do."""
        begun = OffloadPass()
        if library().ws_offload_begin(self.handle, 0, ctypes.byref(begun)) != 0:
            raise Error(last_error())
        if begun.generation != self._generation:
            self._generation, self._everything = begun.generation, []
        self.is_resident = bool(begun.resident)
        return self.is_resident

    def show_everything(self) -> None:
        """All parameters that passes read show the device's bytes from now on."""
        if not self._everything:
            addresses = (ctypes.c_uint64 * len(self.reads))()
            if library().ws_offload_addresses(self.handle, 0, addresses, len(self.reads)) != 0:
                raise Error(last_error())
            self._everything = self.on_device(self._shown, dict(zip(self.reads, addresses)))
        for parameter, tensor in self._everything:
            parameter.data = tensor

    def hide_everything(self) -> None:
        """They show those of the host again."""
        for parameter, tensor in self._hosts:
            parameter.data = tensor

    def end(self, completed: bool) -> None:
        """The pass is over, and went as recorded or not."""
        if library().ws_offload_end(self.handle, int(completed)) != 0:
            raise Error(last_error())

    def set_budget(self, bytes: int) -> None:
        if library().ws_offload_set_budget(self.handle, bytes) != 0:
            raise Error(last_error())

    def copy_again(self, changed: list[nn.Parameter]) -> None:
        """The bytes of these parameters on the host are others than before: what the device has of them is copied again."""
        found = {self.weights.shown[id(one)].weight for one in changed} - {None}
        if library().ws_offload_copy_again(self.handle, (ctypes.c_uint32 * len(found))(*found), len(found)) != 0:
            raise Error(last_error())

    def stats(self) -> dict[str, Any]:
        text = ctypes.c_char_p()
        if library().ws_offload_stats(self.handle, ctypes.byref(text)) != 0:
            raise Error(last_error())
        counters = json.loads(text.value or b"{}")
        counters.pop("options", None)
        return counters

    def close(self) -> None:
        """Gives the device's memory back."""
        self._everything = []
        for call in self.calls:
            call._device = []
        self._end()


def _destroy(handle: ctypes.c_void_p, _hosts: list[torch.Tensor]) -> None:
    """The bytes on the host live until here: copies may be reading them."""
    library().ws_offload_destroy(handle)
