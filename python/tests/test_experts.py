"""Mixtures of experts: products by experts, what files say of them, and what a pass reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from doctor import decode_payload, payloads
from weightstream._export import experts
from weightstream._export.quantize import quantized

transformers = pytest.importorskip("transformers")

COUNT, CHOSEN = 16, 2
#: Of `quantize`, and by how much at most a result may differ from that of dense matrices.
KINDS = {None: 1e-5, "int8": 0.02, "fp8": 0.06, "int4": 0.2}


def block(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """The layer of experts of a small Qwen3-MoE, with its router."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeSparseMoeBlock

    config = Qwen3MoeConfig(hidden_size=64, moe_intermediate_size=32, num_experts=COUNT, num_experts_per_tok=CHOSEN, norm_topk_prob=True)
    config._experts_implementation = "eager"
    made = Qwen3MoeSparseMoeBlock(config)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for weight in made.parameters():
            weight.normal_(std=weight.shape[-1] ** -0.5)
    return made.to(dtype).eval().requires_grad_(False)


def states(tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(1, tokens, 64, generator=torch.Generator().manual_seed(seed))


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_compute_what_transformers_does(kind: str | None) -> None:
    model, x = block(), states(7)
    expected = model(x)
    made = model if kind is None else quantized(model, kind)
    with experts.as_operators(made):
        found = made(x)
    assert distance(found, expected) < KINDS[kind]
    assert model.experts.config._experts_implementation == "eager"
    assert torch.equal(model(x), expected), "the model that was quantized is as it was"


def test_matrices_with_columns_first() -> None:
    x, numbers, matrices = torch.randn(3, 8), torch.tensor([1, 0, 4, 4, 2, 1]), torch.randn(5, 6, 8)
    found = torch.ops.weightstream.expert_mm(x, numbers, matrices.transpose(1, 2).contiguous(), 2, True)
    assert torch.allclose(found, torch.ops.weightstream.expert_mm(x, numbers, matrices, 2, False), atol=1e-5)


def test_a_config_of_torchao_leaves_experts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from torchao.quantization import Int8WeightOnlyConfig

    model = torch.nn.ModuleDict({"experts": block(), "head": torch.nn.Linear(64, 64)})
    made = quantized(model, Int8WeightOnlyConfig())
    assert made["experts"].experts.gate_up_proj is model["experts"].experts.gate_up_proj
    assert "1 layers of experts keep their weights" in capsys.readouterr().err


class Program:
    """The block as two methods: a token, and up to 32 of them."""

    def __init__(self, folder: Path, kind: str | None, **options: Any):
        self.pte, self.ptd = folder / "model.pte", folder / "model.ptd"
        model = block(torch.bfloat16 if options else torch.float32)
        tokens = torch.export.Dim("tokens", min=1, max=32)
        ws.export(
            {"decode": model, "prefill": model},
            {"decode": (states(1).to(next(model.parameters()).dtype),), "prefill": (states(8).to(next(model.parameters()).dtype),)},
            self.pte,
            self.ptd,
            dynamic_shapes={"prefill": ({1: tokens},)},
            quantize=kind,
            **options,
        )

    def names_of_rows(self) -> dict[str, dict[str, int]]:
        """By method: of which weights a pass reads some rows, and how many at most."""
        found = {}
        for payload in payloads(self.pte).values():
            record = decode_payload(payload)
            pairs = list(zip(record.get("gathers", [])[::2], record.get("gathers", [])[1::2], strict=True))
            found[record["method"][0]] = {record["fqns"][record["probes"][probe]]: rows for probe, rows in pairs}
        return found


@pytest.fixture(scope="module", params=[None, "int4"], ids=["dense", "int4"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str | None, Program]:
    return request.param, Program(tmp_path_factory.mktemp("experts"), request.param)


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_a_token_reads_the_experts_that_it_needs(program: tuple[str | None, Program]) -> None:
    kind, files = program
    rows = files.names_of_rows()
    matrices = {name for name in rows["decode"] if "experts" in name}
    assert len(matrices) == (2 if kind is None else 4)
    assert {rows["decode"][name] for name in matrices} == {CHOSEN}
    assert all(rows["prefill"].get(name, COUNT) == COUNT for name in matrices), "a long prompt reads all of them"
    one = block().experts.gate_up_proj.nbytes // (1 if kind is None else 8)
    assert ws.required_budget(files.pte, method="decode") < one < ws.required_budget(files.pte, method="prefill")


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_bits_are_the_same_at_every_budget(program: tuple[str | None, Program]) -> None:
    kind, files = program
    least = ws.required_budget(files.pte)
    results = []
    for budget in (least, 2 * least, 1 << 30):
        with ws.Module(files.pte, files.ptd, weight_offload_budget_bytes=budget) as module:
            results.append([module.execute(*call) for call in CALLS])
            before = module.stats()["bytes_copied"]
            for token in range(8):
                module.execute("decode", states(1, token))
            copied = module.stats()["bytes_copied"] - before
            # A pass of decoding may bring what the next prompt reads first, and nothing of its own experts.
            assert copied < block().experts.gate_up_proj.nbytes
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))
    made = block() if kind is None else quantized(block(), kind)
    with experts.as_operators(made):
        for found, (_, x) in zip(results[0], CALLS, strict=True):
            assert distance(found, made(x)) < 1e-5


CALLS = [("prefill", states(9)), ("decode", states(1)), ("prefill", states(32, 3)), ("decode", states(1, 4)), ("prefill", states(1, 5))]


@pytest.mark.skipif(ON_GPU, reason="compiles for a GPU that is not there")
def test_for_a_gpu_the_file_says_the_same(tmp_path: Path) -> None:
    files = Program(tmp_path, "int4", device="cuda", sm="90")
    rows = files.names_of_rows()["decode"]
    assert sorted(rows[name] for name in rows if "experts" in name) == [CHOSEN] * 4


def test_experts_in_float32_are_refused_for_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ws.ExportError, match=r"experts on a GPU are for bfloat16, and these are float32; model\.bfloat16\(\)"):
        ws.export(block(), (states(1),), tmp_path / "model.pte", tmp_path / "model.ptd", device="cuda", sm="90")
