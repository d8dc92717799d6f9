"""What compiled code does with weights, one model per fact; each fails when the cure of its fact is taken away."""

from __future__ import annotations

import gc

import pytest
from conftest import PASSES
from doctor import DIRECT, KERNEL, MUTABLE, PROBE, RELEASE, WEIGHT, Ptd, Pte
from fact_models import FACTS
from models import ZOO
from support import budget_of, open_module, program_of, run_passes
from zoo import SHARED, bits, largest_error

#: The programs that hold the facts.
PROGRAMS = list(dict.fromkeys(SHARED.get(name, name) for name in FACTS))


def record_of(exported, name):
    return Pte(exported(name).pte).payload


def kind_of(record, fqn):
    return record["kinds"][record["fqns"].index(fqn)]


@pytest.mark.parametrize("budget", ["floor", 50, 100])
@pytest.mark.parametrize("name", FACTS)
def test_fact_model_is_right(name, budget, exported, reference, resident_bits):
    program, own = program_of(name, exported)
    spec, files = ZOO[name], exported(program)
    module = open_module(files, budget_of(files, budget))
    for number, outputs in enumerate(run_passes(module, ZOO[program].passes(PASSES))):
        found = outputs[own]
        error = largest_error(found, reference(program)[number][own])
        assert error <= spec.tolerance, f"{spec.shows}: pass {number} is off by {error}"
        assert bits(found) == resident_bits(program)[number][own]
    stats = module.stats()
    assert stats["peak_bytes"] <= stats["budget_bytes"]


@pytest.mark.parametrize("name", ["fact_long_lease", "fact_three_reads", "fact_same_shape"])
def test_the_floor_really_evicts(name, exported):
    files = exported(name)
    module = open_module(files, budget_of(files, "floor"))
    run_passes(module, ZOO[name].passes(3))
    assert module.stats()["evictions"] > 0


@pytest.mark.no_runtime
@pytest.mark.parametrize("name", ["encoder", "kv_decoder", *PROGRAMS])
def test_record_is_consistent(name, exported):
    pte = Pte(exported(name).pte)
    record = pte.payload
    assert record == pte.methods, "the payload and the constant methods hold different records"
    probes, count = record.get("probes", []), len(record["fqns"])
    issued = [event // 4 for event in record["trace"] if event % 4 == PROBE]
    assert sorted(issued) == list(range(len(probes))), "each probe is issued once per pass"
    assert record["access_order"] == [probes[i] for i in issued]
    kernels = [event // 4 for event in record["trace"] if event % 4 == KERNEL]
    assert kernels == list(range(len(kernels)))
    assert len(set(record["fqns"])) == count
    assert {len(record[f]) for f in ("kinds", "dtypes", "nbytes", "crc32")} == {count}
    assert {record["kinds"][i] for i in probes} <= {WEIGHT}
    ended = [event // 4 for event in record["trace"] if event % 4 == RELEASE]
    assert len(set(ended)) == len(ended)
    assert record["hard_minimum"][0] <= record["floor"][0]


@pytest.mark.no_runtime
@pytest.mark.parametrize("name", ["encoder", "kv_decoder", *PROGRAMS])
def test_ptd_holds_exactly_the_recorded_bytes(name, exported):
    import zlib

    files, record = exported(name), record_of(exported, name)
    ptd = Ptd(files.ptd)
    names = set(record["fqns"]) | {f"weightstream_{what}_{record['method'][0]}" for what in ("build_id", "program_crc32")}
    assert set(ptd.entries) == names
    for fqn, nbytes, crc in zip(record["fqns"], record["nbytes"], record["crc32"], strict=True):
        data = ptd.bytes_of(fqn)
        assert (len(data), zlib.crc32(data)) == (nbytes, crc), fqn


@pytest.mark.models("fact_long_lease")
@pytest.mark.no_runtime
def test_leases_are_longer_than_a_kernel_or_the_read_was_made_real(exported):
    """Whichever way the exporter took, the lease of every weight ends only after a kernel was issued in it."""
    open_since = {}
    for event in record_of(exported, "fact_long_lease")["trace"]:
        op, number = event % 4, event // 4
        if op == PROBE:
            open_since[number] = 0
        elif op == KERNEL:
            open_since = {probe: kernels + 1 for probe, kernels in open_since.items()}
        else:
            assert open_since.pop(number) >= 1, f"the lease of probe {number} ended before any kernel could read it"


@pytest.mark.models("fact_three_reads")
@pytest.mark.no_runtime
def test_a_weight_read_at_three_places_has_three_probes(exported):
    record = record_of(exported, "fact_three_reads")
    assert record["access_order"].count(record["fqns"].index("often")) >= 3


@pytest.mark.models("fact_caches")
@pytest.mark.no_runtime
def test_mutable_buffers_are_direct_and_never_probed(exported):
    record = record_of(exported, "fact_caches")
    for fqn in ("first", "second", "count"):
        assert kind_of(record, fqn) == MUTABLE
        assert record["fqns"].index(fqn) not in record["probes"]
    assert kind_of(record, "mix.weight") == WEIGHT


@pytest.mark.models("fact_caches", "kv_decoder")
@pytest.mark.parametrize("name", ["fact_caches", "kv_decoder"])
def test_each_handle_has_its_own_cache_and_starts_fresh(name, exported):
    spec, files = ZOO[name], exported(name)
    passes = spec.passes(4)
    expected = spec.eager(passes)
    first, second = open_module(files), open_module(files)
    early = run_passes(first, passes[:3])
    late = run_passes(second, passes)
    early += run_passes(first, passes[3:])
    for found in (early, late):
        for a, b in zip(found, expected, strict=True):
            assert largest_error(a, b) <= spec.tolerance


@pytest.mark.models("fact_returned")
def test_returned_weights_outlive_the_pass_and_the_module(exported):
    spec, files = ZOO["fact_returned"], exported("fact_returned")
    passes = spec.passes(3)
    module = open_module(files, budget_of(files, "floor"))
    kept = [list(module.forward(*inputs)) for inputs in passes]
    del module
    gc.collect()
    for found, expected in zip(kept, spec.eager(passes), strict=True):
        assert largest_error(found, expected) == pytest.approx(0, abs=spec.tolerance)


@pytest.mark.models("fact_returned")
def test_writing_into_a_returned_weight_changes_nothing_inside(exported):
    spec, files = ZOO["fact_returned"], exported("fact_returned")
    (inputs,) = spec.passes(1)
    module = open_module(files, 1 << 20)
    for out in module.forward(*inputs)[1:]:
        out.fill_(7)
    (found,) = run_passes(module, [inputs])
    assert largest_error(found, spec.eager([inputs])[0]) <= spec.tolerance


@pytest.mark.models("shared_facts")
@pytest.mark.no_runtime
def test_tied_weights_are_one_constant_and_equal_bytes_share_a_segment(exported):
    record, ptd = record_of(exported, "shared_facts"), Ptd(exported("shared_facts").ptd)
    embed, head, twin = (f"parts.fact_tied.{name}.weight" for name in ("embed", "head", "twin"))
    tied = [n for n in (embed, head) if n in record["fqns"]]
    assert len(tied) == 1, f"tied weights are recorded as {tied}"
    assert twin in record["fqns"]
    assert ptd.entries[twin].buffer_index == ptd.entries[tied[0]].buffer_index


@pytest.mark.models("shared_facts")
@pytest.mark.no_runtime
def test_small_constants_stay_constants(exported):
    record = record_of(exported, "shared_facts")
    for fqn in ("scalar", "eight", "one"):
        assert f"parts.fact_odd_constants.{fqn}" in record["fqns"], f"{fqn} was baked into the code"
    literals = [n for n in record["fqns"] if "tensor_constant" in n]
    assert all(kind_of(record, n) == DIRECT for n in literals)
