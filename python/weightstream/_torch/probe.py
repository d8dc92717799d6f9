"""The probe: the custom op before every weight read, and the cures that keep Inductor honest about it.

Inductor believes that a probe's output is a fresh temporary. Three of its passes would then write activations into it: in-place
fusion and the buffer-reuse pool (cured by :func:`_lower_probe`), and the re-inplacing of functional updates (cured by
:func:`share_storage`). Its scheduler also moves probes away from their readers (cured by :func:`pin_before_first_reader`). Its
planner takes probes for kernels, and reuses no memory across them (cured by :func:`reuse_across_probes`).
``_export/compile/trace.py`` checks the result on the compiled program, so that a cure which stops working fails the export.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.wrapper import AllocateLine
from torch._inductor.lowering import fallback_handler, register_lowering
from torch._inductor.virtualized import V
from torch.library import custom_op


@custom_op("weightstream::probe", mutates_args=())
def probe(weight: torch.Tensor, probe_id: int) -> torch.Tensor:
    """Stands for the weight's bytes on the device. In eager mode it is a copy, so that a stray write cannot reach the weight."""
    return weight.clone()


@probe.register_fake
def _(weight: torch.Tensor, probe_id: int) -> torch.Tensor:
    return torch.empty_like(weight)


PROBE = torch.ops.weightstream.probe.default

_fallback = fallback_handler(PROBE, add_to_fallback_set=False)


@register_lowering(PROBE, type_promotion_kind=None)
def _lower_probe(weight: Any, probe_id: int) -> Any:
    """Lowers a probe to a fallback kernel that claims to alias its input.

    With the claim, the scheduler makes no in-place update into the output, and the memory planner never hands it to an activation. The
    free after the last reader stays. Without it the second pass of ``sin(x) + pos`` reads an overwritten weight.
    ``never_reuse_buffers`` would stop the reuse too, but drops the frees: every lease would last until the pass returns.
    """
    result = node = _fallback(weight, probe_id)
    if hasattr(result, "realize"):
        result.realize()
    while hasattr(node, "data") and not isinstance(node, ir.MultiOutput):
        node = node.data
    # A single-tensor op is either the fallback kernel itself or one output of it.
    kernel = node.inputs[0] if isinstance(node, ir.MultiOutput) else node
    kernel.alias_names.append(weight.get_name())
    return result


def share_storage(graph: torch.fx.Graph) -> None:
    """``post_grad_custom_post_pass``: lets the re-inplacing pass see that a probe's output is its input's storage.

    Otherwise ``t = w.clone(); t[i] = x`` loses its clone and stores into the weight. It runs before lowering, so that the alias
    claim of the lowering comes too late for it.
    """
    for node in graph.nodes:
        if is_probe(node):
            value = node.args[0].meta.get("val")
            if value is not None:
                node.meta["val"] = value.view(value.shape)


def is_probe(node: torch.fx.Node) -> bool:
    """Whether an FX node is a probe, in the ATen or in the edge dialect."""
    if node.op != "call_function":
        return False
    return node.target is PROBE or getattr(node.target, "_op", None) is PROBE


def is_probe_kernel(node: Any) -> bool:
    """Whether a scheduler node or an IR node is a lowered probe."""
    kernel = getattr(node, "node", node)
    return isinstance(kernel, ir.FallbackKernel) and kernel.op_overload is PROBE


def pin_before_first_reader(nodes: list[Any]) -> list[Any]:
    """``_post_fusion_custom_pass``: moves each probe to just before its first reader.

    It runs after fusion, so that the kernels stay what they were. ``reorder_for_peak_memory`` must be off: it would hoist small
    probes again. Early probes would be correct and cost budget: a lease begins at its probe.
    """
    groups: dict[Any, list[Any]] = {node: [node] for node in nodes if is_probe_kernel(node)}
    owner = {buffer.get_name(): node for node in groups for buffer in node.get_outputs()}
    for node in nodes:
        if isinstance(getattr(node, "node", None), ir.MultiOutput):
            for read in node.read_writes.reads:
                if read.name in owner:
                    groups[owner[read.name]].append(node)
    members = {member for group in groups.values() for member in group}
    produced = {buffer.get_name(): probe for probe, group in groups.items() for member in group for buffer in member.get_outputs()}
    ordered: list[Any] = []
    placed: set[Any] = set()
    for node in nodes:
        if node in members:
            continue
        for read in sorted(node.read_writes.reads, key=lambda dep: dep.name):
            probe_node = produced.get(read.name)
            if probe_node is not None and probe_node not in placed:
                ordered += groups[probe_node]
                placed.add(probe_node)
        ordered.append(node)
    for probe_node, group in groups.items():
        if probe_node not in placed:
            ordered += group
    return ordered


@contextlib.contextmanager
def reuse_across_probes() -> Iterator[None]:
    """Lets an activation take the memory of one that is freed before the probes that precede it, as it would without probes.

    Inductor reuses a buffer in the next node of its schedule, and later only where its estimate of peak memory allows it. The estimate
    comes from ``reorder_for_peak_memory``, which is off since it would hoist probes; without it the estimate is 0. With a probe before
    nearly every kernel most reuse is lost. Each allocation that is not saved costs two calls of the driver in every pass.
    """
    original = AllocateLine.should_reuse_buffer

    def should_reuse(self: AllocateLine, free_line: Any, size: int) -> bool:
        between = V.graph.scheduler.nodes[free_line.scheduler_node_index + 1 : self.scheduler_node_index]
        return all(_belongs_to_probe(node) for node in between) or original(self, free_line, size)

    with unittest.mock.patch.object(AllocateLine, "should_reuse_buffer", should_reuse):
        yield


def _belongs_to_probe(node: Any) -> bool:
    """Whether a scheduler node is a probe, or takes a probe's output out of its list of outputs."""
    kernel = getattr(node, "node", None)
    return is_probe_kernel(kernel.inputs[0] if isinstance(kernel, ir.MultiOutput) else kernel)
