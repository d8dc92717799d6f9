#!/usr/bin/env python3
"""A decoder of transformers with a head of 152,000 words, offloaded: what cutting the head does to the least budget, and to a token.

    python benches/gpu/eager_head.py --out eager_head.jsonl

Each line: the head tied to the table or not, and cut or whole; the least budget, and the time of a pass of one token there and with
everything resident. All logits are compared with those at the other budgets, and the likeliest words with those of the whole head.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from language import build
from measure import Results, back_to_back_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("eager_head.jsonl"))
    args = parser.parse_args()
    results = Results(args.out, gpu=torch.cuda.get_device_name(), layers=args.layers)
    for tied in (False, True):
        model = build("8b", args.layers)
        if tied:
            model.config.get_text_config().tie_word_embeddings = True
            model.lm_head.weight = model.model.embed_tokens.weight
        words = {cut: measure(model, tied, cut, results) for cut in (True, False)}
        results.write(tied=tied, same_words=words[True] == words[False])


def measure(model: torch.nn.Module, tied: bool, cut: bool, results: Results) -> list[int]:
    """The likeliest words."""
    import weightstream as ws
    from weightstream._native import rows

    large, huge = rows._LARGE, rows._HUGE
    if not cut:
        rows._LARGE = rows._HUGE = 1 << 60
    tokens = torch.randint(0, 100000, (1, 32), generator=torch.Generator().manual_seed(1)).cuda()
    found, logits = {}, []
    try:
        for budget in (None, 100 << 30):
            with torch.inference_mode(), ws.torch.offload(model, budget=budget) as handle:
                for _ in range(3):
                    logits.append(model(tokens, use_cache=False).logits.cpu())
                name = "least" if budget is None else "resident"
                found[f"{name}_ms"] = back_to_back_ms(lambda: model(tokens[:, :1], use_cache=False).logits[0, -1].argmax().item(), 20)
                found[f"{name}_peak_bytes"] = handle.stats()["peak_bytes"]
    finally:
        rows._LARGE, rows._HUGE = large, huge
    results.write(tied=tied, cut=cut, same_bits=all(torch.equal(one, logits[0]) for one in logits), **found)
    return logits[0].argmax(-1).flatten().tolist()


if __name__ == "__main__":
    main()
