#!/usr/bin/env python3
"""What tuning buys: layers of a Llama exported with kernels that were tuned on this GPU and with kernels that were not, timed in turn.

    python benches/gpu/tuned.py FOLDER --tokens 1 512 --layers 1 --sm 90

Prints, for each number of tokens, the time of a pass with everything resident and at half of the weights, tuned and untuned, and the ratio.
All exports run at the same time, each in a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

KINDS = ("tuned", "untuned")
PASSES = 30


def export(folder: Path, kind: str, count: int, layers: int, sm: str) -> None:
    import llama
    import weightstream as ws

    llama.VOCABULARY = 512
    torch.manual_seed(0)
    model = llama.Llama(layers, 4096, 32, 11008).bfloat16().eval().requires_grad_(False)
    named = {} if kind == "tuned" else {"sm": sm}
    begin = time.monotonic()
    tokens = torch.zeros(1, count, dtype=torch.int64)
    ws.export(model, tokens, folder / f"{kind}{count}.pte", folder / f"{kind}{count}.ptd", device="cuda", attention="math", **named)
    print(f"{kind}, {count} tokens: exported in {time.monotonic() - begin:.0f} s", flush=True)


def measure(folder: Path, count: int) -> None:
    import weightstream as ws

    files = {kind: [str(folder / f"{kind}{count}.{end}") for end in ("pte", "ptd")] for kind in KINDS}
    missing = [kind for kind in KINDS if not Path(files[kind][1]).exists()]
    if missing:
        print(f"{count} tokens: not exported: {', '.join(missing)}", flush=True)
        return
    tokens = torch.zeros(1, count, dtype=torch.int64)
    whole = Path(files["tuned"][1]).stat().st_size
    for name, budget in {"resident": 2 * whole, "half": whole // 2}.items():
        modules = {kind: ws.Module(*files[kind], weight_offload_budget_bytes=budget) for kind in KINDS}
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for at in range(PASSES + 5):
            for kind, module in modules.items():
                begin = time.perf_counter()
                module.forward(tokens)
                if at >= 5:
                    times[kind].append(time.perf_counter() - begin)
        tuned, untuned = (1e6 * statistics.median(times[kind]) for kind in KINDS)
        print(f"{count} tokens, {name}: tuned {tuned:.0f} us, untuned {untuned:.0f} us, ratio {untuned / tuned:.3f}", flush=True)
        for module in modules.values():
            module.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--sm", default="90")
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    args: Any = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.only:
        export(args.folder, args.only, args.tokens[0], args.layers, args.sm)
        return 0
    command = [sys.executable, __file__, str(args.folder), "--layers", str(args.layers), "--sm", args.sm]
    exports = [subprocess.Popen([*command, "--tokens", str(count), "--only", kind]) for count in args.tokens for kind in KINDS]
    for process in exports:
        process.wait()
    for count in args.tokens:
        measure(args.folder, count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
