#!/usr/bin/env python3
"""A decoder with weights of 16, 8 and 4 bits on a GPU: a token at budgets, over the limit of the stored bytes; a prompt of 512 tokens.

    python benches/gpu/quantized.py FOLDER --layers 12 --out quantized.jsonl

Exports the Llama of `llama.py` as it is, with `quantize="int8"` and with `quantize="int4"`, for one token and for 512, without tuning, unless
the files are there. The limit is the longer of the time with everything resident and what exceeds the budget over the link's speed; the
table of tokens is read in place, and does not count. Resident tokens run by a graph. Milliseconds are medians, from the end of a pass to the end of the next.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import llama
import torch
from measure import GB, Results, back_to_back_ms, link


def export(kind: str, tokens: int, files: tuple[str, str], layers: int, sm: str) -> None:
    import weightstream as ws

    if Path(files[0]).exists():
        return
    begin = time.monotonic()
    how = {} if kind == "bf16" else {"quantize": kind}
    ws.export(llama.build_on_cpu(layers), (llama.tokens(tokens),), *files, device="cuda", sm=sm, **how)
    print(f"{kind}, {tokens} tokens: exported in {time.monotonic() - begin:.0f} s", flush=True)


def measure(files: tuple[str, str], given: torch.Tensor, options: dict) -> tuple[float, dict]:
    import weightstream as ws

    with ws.Module(*files, **options) as module:
        for _ in range(4):
            module.forward(given)
        before = module.stats()
        passes = 30
        time_ms = back_to_back_ms(lambda: module.forward(given), passes, warm_up=0)
        after = module.stats()
    copied = (after["bytes_copied"] - before["bytes_copied"]) / max(after["passes"] - before["passes"], 1)
    return time_ms, {"copied_gb": copied / GB, "total": after["total_weight_bytes"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--kinds", nargs="+", default=["bf16", "int8", "int4"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 512])
    parser.add_argument("--sm", default="90")
    parser.add_argument("--only-export", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("quantized.jsonl"))
    args = parser.parse_args()
    import weightstream as ws

    args.folder.mkdir(parents=True, exist_ok=True)
    for tokens in args.tokens:
        for kind in args.kinds:
            files = tuple(str(args.folder / f"{kind}-{args.layers}-{tokens}.{end}") for end in ("pte", "ptd"))
            export(kind, tokens, files, args.layers, args.sm)
            if args.only_export:
                continue
            results = Results(args.out, gpu=torch.cuda.get_device_name(), kind=kind, tokens=tokens)
            given, speed = llama.tokens(tokens), link([1 << 30] * 2, runs=3)["64_mib_median"]
            floor = ws.required_budget(files[0])
            table = 2 * llama.VOCABULARY * 4096
            graph = {"weight_offload_cuda_graph": True} if tokens == 1 else {}
            resident, found = measure(files, given, {"weight_offload_budget_mb": 1 << 16, **graph})
            total = found["total"]
            results.write(weights_gb=total / GB, floor_gb=floor / GB, resident_ms=resident, link_gb_s=speed)
            for percent in (25, 50, 75):
                budget = max(floor, total * percent // 100)
                time_ms, found = measure(files, given, {"weight_offload_budget_bytes": budget})
                limit = max(resident, 1e3 * (total - table - budget) / (speed * GB))
                results.write(percent=percent, ms=time_ms, limit_ms=limit, over=time_ms / limit, copied_gb=found["copied_gb"])


if __name__ == "__main__":
    main()
