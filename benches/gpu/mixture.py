#!/usr/bin/env python3
"""A mixture of experts on a GPU, of the sizes of Qwen3-30B-A3B: a token and a prompt of 512, at budgets.

    python benches/gpu/mixture.py FOLDER --layers 6 --out mixture.jsonl
    python benches/gpu/mixture.py FOLDER --layers 6 --out mixture.jsonl --zipf 1.5 --count 256

Exports by `ws.llm.export`, without tuning, unless the files are there; the GPU draws the weights, so that the router chooses about evenly.
With `--zipf S` the expert of rank r in a layer has S ln r less for each token than the first one, beside what the token itself brings:
`hit` is the share of a text's experts that were on the GPU.
At each budget a token is generated as the default is, where kernels read the experts of a token where they are, on the GPU or in host
memory, and with whole tensors streamed (`weight_offload_gather=off`). `sum_ms` is the time with everything resident and that of a token's
experts over the link, as if none were on the GPU. Milliseconds of tokens are from the end of one to the end of the next.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from language import peer_ms
from measure import GB, Results, back_to_back_ms, link

WORDS, CONTEXT, CHUNK = 151936, 2048, 512
HIDDEN, INSIDE, EXPERTS, CHOSEN = 2048, 768, 128, 8
#: The least budget without reading in place over the one with it: the table of words is streamed then.
WHOLE_LEAST = {"bf16": 1.3, "int4": 1.6}


def build(layers: int, zipf: float) -> Any:
    """A model of transformers in bf16, whose weights the GPU draws."""
    import transformers

    config = transformers.Qwen3MoeConfig(
        num_hidden_layers=layers,
        hidden_size=HIDDEN,
        moe_intermediate_size=INSIDE,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=WORDS,
        max_position_embeddings=8192,
        eos_token_id=None,
    )
    with torch.device("meta"):
        model = transformers.Qwen3MoeForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu").eval().requires_grad_(False)
    for name, buffer in model.named_buffers():
        if "inv_freq" in name:
            buffer.copy_(10000.0 ** -(torch.arange(0, 2 * len(buffer), 2) / (2 * len(buffer))))
    draw = torch.Generator("cuda").manual_seed(1)
    for weight in model.parameters():
        drawn = torch.randn(weight.shape, device="cuda", dtype=torch.bfloat16, generator=draw)
        weight.copy_(torch.ones_like(weight) if weight.dim() == 1 else drawn * weight.shape[-1] ** -0.5)
    if zipf:
        prefer_some(model, zipf)
    return model


def prefer_some(model: Any, zipf: float) -> None:
    """Column 0 of the states is the same for each token, and the router takes it for how much it prefers an expert."""
    words = model.model.embed_tokens.weight
    words.mul_(HIDDEN**0.5)[:, 0] = 4.0
    draw = torch.Generator().manual_seed(2)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.experts.down_proj[:, 0] = 0
        ranks = 1 + torch.randperm(EXPERTS, generator=draw)
        # The other columns make the states about twice as long.
        layer.mlp.gate.weight[:, 0] = -zipf * ranks.log() / 2


def export(kind: str, layers: int, zipf: float, folder: Path) -> Path:
    import weightstream as ws

    out = folder / f"mixture-{kind}-{layers}-{zipf}"
    if not (out / "model.pte").exists():
        begin = time.monotonic()
        ws.llm.export(
            build(layers, zipf), out, device="cuda", sm="90", quantize=None if kind == "bf16" else kind, context=CONTEXT, chunk=CHUNK
        )
        print(f"{kind}: exported in {time.monotonic() - begin:.0f} s", flush=True)
    return out


def record_bytes(kind: str) -> float:
    """Of one expert of one layer."""
    bits = {"bf16": 16, "int8": 8, "int4": 4.5}[kind]
    return 3 * HIDDEN * INSIDE * bits / 8


def milliseconds(llm: Any, prompt: list[int], count: int) -> tuple[float, list[int]]:
    """Of a token in the second half of a text, and the text."""
    tokens, times = [], []
    for token in llm.tokens(prompt, count):
        tokens.append(token)
        times.append(time.perf_counter())
    gaps = [1e3 * (b - a) for a, b in itertools.pairwise(times)]
    return statistics.mean(gaps[len(gaps) // 2 :]), tokens


def hits(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    hit, miss, moved = (after[name] - before[name] for name in ("row_hits", "row_misses", "rows_moved"))
    return {"hit": hit / max(hit + miss, 1), "moved": moved / max(hit + miss, 1)}


def measure(kind: str, out: Path, layers: int, results: Results, count: int) -> None:
    import weightstream as ws

    tokens = given(CONTEXT)
    # The second one shares nothing with the first, whose states would be kept.
    prompt, other = tokens[0, :CHUNK].tolist(), tokens[0, CHUNK : 2 * CHUNK].tolist()
    with ws.LLM(out, budget="100GB") as llm:
        resident, plain = milliseconds(llm, prompt, count)
        again_ms, other_plain = milliseconds(llm, other, count)
        prefill, long = prompts_ms(llm, tokens)
        total = llm.module.stats()["total_weight_bytes"]
    floor = ws.required_budget(out / "model.pte")
    speed = link([1 << 30] * 2, runs=3)["64_mib_median"]
    chosen = CHOSEN * layers * record_bytes(kind)
    facts = {"weights_gb": total / GB, "floor_gb": floor / GB, "experts_of_a_token_gb": chosen / GB, "link_gb_s": speed}
    results.write(kind=kind, resident_ms=resident, again_ms=again_ms, prefill_ms=prefill, prefill_2048_ms=long, **facts)
    for percent in (0, 25, 50, 75, 90):
        budget = max(floor, total * percent // 100)
        total_ms = resident + 1e3 * chosen / (speed * GB)
        with ws.LLM(out, budget=budget) as llm:
            prefill_ms, long = prompts_ms(llm, tokens)
            before = llm.module.stats()
            ms, text = milliseconds(llm, prompt, count)
            found_rows = hits(before, llm.module.stats())
            again_ms, again = milliseconds(llm, other, count)
            copied = llm.figures["bytes_per_token"]
        found = {
            "ms": ms,
            "sum_ms": total_ms,
            "over": ms / total_ms,
            "copied_gb": copied / GB,
            "prefill_ms": prefill_ms,
            "prefill_2048_ms": long,
            "same": text == plain,
            "again_same": again == other_plain,
            "again_ms": again_ms,
            **found_rows,
        }
        if percent in (25, 50):
            # The least budget of whole tensors is larger.
            more = max(budget, int(WHOLE_LEAST[kind] * floor))
            with ws.LLM(out, budget=more, weight_offload_gather="off") as llm:
                whole, text = milliseconds(llm, prompt, min(count, 12))
                found |= {"whole_ms": whole, "times_faster": whole / ms, "whole_same": text == plain[: len(text)], "whole_gb": more / GB}
        results.write(kind=kind, percent=percent, budget_gb=budget / GB, **found)


def prompts_ms(llm: Any, tokens: torch.Tensor) -> tuple[float, float]:
    """Of a prompt of one part, and of one that fills the context."""

    def read(parts: int) -> None:
        for at in range(parts):
            llm.module.execute("prefill", tokens[:, at * CHUNK : (at + 1) * CHUNK], torch.tensor([at * CHUNK]))

    one, all_of_them = (back_to_back_ms(lambda parts=parts: read(parts), 5, seconds=3) for parts in (1, CONTEXT // CHUNK))
    return one, all_of_them


def given(count: int = CHUNK) -> torch.Tensor:
    """A prompt [1, count]."""
    return torch.randint(0, WORDS, (1, count), generator=torch.Generator().manual_seed(1))


def peers(layers: int, zipf: float, out: Path | None, results: Results) -> None:
    """transformers, resident and with accelerate's device map, half of the layers on the GPU; and how far its logits after a prompt are from
    those of the program in bf16."""
    import accelerate
    import weightstream as ws

    model = build(layers, zipf)
    size = sum(weight.nbytes for weight in model.parameters())
    places = accelerate.infer_auto_device_map(model, {0: size // 2, "cpu": 10 * size}, no_split_module_classes=["Qwen3MoeDecoderLayer"])
    results.write(peer="accelerate, bf16, half of the layers", ms=peer_ms(accelerate.dispatch_model(model, places)))
    del model
    model = build(layers, zipf).cuda()
    results.write(peer="transformers, bf16, resident", ms=peer_ms(model))
    if out is None:
        return
    with torch.no_grad():
        theirs = model(given().cuda(), logits_to_keep=1).logits[0, -1].float().cpu()
    with ws.LLM(out, budget=ws.required_budget(out / "model.pte")) as llm:
        ours = llm.module.execute("prefill", given(), torch.tensor([0]))[0].flatten().float().cpu()
    results.write(
        compared="logits after a prompt",
        relative=((ours - theirs).norm() / theirs.norm()).item(),
        same=int(ours.argmax()) == int(theirs.argmax()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--zipf", type=float, default=0.0, metavar="S", help="how much the router prefers some experts")
    parser.add_argument("--kinds", nargs="+", default=["bf16", "int4"])
    parser.add_argument("--count", type=int, default=48, help="tokens of a text")
    parser.add_argument("--only-export", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("mixture.jsonl"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    outs = {kind: export(kind, args.layers, args.zipf, args.folder) for kind in args.kinds}
    if args.only_export:
        return
    results = Results(args.out, gpu=torch.cuda.get_device_name(), layers=args.layers, zipf=args.zipf)
    for kind, out in outs.items():
        measure(kind, out, args.layers, results, args.count)
    if args.peers:
        peers(args.layers, args.zipf, outs.get("bf16"), results)


if __name__ == "__main__":
    main()
