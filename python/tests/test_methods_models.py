"""Programs of several methods that were compiled in earnest: what their files hold."""

from __future__ import annotations

import zlib

import pytest
import torch
from doctor import decode_others, decode_payload, payloads
from methods_models import METHODS
from methods_support import MUTABLE, WEIGHT, weight_entries
from zoo import weight_bytes

pytestmark = [pytest.mark.no_runtime, pytest.mark.cpu_only("names and bytes are the same for every device")]

STATE = {
    "methods_decoder": {f"layers.{layer}.cache.{name}" for layer in range(2) for name in ("keys", "values")},
    "methods_encdec": {f"layers.{layer}.cache.{name}" for layer in range(2) for name in ("keys", "values")}
    | {f"model.memory.{layer}.{name}" for layer in range(2) for name in ("keys", "values")}
    | {"model.length"},
    "methods_vlm": {f"layers.{layer}.cache.{name}" for layer in range(2) for name in ("keys", "values")},
    "methods_speech": {f"listeners.{layer}.layer.cache.{name}" for layer in range(2) for name in ("keys", "values")},
}
# Their methods hand tensors to each other, not state.
THROUGH_INPUTS = ("methods_vlm", "methods_speech")


@pytest.fixture(scope="module")
def compiled(exports):
    """`compiled(name)`: payloads by method, and the weights, of a program that was compiled in earnest."""

    def found(name: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
        files = exports.files(name)
        return payloads(files.pte), weight_entries(files.ptd)

    return found


@pytest.mark.parametrize("name", list(METHODS))
def test_compiled_methods_share_weights_and_state(name, compiled):
    found, entries = compiled(name)
    records = {method: decode_payload(payload) for method, payload in found.items()}
    shared: dict[str, set[str]] = {}
    direct: dict[tuple[str, int], int] = {}
    for method, record in records.items():
        for key, kind, nbytes, crc in zip(*(record[field] for field in ("keys", "kinds", "nbytes", "crc32")), strict=True):
            shared.setdefault(key, set()).add(method)
            assert len(entries[key]) == nbytes
            assert zlib.crc32(entries[key]) == crc
            if kind != WEIGHT:
                direct[key, kind] = -(-nbytes // 64) * 64
        # A state is read around probes, whichever method writes it.
        assert all(record["kinds"][weight] == WEIGHT for weight in record["probes"])
    assert {key for key, kind in direct if kind == MUTABLE} == STATE[name]
    assert set(entries) == set(shared)
    assert any(len(methods) > 1 for methods in shared.values())
    for method, record in records.items():
        assert decode_others(found[method]) == [records[other] for other in sorted(records) if other != method]
        # Not more where tables are read in place.
        assert record["floor"][0] >= record["hard_minimum"][0] >= sum(direct.values())
    # Every weight of the model once: all that is more is literals.
    assert sum(map(len, entries.values())) <= weight_bytes(METHODS[name].model()) + 4096


def test_the_programs_of_the_models_have_delegates(compiled):
    assert {name: set(compiled(name)[0]) for name in METHODS} == {
        "methods_decoder": {"prefill", "decode"},
        "methods_encdec": {"encoder", "decoder"},
        "methods_vlm": {"vision_encoder", "token_embedding", "text_decoder"},
        "methods_speech": {"encoder", "text_decoder"},
    }


def test_eager_methods_share_their_state():
    """The reference: a decoder that was given no prompt says something else."""
    for name, spec in METHODS.items():
        calls = spec.passes()
        outputs = spec.eager(calls)
        assert all(torch.isfinite(out).all() for each in outputs for out in each)
        if name not in THROUGH_INPUTS:
            alone = spec.eager(calls[1:2])
            assert not torch.equal(alone[0][0], outputs[1][0])
