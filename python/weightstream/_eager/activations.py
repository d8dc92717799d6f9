"""PyTorch's memory for passes: it comes from the device's budget, and weights give way to it.

```text
 the budget of the device   | activations: segments of one pool | weights of modules, by their grants |
                                                          ──► grows while a pass runs: idle models shrink, lowest priority first;
                                                              then weights go of the pass that runs, if it may give way
```

One ``MemPool`` a device serves all modules, and one more each pass that runs beside another: PyTorch refuses a pool that another thread
uses. They keep what they were given, so the next pass of these sizes finds it there. They are dropped where weights lack memory and the
sizes that come need much less.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .._native import progress
from .._native.allocator import LEAST_TORCH, has_least_torch, pool
from .._native.bindings import OffloadNeeds, library
from .._native.errors import Error

#: Beside what passes of these sizes took before: sizes in one key differ by less than two.
_MORE, _LITTLE = 1 / 8, 32 << 20
#: Less than this is not worth a drop.
_MUCH = 16 << 20

#: The ones of this process, by index of the device.
_pools: dict[int, DevicePool] = {}
_said: set[str] = set()


class DevicePool:
    """The memory of one device for passes."""

    def __init__(self, index: int):
        self.index = index
        #: Those that no pass uses; the last one that was used is the next one.
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        self._inside = threading.local()
        self._users = 0

    def held(self) -> int:
        """Bytes of segments, used or kept."""
        return library().ws_segment_bytes(self.index)

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """What this thread allocates on the device comes from here."""
        if getattr(self._inside, "depth", 0):
            yield
            return
        with self._lock:
            mine = self._idle.pop() if self._idle else self._new()
            self._users += 1
        self._inside.depth = 1
        try:
            with torch.cuda.use_mem_pool(mine, self.index):
                yield
        finally:
            self._inside.depth = 0
            with self._lock:
                self._idle.append(mine)
                self._users -= 1

    def drop(self) -> None:
        """What no tensor uses goes back to the device. Nothing happens while a pass runs."""
        with self._lock:
            if not self._idle or self._users:
                return
            self._idle.clear()
            with torch.cuda.device(self.index):
                # Tensors that outlived their pool are freed by then, or keep their segments.
                torch.cuda.empty_cache()

    def _new(self) -> Any:
        with torch.cuda.device(self.index):
            return pool()


class Activations:
    """What passes of one module take beside its weights: learned by entry and sizes."""

    def __init__(self, name: str, index: int):
        self._name = name
        self.pool = _pools.setdefault(index, DevicePool(index))
        #: Bytes with which a pass of these sizes came through.
        self._known: dict[Any, int] = {}
        #: Bytes of segments when the pass began, and those that the last drop left: tensors that outlive passes hold them.
        self._before = self._kept = 0

    def needs(self, key: Any, resident: bool) -> OffloadNeeds:
        """For a pass of this key. Weights give way to it, but where everything stays and it is known what it takes."""
        need, held = self._known.get(key), self.pool.held()
        wanted = 0 if need is None else int(need * (1 + _MORE)) + _LITTLE
        self._kept = min(self._kept, held)
        if not resident and held > max(wanted, self._kept) + max(_MUCH, wanted // 4):
            self.pool.drop()
            held = self._kept = self.pool.held()
        self._before = held
        # What a pass takes may grow from one to the next, as caches do.
        room = 0 if need is None else max(wanted - held, wanted - need)
        return OffloadNeeds(room, 1, int(need is None))

    def learn(self, key: Any) -> None:
        """A pass of this key came through."""
        held = self.pool.held()
        # One that took more than there was needs all of it. Otherwise some may be left from other passes.
        self._known[key] = held if held > self._before else min(self._known.get(key, held), held)

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """A pass runs."""
        try:
            with self.pool.use():
                yield
        except torch.OutOfMemoryError as error:
            # Passes of these sizes need more than was known: the next one may give way.
            self._known.clear()
            held = f"its activations hold {self.pool.held():,} bytes, and weights that could give way did"
            raise _explained(error, self._name, f"cuda:{self.pool.index}", held, "a larger device budget (set_device_budget)") from None


@contextlib.contextmanager
def beside(name: str, device: torch.device, shared: bool) -> Iterator[None]:
    """A pass runs whose activations are PyTorch's, beside the budget."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        what = "a smaller device budget (set_device_budget), activations='pool'" if shared else "a smaller budget (set_budget)"
        raise _explained(error, name, device, "its activations lie beside the budget, and weights do not give way to them", what) from None


def _explained(error: Exception, name: str, device: object, why: str, helps: str) -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(
        f"{error}\n{name} ran out of memory in a pass: {why}. weightstream.device_report('{device}') says who shares the device; a smaller batch, "
        f"{helps}, or fewer models on the device help."
    )


def key_of(entry: Any, given: Any) -> Any:
    """Sizes of a pass, each up to the next power of two."""
    tensors = [one for one in torch.utils._pytree.tree_leaves(given) if isinstance(one, torch.Tensor)]
    return (entry, *(tuple(size if size < 2 else 1 << (size - 1).bit_length() for size in one.shape) for one in tensors))


def activations_of(asked: str | None, shared: bool, device: torch.device, name: str) -> Activations | None:
    """What ``offload`` was asked for, or the default of this torch; ``None`` for PyTorch's own memory."""
    if asked not in (None, "pool", "pytorch"):
        raise Error(f"offload: activations is 'pool' or 'pytorch', found {asked!r}")
    if asked == "pytorch" or (asked is None and not (shared and device.type == "cuda")):
        return None
    if not shared:
        raise Error("offload: activations='pool' has weights give way to them, and those of a fixed budget do not; give shared=True")
    why = _why_not(device)
    if why is None:
        return Activations(name, device.index or 0)
    if asked == "pool":
        raise Error(f"offload: activations='pool': {why}")
    if why not in _said:
        _said.add(why)
        progress.note(f"{name}: activations='pytorch': weights do not give way to them, since {why}")
    return None


def _why_not(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"memory of '{device}' is not PyTorch's to share"
    if not has_least_torch():
        return f"torch {'.'.join(map(str, LEAST_TORCH))} or later is needed, and this is {torch.__version__}"
    if torch.cuda.get_allocator_backend() != "native":
        return f"PyTorch's allocator is '{torch.cuda.get_allocator_backend()}', and takes no pools of others"
    settings = torch.cuda.memory._snapshot(device).get("allocator_settings", {})
    if settings.get("expandable_segments"):
        return "PyTorch's allocator has expandable_segments, and takes no pools of others"
    return None
