"""Checkpoints that do not fit a module, that are malformed, or that are not there: what is refused, by which names, and what then is left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import weightstream as ws
from checkpoint_files import DEVICE, WIDTH, Model, expected_of, on_meta, save, save_raw, save_sharded, stored, tokens
from device_under_test import ON_GPU, exact_products
from support import error_of
from torch import nn

pytestmark = pytest.mark.no_export


@pytest.fixture(autouse=True)
def _inference():
    exact_products()
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def real() -> Model:
    return Model().eval()


@pytest.fixture(scope="module")
def expected(real: Model) -> torch.Tensor:
    return expected_of(real)


@pytest.fixture(scope="module")
def folder(real: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sharded(tmp_path_factory.mktemp("sharded"), stored(real))


def _changed(tensors: dict[str, torch.Tensor], **changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    changed = tensors | {name.replace("__", "."): one for name, one in changes.items()}
    return {name: one for name, one in changed.items() if one is not None}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"layers__0__bias": None, "shift": None},
            "missing in the files: 'layers.0.bias', 'shift' (names are those of module.state_dict())",
        ),
        ({"other": torch.zeros(1)}, "in the files, and not in the module: 'other'"),
        ({f"other{at}": torch.zeros(1) for at in range(11)}, "'other6' and 3 more"),
        ({"layers__0___extra_state": torch.zeros(1)}, "not in the module: 'layers.0._extra_state'"),
        ({"shift": torch.zeros(WIDTH + 1)}, f"'shift' is expected to be ({WIDTH},), and is ({WIDTH + 1},) in "),
        ({"shift": torch.zeros(WIDTH).half()}, "'shift' is expected to be torch.float32, and is torch.float16 in "),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, said, real, expected, tmp_path):
    path = save(tmp_path / "m.safetensors", _changed(stored(real), **change))
    model = on_meta()
    text = error_of(lambda: ws.torch.offload(model, weights=path, device=DEVICE))
    assert said in text
    assert "the weights do not fit Model" in text
    # It is as it was.
    assert all(one.is_meta for one in model.parameters())
    assert model.head.weight is model.embed.weight
    assert ws.torch.Offloaded.of(model) is None
    save(path, stored(real))
    with ws.torch.offload(model, weights=path, device=DEVICE):
        assert torch.equal(model(tokens()), expected)


def test_an_example_that_fails_leaves_the_module_on_meta(folder):
    model = on_meta()
    with pytest.raises(TypeError):
        ws.torch.offload(model, weights=folder, device=DEVICE, example=())
    assert all(one.is_meta for one in [*model.parameters(), model.shift, model.table])


def test_what_has_no_bytes_is_refused(folder):
    text = error_of(lambda: ws.torch.offload(on_meta(), device=DEVICE))
    assert "parameter 'embed.weight' is on meta and has no bytes; give weights=" in text
    model = on_meta()
    model.angles = model.angles.to("meta")
    text = error_of(lambda: ws.torch.offload(model, weights=folder, device=DEVICE))
    assert "buffers on 'meta' that no checkpoint has: 'angles'" in text
    assert "include_buffers=False" in text
    model.tie_weights = lambda: None
    model.head = nn.Linear(WIDTH, WIDTH, bias=False, device="meta")
    text = error_of(lambda: ws.torch.offload(model, weights=folder, device=DEVICE))
    assert "missing in the files: 'head.weight' (names are those of module.state_dict(); of a model that ties weights, call" in text


def entry(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("{", "its header is not read"),
        ("[]", "its header is no JSON object"),
        ("\0\1", "its header is not read"),
        ("[" * 5000, "its header is not read"),
        ('{"x": {}, "x": {}}', "'x' stands there twice"),
        ({"x": 3}, "tensor 'x' needs 'dtype', 'shape' and two 'data_offsets', found 3"),
        (entry(shape=[2.0]), "tensor 'x' needs"),
        (entry(shape=[-2]), "tensor 'x' needs"),
        (entry(shape=[True, 2]), "tensor 'x' needs"),
        (entry(data_offsets=[0]), "tensor 'x' needs"),
        (entry(data_offsets="08"), "tensor 'x' needs"),
        (entry(dtype="F4"), "has tensor 'x' of dtype 'F4', which is none of BOOL, U8"),
        (entry(dtype=None), "has tensor 'x' of dtype None"),
        (entry(shape=[3]), "tensor 'x' of F32 [3] has the bytes 0..8"),
        (entry(shape=[1 << 60, 1 << 60]), "has the bytes 0..8"),
        (entry(data_offsets=[8, 0]), "has the bytes 8..0"),
        (entry(data_offsets=[8, 16]), "is truncated: tensor 'x' ends at byte"),
        (entry(dtype="U8", data_offsets=[7, 9]), "is truncated: tensor 'x' ends at byte"),
        (entry(shape=[1], data_offsets=[2, 6]), "no multiple of its elements' size"),
        (entry() | {"y": entry()["x"]}, "tensors 'x' and 'y' have bytes in common"),
    ],
)
def test_a_header_that_is_wrong_is_refused_with_file_and_tensor(header, said, tmp_path):
    path = save_raw(tmp_path / "m.safetensors", header, bytes(8))
    text = error_of(lambda: ws.torch.offload(on_meta(), weights=path, device=DEVICE))
    assert str(path) in text
    assert said in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no safetensors file: it has 0 bytes"),
        (b"GGUF\3\0\0\0\1\0\0\0", "its header would have"),
        ((99).to_bytes(8, "little") + b"{}", "is truncated, or no safetensors file: its header would end at byte 107, and it has 10"),
        ((2**63).to_bytes(8, "little") + b"{}", "its header would have"),
    ],
)
def test_files_of_other_kinds(content, said, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    text = error_of(lambda: ws.torch.offload(on_meta(), weights=path, device=DEVICE))
    assert str(path) in text
    assert said in text


def test_a_truncated_file_is_refused(real, tmp_path):
    path = save(tmp_path / "m.safetensors", stored(real))
    os.truncate(path, path.stat().st_size - 1)
    text = error_of(lambda: ws.torch.offload(on_meta(), weights=path, device=DEVICE))
    assert f"{path} is truncated: tensor " in text


def test_checkpoints_that_are_not_there(real, folder, tmp_path):
    def said(weights: Any) -> str:
        return error_of(lambda: ws.torch.offload(on_meta(), weights=weights, device=DEVICE))

    assert "is not there; give a folder or files on this machine" in said("some/model")
    assert "found int" in said(3)
    assert "found list" in said([])
    assert "has no *.safetensors; give the folder" in said(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    assert "has no *.safetensors but 'pytorch_model.bin'; convert it to safetensors" in said(tmp_path)
    assert "pytorch_model.bin is no safetensors file; convert it" in said(tmp_path / "pytorch_model.bin")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "gone-2.safetensors", "b": "gone-1.safetensors"}}))
    assert "names files that are not there: 'gone-1.safetensors', 'gone-2.safetensors'" in said(tmp_path)
    index.write_text(json.dumps({"weight_map": {"other": str(folder / "model-0.safetensors")}}))
    assert "says that it has 'other', and it has not" in said(tmp_path)
    for text in ("", "[]", '{"weight_map": {"a": 3}}', "{}"):
        index.write_text(text)
        assert "is no index of a checkpoint" in said(tmp_path)
    (tmp_path / "model.fp16.safetensors.index.json").touch()
    assert "has 2 checkpoints" in said(tmp_path)
    twice = [save(tmp_path / name, stored(real)) for name in ("a.safetensors", "b.safetensors")]
    assert f"is in {twice[0]} and in {twice[1]}" in said(twice)


def test_options_that_have_no_effect_are_refused(folder):
    def said(**options: Any) -> str:
        return error_of(lambda: ws.torch.offload(on_meta(), device=DEVICE, **{"weights": folder} | options))

    assert "host" in said(host="disk")
    assert "weight_offload" not in said(host="disk")
    assert "is the size of the ring of 'staged', and host is 'mapped'" in said(host="mapped", staging_mb=64) or not ON_GPU
    real = Model().eval()
    assert "give weights=" in error_of(lambda: ws.torch.offload(real, device=DEVICE, convert=True))
    assert "give weights=" in error_of(lambda: ws.torch.offload(real, device=DEVICE, host="mapped"))
    if not ON_GPU:
        for options in ({"host": "pinned"}, {"host": "staged"}, {"staging_mb": 64}):
            assert "prepare copies to a GPU, and the device is 'cpu'" in said(**options)
