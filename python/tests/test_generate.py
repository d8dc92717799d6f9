"""An LLM of two methods generates what transformers generates: through Python, through C++, and by the calls of ExecuTorch's runners."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import weightstream as ws
from exports import LLM, Exports
from llm_models import CONTEXT, END, example, small
from support import error_of
from torch import nn

BUILD = Path(os.environ.get("WEIGHTSTREAM_TEST_BUILD", Path(__file__).resolve().parents[2] / "build"))
COUNT = 32
#: Two texts with many different tokens, whose largest logits are far apart.
PROMPTS = [[0, 77, 301], [0, *range(20, 40)]]
PARTS = [0.0, 0.5, 1.0]

pytestmark = [
    pytest.mark.cpu_only("the programs of C++ are not in the bundle; methods and sessions have tests for each device"),
    pytest.mark.models(LLM),
]


@pytest.fixture(scope="module")
def llm() -> Any:
    """The example that the demo and the documents use."""
    return example()


@dataclass
class Exported:
    model: nn.Module
    files: tuple[Path, Path]
    floor: int
    whole: int
    #: What transformers generates after each prompt.
    expected: list[list[int]]

    def until_its_end(self, number: int) -> list[int]:
        """A text up to the token that ends it, if it has one."""
        text = self.expected[number]
        return text[: text.index(END) + 1] if END in text else text

    def budget(self, part: float) -> int:
        return max(self.floor, int(self.whole * part))

    def open(self, part: float = 0.0, **options: Any) -> ws.Module:
        return ws.Module(*self.files, weight_offload_budget_bytes=self.budget(part), **options)


@pytest.fixture(scope="module")
def exported(llm, exports: Exports) -> Exported:
    """The small LLM, and what transformers makes of it."""
    model, found = small(), exports.files(LLM)
    texts = [llm.reference(model, prompt, COUNT) for prompt in PROMPTS]
    assert all(gap > 1e-3 for _, gap in texts), "rounding could choose another token"
    with ws.Module(found.pte, found.ptd) as module:
        stats = module.stats()
    assert stats["floor_bytes"] == ws.required_budget(found.pte)
    whole = stats["total_weight_bytes"] + stats["direct_bytes"]
    return Exported(model, (found.pte, found.ptd), stats["floor_bytes"], whole, [text for text, _ in texts])


def tool(name: str) -> Path:
    found = BUILD / name
    if not found.is_file():
        pytest.skip(f"{found} is not built")
    return found


def ran(program: Path, *arguments: object, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    around = {**os.environ, **environment}
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=False, env=around)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done


def listed(tokens: list[int]) -> str:
    return ",".join(map(str, tokens))


@pytest.mark.parametrize("policy", ["planned", "lru"])
@pytest.mark.parametrize("part", PARTS)
def test_python_generates_what_transformers_does(llm, exported, part, policy):
    with exported.open(part, weight_offload_policy=policy) as module:
        assert module.methods == ("decode", "prefill")
        for prompt, expected in zip(PROMPTS, exported.expected):
            assert llm.generate(module, prompt, COUNT) == expected
        stats = module.stats()
    assert stats["peak_bytes"] <= exported.budget(part)
    assert stats["passes"] == len(PROMPTS) * COUNT


def test_logits_are_those_of_the_model(exported):
    """The last token's, whatever the length of the prompt."""
    with exported.open(1.0) as module, torch.no_grad():
        for length in (1, 2, 7, CONTEXT):
            tokens = torch.arange(length)[None] % 500
            expected = exported.model(tokens).logits[:, -1:]
            torch.testing.assert_close(module.prefill(tokens, torch.tensor([0])), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("part", PARTS)
def test_cpp_generates_the_same(exported, part):
    program = tool("weightstream-generate")
    for prompt, expected in zip(PROMPTS, exported.expected):
        budget = exported.budget(part)
        given = (*exported.files, "--tokens", listed(prompt), "--count", COUNT, "--ignore-eos", "--budget-bytes", budget)
        found = json.loads(ran(program, *given, "--json").stdout)
        assert found["tokens"] == expected
        assert found["prompt_tokens"] == len(prompt)
        assert found["stats"]["peak_bytes"] <= budget
        assert found["stats"]["passes"] == COUNT
        assert found["tokens_per_second"] > 0
        assert (found["bytes_per_token"] > 0) == (part < 1)


def test_cpp_prints_tokens_as_they_come(exported):
    given = (*exported.files, "--tokens", listed(PROMPTS[0]), "--count", 5)
    done = ran(tool("weightstream-generate"), *given)
    assert done.stdout == " ".join(map(str, exported.expected[0][:5])) + "\n"
    assert "tokens_per_second" in done.stderr


@pytest.mark.parametrize(
    ("tokens", "more", "said"),
    [
        ("0,512", (), "token 512 is not in the vocabulary of 512 words"),
        (
            listed([1] * (CONTEXT + 1)),
            (),
            "a prompt of 65 tokens and 1 more need 65 places in the cache, which has 64 (get_max_context_len)",
        ),
        ("0,1", ("--count", 64), "a prompt of 2 tokens and 64 more need 65 places in the cache, which has 64 (get_max_context_len)"),
        ("0,1", ("--budget-bytes", 8), "weight budget of 8 bytes is too small"),
    ],
)
def test_cpp_refuses_what_does_not_fit(exported, tokens, more, said):
    done = ran(tool("weightstream-generate"), *exported.files, "--tokens", tokens, *more, status=1)
    assert f"weightstream-generate: {said}" in done.stderr.replace("weightstream-generate: load: ", "weightstream-generate: ")


def test_the_cache_can_be_filled_to_its_last_place(llm, exported):
    prompt, count = PROMPTS[0], CONTEXT - len(PROMPTS[0]) + 1
    with exported.open() as module:
        expected, _ = llm.reference(exported.model, prompt, count)
        assert llm.generate(module, prompt, count) == expected
    found = ran(
        tool("weightstream-generate"), *exported.files, "--tokens", listed(prompt), "--count", count, "--ignore-eos", "--json"
    ).stdout
    assert json.loads(found)["tokens"] == expected


def test_cpp_ends_a_text_where_the_model_does(exported):
    given = (*exported.files, "--tokens", listed(PROMPTS[0]), "--count", COUNT, "--json")
    found = json.loads(ran(tool("weightstream-generate"), *given).stdout)
    assert found["tokens"] == exported.until_its_end(0)
    assert 2 < len(found["tokens"]) < COUNT


@pytest.mark.parametrize("mode", ["file", "mmap", "mlock"])
@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_the_calls_of_executorchs_runner(exported, mode, number):
    """A stock Module, found methods, constant methods, chunks, one tensor whose value changes: see stock_llm_runner.cpp."""
    given = (*exported.files, mode, COUNT, *PROMPTS[number])
    budget = str(exported.budget(0.5))
    done = ran(tool("tests/cpp/stock_llm_runner"), *given, WEIGHTSTREAM_BUDGET_BYTES=budget)
    assert [int(token) for token in done.stdout.split()] == exported.until_its_end(number)


@pytest.mark.no_runtime
def test_what_the_runner_asks_the_program_for(exported):
    from executorch.exir._serialize._program import deserialize_pte_binary

    program = deserialize_pte_binary(exported.files[0].read_bytes()).program
    plans = {plan.name: plan for plan in program.execution_plan}
    constants = {
        name: [getattr(plan.values[at].val, "int_val", None) or getattr(plan.values[at].val, "bool_val", 0) for at in plan.outputs]
        for name, plan in plans.items()
        # What `ws.LLM` asks for is a text, and the runner does not know it.
        if name.startswith(("get_", "use_", "enable_")) and name != "get_llm_settings"
    }
    assert constants == {
        "get_max_seq_len": [CONTEXT],
        "get_max_context_len": [CONTEXT],
        "get_max_batch_size": [1],
        "get_vocab_size": [512],
        "get_bos_id": [0],
        "get_eos_ids": [END],
        "use_kv_cache": [True],
        "use_sdpa_with_kv_cache": [False],
        "enable_dynamic_shape": [True],
    }
    for name, length in (("prefill", CONTEXT), ("decode", 1)):
        plan = plans[name]
        tokens, position = (plan.values[at].val for at in plan.inputs)
        (logits,) = (plan.values[at].val for at in plan.outputs)
        assert (tokens.sizes, position.sizes, logits.sizes) == ([1, length], [1], [1, 1, 512])


@pytest.mark.parametrize("part", PARTS)
def test_sessions_take_turns_and_keep_their_texts(llm, exported, part):
    with exported.open(part) as first, first.new_session() as second:
        found = [[], []]
        for step in range(COUNT):
            for session, prompt, text in zip((first, second), PROMPTS, found):
                if step == 0:
                    logits = session.prefill(torch.tensor([prompt]), torch.tensor([0]))
                else:
                    logits = session.decode(torch.tensor([text[-1:]]), torch.tensor([len(prompt) + step - 1]))
                text.append(int(logits[0, -1].argmax()))
        assert found == exported.expected
        stats = first.stats()
    assert stats["peak_bytes"] <= exported.budget(part)
    # Keys and values of three layers, two heads of 64 numbers; and the lengths that decode counts.
    assert stats["session_bytes"] >= 3 * 2 * 2 * CONTEXT * 64 * 4


def test_a_reset_state_is_that_of_a_fresh_module(llm, exported):
    """Reading on at a place that was never written tells them apart."""
    given = torch.tensor([[5]]), torch.tensor([9])
    with exported.open() as module:
        fresh = module.decode(*given).clone()
        assert llm.generate(module, PROMPTS[1], COUNT) == exported.expected[1]
        assert not torch.equal(module.decode(*given), fresh)
        module.reset_state()
        assert torch.equal(module.decode(*given), fresh)
        assert llm.generate(module, PROMPTS[0], COUNT) == exported.expected[0]


def test_the_runner_asks_which_method(exported):
    program = tool("weightstream-run")
    done = ran(program, *exported.files, status=1)
    assert "weightstream-run: the program has the methods decode, prefill: choose one with --method" in done.stderr
    found = json.loads(ran(program, *exported.files, "--method", "decode", "--passes", 2, "--json").stdout)
    assert found["passes"] == 2
    missing = ran(program, *exported.files, "--method", "encode", status=1).stderr
    assert "'encode' is missing in" in missing
    assert "its methods are 'decode', 'prefill'" in missing


def test_an_input_from_a_file_may_be_smaller(exported, tmp_path):
    """Where one size only is dynamic: that of the prompt."""
    tokens, place, output = torch.tensor([PROMPTS[0]]), tmp_path / "place.bin", tmp_path / "output"
    given = tmp_path / "tokens.bin"
    given.write_bytes(tokens.numpy().tobytes())
    place.write_bytes(bytes(8))
    arguments = (*exported.files, "--method", "prefill", "--input", given, "--input", place)
    ran(tool("weightstream-run"), *arguments, "--output", output)
    with exported.open(1.0) as module:
        expected = module.prefill(tokens, torch.tensor([0]))
    assert (tmp_path / "output0.bin").read_bytes() == expected.numpy().tobytes()
    given.write_bytes(bytes(9))
    wrong = ran(tool("weightstream-run"), *arguments, status=1).stderr
    assert f"tokens.bin: found 9 bytes, expected 8 for each of the dynamic size, at most {8 * CONTEXT}" in wrong
    assert f"int64 of [1, 1..{CONTEXT}]" in wrong


def test_a_method_is_called_by_its_name(exported):
    with exported.open() as module:
        assert "call one by its name" in error_of(lambda: module.forward(torch.tensor([[1]]), torch.tensor([0])))
