#!/usr/bin/env python3
"""Prompts of 30 lengths by graphs in pieces (`python/examples/prefill_graphs.py`): memory, and replays beside eager code.

    python benches/gpu/prefill.py --out prefill.jsonl

A Llama of `--layers` layers of 8B sizes in bf16. Each length is captured; the pool's memory is that of all lengths over that of the longest
alone. A replay of each length and of a few tokens less has the bits of eager code over the same padded tokens. Milliseconds are medians
of passes that take turns. The status is 1 if bits differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from measure import MIB, Results, timed_ms

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "examples"))


def build(layers: int, small: bool) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = (512, 1024, 4) if small else (4096, 14336, 32)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=sizes[0], intermediate_size=sizes[1], num_hidden_layers=layers, num_attention_heads=sizes[2],
        num_key_value_heads=sizes[2] // 4, max_position_embeddings=4096
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--lengths", type=int, default=30)
    parser.add_argument("--step", type=int, default=64, help="tokens from one length to the next")
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("prefill.jsonl"))
    args = parser.parse_args()
    from prefill_graphs import Prefill

    model = build(args.layers, args.small)
    lengths = [args.step * at for at in range(1, args.lengths + 1)]
    alone = Prefill(model, lengths[-1:])
    longest = alone.graphs.report()["bytes"]
    alone.close()
    begin = time.perf_counter()
    prefill = Prefill(model, lengths)
    seconds = time.perf_counter() - begin
    report = prefill.graphs.report()
    results = Results(args.out, gpu=torch.cuda.get_device_name(), layers=args.layers)
    results.write(
        graphs=sum(map(len, prefill.pieces.values())), capture_seconds=seconds, pool_mib=report["bytes"] / MIB, longest_mib=longest / MIB,
        given_mib=sum(one["bytes"] for one in report["captures"]) / MIB, over_longest=report["bytes"] / longest
    )  # fmt: skip
    wrong = 0
    for length in lengths:
        times: dict[str, list[float]] = {"replay": [], "eager": []}
        for tokens in (length, length - 7):
            prompt = torch.randint(1, 4096, (1, tokens), device="cuda")
            expected, wanted = prefill.eager(prompt).clone(), prefill.cache()
            logits, cache = prefill(prompt), prefill.cache()
            wrong += not torch.equal(logits, expected)
            wrong += any(not torch.equal(a.keys, b.keys) or not torch.equal(a.values, b.values) for a, b in zip(cache.layers, wanted.layers, strict=True))  # fmt: skip
        for _ in range(args.passes):
            for name, step in (("replay", prefill), ("eager", prefill.eager)):
                times[name].append(timed_ms(lambda step=step, prompt=prompt: step(prompt)))
        medians = {f"{name}_ms": statistics.median(each) for name, each in times.items()}
        results.write(length=length, **medians, ratio=medians["replay_ms"] / medians["eager_ms"], wrong=wrong)
    del logits
    prefill.close()
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
