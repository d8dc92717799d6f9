"""A language model on a GPU: one text at every budget, and each of its tokens is probable for transformers too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import weightstream as ws
from llm_checkpoints import CHUNK, Draft, write
from weightstream._export.experts import as_operators
from weightstream._export.quantize import quantized

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.gpu

PROMPT, COUNT = [0, *range(20, 50)], 48
#: Logits have a standard deviation of 1; where two are closer than this, either token is right.
ROUNDING = 0.15


CASES = {"bf16": ("llama", None), "int8": ("llama", "int8"), "int4": ("llama", "int4"), "experts": ("qwen3_moe", None)}
CASES["experts-int4"] = ("qwen3_moe", "int4")


@pytest.fixture(scope="module", params=CASES)
def exported(request, tmp_path_factory) -> tuple[str | None, Path]:
    (family, how), out = CASES[request.param], tmp_path_factory.mktemp("llm")
    # Of experts at least as many as decoding reads twice over.
    more = {"num_experts": 16} if family == "qwen3_moe" else {}
    ws.llm.export(write(family, out / "checkpoint", **more), out, device="cuda", quantize=how, chunk=CHUNK, verify=4)
    return how, out


def generated(out: Path, budget: int | str, **options: bool) -> list[int]:
    with ws.LLM(out, budget=budget, **options) as llm:
        tokens = list(llm.tokens(PROMPT, COUNT))
        # By graphs, unless somebody says otherwise. The least budgets may have no plan that graphs could have.
        captures = llm.module.stats()["captures"]
        if not options.get("weight_offload_cuda_graph", True):
            assert captures == 0
        elif budget == "1GB":
            assert captures > 0
        return tokens


def lacks(out: Path, how: str | None, tokens: list[int], prompt: list[int] = PROMPT) -> float:
    """By how much the largest logits of the same model in transformers, on the CPU, exceed those of the tokens at most."""
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "checkpoint", dtype=torch.bfloat16).eval()
    model = model if how is None else quantized(model, how)
    with as_operators(model), torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
    return (logits.max(-1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]).max().item()


def test_tokens_are_the_same_at_every_budget(exported):
    how, out = exported
    least = ws.required_budget(out / "model.pte")
    expected = generated(out, "1GB")
    assert len(set(expected)) > 4
    for budget in (least, 2 * least):
        assert generated(out, budget) == expected
    assert generated(out, "1GB", weight_offload_cuda_graph=False) == expected
    assert lacks(out, how, expected) < ROUNDING


@pytest.mark.parametrize("wrong", [0, 3])
def test_tokens_that_a_draft_proposed_are_probable(exported, wrong):
    how, out = exported
    with ws.LLM(out) as plain, ws.LLM(out, draft=Draft(plain, wrong)) as llm:
        found = list(llm.tokens(PROMPT, COUNT))
        assert llm.figures["passes"] < COUNT
    assert lacks(out, how, found) < ROUNDING


def test_several_texts_in_a_pass_are_the_same_at_every_budget_and_probable(tmp_path):
    ws.llm.export(write("llama", tmp_path / "checkpoint"), tmp_path, device="cuda", chunk=CHUNK, batch=3)
    prompts = [PROMPT, PROMPT[:5], PROMPT[3:20]]
    least, found = ws.required_budget(tmp_path / "model.pte"), []
    for budget in (least, 2 * least, "1GB"):
        with ws.LLM(tmp_path, budget=budget) as llm:
            found.append(llm.all_tokens(prompts, COUNT))
    assert found[0] == found[1] == found[2]
    for prompt, tokens in zip(prompts, found[0], strict=True):
        assert len(set(tokens)) > 4
        assert lacks(tmp_path, None, tokens, prompt) < ROUNDING
