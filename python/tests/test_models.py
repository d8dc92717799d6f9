"""The main models at every budget: equal to eager PyTorch, the same bits at each budget, never above the budget."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from conftest import PASSES
from device_under_test import ON_GPU
from doctor import KERNEL, PROBE, RELEASE, Pte, counted_bytes
from fact_models import FACTS
from models import MAIN, ZOO
from support import BUDGETS, budget_of, open_module, run_passes
from zoo import bits, largest_error

#: What granules add to the bytes of activations, at most: 32 of a GPU's, 16 of the CPU's.
ROUNDING = 32 * 512 if ON_GPU else 16 * 64


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", MAIN)
def test_right_at_every_budget(name, budget, exported, reference, resident_bits):
    spec, files = ZOO[name], exported(name)
    limit = budget_of(files, budget)
    module = open_module(files, limit)
    expected = reference(name)
    for number, inputs in enumerate(spec.passes(PASSES)):
        (found,) = run_passes(module, [inputs])
        error = largest_error(found, expected[number])
        assert error <= spec.tolerance, f"pass {number} at {limit} bytes: off by {error}"
        assert bits(found) == resident_bits(name)[number], f"pass {number} at {limit} bytes: other bits"
        stats = module.stats()
        assert stats["peak_bytes"] <= stats["budget_bytes"] == limit
    assert stats["passes"] == PASSES
    assert stats["hits"] + stats["misses"] == PASSES * len(Pte(files.pte).payload["probes"])


@pytest.mark.parametrize("budget", ["floor", 50, 75])
@pytest.mark.parametrize("name", [*MAIN, *FACTS])
def test_planned_gives_the_same_bits_and_copies_no_more(name, budget, exported, resident_bits):
    spec, files = ZOO[name], exported(name)
    limit, copied = budget_of(files, budget), {}
    for policy in ("lru", "planned"):
        module = open_module(files, limit, weight_offload_policy=policy)
        passes = []
        for number, inputs in enumerate(spec.passes(4)):
            (found,) = run_passes(module, [inputs])
            assert bits(found) == resident_bits(name)[number], f"pass {number} of '{policy}' at {limit} bytes: other bits"
            passes.append(module.stats()["bytes_copied_last_pass"])
        assert module.stats()["peak_bytes"] <= limit
        # The first pass starts with nothing. Under the LRU one that copies little follows one that copied much.
        copied[policy] = max(passes[1:])
    assert copied["planned"] <= copied["lru"]


@pytest.mark.parametrize("name", ["mlp", "kv_decoder", "fact_tied", "fact_odd_constants"])
def test_the_verified_mode_changes_no_output(name, exported, capfd):
    """Every weight passes its check at each read, with evictions at the floor, and with the mutable buffers written."""
    files, passes = exported(name), ZOO[name].passes(3)
    expected = [bits(found) for found in run_passes(open_module(files), passes)]
    module = open_module(files, weight_offload_verify="every_read")
    assert [bits(found) for found in run_passes(module, passes)] == expected
    assert "every_read" in capfd.readouterr().err


@pytest.mark.parametrize("name", MAIN)
def test_a_budget_for_everything_copies_each_weight_once(name, exported):
    files = exported(name)
    module = open_module(files, counted_bytes(Pte(files.pte).payload))
    run_passes(module, ZOO[name].passes(3))
    stats = module.stats()
    assert stats["evictions"] == 0
    assert stats["misses"] == 0
    assert stats["bytes_copied_last_pass"] == 0
    assert stats["bytes_copied"] <= counted_bytes(Pte(files.pte).payload)


@pytest.mark.parametrize("name", MAIN)
def test_the_floor_is_below_the_whole_so_that_budgets_mean_something(name, exported):
    files = exported(name)
    whole = counted_bytes(Pte(files.pte).payload)
    floor = ws.required_budget(str(files.pte), method="forward")
    assert floor < whole
    module = open_module(files, floor)
    run_passes(module, ZOO[name].passes(3))
    assert module.stats()["evictions"] > 0


@pytest.mark.parametrize("name", ZOO)
def test_activations_stay_within_what_the_export_recorded(name, exported):
    """The bound that budget `auto` leaves room for is never exceeded, and reached where the shapes are fixed."""
    files = exported(name)
    (bound,) = Pte(files.pte).payload["activations"]
    module = open_module(files)
    run_passes(module, ZOO[name].passes(), ZOO[name].keywords)
    peak = module.stats()["activation_peak_bytes"]
    print(f"{name}: {peak} of {bound} bytes")
    assert 0 < peak <= bound
    # The bound counts a whole granule for each activation: little, unless all of them are tiny.
    assert bound <= 1.1 * peak + ROUNDING or ZOO[name].dynamic_shapes


@pytest.mark.models("dynamic")
def test_the_bound_is_that_of_the_largest_shape(exported):
    files = exported("dynamic")
    (bound,) = Pte(files.pte).payload["activations"]
    peaks = {}
    for inputs in ZOO["dynamic"].passes():
        module = open_module(files)
        run_passes(module, [inputs])
        peaks[inputs[0].shape[1]] = module.stats()["activation_peak_bytes"]
    assert peaks[3] < peaks[17] < peaks[64] <= bound <= 1.1 * peaks[64]


@pytest.mark.models("demo")
def test_demo_floor_is_at_most_15_percent_of_its_weights(exported):
    files = exported("demo")
    whole = sum(Pte(files.pte).payload["nbytes"])
    assert whole >= 100 * 2**20
    assert ws.required_budget(str(files.pte), method="forward") <= 0.15 * whole


@pytest.mark.models("int8_decoder")
def test_an_int8_weight_is_never_widened_as_a_whole(exported):
    """Its product reads it as it is: its lease ends with that kernel, and no activation is as large as it would be in float32."""
    record = Pte(exported("int8_decoder").pte).payload
    int8 = {index for index, dtype in enumerate(record["dtypes"]) if dtype == 1}
    assert len(int8) == 2 * 7 + 2
    kernels: dict[int, int] = {}  # open probe -> kernels under its lease
    for op, number in ((event % 4, event // 4) for event in record["trace"]):
        if op == PROBE:
            kernels[number] = 0
        elif op == KERNEL:
            kernels = {probe: count + 1 for probe, count in kernels.items()}
        elif record["probes"][number] in int8:
            assert kernels[number] == 1, record["fqns"][record["probes"][number]]
        if op == RELEASE:
            del kernels[number]
    assert not {probe for probe in kernels if record["probes"][probe] in int8}
    largest = max(record["nbytes"][index] for index in int8)
    assert record["activations"][0] < 4 * largest


@pytest.mark.models("decoder_bf16")
def test_bf16_is_as_near_to_float32_as_eager_is(exported):
    """Eager bf16 and ours differ from each other by more than either needs to: what counts is the distance to the truth."""
    spec = ZOO["decoder_bf16"]
    passes = spec.passes(4)
    exact = spec.model().float()
    found = run_passes(open_module(exported("decoder_bf16")), passes)

    def error(outputs, inputs):
        """The root of the mean square: the largest of some thousand errors depends on chance."""
        with torch.no_grad():
            expected = exact(*inputs)
        return ((outputs[0].float() - expected) / (1 + expected.abs())).square().mean().sqrt().item()

    for ours, eager, inputs in zip(found, spec.eager(passes), passes, strict=True):
        assert error(ours, inputs) <= 1.25 * error(eager, inputs)


@pytest.mark.models("mlp", "mlp_baseline")
def test_exported_without_the_pass_everything_is_loaded_up_front(exported, reference):
    files = exported("mlp_baseline")
    module = open_module(files)
    for found, expected in zip(run_passes(module, ZOO["mlp"].passes(PASSES)), reference("mlp"), strict=True):
        assert largest_error(found, expected) <= ZOO["mlp"].tolerance
    stats = module.stats()
    assert stats["hits"] == stats["misses"] == stats["evictions"] == stats["bytes_copied_last_pass"] == 0
    assert stats["peak_bytes"] <= stats["budget_bytes"]


@pytest.mark.models("dynamic")
def test_the_dynamic_model_runs_at_three_sizes_in_any_order(exported):
    spec, files = ZOO["dynamic"], exported("dynamic")
    module = open_module(files)
    passes = spec.passes()
    order = [passes[i] for i in (2, 0, 1, 1, 0, 2)]
    assert len({inputs[0].shape for inputs in order}) == 3
    for found, expected in zip(run_passes(module, order), spec.eager(order), strict=True):
        assert largest_error(found, expected) <= spec.tolerance
