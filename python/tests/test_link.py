"""`weight_offload_link_gbps`: what plans take the link to a GPU for changes what is copied, and no bit of what comes out."""

from __future__ import annotations

import pytest
from device_under_test import ON_GPU
from models import ZOO
from support import budget_of, error_of, open_module, run_passes
from zoo import bits


@pytest.mark.skipif(ON_GPU, reason="says what the CPU has not")
@pytest.mark.models("mlp")
@pytest.mark.parametrize("value", ["auto", "25", 25])
def test_the_cpu_has_no_link(value, exported):
    text = error_of(lambda: open_module(exported("mlp"), weight_offload_link_gbps=value))
    assert "weight_offload_link_gbps" in text
    assert "exported for 'cpu', which has no link" in text


@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.models("demo")
def test_the_same_bits_whatever_the_link_is_taken_for(exported, capfd):
    files, passes = exported("demo"), ZOO["demo"].passes(3)
    budget = budget_of(files, 50)
    plain = open_module(files, budget)
    expected = [bits(found) for found in run_passes(plain, passes[:1])]
    # Later passes may follow another plan, once kernels were timed.
    at_load = plain.stats()["bytes_copied_last_pass"]
    expected += [bits(found) for found in run_passes(plain, passes[1:])]
    copied = {}
    # On a link where a copy costs nothing beside its bytes plans are the finest.
    for value in ("0.001", "55", "100000", "auto"):
        with open_module(files, budget, weight_offload_link_gbps=value) as module:
            first = [bits(found) for found in run_passes(module, passes[:1])]
            copied[value] = module.stats()["bytes_copied_last_pass"]
            assert first + [bits(found) for found in run_passes(module, passes[1:])] == expected, value
    assert copied["55"] == at_load
    assert copied["0.001"] <= copied["55"] <= copied["100000"]
    told = capfd.readouterr().err
    assert "the link carries 55.0 GB/s, and 3.5 us a copy" in told
    assert "the copies of a pass are expected to take" in told
    # Which of the two depends on the largest weight.
    assert told.count("the link carries") + told.count("the link is not timed") == 5
