"""Weights that always stay and weights that never do: through real programs, with the bytes that passes copy."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from doctor import Pte
from models import ZOO
from support import error_of, open_module, run_passes

pytestmark = pytest.mark.models("mlp")


@pytest.fixture
def files(exported):
    return exported("mlp")


def weights(files) -> dict[str, int]:
    """Bytes of what is read through probes, by name."""
    record = Pte(files.pte).payload
    rows = zip(record["fqns"], record["kinds"], record["nbytes"], strict=True)
    return {fqn: size for fqn, kind, size in rows if kind == 0}


def check_outputs(module) -> None:
    passes = ZOO["mlp"].passes(3)
    for found, expected in zip(run_passes(module, passes), ZOO["mlp"].eager(passes), strict=True):
        assert torch.allclose(found[0], expected[0], atol=1e-4)


@pytest.mark.parametrize("policy", ["planned", "lru"])
def test_a_pinned_weight_counts_in_the_floor_and_is_right(files, policy):
    sizes = weights(files)
    largest = max(sizes, key=sizes.get)
    options = {"weight_offload_policy": policy, "weight_offload_pin": largest}
    with open_module(files, **options) as module:
        check_outputs(module)
        stats = module.stats()
        assert stats["pinned_bytes"] >= sizes[largest]
        assert stats["pinned_bytes"] <= stats["direct_bytes"]
        assert stats["peak_bytes"] <= stats["budget_bytes"] == stats["floor_bytes"]
        least = stats["floor_bytes"]
    error = error_of(lambda: open_module(files, weight_offload_budget_bytes=least - 1, **options))
    assert f"{least} bytes" in error
    assert "pinned weights" in error


@pytest.mark.parametrize("policy", ["planned", "lru"])
def test_a_streamed_weight_is_copied_with_a_budget_for_everything(files, policy):
    sizes = weights(files)
    fqn = next(iter(sizes))
    options = {"weight_offload_policy": policy, "weight_offload_stream": fqn}
    with open_module(files, weight_offload_budget_mb=1024, **options) as module:
        check_outputs(module)
        assert module.stats()["bytes_copied_last_pass"] == sizes[fqn]
    assert ws.required_budget(str(files.pte)) == Pte(files.pte).payload["floor"][0]


def test_what_names_nothing_is_an_error_with_near_names(files):
    fqn = next(iter(weights(files)))
    for option in ("weight_offload_pin", "weight_offload_stream"):
        error = error_of(lambda option=option: open_module(files, **{option: fqn + "x"}))
        assert option in error
        assert f"'{fqn}'" in error
    both = {"weight_offload_pin": "*", "weight_offload_stream": fqn}
    assert f"'{fqn}'" in error_of(lambda: open_module(files, **both))
