#!/usr/bin/env python3
"""What tuning buys: the measured Llama with kernels that were tuned on this GPU and with kernels that were not, timed in turn.

    python benches/gpu/tuned.py FOLDER --tokens 1 512 --layers 2

Prints the time of a pass with everything resident and at half of the weights, tuned and untuned, and their ratio beside its bar. The
status is 1 if a ratio is above its bar or if outputs differ. Each export is a process of its own; tuned ones run one at a time, since they
measure. What FOLDER holds already is not exported again.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama
import torch

KINDS = ("tuned", "untuned")
#: The most that untuned over tuned may be.
BARS = {"resident": 1.2, "half": 1.02}
#: The largest difference of outputs, relative to the largest output: both are rounded to bf16 all along.
TOLERANCE = 0.1
WARM, PASSES = 5, 30
#: Small tables: what counts is the layers.
llama.VOCABULARY = 512


def files_of(args: Any, kind: str, count: int) -> list[Path]:
    return [args.folder / f"{kind}-{args.layers}-layers-{count}-tokens.{end}" for end in ("pte", "ptd")]


def tokens(count: int) -> torch.Tensor:
    return torch.arange(count).view(1, count) % llama.VOCABULARY


def export(args: Any, kind: str, count: int) -> None:
    import weightstream as ws

    files = files_of(args, kind, count)
    parts = [path.with_name(f"part-{path.name}") for path in files]
    named = {"sm": args.sm} if kind == "untuned" else {}
    begin = time.monotonic()
    ws.export(llama.build_on_cpu(args.layers), tokens(count), *parts, device="cuda", attention="math", **named)
    # The program last: it says that both are there.
    for part, path in reversed(list(zip(parts, files))):
        part.replace(path)
    print(f"{kind}, {count} tokens: exported in {time.monotonic() - begin:.0f} s", flush=True)


def export_all(args: Any) -> bool:
    """Whether all programs are there."""

    def in_turn(kind: str) -> bool:
        done = []
        for count in args.tokens:
            if not files_of(args, kind, count)[0].exists():
                given = ["--layers", str(args.layers), "--sm", args.sm, "--tokens", str(count), "--only", kind]
                done.append(subprocess.run([sys.executable, __file__, str(args.folder), *given], check=False).returncode)
        return not any(done)

    with ThreadPoolExecutor(len(KINDS)) as pool:
        return all(list(pool.map(in_turn, KINDS)))


def measure(args: Any, count: int) -> bool:
    """Whether the ratios are within their bars, and the outputs alike."""
    import weightstream as ws

    files = {kind: files_of(args, kind, count) for kind in KINDS}
    whole = files["tuned"][1].stat().st_size
    good = True
    for name, budget in {"resident": 2 * whole, "half": whole // 2}.items():
        modules = {kind: ws.Module(*map(str, files[kind]), weight_offload_budget_bytes=budget) for kind in KINDS}
        outputs = {kind: module.forward(tokens(count)).float() for kind, module in modules.items()}
        off = float((outputs["tuned"] - outputs["untuned"]).abs().max() / outputs["tuned"].abs().max())
        tuned, untuned = medians(modules, count)
        ratio = untuned / tuned
        good &= ratio <= BARS[name] and off <= TOLERANCE
        print(
            f"{count} tokens, {name}: tuned {tuned:.0f} us, untuned {untuned:.0f} us, ratio {ratio:.3f} (bar {BARS[name]}); "
            f"outputs differ by {off:.1e} of the largest (at most {TOLERANCE})",
            flush=True,
        )
        for module in modules.values():
            module.close()
    return good


def medians(modules: dict[str, Any], count: int) -> list[float]:
    """Microseconds of a pass, by kind; passes of both take turns."""
    given, times = tokens(count), {kind: [] for kind in KINDS}
    for at in range(WARM + PASSES):
        for kind, module in modules.items():
            begin = time.perf_counter()
            module.forward(given)
            if at >= WARM:
                times[kind].append(time.perf_counter() - begin)
    return [1e6 * statistics.median(times[kind]) for kind in KINDS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--layers", type=int, default=16, help="of 405 MB each (default: all 16)")
    parser.add_argument("--sm", default="90", help="compute capability of this GPU (default: 90)")
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.only:
        export(args, args.only, args.tokens[0])
        return 0
    if not export_all(args):
        print("tuned.py: an export failed, nothing was measured", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.layers} layers", flush=True)
    good = [measure(args, count) for count in args.tokens]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
