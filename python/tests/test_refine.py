"""A store replans once kernels were timed: other bytes are copied, and no bit of what comes out is another."""

from __future__ import annotations

import pytest
from device_under_test import ON_GPU
from models import ZOO
from support import budget_of, error_of, open_module, run_passes
from zoo import bits

#: Links from much slower to much faster than any: between them is one that takes as long as the kernels do.
RATES = ["0.5", "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048"]


@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.models("demo")
@pytest.mark.parametrize("graph", [0, 1], ids=["calls", "graph"])
def test_the_same_bits_before_and_after(graph, exported, capfd):
    files, passes = exported("demo"), ZOO["demo"].passes(8)
    budget = budget_of(files, 50)
    with open_module(files) as plain:
        expected = [bits(found) for found in run_passes(plain, passes)]
    replans = 0
    for rate in RATES:
        with open_module(files, budget, weight_offload_link_gbps=rate, weight_offload_cuda_graph=graph) as module:
            assert [bits(found) for found in run_passes(module, passes)] == expected, rate
            stats = module.stats()
            assert stats["peak_bytes"] <= stats["budget_bytes"] == budget
            replans += stats["replans"]
    told = capfd.readouterr().err
    assert told.count("a pass is expected to take") == len(RATES)
    assert told.count("replanned") == replans
    assert 0 < replans < len(RATES)


@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.models("demo")
def test_times_that_were_kept_make_the_plan_at_load(exported, capfd, tmp_path):
    files, passes = exported("demo"), ZOO["demo"].passes(6)
    budget = budget_of(files, 50)
    seen = 0
    for rate in RATES:
        times = tmp_path / f"{rate}.txt"
        options = {"weight_offload_link_gbps": rate, "weight_offload_kernel_times": str(times)}
        with open_module(files, budget, **options) as module:
            first = run_passes(module, passes[:1])
            assert not times.exists()
            expected = [bits(found) for found in first + run_passes(module, passes[1:])]
            replans, copied = module.stats()["replans"], module.stats()["bytes_copied_last_pass"]
        kept = times.read_text()
        with open_module(files, budget, **options) as module:
            assert [bits(found) for found in run_passes(module, passes)] == expected
            assert module.stats()["replans"] == 0
            assert module.stats()["bytes_copied_last_pass"] == copied
        assert times.read_text() == kept
        seen += replans
    assert 0 < seen < len(RATES)
    told = capfd.readouterr().err
    assert told.count("the times of kernels were written to") == len(RATES)
    assert told.count("plans go by the times of kernels in") == len(RATES)


@pytest.mark.skipif(ON_GPU, reason="on a GPU it has an effect")
@pytest.mark.models("mlp")
def test_on_the_cpu_times_are_refused(exported, tmp_path):
    times = tmp_path / "times.txt"
    text = error_of(lambda: open_module(exported("mlp"), weight_offload_kernel_times=str(times)))
    assert "weight_offload_kernel_times" in text
    assert "exported for 'cpu'" in text
    assert not times.exists()
