"""How many bytes of activations a compiled program holds at one time, at most: read off its lines, as the trace is.

Every buffer has the storage that it was allocated with, or shares one: an alias, a view, a buffer that takes over another's memory. A
storage ends with its last buffer, as in the runtime. Sizes that depend on symbols count at the symbols' upper bounds, so the figure
holds for every shape that the program was exported for. What kernels and operators use inside a call is not part of it.
"""

from __future__ import annotations

from typing import Any

from sympy import sympify
from torch._inductor import ir
from torch._inductor.codegen import wrapper as lines
from torch._inductor.ir import get_dtype_size
from torch._inductor.virtualized import V
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.value_ranges import bound_sympy

from ..._torch.shapes import UNBOUNDED, Ranges


class Activations:
    """Follows the lines of one graph. Allocations are rounded up to ``granule`` bytes; sizes are at the upper ends of ``ranges``.

    The compiler's own ranges would not do: it narrows them to what it chose its code for."""

    def __init__(self, granule: int, ranges: Ranges):
        self.granule = granule
        self.ranges = ranges
        self.storages: dict[str, list[int]] = {}  # buffer name -> the storages that it keeps alive
        self.shared: list[int] = []  # storage -> number of buffers
        self.bytes: list[int] = []
        self.live = 0
        self.peak = 0

    def bound(self) -> int | None:
        """Bytes, or None if a size has no upper bound. Ask after the last line."""
        for number, name in enumerate(V.graph.get_output_names()):
            if name in V.graph.constants:  # a constant is returned as a copy
                self._allocate(f"output {number}", _constant_bytes(name))
        return self.peak if self.peak < UNBOUNDED else None

    def line(self, line: Any) -> None:
        """The next line of the program; probes, which allocate nothing, are left out by the caller."""
        if isinstance(line, lines.AllocateLine):
            self._allocate(line.node.get_name(), self._storage_bytes(line.node))
        elif isinstance(line, lines.ExternKernelAllocLine):
            self._results(line.node)
        elif isinstance(line, lines.MultiOutputLine):
            self._share(line.arg_name, line.result_name)
        elif isinstance(line, lines.ReinterpretLine):
            self._share(line.node.get_name(), line.reused_as.get_name())
        elif isinstance(line, lines.ReuseLine):
            self._share(line.node.get_name(), line.reused_as.get_name())
            if line.delete_old and line.node.get_name() not in V.graph.get_output_names():
                self._end(line.node.get_name())
        elif isinstance(line, (lines.FreeIfNotReusedLine, lines.FreeLine)) and not getattr(line, "is_reused", False):
            self._end(line.node.get_name())

    def _results(self, node: Any) -> None:
        """An operator makes its results itself: several have a buffer each, and one without a layout makes none. One that may be a view
        counts as both: as memory of its own, and as one more name of what it may look at."""
        for buffer in tree_leaves(node.outputs) if isinstance(node.layout, ir.MultiOutputLayout) else [node]:
            if isinstance(getattr(buffer, "layout", None), ir.Layout):
                self._allocate(buffer.get_name(), self._storage_bytes(buffer))
                for source in buffer.get_inputs_that_alias_output():
                    self._share(source, buffer.get_name())

    def _allocate(self, name: str, size: int) -> None:
        self.storages.setdefault(name, []).append(len(self.bytes))
        self.shared.append(1)
        self.bytes.append(-(-size // self.granule) * self.granule)
        self.live += self.bytes[-1]
        self.peak = max(self.peak, self.live)

    def _share(self, old: str, new: str) -> None:
        """``new`` keeps alive what ``old`` does. An input, a constant or a probe's result has no storage here, and counts nothing."""
        held = self.storages.setdefault(new, [])
        for storage in self.storages.get(old, ()):
            if storage not in held:
                held.append(storage)
                self.shared[storage] += 1

    def _storage_bytes(self, buffer: Any) -> int:
        return self._largest(V.graph.get_allocation_storage_size(buffer)) * get_dtype_size(buffer.get_dtype())

    def _largest(self, size: Any) -> int:
        """The size at the upper bounds of its symbols; :data:`UNBOUNDED` if one has none."""
        upper = bound_sympy(sympify(size), {**V.graph.sizevars.shape_env.var_to_range, **self.ranges}).upper
        return int(upper) if upper < UNBOUNDED else UNBOUNDED

    def _end(self, name: str) -> None:
        for storage in self.storages.pop(name, ()):
            self.shared[storage] -= 1
            if self.shared[storage] == 0:
                self.live -= self.bytes[storage]


def _constant_bytes(name: str) -> int:
    value = V.graph.get_original_value_of_constant(name)
    return value.numel() * value.element_size()
