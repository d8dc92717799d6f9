"""`weight_offload_cuda_graph`: replays give the same bits as passes that are issued call by call, state included, and what cannot be
captured says so."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from fact_models import FACTS
from models import MAIN, ZOO
from support import budget_of, error_of, open_module, run_passes
from zoo import bits

gpu = pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
CAPTURED = "captured a pass as a graph"
#: Models of several pages of a GPU: half of the weights are enough for a plan.
STREAMED = ("demo", "pages")


@pytest.mark.skipif(ON_GPU, reason="says what the CPU has not")
@pytest.mark.models("mlp")
def test_the_cpu_has_no_graphs(exported):
    text = error_of(lambda: open_module(exported("mlp"), weight_offload_cuda_graph=1))
    assert "weight_offload_cuda_graph" in text
    assert "'cpu', which has no graphs" in text


@gpu
@pytest.mark.models("mlp")
@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"weight_offload_sync": 1}, "weight_offload_sync = 1"),
        ({"weight_offload_verify": "every_read"}, "weight_offload_verify = every_read"),
        ({"weight_offload_host": "staged"}, "held 'staged'"),
        ({"weight_offload_policy": "lru"}, "'weight_offload_cuda_graph': no pass can be captured under the policy 'lru'"),
        ({"weight_offload_policy": "lru"}, "take weight_offload_policy = 'planned'"),
        ({"weight_offload_policy": "lru", "weight_offload_graph_shapes": "static"}, "'weight_offload_graph_shapes': no pass"),
    ],
)
def test_what_needs_the_host_in_a_pass_is_refused_at_load(other, told, exported):
    assert told in error_of(lambda: open_module(exported("mlp"), weight_offload_cuda_graph=1, **other))


def refused_or(action):
    """What `action` gives, and None; or None, and the text of its error."""
    try:
        return action(), None
    except ws.Error as refused:
        return None, str(refused)


@gpu
@pytest.mark.parametrize("budget", ["floor", 50, 100])
@pytest.mark.parametrize("name", [*MAIN, *FACTS, "pages"])
def test_replays_give_the_same_bits(name, budget, exported, capfd):
    spec, files = ZOO[name], exported(name)
    limit = budget_of(files, budget)
    passes = spec.passes(6)
    plain = open_module(files, limit)
    expected = [bits(found) for found in run_passes(plain, passes)]
    module, refused = refused_or(lambda: open_module(files, limit, weight_offload_cuda_graph=1))
    if refused:
        # Below all of its weights a model of few pages runs under the LRU.
        assert "under the policy 'lru'" in refused
        assert budget != 100
        assert name not in STREAMED or budget == "floor"
        return
    for number, inputs in enumerate(passes):
        found, refused = refused_or(lambda given=inputs: run_passes(module, [given]))
        if refused:
            assert (name, number >= 1) == ("fact_returned", True), refused
            assert "lies in the memory of a weight" in refused
            assert refused_or(lambda given=inputs: run_passes(module, [given]))[1] == refused
            return
        assert bits(found[0]) == expected[number], f"pass {number} at {limit} bytes: other bits"
    ours, theirs = module.stats(), plain.stats()
    for key in ("passes", "hits", "misses", "evictions", "bytes_copied", "bytes_copied_last_pass"):
        assert ours[key] == theirs[key], key
    assert ours["peak_bytes"] <= limit
    if not spec.dynamic_shapes:
        assert CAPTURED in capfd.readouterr().err


@gpu
@pytest.mark.models("pages")
def test_each_size_is_captured_when_it_comes(exported, capfd):
    files = exported("pages")
    budget = budget_of(files, 50)
    plain, module = open_module(files, budget), open_module(files, budget, weight_offload_cuda_graph=1)
    sizes = [inputs for inputs in ZOO["pages"].passes(3) for _ in range(4)]
    for inputs in [*sizes, *sizes[::-1]]:
        assert bits(run_passes(module, [inputs])[0]) == bits(run_passes(plain, [inputs])[0])
    assert capfd.readouterr().err.count(CAPTURED) == 3
    stats = module.stats()
    assert (stats["graphs"], stats["captures"], stats["graphs_evicted"]) == (3, 3, 0)
    assert stats["passes"] <= stats["replays"] + 5
    assert stats["graph_bytes"] > 0


@gpu
@pytest.mark.models("pages")
def test_sizes_in_any_order_are_replayed(exported):
    """Each size keeps its graph, and all of them together take the memory of the largest."""
    files = exported("pages")
    budget = budget_of(files, 50)
    plain, module = open_module(files, budget), open_module(files, budget, weight_offload_cuda_graph=1)
    sizes = ZOO["pages"].passes(3)
    order = [sizes[number] for number in (0, 0, 0, 1, 1, 2, 2, 1, 0, 2, 2, 0, 1, 0, 1, 2)]
    for inputs in order:
        assert bits(run_passes(module, [inputs])[0]) == bits(run_passes(plain, [inputs])[0])
    stats = module.stats()
    assert stats["captures"] == 3
    assert stats["replays"] >= len(order) - 5


@gpu
@pytest.mark.models("pages")
def test_another_budget_has_other_graphs(exported):
    files, (inputs,) = exported("pages"), ZOO["pages"].passes(1)
    plain = open_module(files, budget_of(files, 50))
    module = open_module(files, budget_of(files, 50), weight_offload_cuda_graph=1)
    for budget in (50, 75, 50):
        module.set_budget(budget_of(files, budget))
        for _ in range(5):
            assert bits(run_passes(module, [inputs])[0]) == bits(run_passes(plain, [inputs])[0])
    stats = module.stats()
    assert stats["graphs"] == 1
    assert stats["captures"] == stats["graphs_evicted"] + 1 == 3


@pytest.mark.models("mlp")
def test_a_cap_without_graphs_is_refused(exported):
    text = error_of(lambda: open_module(exported("mlp"), weight_offload_graph_mb=64))
    assert "weight_offload_graph_mb" in text
    assert "without weight_offload_cuda_graph" in text


@gpu
@pytest.mark.models("pages")
def test_an_error_in_between_changes_nothing(exported):
    """A call that is refused leaves the state, the ring and the graph as they are."""
    files, passes = exported("pages"), ZOO["pages"].passes(1) * 8
    budget = budget_of(files, 50)
    expected = [bits(found) for found in run_passes(open_module(files, budget), passes)]
    module = open_module(files, budget, weight_offload_cuda_graph=1)
    for number, inputs in enumerate(passes):
        assert bits(run_passes(module, [inputs])[0]) == expected[number], number
        with pytest.raises(RuntimeError, match="input 0"):
            module.forward(torch.zeros(3, 3, 3))


@gpu
@pytest.mark.models("demo")
def test_activations_lie_in_one_block(exported):
    files, (inputs,) = exported("demo"), ZOO["demo"].passes(1)
    budget = budget_of(files, 50)
    plain, module = open_module(files, budget), open_module(files, budget, weight_offload_cuda_graph=1)
    for _ in range(4):
        plain.forward(*inputs)
        module.forward(*inputs)
    ours, theirs = (one.stats()["activation_peak_bytes"] for one in (module, plain))
    assert theirs <= ours <= 2 * theirs


@pytest.mark.skipif(ON_GPU, reason="says what the CPU has not")
@pytest.mark.models("mlp")
def test_shapes_without_graphs_are_refused(exported):
    text = error_of(lambda: open_module(exported("mlp"), weight_offload_graph_shapes="static"))
    assert "weight_offload_graph_shapes" in text
    assert "without weight_offload_cuda_graph" in text


@gpu
@pytest.mark.models("pages")
def test_graphs_of_shapes_are_there_after_the_load(exported, capfd):
    """The first call over each shape is a replay, and gives the bits of a pass that is issued call by call."""
    files = exported("pages")
    budget = budget_of(files, 50)
    plain = open_module(files, budget)
    module = open_module(files, budget, weight_offload_cuda_graph=1, weight_offload_graph_shapes="rows=2,5,9")
    log = capfd.readouterr().err
    assert "capturing 3 graphs" in log
    assert "captured 3 graphs" in log
    stats = module.stats()
    assert (stats["graphs"], stats["captures"], stats["replays"]) == (3, 3, 0)
    passes = ZOO["pages"].passes(6)
    for inputs in passes:
        assert bits(run_passes(module, [inputs])[0]) == bits(run_passes(plain, [inputs])[0])
    after = module.stats()
    assert (after["graphs"], after["captures"], after["replays"]) == (3, 3, 6)
    assert after["passes"] == stats["passes"] + 6


@gpu
@pytest.mark.models("kv_decoder")
def test_a_capture_at_load_leaves_the_state(exported):
    """Passes over zeros write to the cache; what they wrote is gone."""
    files, passes = exported("kv_decoder"), ZOO["kv_decoder"].passes()
    budget = budget_of(files, 100)
    plain = open_module(files, budget)
    module = open_module(files, budget, weight_offload_cuda_graph=1, weight_offload_graph_shapes="static")
    expected, found = run_passes(plain, passes), run_passes(module, passes)
    assert [bits(one) for one in found] == [bits(one) for one in expected]
    assert module.stats()["captures"] == 1
    assert module.stats()["replays"] == len(passes)


@gpu
@pytest.mark.models("pages")
@pytest.mark.parametrize(
    ("shapes", "told"),
    [("rows=17", "rows=2 to 16"), ("rows=1", "found 1"), ("tokens=2", "'tokens'"), ("static", "'rows'"), ("rows=2,2", "twice")],
)
def test_shapes_that_the_export_did_not_allow_are_refused(shapes, told, exported):
    files = exported("pages")
    text = error_of(lambda: open_module(files, budget_of(files, 50), weight_offload_cuda_graph=1, weight_offload_graph_shapes=shapes))
    assert "weight_offload_graph_shapes" in text
    assert told in text


@gpu
@pytest.mark.models("fact_returned")
def test_a_capture_that_fails_at_load_names_its_shape(exported):
    """The program returns a weight, which other weights replace before the pass is over."""
    files = exported("fact_returned")
    text = error_of(lambda: open_module(files, budget_of(files, 100), weight_offload_cuda_graph=1, weight_offload_graph_shapes="static"))
    assert "capturing the graph of static of method 'forward'" in text
    assert "lies in the memory of a weight" in text
