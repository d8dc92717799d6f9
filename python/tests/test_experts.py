"""Mixtures of experts: products by experts, what files say of them, and what a pass reads."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from doctor import decode_payload, payloads
from weightstream._export import experts
from weightstream._export.passes.experts import is_places
from weightstream._export.quantize import quantized
from weightstream._run import runtime

transformers = pytest.importorskip("transformers")

COUNT, CHOSEN = 16, 2
#: Of `quantize`, and by how much at most a result may differ from that of dense matrices.
KINDS = {None: 1e-5, "int8": 0.02, "fp8": 0.06, "int4": 0.2}


def block(dtype: torch.dtype = torch.float32, layers: int = 1) -> torch.nn.Module:
    """Layers of experts of a small Qwen3-MoE, each with its router."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeSparseMoeBlock

    config = Qwen3MoeConfig(hidden_size=64, moe_intermediate_size=32, num_experts=COUNT, num_experts_per_tok=CHOSEN, norm_topk_prob=True)
    config._experts_implementation = "eager"
    made = torch.nn.Sequential(*(Qwen3MoeSparseMoeBlock(config) for _ in range(layers)))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for weight in made.parameters():
            weight.normal_(std=2 * weight.shape[-1] ** -0.5)
    made = made if layers > 1 else made[0]
    return made.to(dtype).eval().requires_grad_(False)


def states(tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(1, tokens, 64, generator=torch.Generator().manual_seed(seed))


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.no_runtime
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


#: What the families call their sizes. A configuration takes those that it knows.
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "shared_expert_intermediate_size": 32,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "layer_types": ["full_attention"] * 2,
    "n_shared_experts": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "mamba_num_heads": 4,
    "layers_block_type": ["moe", "attention"],
    "moe_shared_expert_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
}
#: gpt_oss has biases and columns first; nemotron_h has no gates.
FAMILIES = ["afmoe", "deepseek_v2", "ernie4_5_moe", "flex_olmo", "glm4_moe", "gpt_oss", "granitemoe", "minimax", "mixtral", "nemotron_h"]
FAMILIES += ["olmoe", "phimoe", "qwen2_moe", "qwen3_next"]


@pytest.mark.no_runtime
@pytest.mark.parametrize("family", FAMILIES)
def test_families_compute_what_transformers_does(family: str) -> None:
    try:
        known = vars(transformers.AutoConfig.for_model(family))
    except ValueError:
        pytest.skip(f"this release of transformers has no {family}")
    config = transformers.AutoConfig.for_model(family, **{name: value for name, value in SIZES.items() if name in known})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager")
        for weight in model.eval().requires_grad_(False).parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.1)
    tokens = torch.randint(3, 60, (1, 6), generator=torch.Generator().manual_seed(0))
    expected = model(tokens, use_cache=False).logits
    layers = [one for one in model.modules() if experts.is_experts(one)]
    assert layers
    with experts.as_operators(model):
        assert distance(model(tokens, use_cache=False).logits, expected) < 1e-5
    for layer in layers:
        experts.quantize(layer, "int8")
    with experts.as_operators(model):
        assert distance(model(tokens, use_cache=False).logits, expected) < 0.1


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


LAYERS = 3


def test_a_function_of_a_layer_gets_the_experts_too() -> None:
    made = quantized(block(), lambda layer: "int8" if experts.is_experts(layer) else None)
    assert made.experts.down_proj.int8.dtype is torch.int8
    with pytest.raises(ws.ExportError, match=r"raised an error for Qwen3MoeExperts, the experts of a layer \(AttributeError"):
        quantized(block(), lambda layer: "int8" if layer.in_features else None)


class Program:
    """Three layers as two methods: a token, and up to 32 of them."""

    def __init__(self, folder: Path, kind: str | None, **options: Any):
        self.pte, self.ptd = folder / "model.pte", folder / "model.ptd"
        model = block(torch.bfloat16 if options else torch.float32, LAYERS)
        dtype = next(model.parameters()).dtype
        ws.export(
            {"decode": model, "prefill": model},
            {"decode": (states(1).to(dtype),), "prefill": (states(8).to(dtype),)},
            self.pte,
            self.ptd,
            dynamic_shapes={"prefill": ({1: torch.export.Dim("tokens", min=1, max=32)},)},
            quantize=kind,
            **options,
        )

    def records(self) -> dict[str, dict[str, Any]]:
        return {record["method"][0]: record for record in map(decode_payload, payloads(self.pte).values())}

    def rows(self, method: str) -> dict[str, int]:
        """Of which experts a pass reads some rows, and how many at most."""
        record = self.records()[method]
        pairs = zip(record.get("gathers", [])[::2], record.get("gathers", [])[1::2], strict=True)
        return {
            record["fqns"][record["probes"][probe]]: rows for probe, rows in pairs if ".experts." in record["fqns"][record["probes"][probe]]
        }


@pytest.fixture(scope="module", params=[None, "int4"], ids=["dense", "int4"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str | None, Program]:
    return request.param, Program(tmp_path_factory.mktemp("experts"), request.param)


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_a_token_reads_the_experts_that_it_needs(program: tuple[str | None, Program]) -> None:
    kind, files = program
    rows = files.rows("decode")
    assert len(rows) == LAYERS * (2 if kind is None else 4)
    assert set(rows.values()) == {CHOSEN}
    assert set(files.rows("prefill").values()) == {COUNT}, "a long prompt reads all of them"
    floors = {method: record["floor"][0] for method, record in files.records().items()}
    matrix = block().experts.gate_up_proj.nbytes // (1 if kind is None else 8)
    assert floors["decode"] < matrix < floors["prefill"]


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_plan_says_it_in_one_line_for_all_layers(program: tuple[str | None, Program]) -> None:
    kind, files = program
    name = "0.experts.gate_up_proj" + ("" if kind is None else ".int4")
    status, text = runtime.command(["plan", str(files.pte)])
    assert status == 0
    assert text.count(f"{LAYERS} weights such as '{name}' (") == 2, "once for each method"
    assert "are read in place, in host memory, below a budget for all weights: at most 2 rows of" in text


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_plan_prices_what_a_token_reads(program: tuple[str | None, Program]) -> None:
    _, files = program

    def found(*more: str) -> dict[str, Any]:
        status, text = runtime.command(["plan", str(files.pte), "--budget", "100%", "--link-gbps", "1", "--json", *more])
        assert status == 0, text
        return json.loads(text)

    record = files.records()["decode"]
    matrices = sum(size for name, size in zip(record["fqns"], record["nbytes"], strict=True) if ".experts." in name and not is_places(name))
    token = found("--method", "decode")
    assert token["in_place_bytes_per_pass"] == matrices * CHOSEN // COUNT
    assert token["planned"]["ms_per_pass"] == pytest.approx(token["in_place_bytes_per_pass"] / 1e6)
    assert found("--method", "decode", "--pin", "0.experts.*")["in_place_bytes_per_pass"] == matrices * CHOSEN // COUNT * 2 // 3
    assert found("--method", "prefill")["in_place_bytes_per_pass"] == 0


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_bits_are_the_same_at_every_budget(program: tuple[str | None, Program]) -> None:
    kind, files = program
    least, results = ws.required_budget(files.pte), []
    everything = sum(weight.nbytes for weight in block(layers=LAYERS).parameters()) // (1 if kind is None else 6)
    assert least < everything * 3 // 4
    for budget in (least, 3 * least // 2, 1 << 30):
        with ws.Module(files.pte, files.ptd, weight_offload_budget_bytes=budget) as module:
            results.append([module.execute(*call) for call in CALLS])
            before = module.stats()["bytes_copied"]
            for token in range(8):
                module.execute("decode", states(1, token))
            # Decoding may bring what the next prompt reads first, once, and the routers.
            assert module.stats()["bytes_copied"] - before < everything
    # A read is compared with the file's checksum, wherever the rows are.
    with ws.Module(files.pte, files.ptd, weight_offload_budget_bytes=3 * least // 2, weight_offload_verify="every_read") as module:
        results.append([module.execute(*call) for call in CALLS])
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))
    made = block(layers=LAYERS) if kind is None else quantized(block(layers=LAYERS), kind)
    with experts.as_operators(made):
        for found, (_, x) in zip(results[0], CALLS, strict=True):
            assert distance(found, made(x)) < 1e-4


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_experts_that_tokens_ask_for_often_come_to_the_device(program: tuple[str | None, Program]) -> None:
    _, files = program
    with ws.Module(files.pte, files.ptd, weight_offload_budget_bytes=1 << 30) as module:
        whole = module.stats()["total_weight_bytes"]
        prompt = module.execute("prefill", states(8))
        expected = [module.execute("decode", states(1, seed)) for seed in range(8)]
    first = last = moved = 0
    with ws.Module(files.pte, files.ptd, weight_offload_budget_bytes=whole - 4096) as module:
        for seed, token in enumerate(expected):
            misses = []
            for _ in range(160):
                assert torch.equal(module.execute("decode", states(1, seed)), token)
                misses.append(module.stats()["row_misses"])
            rounds = [b - a for a, b in itertools.pairwise(misses) if a != b] or [0]
            first, last = first + max(rounds), last + misses[-1] - misses[-33]
            moved = module.stats()["rows_moved"]
            # A prompt finds all experts where they belong, and so does a plan.
            assert torch.equal(module.execute("prefill", states(8)), prompt)
            if seed == 4:
                module.set_budget(1 << 30)
                module.set_budget(whole - 4096)
    assert moved > 0
    assert last < first / 4, f"{first} misses of the first tokens, {last} of the last ones"


def without_host_memory(files: Program, folder: Path, budgets: list[int]) -> float:
    """The share of tokens that are right after the matrices in the file have become no numbers. Budgets are set one after the other; passes
    run at each, and the file is damaged at the last one."""
    pte, ptd = (Path(shutil.copy(one, folder)) for one in (files.pte, files.ptd))
    tokens = [states(1, seed) for seed in range(40)]
    with ws.Module(pte, ptd, weight_offload_budget_bytes=budgets[0]) as module:
        for budget in budgets:
            module.set_budget(budget)
            expected = [module.execute("decode", token) for token in tokens]
        with ptd.open("r+b") as file:
            content = file.read()
            for layer in block(layers=LAYERS):
                for matrices in (layer.experts.gate_up_proj, layer.experts.down_proj):
                    file.seek(content.index(matrices.numpy().tobytes()))
                    file.write(b"\xff" * matrices.nbytes)
        found = [module.execute("decode", token) for token in tokens]
    return sum(torch.equal(*pair) for pair in zip(expected, found, strict=True)) / len(tokens)


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_tokens_find_on_the_device_what_stays_there_for_prompts(program: tuple[str | None, Program], tmp_path: Path) -> None:
    kind, files = program
    if kind is not None:
        pytest.skip("the bytes of the file are those of the model only without fewer bits")
    with ws.Module(files.pte, files.ptd, weight_offload_budget_bytes=1 << 30) as module:
        whole = module.stats()["total_weight_bytes"]
    least = ws.required_budget(files.pte)
    shares = {}
    for name, budgets in {
        "least": [least],
        "almost": [whole - 4096],
        "grown": [least, whole - 4096],
        "shrunk": [whole - 4096, 1 << 30, least],
        "all": [least, 1 << 30],
    }.items():
        (tmp_path / name).mkdir()
        shares[name] = without_host_memory(files, tmp_path / name, budgets)
    assert shares["least"] == shares["shrunk"] == 0
    assert shares["all"] == 1
    # All but some rows. Which these are depends on the tokens before.
    assert 0.5 < shares["almost"] < 1
    assert 0.5 < shares["grown"] < 1


@pytest.mark.skipif(ON_GPU, reason="exports for the CPU")
def test_experts_of_some_layers_can_stay(program: tuple[str | None, Program]) -> None:
    _, files = program
    with ws.Module(files.pte, files.ptd, weight_offload_budget_bytes=1 << 30) as module:
        almost = module.stats()["total_weight_bytes"] - 64
    results, in_host_memory = [], []
    for options in ({}, {"weight_offload_pin": "0.experts.*"}):
        with ws.Module(files.pte, files.ptd, weight_offload_budget_bytes=almost, **options) as module:
            results.append([module.execute(*call) for call in CALLS])
            in_host_memory.append(module.stats()["gathered_bytes"])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert in_host_memory[1] == in_host_memory[0] * (LAYERS - 1) // LAYERS


CALLS = [("prefill", states(9)), ("decode", states(1)), ("prefill", states(32, 3)), ("decode", states(1, 4)), ("prefill", states(1, 5))]


@pytest.mark.skipif(ON_GPU, reason="compiles for a GPU that is not there")
@pytest.mark.parametrize(("kind", "parts"), [(None, 2), ("int4", 4)])
def test_for_a_gpu_the_file_says_the_same(kind: str | None, parts: int, tmp_path: Path) -> None:
    files = Program(tmp_path, kind, device="cuda", sm="90")
    assert sorted(files.rows("decode").values()) == [CHOSEN] * parts * LAYERS
    assert set(files.rows("prefill").values()) == {COUNT}
    record = files.records()["decode"]
    told = {record["fqns"][constant] for constant in record["x_places"][1::2]}
    assert len(told) == parts * LAYERS
    assert all(is_places(fqn) for fqn in told)


def test_experts_in_float32_are_refused_for_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ws.ExportError, match=r"experts on a GPU are for bfloat16, and these are float32; model\.bfloat16\(\)"):
        ws.export(block(), (states(1),), tmp_path / "model.pte", tmp_path / "model.ptd", device="cuda", sm="90")
