"""Memory for PyTorch's own CUDA graphs, on the pages of ranges.

What a replay has written is valid until the next replay of any graph of its pool: copy what has to last. Captures of a
:class:`GraphPool` have their own addresses over memory that they share, so all of them together take the memory of the largest.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._native.allocator import allocator, check_torch
from .._native.bindings import NO_LIMIT, last_error, library, whole
from .._native.errors import Error

__all__ = ["GraphPool"]

#: Handles of pools that were dropped while tensors of their captures lived.
_left: list[ctypes.c_void_p] = []
#: Graphs that PyTorch points to without keeping them.
_broken: list[Any] = []


@dataclass
class Group:
    """Captures that keep each other's memory. Most have one."""

    key: Any
    memory: Any
    capture: int
    #: How many were captured, and how many of them live.
    pieces: int = 0
    live: int = 0


class GraphPool:
    """Captures of CUDA graphs that take the memory of the largest of them, in whatever order they are made.

    An output of a replay is valid until the next replay of any graph of the pool. So is every other tensor that was made during a
    capture: make what lasts (inputs, caches) before it::

        graphs = weightstream.torch.GraphPool("cuda:0")
        for n in sizes:
            model(inputs[n])                       # loads kernels and fills caches, outside of the capture
            g = graphs.graph()
            with graphs.capture(g):
                outputs[n] = model(inputs[n])
            captured[n] = g

        captured[8].replay()
        y = outputs[8].clone()                     # before the next replay

    ``cap_bytes`` is the most that a capture may take; None for what is free on the device now. The memory counts in the device's
    budget, and weights of ranges make room for it. Needs torch 2.11 or later, and so does :func:`pool`.
    """

    def __init__(self, device: str = "cuda", cap_bytes: int | None = None, name: str = "graphs"):
        self._handle: ctypes.c_void_p | None = None
        check_torch("GraphPool")
        self.device, self.name = _full_name(device), name
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._groups: dict[Any, Group] = {}
        #: The capture that was replayed last.
        self._last: int | None = None
        #: One thread at a time says where it replays, and replays.
        self._turn = threading.Lock()
        _end_left()
        handle = ctypes.c_void_p()
        cap = NO_LIMIT if cap_bytes is None else whole("cap_bytes", cap_bytes)
        if library().ws_graph_pool_create(self.device.encode(), name.encode(), cap, ctypes.byref(handle)) != 0:
            raise Error(last_error())
        self._handle = handle

    def graph(self, keep_graph: bool = False) -> Any:
        """A ``torch.cuda.CUDAGraph`` for :meth:`capture`. Its replays wait for those of the pool's other graphs.

        Its ``reset`` gives its addresses back, as :meth:`release` does.
        """
        import torch

        # PyTorch makes a context on the current device for it.
        with torch.cuda.device(self.device):
            graph = _graph_class()(keep_graph)
        graph._shared = self
        self._graphs.add(graph)
        return graph

    @contextlib.contextmanager
    def capture(self, graph: Any, *, group: Any = None, stream: Any = None, capture_error_mode: str = "global") -> Iterator[None]:
        """``torch.cuda.graph`` over memory of the pool. One capture runs at a time on a device.

        Captures of one ``group``, any key, are pieces of one pass with other work between, as attention that is not captured: they keep
        each other's memory, and are replayed in the order in which they were captured. Groups share memory as captures do: what a piece
        has written is valid until another group is replayed. To replay a later piece then is an error.

        If it fails, the error is raised, and the pool is what it was once no tensor of the capture lives.
        """
        if getattr(graph, "_shared", None) is not self or graph._capture is not None:
            raise Error(f"graph pool '{self.name}': capture() takes a graph of this pool's graph() that was not captured yet")
        import torch

        torch.cuda.synchronize(self.device)
        # What is left of captures that failed or were released.
        torch.cuda.empty_cache()
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream(self.device)):
            # A workspace of another capture is at addresses of that capture.
            torch._C._cuda_clearCublasWorkspaces()
            self._join(graph, group)
            kept = False
            try:
                with torch.cuda.graph(graph, pool=graph._memory.id, stream=stream, capture_error_mode=capture_error_mode):
                    yield
                kept = True
            except torch.OutOfMemoryError as error:
                refused = self.report()["refused"]
                if refused is None:
                    raise
                raise Error(refused) from error
            finally:
                torch._C._cuda_clearCublasWorkspaces()
                # Of a group others live, and the piece that failed has not ended it.
                if not kept:
                    _forget(graph)
                self._call("end", int(kept))

    def release(self, graph: Any) -> None:
        """Ends a graph: its replays are waited for. Its addresses go once no tensor of its capture lives, and so does memory that no
        other graph needs."""
        if getattr(graph, "_shared", None) is not self:
            raise Error(f"graph pool '{self.name}': release() takes a graph of this pool")
        graph.reset()

    def report(self) -> dict[str, Any]:
        """What the pool holds: ``bytes`` of memory, ``cap_bytes``, its ``captures``, and why the last capture got no memory."""
        text = ctypes.c_char_p()
        self._call("report", ctypes.byref(text))
        return json.loads(text.value or b"{}")

    def close(self) -> None:
        """Releases all graphs and gives all memory back. An error while a tensor of a capture lives; then the pool stays."""
        if self._handle is None:
            return
        for graph in list(self._graphs):
            graph.reset()
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        self._call("destroy")
        self._handle = None

    def __enter__(self) -> GraphPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None and library().ws_graph_pool_destroy(handle) != 0:
            _left.append(handle)

    def _join(self, graph: Any, key: Any) -> None:
        """A capture of this graph begins: of a new group, or as the next piece of one that there is."""
        import torch

        group = self._groups.get(key) if key is not None else None
        if group is None:
            memory = torch.cuda.MemPool(allocator("graph_pool"))
            group = Group(key, memory, self._begin())
            if key is not None:
                self._groups[key] = group
        else:
            self._call("resume", group.capture)
        graph._group, graph._memory, graph._capture, graph._place = group, group.memory, group.capture, group.pieces
        group.pieces += 1
        group.live += 1

    def _enter(self, graph: Any, stream: int) -> None:
        """A replay is issued next."""
        # What the pieces before have written is gone.
        if graph._place > 0 and self._last != graph._capture:
            raise Error(
                f"graph pool '{self.name}': piece {graph._place} of group {graph._group.key!r} is replayed after another group, which has "
                "overwritten what its first pieces wrote; replay the group from its first piece on"
            )
        self._call("enter", graph._capture, stream)
        self._last = graph._capture

    def _begin(self) -> int:
        capture = ctypes.c_uint64()
        self._call("begin", ctypes.byref(capture))
        return capture.value

    def _call(self, name: str, *arguments: Any) -> None:
        handle = self._handle
        if handle is None:
            raise Error(f"graph pool '{self.name}' is closed")
        if getattr(library(), f"ws_graph_pool_{name}")(handle, *arguments) != 0:
            raise Error(last_error())


@functools.cache
def _graph_class() -> type:
    import torch

    class PoolGraph(torch.cuda.CUDAGraph):
        """A graph whose memory is shared with the other graphs of its pool."""

        _shared: GraphPool | None = None
        _capture: int | None = None
        _memory: Any = None
        _group: Group | None = None
        _place = 0

        def replay(self) -> None:
            """Replays the graph, after the replays of the pool before. Their outputs are overwritten."""
            shared = self._shared
            if shared is None or self._capture is None:
                raise Error("this graph was not captured by GraphPool.capture, or was released")
            with torch.cuda.device(shared.device):
                if torch.cuda.is_current_stream_capturing():
                    raise Error(f"graph pool '{shared.name}': a replay cannot be part of another capture")
                with shared._turn:
                    shared._enter(self, torch.cuda.current_stream().cuda_stream)
                    super().replay()

        def reset(self) -> None:
            """Ends the graph, and gives its addresses back once no tensor of its capture lives."""
            shared, capture = self._shared, self._capture
            if shared is None or capture is None:
                super().reset()
                return
            torch.cuda.synchronize(shared.device)
            if _forget(self) and shared._handle is not None:
                shared._call("release", capture)

        def __del__(self) -> None:
            # Anything may run now, another capture too: nothing is waited for but replays, and errors are for the next capture.
            shared, capture = self._shared, self._capture
            with contextlib.suppress(Exception):
                if shared is not None and capture is not None and _forget(self):
                    shared._call("release", capture)
            with contextlib.suppress(AttributeError):
                super().__del__()

    return PoolGraph


def _forget(graph: Any) -> bool:
    """Ends what PyTorch knows of a capture. With the last of its group its pool goes, and what was freed there comes back to us: whether
    it was that one."""
    import torch

    memory, group = graph._memory, graph._group
    graph._memory = graph._capture = graph._group = None
    super(_graph_class(), graph).reset()
    device, id = torch.device(graph._shared.device).index, memory.id
    # A capture that PyTorch could not end leaves its pool begun, and in use. PyTorch asks the graph about later allocations.
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, id)
        _broken.append(graph)
    group.live -= 1
    if group.live:
        return False
    if graph._shared._groups.get(group.key) is group:
        del graph._shared._groups[group.key]
    group.memory = None
    while memory.use_count() > 1:
        torch._C._cuda_releasePool(device, id)
    return True


def _full_name(device: str) -> str:
    if device != "cuda":
        return device
    # Late: a pool on the CPU needs no torch.
    from .._native.gpus import gpu

    return str(gpu(None, "GraphPool"))


def _end_left() -> None:
    """Ends pools that were dropped before tensors of their captures."""
    _left[:] = [handle for handle in _left if library().ws_graph_pool_destroy(handle) != 0]
