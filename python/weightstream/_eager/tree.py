"""The modules that are offloaded: their names, what stands in the place of their forwards, and whether any of that has changed."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .compiled import beside_compiled, check_compiled, inside_compiled
from .module import Forward, check_module
from .where import forget_where, has_device, say_where

if TYPE_CHECKING:
    from .passes import Passes


class Tree:
    """All modules below a root."""

    def __init__(self, root: nn.Module, device: torch.device):
        self.names: dict[nn.Module, str] = {}
        self._root, self._device = root, device
        self._forwards: dict[nn.Module, Forward] = {}
        #: What holds the parts of all modules, and the parts as they were last seen.
        self._held: list[dict[str, Any]] = []
        self._own: list[dict[str, Any]] = []
        self._seen: list[int] = []

    def look(self) -> dict[nn.Module, str]:
        """The modules that there are now, with their names. What cannot be offloaded is refused."""
        names = {one: name for name, one in self._root.named_modules()}
        check_module(self._root, {one: name for one, name in names.items() if one not in self.names})
        check_compiled(self._root, names)
        return names

    def take(self, names: dict[nn.Module, str], passes: Passes) -> tuple[set[nn.Module], set[nn.Module]]:
        """These from now on: their calls are passes, or parts of some. Those whose calls are others than before, and those that are new."""
        gone = [one for one in self.names if one not in names]
        forget_where(gone)
        inside = inside_compiled(names)
        fresh = {one for one in names if one in inside or one not in self._forwards or not self._forwards[one].wraps(one)}
        for module in (*gone, *fresh):
            if module in self._forwards:
                self._forwards.pop(module).unwrap(module)
        for module in fresh & (beside_compiled(self._root) | passes.giants.pieces().keys()):
            self._forwards[module] = Forward(passes, module, module in inside)
            self._forwards[module].wrap(module)
        added = {one for one in names if one not in self.names}
        self.names = names
        self._held = [held for module in names for held in (module._parameters, module._modules)]
        self._own = [module.__dict__ for module in names]
        say_where([one for one in names if one is self._root or has_device(one)], self._device)
        self._seen = self._parts()
        return fresh, added

    def has_changed(self) -> bool:
        """Whether it consists of other modules, parameters or forwards than when it was taken."""
        return self._parts() != self._seen

    def look_again(self) -> None:
        """Whatever it is next time, it is another one."""
        self._seen = []

    def _parts(self) -> list[int]:
        """By identity. Forwards too: somebody may give a module another one, or compile it."""
        # A model has a thousand modules, and kernels wait while this runs: no loop of Python's.
        held = chain.from_iterable(map(dict.values, self._held))
        return [
            *map(id, held),
            *map(id, map(dict.get, self._own, repeat("forward"))),
            *map(id, map(dict.get, self._own, repeat("_compiled_call_impl"))),
        ]

    def leave(self) -> None:
        """The modules are as they were."""
        for module, forward in self._forwards.items():
            forward.unwrap(module)
        forget_where(self.names)
        self._forwards.clear()
