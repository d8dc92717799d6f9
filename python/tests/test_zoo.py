"""The test models themselves, without anything of WeightStream: they export, and they show what they claim to."""

from __future__ import annotations

import pytest
import torch
from decoder_models import DECODERS
from models import MAIN, ZOO
from zoo import as_list, bits, largest_error, moved, weight_bytes

pytestmark = pytest.mark.no_package


# torch itself cannot trace the decoders' programs again: their caches ask for gradients, and have two names.
@pytest.mark.parametrize("name", [name for name in ZOO if name not in DECODERS])
def test_exported_program_equals_eager(name):
    spec = ZOO[name]
    passes = spec.passes(1)
    program = spec.export().run_decompositions({})
    found = as_list(program.module()(*passes[0]))
    assert largest_error(found, spec.eager(passes)[0]) <= spec.tolerance


@pytest.mark.parametrize("name", ZOO)
def test_weights_are_deterministic_and_passes_differ(name):
    spec = ZOO[name]
    first, again = ([tuple(bits(out)) for out in spec.eager(spec.passes())] for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first), "two passes give the same output"


def test_a_model_is_moved_with_what_it_holds_in_lists_and_plain_attributes():
    model = moved(ZOO["form_names"].model(), "meta")
    held = [model.scale, model.original_scale, model.strided, *model.listed, *model.parameters()]
    assert all(tensor.is_meta for tensor in held)
    assert model.listed[0] is model.mix.weight


def test_demo_model_has_the_promised_size():
    assert weight_bytes(ZOO["demo"].model()) >= 100 * 2**20
    assert set(MAIN) <= set(ZOO)


@pytest.mark.parametrize("name", ["kv_decoder", "fact_caches"])
def test_cached_models_are_not_functional_before_decompositions(name):
    program = ZOO[name].export()
    assert not program.graph_signature.buffers_to_mutate
    assert program.run_decompositions({}).graph_signature.buffers_to_mutate


def test_the_error_measure_sees_a_difference():
    one, two = torch.tensor([1.0, 200.0]), torch.tensor([1.0, 200.1])
    assert largest_error([one], [one]) == 0
    assert largest_error([two], [one]) == pytest.approx(0.1 / 201, rel=1e-3)
    with pytest.raises(AssertionError, match="shape"):
        largest_error([one], [one[:1]])
    with pytest.raises(AssertionError, match="not finite"):
        largest_error([torch.tensor([float("nan"), 200.0])], [one])
