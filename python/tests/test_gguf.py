"""Weights of a GGUF file are exported as its integers."""

from __future__ import annotations

import os
import re

import pytest
import torch
import weightstream as ws
from device_under_test import DEVICE, exact_products
from torch import nn
from weightstream._export.gguf import integers_of
from weightstream._export.quantize import quantized
from weightstream._run import runtime

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")

KINDS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8, "Q4_K": 4, "Q6_K": 8}
ROWS, WIDTH = 512, 256


def blocks(kind: str, rows: int = WIDTH, columns: int = WIDTH):
    """Random blocks of a type, whose floats are small."""
    number = gguf.GGMLQuantizationType[kind]
    weights, size = gguf.GGML_QUANT_SIZES[number]
    found = np.random.default_rng(sum(map(ord, kind))).integers(0, 256, (rows, columns // weights, size), dtype=np.uint8)
    scale = np.array([0.002 if kind in ("Q4_0", "Q4_1", "Q8_0") else 1e-4, 0.001], np.float16).view(np.uint8)
    if kind == "Q6_K":
        found[..., 208:210] = scale[:2]
    else:
        found[..., : 2 if kind in ("Q4_0", "Q8_0") else 4] = scale[: 2 if kind in ("Q4_0", "Q8_0") else 4]
    return found.reshape(rows, -1), number


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=kind == "Q4_0") for kind in KINDS)
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        x = self.table(t)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


@pytest.fixture
def loaded(tmp_path):
    """A file, and a model with its weights: the rows of one layer are in another order."""
    path, model = tmp_path / "model.gguf", Model().eval().requires_grad_(False)
    writer = gguf.GGUFWriter(str(path), "llama")
    for layer, kind in zip(model.layers, KINDS, strict=True):
        data, number = blocks(kind)
        writer.add_tensor(f"blk.{kind}.weight", data, raw_dtype=number)
        dense = torch.from_numpy(gguf.quants.dequantize(data, number))
        layer.weight.copy_(dense.flip(0) if kind == "Q4_1" else dense)
    data, number = blocks("Q8_0", ROWS)
    writer.add_tensor("token_embd.weight", data, raw_dtype=number)
    model.table.weight.copy_(torch.from_numpy(gguf.quants.dequantize(data, number)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


@pytest.mark.no_export
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost(kind):
    data, number = blocks(kind)
    found = integers_of(kind, data)
    assert found.bits == KINDS[kind]
    values = (found.stored.float() - (8 if found.bits == 4 else 0)).unflatten(-1, (-1, found.group)) * found.scales.unsqueeze(-1)
    if found.offsets is not None:
        values = values + found.offsets.unsqueeze(-1)
    wanted = torch.from_numpy(gguf.quants.dequantize(data, number))
    assert torch.allclose(values.flatten(-2), wanted, rtol=1e-6, atol=1e-8)


def test_a_model_is_exported_with_the_files_integers(loaded, tmp_path, capfd):
    path, model = loaded
    exact_products()
    tokens = torch.arange(0, ROWS, 37)[None]
    pte, ptd = tmp_path / "model.pte", tmp_path / "model.ptd"
    ws.export(model, (tokens,), pte, ptd, device=DEVICE, quantize=path)
    assert f"6 linear layers have the integers of {path.name}" in capfd.readouterr().err
    assert type(model.head) is nn.Linear
    status, said = runtime.command(["inspect", str(pte)])
    assert status == 0
    assert re.search(r"layers\.1\.weight\.int4 .*int4 \[256, 256\], two to a byte", said), said
    outputs = []
    for budget in (ws.required_budget(pte), 1 << 22):
        with ws.Module(str(pte), str(ptd), weight_offload_budget_bytes=budget) as module:
            outputs.append(module.forward(tokens).cpu())
    assert torch.equal(*outputs)
    assert torch.allclose(outputs[0], model(tokens), atol=1e-4)
    # Bits, scales in float32 and offsets; the tied table is there once.
    squares = {"Q4_0": 4 + 1, "Q4_1": 4 + 2, "Q8_0": 8 + 1, "Q4_K": 4 + 2, "Q6_K": 8 + 2}
    bits = sum(squares.values()) * WIDTH * WIDTH + (8 + 1) * ROWS * WIDTH
    assert os.path.getsize(ptd) < bits / 8 * 1.05 + (32 << 10)


@pytest.mark.no_runtime
def test_what_is_no_file_of_the_model_is_refused(loaded, tmp_path):
    path, model = loaded
    with pytest.raises(ws.ExportError, match="there is no such file"):
        quantized(model, tmp_path / "none.gguf")
    other = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    with pytest.raises(ws.ExportError, match="no linear layer has the weights of this file") as caught:
        quantized(other, path)
    assert "from_pretrained(…, gguf_file=…)" in str(caught.value)
