"""Each cure of what the compiler does to weights, taken away in turn: the checks on the compiled program must notice.

`test_facts.py` shows that the same models are right with all cures in place.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import weightstream as ws
from device_under_test import DEVICE, ON_GPU
from executorch.exir import to_edge_transform_and_lower
from models import ZOO
from torch._inductor import lowering
from torch._inductor.codegen import wrapper
from weightstream._export.compile import inductor
from weightstream._export.compile.trace import PROBE, RELEASE, CompiledTrace, _Reader
from weightstream._torch import probe as _probe

pytestmark = pytest.mark.no_runtime


class Stop(Exception):
    """Ends a compilation once its trace is known: what follows takes ten seconds and shows nothing here."""


def trace_of(name: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> CompiledTrace:
    """The trace of one model of the zoo, without running the C++ compiler. `options` go to the compiler."""
    kept: list[CompiledTrace] = []
    read = _Reader.read

    def read_and_stop(self):
        kept.append(read(self))
        raise Stop

    before = inductor._options()
    monkeypatch.setattr(_Reader, "read", read_and_stop)
    monkeypatch.setattr(inductor, "_options", lambda: {**before, **options})
    program = ws.apply_weight_offload(ZOO[name].export())
    # The compiler wraps what is raised inside it, unless it is a refusal of ours: those must come through as they are.
    try:
        to_edge_transform_and_lower(
            program, partitioner=[ws.WeightStreamPartitioner(device=DEVICE)], compile_config=ws.edge_compile_config()
        )
    except ws.ExportError:
        raise
    except Exception:
        if not kept:
            raise
    return kept[0]


def allocations_of(name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many activations of a model are allocated, and do not take the memory of others."""
    read, found = _Reader.read, []

    def read_and_count(self):
        found.append(sum(isinstance(line, wrapper.AllocateLine) for line in self.wrapper.lines))
        return read(self)

    monkeypatch.setattr(_Reader, "read", read_and_count)
    trace_of(name, monkeypatch)
    return found[0]


def largest_leases(trace: CompiledTrace) -> int:
    """The largest sum of bytes under lease at one time."""
    size = {fqn: c.tensor.numel() * c.tensor.element_size() for fqn, c in trace.constants.items()}
    leases: dict[int, str] = {}
    peak = 0
    for op, number in trace.events:
        if op == PROBE:
            leases[number] = trace.probes[number]
            peak = max(peak, sum(size[fqn] for fqn in set(leases.values())))
        elif op == RELEASE:
            del leases[number]
    return peak


def probes_before_last_read(trace: CompiledTrace) -> int:
    """Probes that are followed by a kernel other than one that ends a lease: a sign of being early."""
    idle = 0
    waiting: set[int] = set()
    for op, number in trace.events:
        if op == PROBE:
            waiting.add(number)
        elif op == RELEASE:
            waiting.discard(number)
        else:
            idle += len(waiting)
    return idle


def test_without_the_alias_mark_an_activation_is_written_into_a_weight(monkeypatch):
    def plain(weight, probe_id):
        return _probe._fallback(weight, probe_id)

    monkeypatch.setitem(lowering.lowerings, _probe.PROBE, plain)
    with pytest.raises(ws.ExportError, match="writes into weight 'position'"):
        trace_of("fact_position", monkeypatch)


def test_without_the_alias_mark_the_pool_reuses_a_weight(monkeypatch):
    # Whether the pool reuses a buffer also depends on an estimate of peak memory, which these small models do not raise.
    monkeypatch.setattr(wrapper.AllocateLine, "should_reuse_buffer", lambda self, free_line, size: True)
    with pytest.MonkeyPatch.context() as patch:
        trace_of("fact_same_shape", patch)

    def plain(weight, probe_id):
        return _probe._fallback(weight, probe_id)

    monkeypatch.setitem(lowering.lowerings, _probe.PROBE, plain)
    with pytest.raises(ws.ExportError, match=r"writes into weight '(scales|mixes)\.\d'"):
        trace_of("fact_same_shape", monkeypatch)


def test_without_shared_storage_a_clone_is_written_in_place(monkeypatch):
    monkeypatch.setattr(inductor, "share_storage", lambda graph: None)
    if ON_GPU:
        # Triton's scatter keeps the clone, so that the export's own check finds nothing: there is nothing to cure.
        assert trace_of("fact_clone_write", monkeypatch).events
        return
    with pytest.raises(ws.ExportError, match="writes into weight 'rows'"):
        trace_of("fact_clone_write", monkeypatch)


def test_never_reuse_would_hold_every_lease_to_the_end(monkeypatch):
    """Why the alias mark, and not Inductor's own list of buffers that must not be reused: the frees must stay."""
    trace = trace_of("fact_same_shape", monkeypatch)
    released = [number for op, number in trace.events if op == RELEASE]
    assert len(released) >= len(trace.probes) - 2, "leases must end behind their last reader, not with the pass"


def test_without_pinning_probes_come_early(monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        cured = probes_before_last_read(trace_of("kv_decoder", patch))
    monkeypatch.setattr(inductor, "pin_before_first_reader", lambda nodes: nodes)
    uncured = probes_before_last_read(trace_of("kv_decoder", monkeypatch, reorder_for_peak_memory=True))
    assert cured < uncured


def test_without_reuse_across_probes_more_activations_are_allocated(monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        cured = allocations_of("mlp", patch)
    monkeypatch.setattr(inductor, "reuse_across_probes", contextlib.nullcontext)
    uncured = allocations_of("mlp", monkeypatch)
    # torch 2.14 reuses across the probes of this model by itself.
    assert cured < uncured if torch.__version__.startswith("2.11.") else cured <= uncured


def test_a_realized_embedding_ends_the_lease_of_its_table(monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        cured = largest_leases(trace_of("fact_long_lease", patch))
    monkeypatch.setattr(inductor, "realized_embedding", contextlib.nullcontext)
    assert cured <= largest_leases(trace_of("fact_long_lease", monkeypatch))


def test_small_weights_are_baked_into_the_code_unless_told_otherwise(monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        assert "eight" in trace_of("fact_odd_constants", patch).constants
    torch._dynamo.reset()
    with pytest.raises(ws.ExportError, match="which the compiler computed, not a weight"):
        trace_of("fact_odd_constants", monkeypatch, always_keep_tensor_constants=False)
