#!/usr/bin/env python3
"""A language model of 8B sizes on a GPU, as it is and quantized: a token, a prompt of 512, and tokens that a draft proposes, at budgets.

    python benches/gpu/language.py FOLDER --layers 12 --out language.jsonl

Exports by `ws.llm.export`, without tuning, unless the files are there; weights are random. The limit is the longer of the time with
everything resident and of what exceeds the budget over the link's speed, without the table, which is read in place. Milliseconds of tokens are
from the end of one to the end of the next.

The draft runs as a draft does, by graphs, with all of its weights resident beside the budget, but what it proposes comes from a record of the
text: each token is right with a probability of 0.7. The first token where `verify` and `decode` differ is written with both logits.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
from measure import GB, Results, back_to_back_ms, link

WORDS, CONTEXT, CHUNK, VERIFY = 128256, 2048, 512, 8
SIZES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
    "draft": {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2},
}
ACCEPTED = 0.7


def build(size: str, layers: int) -> Any:
    """A Llama of transformers in bf16, whose weights the GPU draws."""
    import transformers

    more = {"vocab_size": WORDS, "max_position_embeddings": 8192, "tie_word_embeddings": size == "draft", "eos_token_id": None}
    config = transformers.LlamaConfig(num_hidden_layers=layers, **SIZES[size], **more)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu").eval().requires_grad_(False)
    model.tie_weights()
    for name, buffer in model.named_buffers():
        if "inv_freq" in name:
            buffer.copy_(10000.0 ** -(torch.arange(0, 2 * len(buffer), 2) / (2 * len(buffer))))
    draw = torch.Generator("cuda").manual_seed(len(size))
    for weight in dict.fromkeys(model.parameters()):
        drawn = torch.randn(weight.shape, device="cuda", dtype=torch.bfloat16, generator=draw)
        weight.copy_(torch.ones_like(weight) if weight.dim() == 1 else drawn * weight.shape[-1] ** -0.5)
    return model


def export(kind: str, layers: int, folder: Path) -> Path:
    import weightstream as ws

    out = folder / f"{kind}-{layers}"
    if not (out / "model.pte").exists():
        begin, size = time.monotonic(), "draft" if kind == "draft" else "8b"
        how = kind if kind in ("int8", "int4") else None
        sizes = {"context": CONTEXT, "chunk": CHUNK, "verify": VERIFY if kind != "draft" else 0}
        ws.llm.export(build(size, layers), out, device="cuda", sm="90", quantize=how, **sizes)
        print(f"{kind}: exported in {time.monotonic() - begin:.0f} s", flush=True)
    return out


class Replay:
    """A draft whose passes cost what they cost, and whose tokens are those of a record as often as `ACCEPTED` says."""

    def __init__(self, real: Any):
        self.real, self.context, self.words, self.tokenizer = real, real.context, real.words, None
        self.record: list[int] = []
        self.chance = random.Random(0)

    def tokens(self, text: list[int], count: int, sampling: Any) -> list[int]:
        list(self.real.tokens(text, count, sampling))
        right = self.record[len(text) : len(text) + count]
        return [token if self.chance.random() < ACCEPTED else (token + 1) % WORDS for token in right] + [0] * (count - len(right))


def milliseconds(llm: Any, prompt: list[int], count: int) -> tuple[float, list[int]]:
    tokens = list(llm.tokens(prompt, count))
    return 1e3 / llm.figures["tokens_per_second"], tokens


def first_difference(llm: Any, prompt: list[int], plain: list[int], found: list[int]) -> dict[str, Any]:
    """Where two texts part, and the logits of both tokens by `decode` and by `verify`."""
    at = next((at for at, (a, b) in enumerate(zip(plain, found, strict=False)) if a != b), None)
    if at is None:
        return {"first_difference": None}
    text, both = prompt + plain[:at], [plain[at], found[at]]
    by_decode = llm._read(text)[both].tolist()
    start = len(text) - 1
    rows = llm.module.execute("verify", torch.tensor([[text[-1]] + [0] * (VERIFY - 1)]), torch.tensor([start]))
    return {"first_difference": at, "tokens": both, "by_decode": by_decode, "by_verify": rows[0, 0, both].float().cpu().tolist()}


def measure(kind: str, out: Path, draft: Path, results: Results, count: int) -> None:
    import weightstream as ws

    prompt = torch.randint(0, WORDS, (CHUNK,), generator=torch.Generator().manual_seed(1)).tolist()
    with ws.LLM(out, budget="100GB", weight_offload_cuda_graph=True) as llm:
        resident, plain = milliseconds(llm, prompt, count)
        total = llm.module.stats()["total_weight_bytes"]
    given, zero = torch.tensor([prompt]), torch.tensor([0])
    with ws.LLM(out, budget="100GB") as llm:
        prefill = back_to_back_ms(lambda: llm.module.execute("prefill", given, zero), 20)
    floor = ws.required_budget(out / "model.pte")
    speed = link([1 << 30] * 2, runs=3)["64_mib_median"]
    results.write(kind=kind, weights_gb=total / GB, floor_gb=floor / GB, resident_ms=resident, prefill_ms=prefill, link_gb_s=speed)
    table = 2 * WORDS * SIZES["8b"]["hidden_size"]
    for percent in (25, 50, 75):
        budget = max(floor, total * percent // 100)
        over = 1e3 * (total - table - budget) / (speed * GB)
        with ws.LLM(draft, budget="100GB", weight_offload_cuda_graph=True) as real:
            replay = Replay(real)
            with ws.LLM(out, budget=budget, draft=replay) as llm:
                time_ms = back_to_back_ms(lambda: llm.module.execute("prefill", given, zero), 10, seconds=4)
                first = {"prefill_ms": time_ms, "prefill_over": time_ms / max(prefill, over)}
                llm._draft = None
                ms, text = milliseconds(llm, prompt, count)
                copied = llm.figures["bytes_per_token"]
                llm._draft = replay
                # With wrong tokens a pass of `verify` gives one token: its record of the text.
                replay.record = []
                _, record = milliseconds(llm, prompt, count)
                replay.record = prompt + record
                fast, again = milliseconds(llm, prompt, count)
                about = {"same_record": again == record, "same_bits": text == plain, **first_difference(llm, prompt, text, record)}
                passes = llm.figures["passes"]
        limit = max(resident, over)
        drafted = {"drafted_ms": fast, "gain": ms / fast, "tokens_per_pass": (count - 1) / passes}
        results.write(
            kind=kind, percent=percent, ms=ms, limit_ms=limit, over=ms / limit, copied_gb=copied / GB, **first, **drafted, **about
        )


def peer_ms(model: Any) -> float:
    """A token by transformers, after a prompt."""
    prompt = torch.randint(0, WORDS, (1, CHUNK), device="cuda")
    with torch.no_grad():
        cache = model(prompt, use_cache=True).past_key_values
        return back_to_back_ms(lambda: model(prompt[:, :1], past_key_values=cache, use_cache=True).logits[0, -1].argmax().item(), 10)


def peers(layers: int, results: Results) -> None:
    """transformers with torchao, and with accelerate's device map."""
    import accelerate
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = build("8b", layers)
    size = sum(weight.nbytes for weight in model.parameters())
    places = accelerate.infer_auto_device_map(model, {0: size // 2, "cpu": 10 * size}, no_split_module_classes=["LlamaDecoderLayer"])
    results.write(peer="accelerate, bf16, half of the layers", ms=peer_ms(accelerate.dispatch_model(model, places)))
    model = build("8b", layers).cuda()
    results.write(peer="transformers, bf16, resident", ms=peer_ms(model))
    quantize_(model, Int8WeightOnlyConfig())
    results.write(peer="torchao, int8, resident", ms=peer_ms(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--draft-layers", type=int, default=9)
    parser.add_argument("--kinds", nargs="+", default=["bf16", "int8", "int4"])
    parser.add_argument("--count", type=int, default=48, help="tokens of a text")
    parser.add_argument("--only-export", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("language.jsonl"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    draft = export("draft", args.draft_layers, args.folder)
    outs = {kind: export(kind, args.layers, args.folder) for kind in args.kinds if kind != "draft"}
    if args.only_export:
        return
    results = Results(args.out, gpu=torch.cuda.get_device_name(), layers=args.layers)
    for kind, out in outs.items():
        measure(kind, out, draft, results, args.count)
    if args.peers:
        peers(args.layers, results)


if __name__ == "__main__":
    main()
