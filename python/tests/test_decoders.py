"""Decoders of transformers: prefill and decode through one dynamic program, at every budget."""

from __future__ import annotations

import functools

import pytest
import torch
from decoder_models import DECODERS
from models import ZOO
from support import budget_of, open_module, run_passes
from zoo import bits, largest_error

pytest.importorskip("transformers")


@functools.cache
def expected_of(name: str) -> list[list[torch.Tensor]]:
    return ZOO[name].eager(ZOO[name].passes())


@pytest.mark.parametrize("budget", ["floor", 50, 100])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_prefills_and_decodes(name, budget, exported):
    spec, files = ZOO[name], exported(name)
    passes = spec.passes()
    found = run_passes(open_module(files, budget_of(files, budget)), passes, spec.keywords)
    for number, (ours, expected) in enumerate(zip(found, expected_of(name), strict=True)):
        error = largest_error(ours, expected)
        assert error <= spec.tolerance, f"pass {number} ({passes[number][0].shape[1]} tokens) is off by {error}"
    if budget == "floor":
        resident = run_passes(open_module(files, 1 << 30), passes, spec.keywords)
        assert [bits(one) for one in found] == [bits(one) for one in resident]
