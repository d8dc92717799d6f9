"""What an offloaded module consists of, and what has changed of it since its last pass."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path

import torch
from torch import nn

from .._native.errors import Error
from .arriving import bring_to_host
from .entries import Entry
from .giants import Giants
from .module import Buffers, overlapping
from .packed import PackedCopies
from .plan import Plan
from .recording import Call
from .tree import Tree
from .weights import Shown, Weights


class ModuleState:
    """Modules, weights, buffers and entries below ``root``, and the plan that was made of them."""

    def __init__(self, root: nn.Module, device: torch.device, name: str, packed: bool | Path = False):
        self.root, self.device, self.name = root, device, name
        self.tree = Tree(root, device)
        self.entries: dict[nn.Module, Entry] = {}
        self.plan: Plan | None = None
        self.counted = {"passes": 0, "plans": 0, "astray": 0, "recorded": 0, "gave_way": 0, "bytes_copied": 0}
        #: Whether the modules are as they were before.
        self.left = False
        names = self.tree.look()
        bring_to_host(root, name)
        self.giants = Giants()
        names |= self._pieces()
        self.buffers = Buffers(device)
        self.buffers.look(root)
        self.weights = _weights_of(root, self.buffers, self.giants)
        self.packed = PackedCopies(packed)
        try:
            self.packed.check(name, root, self.weights)
            self.buffers.take(root)
            self._take_names(names)
        except BaseException:
            self.leave()
            raise

    # -- what has changed --

    def notice_changes(self, changed: Iterable[torch.Tensor] = ()) -> None:
        """What was done to the module since the last pass: other modules or parameters, other memory, other bytes; and what is known
        to have changed."""
        # While the weights are those that the pass wrote to.
        changed = list(changed)
        if self._forget_packed(changed):
            self.close_plan()
        if self.tree.has_changed() or self.giants.have_moved():
            self._take_modules()
        elif self.buffers.are_others(self.tree.names):
            self._take_buffers()
        written = {id(one): one for one in [*self.weights.written(), *changed]}
        known = [one.tensor for tensor in written.values() for one in self.weights.of(tensor)]
        if self._forget_packed(known):
            self.close_plan()
        self.weights.leave_files({one.weight for tensor in known for one in self.weights.of(tensor) if one.weight is not None})
        if self.giants.have_moved():
            self._take_modules()
        elif self.weights.are_elsewhere() or any(self.weights.has_other_form(one) for one in known):
            self._take_weights()
        elif known:
            self._copy_again(known)
        if self.giants.have_moved():
            # A file's bytes had changed without a sign, and were found just now.
            self._take_modules()

    def _copy_again(self, changed: list[torch.Tensor]) -> None:
        """Their bytes have changed. Where these lie, and how many they are, is what a plan is made of."""
        if self.plan is None:
            return
        try:
            self.plan.copy_again(changed)
        except BaseException:
            # Nobody remembers what changed: a plan of the bytes as they are now comes before the next pass.
            self._take_weights()
            raise

    def _take_weights(self) -> None:
        """The weights as they are now; a plan of them before the next read."""
        # What it has registered with the driver would be taken for memory that its owner has pinned.
        self.close_plan()
        self._forget_packed(self.weights.written())
        # The fresh ones count writes from here on, and watch what is lent.
        fresh = _weights_of(self.root, self.buffers, self.giants, self.device)
        self._forget_packed(self.weights.written())
        fresh.lending.take_over(self.weights.lending)
        self.weights.lending.end()
        self.weights = fresh
        self.packed.keep_only(fresh)
        for entry in self.entries.values():
            if entry.recorded is not None and not all(self._holds(call) for call in entry.recorded):
                entry.recorded = None

    def _forget_packed(self, changed: Iterable[torch.Tensor]) -> bool:
        """These may have changed: they are raw from now on. Whether one was packed, and a plan of it has to end."""
        found = {one.weight for tensor in changed for one in self.weights.of(tensor)} - {None}
        # A plan of a copy from before the write would bring the bytes from before the write.
        return self.packed.forget(self.weights.all[index] for index in found)

    def _holds(self, call: Call) -> bool:
        """Whether a call reads what it did when it was recorded, as far as its module tells."""
        own = {id(one.tensor) for one in self.weights.of_call(call.module)}
        return call.module in self.tree.names and own <= call.reads.keys() <= self.weights.shown.keys()

    def _take_modules(self) -> None:
        """The modules and parameters as they are now: layers were replaced, adapters came or went."""
        names = self.tree.look()
        self.close_plan()
        # While giants have the pieces that were written.
        self._forget_packed(self.weights.written())
        self._take_names(names | self._pieces())
        try:
            self.buffers.take(self.root)
            self._take_weights()
        except BaseException:
            # The next pass looks again.
            self.tree.look_again()
            raise

    def _pieces(self) -> dict[nn.Module, str]:
        """Modules of the pieces of giant weights, which are those of the module as it is now."""
        self.giants.look(self.root, overlapping(self.root))
        return self.giants.pieces()

    def _take_buffers(self) -> None:
        """Buffers were replaced. The budget covers those that there are now."""
        before = self.buffers.bytes
        self.buffers.take(self.root)
        if not all(not one.is_buffer or self.buffers.is_streaming(one.tensor) for one in self.weights.shown.values()):
            self._take_weights()
        elif self.buffers.bytes != before:
            self.close_plan()

    def _take_names(self, names: dict[nn.Module, str]) -> None:
        fresh, added = self.tree.take(names, self)
        for entry in self.entries.values():
            changed = any(call.module in fresh for call in entry.recorded or ())
            if changed or any(one in added for one in entry.module.modules()):
                entry.recorded = None
        self.entries = {one: entry for one, entry in self.entries.items() if one in names}

    def _keep_buffers(self, kept: dict[int, Shown], calls: Iterable[Call] = ()) -> None:
        """These stay on the device from now on, and no call reads them any more."""
        if not kept:
            return
        self.buffers.keep(kept.values())
        self._forget_reads(kept.keys(), calls)
        self._take_weights()

    def _forget_reads(self, gone: Set[int], calls: Iterable[Call]) -> None:
        """No call reads these any more."""
        recorded = [call for entry in self.entries.values() for call in entry.recorded or []]
        for call in [*recorded, *calls] if gone else ():
            call.reads = {key: one for key, one in call.reads.items() if key not in gone}

    # -- the end --

    def close_plan(self) -> None:
        plan, self.plan = self.plan, None
        if plan is not None:
            stats = plan.stats()
            self.counted["bytes_copied"] += stats.get("bytes_copied", 0)
            self.counted["gave_way"] += sum(entry["gave_way"] for entry in stats.get("entries", ()))
            plan.close()

    def leave(self) -> None:
        """The modules are as they were."""
        if self.left:
            return
        self.left = True
        self.close_plan()
        self.tree.leave()
        self.weights.lending.end()
        self.buffers.give_back()
        # Whoever offloads the module again finds nobody's tensors over its memory.
        self.weights.shown.clear()
        self.entries.clear()
        self.packed = PackedCopies(wanted=False)

    def check_here(self) -> None:
        if self.left:
            raise Error(
                f"offload: {self.name} is not offloaded any more: its handle was removed, or its first plan was refused; offload it again"
            )


def _weights_of(root: nn.Module, buffers: Buffers, giants: Giants, device: torch.device | None = None) -> Weights:
    with torch.inference_mode(False), torch.no_grad():
        return Weights(root, buffers.streaming(root), giants, device)
