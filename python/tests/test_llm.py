"""From a checkpoint to text: what transformers generates, at every budget."""

from __future__ import annotations

import collections
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import weightstream as ws
from exports import CHECKPOINT, Exports
from llm_checkpoints import CHUNK, FAMILIES, TEXT, Draft, write
from support import error_of
from weightstream._command import main
from weightstream._llm.checkpoint import load
from weightstream._llm.sampling import Sampling
from weightstream._llm.text import until
from weightstream._llm.widen import in_float32

transformers = pytest.importorskip("transformers")

#: One of each kind: a tied head, windows, experts. `make zoo` has them all.
CHOSEN = tuple(FAMILIES) if os.environ.get("WEIGHTSTREAM_TEST_FAMILIES") else ("llama", "gemma3_text", "qwen3_moe")

#: One that continues three texts in a pass.
BATCH = "gemma3_text-of-3"

pytestmark = [
    pytest.mark.cpu_only("the tokens are those of transformers in float32 on the CPU"),
    pytest.mark.models(*(CHECKPOINT + family for family in (*CHOSEN, BATCH))),
]

BUILD = Path(os.environ.get("WEIGHTSTREAM_TEST_BUILD", Path(__file__).resolve().parents[2] / "build"))
COUNT = 64
CHAT = [
    {"role": "user", "content": "the capital of france? é"},
    {"role": "assistant", "content": "paris"},
    {"role": "user", "content": TEXT},
]


@pytest.fixture(params=CHOSEN)
def exported(request, exports: Exports) -> tuple[Path, Path]:
    """A checkpoint, and what was exported from it."""
    folder = exports.folder(CHECKPOINT + request.param)
    return folder / "checkpoint", folder


@pytest.fixture
def llama(exports: Exports) -> Path:
    return exports.folder(CHECKPOINT + "llama")


def reference(source: Path, prompt: Any) -> tuple[list[int], list[int]]:
    """The tokens of a prompt, and those that transformers generates after it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    if isinstance(prompt, str):
        given = torch.tensor([tokenizer(prompt).input_ids])
    else:
        given = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        found = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=COUNT, do_sample=False)
    found = found[0, given.shape[1] :].tolist()
    return given[0].tolist(), found[:-1] if found[-1] == tokenizer.eos_token_id else found


def test_tokens_are_those_of_transformers_at_three_budgets(exported):
    source, out = exported
    prompt, expected = reference(source, CHAT)
    # More than two chunks, and beyond the windows of 16.
    assert len(prompt) > 2 * CHUNK
    assert len(set(expected)) > 4
    least = ws.required_budget(out / "model.pte")
    for budget in (least, 2 * least, "1GB"):
        with ws.LLM(out, budget=budget) as llm:
            assert llm.encode(CHAT) == prompt
            assert list(llm.tokens(prompt, COUNT)) == expected
            copied = llm.figures["bytes_per_token"]
    assert copied == 0


def test_verify_gives_the_logits_of_each_token(llama):
    with ws.LLM(llama) as llm:
        read = list(llm.tokens([0, 5, 9], 8))
        one_by_one = [llm.module.decode(torch.tensor([[token]]), torch.tensor([3 + at])) for at, token in enumerate(read[:4])]
        # Back to the fourth token: the cache keeps what it has.
        together = llm.module.verify(torch.tensor([read[:4]]), torch.tensor([3]))
    assert torch.allclose(torch.cat(one_by_one, 1), together, atol=1e-4)
    assert together.argmax(-1)[0].tolist() == read[1:5]


def test_the_next_turn_of_a_chat_is_read_from_the_first_difference_on(llama, monkeypatch):
    with ws.LLM(llama) as llm:
        answer = llm.generate(CHAT[:1], max_new_tokens=6)
        expected = llm.generate(CHAT, max_new_tokens=12)
    with ws.LLM(llama) as llm:
        passes: list[tuple[str, int]] = []
        execute = llm.module.execute
        monkeypatch.setattr(llm.module, "execute", lambda name, *given: (passes.append((name, int(given[1]))), execute(name, *given))[1])
        assert llm.generate(CHAT[:1], max_new_tokens=6) == answer
        first = len(llm.encode(CHAT[:1]))
        passes.clear()
        assert llm.generate(CHAT, max_new_tokens=12) == expected
        assert passes[0][1] >= first


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_a_draft_changes_no_token(llama, wrong):
    with ws.LLM(llama) as plain, ws.LLM(llama, draft=Draft(plain, wrong)) as llm:
        for prompt, count in (([0, 5, 9], 40), ([5] * 100, 60)):
            expected = list(plain.tokens(prompt, count))
            assert list(llm.tokens(prompt, count)) == expected
            passes = llm.figures["passes"]
            # The pass over the prompt gives one token, and others give up to four.
            assert (passes <= len(expected) / 4 + 1) == (wrong == 0)
            assert wrong != 1 or passes >= min(len(expected), plain.context - len(prompt) - 4) - 1
        # A draft of another text, and the next turn, go on from what the cache holds.
        assert list(llm.tokens([0, 5, 9, *expected[:3]], 12)) == list(plain.tokens([0, 5, 9, *expected[:3]], 12))
        assert "passes" not in (list(llm.tokens([0, 5, 9], 4, Sampling(temperature=1.0))), llm.figures)[1]


def test_a_draft_has_the_same_words(llama):
    with ws.LLM(llama) as plain:
        other = Draft(plain, 0)
        other.words = 7
        assert "the draft has 7 words and the model 300" in error_of(lambda: ws.LLM(llama, draft=other))


def command(llama: Path, *given: str, lines: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
    """What weightstream-generate prints."""
    program = BUILD / "weightstream-generate"
    if not program.is_file():
        pytest.skip(f"{program} is not built")
    files = (str(llama / "model.pte"), str(llama / "model.ptd"))
    done = subprocess.run([program, *files, *given], input=lines, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == status, done.stderr
    return done


def test_the_command_generates_the_same_text(llama):
    # Longer than two chunks; a turn after another; what ends a text.
    with ws.LLM(llama) as llm:
        after, chat = llm.generate(TEXT, max_new_tokens=20), [CHAT[0]]
        whole = llm.generate("the capital", max_new_tokens=20)
        answers = []
        for message in ("the capital of france? é", "and then"):
            chat = [*chat[:-1], {"role": "user", "content": message}]
            answers.append(llm.generate(chat, max_new_tokens=12))
            chat = [*chat, {"role": "assistant", "content": answers[-1]}, {}]
        rendered, tokens = llm.tokenizer.render(CHAT[:1]), llm.encode(CHAT[:1])
    found = json.loads(command(llama, "--prompt", TEXT, "--count", "20", "--json").stdout)
    assert found["text"] == after
    assert found["prompt_tokens"] > 2 * CHUNK
    stopped = command(llama, "--prompt", "the capital", "--count", "20", "--stop", "none of it", "--stop", whole[4:7]).stdout
    assert stopped == whole[: whole.index(whole[4:7])] + "\n"
    said = command(llama, "--chat", "--prompt", "the capital of france? é", "--count", "12", lines="\nand then\n")
    assert said.stdout == "".join(answer + "\n" for answer in answers)
    shown = command(llama, "--chat", "--prompt", "the capital of france? é", "--show-prompt").stdout
    assert shown == f"{rendered}\n{','.join(map(str, tokens))}\n"
    drawn = [command(llama, "--prompt", TEXT, "--temperature", "1", "--seed", seed, "--count", "20").stdout for seed in "112"]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_command_says_what_is_missing(llama, tmp_path):
    said = command(llama, "--prompt", "a", "--tokenizer", str(tmp_path / "none.json"), status=1).stderr
    assert f"cannot read the tokenizer '{tmp_path / 'none.json'}'" in said
    assert "text is UTF-8, and this is not" in command(llama, "--prompt", os.fsdecode(b"\xff"), status=1).stderr
    assert (
        "a prompt of 9 tokens and 200 more need 208 places"
        in command(llama, "--prompt", "abcdefghi"[:9], "--count", "200", status=1).stderr
    )


def test_several_texts_in_a_pass_are_those_of_each_alone(exports):
    """Texts of other lengths, beyond windows and chunks; more of them than a pass continues, and fewer."""
    out = exports.folder(CHECKPOINT + BATCH)
    prompts = ["a budget", TEXT[:60], "the river is the seine", "paris"]
    expected = [reference(out / "checkpoint", prompt)[1] for prompt in prompts]
    for budget in (ws.required_budget(out / "model.pte"), "1GB"):
        with ws.LLM(out, budget=budget) as llm:
            given = [llm.encode(prompt) for prompt in prompts]
            assert len({*map(len, given)}) == 4
            assert max(map(len, given)) > 2 * CHUNK
            assert llm.all_tokens(given, COUNT) == expected
            assert list(llm.tokens(given[0], COUNT)) == expected[0]
            texts = llm.generate(prompts, max_new_tokens=8)
            assert texts == [llm.generate(prompt, max_new_tokens=8) for prompt in prompts]
            assert "stream=True is for one prompt" in error_of(lambda llm=llm: llm.generate(prompts, stream=True))
    assert "the program continues 3 texts at once (get_max_batch_size)" in command(out, "--prompt", "a", status=1).stderr


def test_a_text_ends_for_itself_where_others_go_on(llama):
    """Also by a program that continues one text."""
    with ws.LLM(llama) as llm:
        prompts = [llm.encode("the capital"), llm.encode("a river")]
        whole = llm.all_tokens(prompts, 16)
        llm.ends = {whole[0][5]}
        assert llm.all_tokens(prompts, 16) == [one[: one.index(whole[0][5])] if whole[0][5] in one else one for one in whole]


#: A text by the runner, and the same again. It prints its pieces too.
RUNNER = """
import json, sys, weightstream as ws
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
ws.register()
pte, tokenizer, ptd, prompt, count = sys.argv[1:]
runner = TextLLMRunner(pte, tokenizer, ptd)
for _ in range(2):
    pieces = []
    runner.generate(prompt, GenerationConfig(echo=False, max_new_tokens=int(count), temperature=0.0), pieces.append)
    print("\\nfound:" + json.dumps("".join(pieces)))
    runner.reset()
"""


def test_the_runner_of_executorch_generates_the_same_text(llama):
    with ws.LLM(llama) as llm:
        # Its binding cannot give a character in parts.
        prompts = ("the capital of france is paris", "what is the capital", TEXT, "a budget of bytes, once", "the river")
        tokens = {prompt: list(llm.tokens(llm.encode(prompt), 12)) for prompt in prompts}
        whole = {prompt: itertools.takewhile(lambda one: one.isascii(), llm.tokenizer.pieces(tokens[prompt])) for prompt in prompts}
        prompt, expected = max(((prompt, "".join(pieces)) for prompt, pieces in whole.items()), key=lambda one: len(one[1]))
        count = next(n for n in range(1, 13) if "".join(llm.tokenizer.pieces(tokens[prompt][:n])) == expected)
    assert count > 3
    files = (llama / "model.pte", llama / "tokenizer.json", llama / "model.ptd", prompt, str(count))
    environment = os.environ | {"WEIGHTSTREAM_BUDGET_BYTES": str(ws.required_budget(llama / "model.pte"))}
    done = subprocess.run([sys.executable, "-c", RUNNER, *files], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line.removeprefix("found:")) for line in done.stdout.splitlines() if line.startswith("found:")]
    assert found == [expected, expected], done.stderr
    assert "bytes are copied in a pass" in done.stderr


def test_sessions_and_budgets(llama):
    with ws.LLM(llama) as llm, llm.new_session() as other:
        one, two = llm.tokens([0, 5, 9], 12), other.tokens([0, 7], 12)
        mixed = list(zip(one, two, strict=False))
        llm.set_budget("1MB")
        assert list(llm.tokens([0, 5, 9], 12))[: len(mixed)] == [first for first, _ in mixed]
        assert list(llm.tokens([0, 7], 12))[: len(mixed)] == [second for _, second in mixed]


def test_a_text_ends_where_it_is_told_to(llama):
    with ws.LLM(llama) as llm:
        whole = llm.generate("the capital", max_new_tokens=20)
        assert llm.figures["ended"] in ("length", "end")
        stop = whole[4:7]
        assert llm.generate("the capital", max_new_tokens=20, stop=stop) == whole[: whole.index(stop)]
        assert llm.figures["ended"] == "stop"
        assert "".join(llm.generate("the capital", max_new_tokens=20, stream=True)) == whole
        end = len(llm.encode(TEXT)) + 120
        list(llm.tokens([5] * 120, 60))
        assert llm.figures["ended"] in ("context", "end")
        assert llm.figures["tokens"] <= llm.context - 120 + 1 <= end


def test_one_seed_gives_one_text(llama):
    with ws.LLM(llama) as llm:
        texts = {seed: llm.generate("the", max_new_tokens=16, temperature=1.0, seed=seed) for seed in (1, 2, 1)}
        assert llm.generate("the", max_new_tokens=16, temperature=1.0, seed=1) == texts[1]
        assert texts[1] != texts[2]


def test_what_fits_nothing_is_refused_by_name(llama, tmp_path, capsys):
    with ws.LLM(llama) as llm:
        assert "has 200 tokens, and the program a context of 128" in error_of(lambda: llm.tokens([5] * 200))
        assert "token 300 is not in the vocabulary of 300 words" in error_of(lambda: llm.tokens([300]))
        assert "the prompt has no tokens" in error_of(lambda: llm.tokens([]))
        assert "and several are a list of these; found 'a' in one" in error_of(lambda: llm.generate(["a", 5]))
        assert "temperature is a number from 0, not -1" in error_of(lambda: llm.generate("a", temperature=-1))
        assert "such as '8GB'" in error_of(lambda: llm.set_budget("many"))
    assert "has no model.pte" in error_of(lambda: ws.LLM(tmp_path))
    source = write("llama", tmp_path / "llama")
    for arguments, text in (
        ([str(tmp_path / "none"), "out"], "it does not exist"),
        ([str(tmp_path), "out"], "has no config.json"),
        ([str(source), "out", "--context", "1000"], "context is a number of tokens from 2 to 128, what the model was made for; found 1000"),
        ([str(source), "out", "--batch", "0"], "batch is a number of texts from 1"),
        ([str(source), "out", "--batch", "2", "--verify", "4"], "and 1 with `verify`, which is for one text; found 2"),
        ([str(source), "out", "--chunk", "0"], "chunk is a number of tokens from 1 to the context of 128, not 0"),
    ):
        assert main(["llm", "export", *arguments]) == 1
        assert text in capsys.readouterr().err


@pytest.mark.no_runtime
def test_a_checkpoint_of_bfloat16_is_mapped_in_float32_from_a_file(tmp_path):
    source = tmp_path / "half"
    model = transformers.AutoModelForCausalLM.from_pretrained(write("llama", tmp_path / "whole"), dtype=torch.bfloat16)
    model.save_pretrained(source, max_shard_size="100KB")
    assert len(list(source.glob("*.safetensors"))) > 1
    found = load(source, torch.float32, tmp_path / "out")
    for name, weight in found.model.named_parameters():
        assert torch.equal(weight, model.get_parameter(name).float()), name
        assert ".float32-" in mapping_of(weight), name
    # Its name is gone, and the bytes with the model.
    assert list((tmp_path / "out").iterdir()) == []


def mapping_of(tensor: torch.Tensor) -> str:
    """The line of the process's maps that has a tensor's bytes."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(one, 16) for one in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return line
    return ""


@pytest.mark.no_runtime
def test_what_is_no_float_of_two_bytes_stays_as_it_is(tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = {
        "half": torch.randn(3, 5).half(),
        "brain": torch.randn(7).bfloat16(),
        "whole": torch.arange(3),
        "bytes": torch.ones(5).bool(),
    }
    tensors |= {"none": torch.zeros(0, 4).half(), "one": torch.tensor(float("nan")).bfloat16(), "double": torch.randn(2).double()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with in_float32(tmp_path, tmp_path) as folder:
        assert (folder / "config.json").read_text() == "{}"
        found = load_file(folder / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        wanted = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        assert found[name].dtype == wanted.dtype, name
        assert torch.equal(found[name].nan_to_num(7), wanted.nan_to_num(7)), name
    # Weights that a library of theirs quantized are that library's.
    (tmp_path / "config.json").write_text('{"quantization_config": {}}')
    with in_float32(tmp_path, tmp_path) as folder:
        assert folder == tmp_path


@pytest.mark.no_runtime
def test_layers_with_another_state_are_refused_by_name(tmp_path):
    source = write(
        "qwen3_next", tmp_path, layer_types=["linear_attention", "full_attention"], linear_num_value_heads=4, linear_num_key_heads=2
    )
    assert "layers whose state is no cache of keys and values" in error_of(lambda: ws.llm.export(source, tmp_path / "out"), ws.ExportError)


@pytest.mark.no_export
@pytest.mark.no_runtime
def test_tokens_are_drawn_as_often_as_they_are_probable():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5])
    made = torch.Generator().manual_seed(0)
    for sampling in (Sampling(temperature=0.7), Sampling(temperature=1, top_k=2), Sampling(temperature=1, top_p=0.8)):
        scores = logits[None]
        for name, value in (("Temperature", sampling.temperature), ("TopK", sampling.top_k), ("TopP", sampling.top_p)):
            if value not in (0, 1):
                scores = getattr(transformers, f"{name}LogitsWarper")(value)(None, scores)
        expected = scores[0].softmax(-1)
        counts = collections.Counter(sampling.next(logits, [], made) for _ in range(20000))
        found = torch.tensor([counts[token] / 20000 for token in range(5)])
        # Five standard deviations of a share.
        assert torch.all((found - expected).abs() <= 5 * (expected * (1 - expected) / 20000).sqrt())


@pytest.mark.no_export
@pytest.mark.no_runtime
def test_what_was_said_is_said_less_often_as_transformers_does_it():
    logits = torch.tensor([2.0, 1.9, -1.0])
    warped = transformers.RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([[0, 2]]), logits[None])
    assert Sampling(repetition_penalty=1.5).next(logits, [0, 2], torch.Generator()) == int(warped.argmax()) == 1


@pytest.mark.no_export
@pytest.mark.no_runtime
@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["ab", "c"], (), ["ab", "c"]),
        (["ab", "cd", "ef"], ("cd",), ["ab"]),
        (["ab", "c", "x"], ("cd",), ["ab", "cx"]),
        (["a<", "en", "d>b"], ("<end>",), ["a"]),
        (["a<e"], ("<end>",), ["a", "<e"]),
        (["<end>"], ("<end>",), []),
    ],
)
def test_what_may_be_the_beginning_of_a_stop_is_held_back(pieces, stops, expected):
    assert list(until(iter(pieces), stops)) == expected


@pytest.mark.no_runtime
def test_a_model_that_leaves_the_cache_out_is_refused_by_name(tmp_path, monkeypatch):
    """As one does that knows it by another name: its tokens would be those of texts of one token."""
    source = write("llama", tmp_path / "llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda input_ids, use_cache, logits_to_keep, **_: forward(input_ids, use_cache=use_cache))
    said = error_of(lambda: ws.llm.export(model, tmp_path / "out", chunk=1), ws.ExportError)
    assert "a llama does not keep its keys and values in the cache that it is given" in said


def test_a_model_that_is_loaded_is_exported_too(tmp_path):
    source = write("llama", tmp_path / "llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ws.llm.export(model, tmp_path / "out", quantize="int8", chunk=1)
    with ws.LLM(tmp_path / "out") as llm:
        assert len(list(llm.tokens([0, 5, 9], 4))) == 4
        assert "there is no tokenizer.json" in error_of(lambda: llm.generate("text"))
        assert json.loads(llm.module.execute("get_llm_settings"))["chat_template"] is None
