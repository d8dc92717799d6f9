"""Lets activations take the memory of others that are over, as far as that takes no more memory at any time.

Inductor does so in the next node of its schedule, and later where its estimate of peak memory allows it. What that estimate is made of is only known
where ``reorder_for_peak_memory`` is on. That must be off, since it would hoist probes, and then the estimate is 0: a buffer is
reused at once or never. Four Llama-like layers on a GPU allocate 33 activations per pass instead of 21 for that alone, and 46 with a probe in front
of nearly every kernel; each is two calls of the driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch._inductor.codegen.wrapper import AllocateLine, EfficientPeakEstimate
from torch._inductor.memory import prepare_planning_info
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from ._probe import belongs_to_probe


@contextlib.contextmanager
def reuse_of_activations() -> Iterator[None]:
    """While it is entered, programs with and without probes allocate as few activations as the compiler's estimate of memory allows."""
    estimate, should_reuse = EfficientPeakEstimate.__init__, AllocateLine.should_reuse_buffer

    def estimate_by_sizes(self: EfficientPeakEstimate) -> None:
        _tell_sizes()
        estimate(self)

    def should_reuse_across_probes(self: AllocateLine, free_line: Any, size: int) -> bool:
        between = V.graph.scheduler.nodes[free_line.scheduler_node_index + 1 : self.scheduler_node_index]
        return all(belongs_to_probe(node) for node in between) or should_reuse(self, free_line, size)

    EfficientPeakEstimate.__init__ = estimate_by_sizes
    AllocateLine.should_reuse_buffer = should_reuse_across_probes
    try:
        yield
    finally:
        EfficientPeakEstimate.__init__, AllocateLine.should_reuse_buffer = estimate, should_reuse


def _tell_sizes() -> None:
    """Tells each buffer its bytes and its readers, as the reordering would. A probe's output is a weight, and takes no activation's memory."""
    graph, scheduler = V.graph, V.graph.scheduler
    inputs, outputs = OrderedSet(graph.graph_inputs.keys()), OrderedSet(graph.get_output_names())
    prepare_planning_info(scheduler.nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, inputs, outputs)
    for node in filter(belongs_to_probe, scheduler.nodes):
        for buffer in node.get_outputs():
            buffer.mpi_buffer.size_alloc = buffer.mpi_buffer.size_free = 0
