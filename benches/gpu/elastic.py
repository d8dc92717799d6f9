#!/usr/bin/env python3
"""Budgets that change on a loaded model: bits, the first pass after each change, steady passes against a fresh load, and what it costs.

    python benches/gpu/elastic.py FOLDER --layers 8

Exports a Llama of `llama.py` into FOLDER, without tuning, unless it is there. Then the budget goes through 100, 30, 75, 10 and 90 % of the
weights, with and without a CUDA graph. Printed for each: milliseconds of the change, of the first pass and of a steady pass, the ratio of
that to a fresh load at the same budget, and on a GPU the bytes that the driver got back. The status is 1 if a bit differs.
`--device cpu` is a dry run without graphs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import llama
import torch

PERCENT = (100, 30, 75, 10, 90, 100)
STEADY = 12


def tokens(count: int) -> torch.Tensor:
    return llama.tokens(count, llama.SMALL["vocabulary"])


def export(model: torch.nn.Module, files: list[Path], device: str, sm: str) -> None:
    import weightstream as ws

    begin = time.monotonic()
    target: dict[str, Any] = {"device": device, "attention": "math", "sm": sm} if device == "cuda" else {}
    ws.export(model, (tokens(1),), *files, **target)
    print(f"exported in {time.monotonic() - begin:.0f} s", flush=True)


def timed(action: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = action()
    return found, 1e3 * (time.perf_counter() - begin)


def steady(module: Any, given: torch.Tensor) -> float:
    """Median milliseconds of a pass."""
    for _ in range(4):
        module.forward(given)
    return statistics.median(timed(lambda: module.forward(given))[1] for _ in range(STEADY))


def in_turns(modules: list[Any], given: torch.Tensor) -> list[float]:
    """Median milliseconds of a pass of each, one after the other."""
    for module in modules:
        steady(module, given)
    times: list[list[float]] = [[] for _ in modules]
    for _ in range(2 * STEADY):
        for module, found in zip(modules, times, strict=True):
            module.forward(given)
            found.append(timed(lambda module=module: module.forward(given))[1])
    return [statistics.median(found) for found in times]


def last_pass(module: Any) -> float:
    """Megabytes that it copied."""
    return module.stats()["bytes_copied_last_pass"] / 2**20


def free_bytes(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device == "cuda" else 0


def play(files: list[str], floor: int, whole: int, options: dict[str, Any], device: str) -> bool:
    """All changes on one module. Whether every bit was right."""
    import weightstream as ws

    given = tokens(1)
    budgets = [max(floor, whole * percent // 100) for percent in PERCENT]
    with ws.Module(*files, weight_offload_budget_bytes=2 * whole, **options) as module:
        expected = module.forward(given).clone()
        steady(module, given)
        good = True
        for percent, budget in zip(PERCENT, budgets, strict=True):
            before, copied = free_bytes(device), module.stats()["bytes_copied"]
            _, change = timed(lambda budget=budget: module.set_budget(budget))
            freed, copied = free_bytes(device) - before, module.stats()["bytes_copied"] - copied
            output, first = timed(lambda: module.forward(given).clone())
            right = torch.equal(output, expected)
            with ws.Module(*files, weight_offload_budget_bytes=budget, **options) as other:
                now, fresh = in_turns([module, other], given)
                right = right and torch.equal(module.forward(given), expected)
                copies = f"{last_pass(module):.1f} and {last_pass(other):.1f} MB"
            good = good and right
            print(
                f"{percent:4} %: change {change:8.1f} ms, {copied / 2**20:8.1f} MB copied, driver freed {freed / 2**20:8.1f} MB; first pass "
                f"{first:8.2f} ms; steady {now:8.2f} ms, ratio to a fresh load {now / fresh:.3f}, copied {copies}; "
                f"{'right' if right else 'WRONG'}",
                flush=True,
            )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8, help="of 33 MB each (default 8)")
    parser.add_argument("--large", action="store_true", help="layers of 0.4 GB")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sm", default="90", help="compute capability of this GPU (default 90)")
    args = parser.parse_args()
    import weightstream as ws

    args.folder.mkdir(parents=True, exist_ok=True)
    files = [args.folder / f"elastic-{args.device}-{args.layers}.{end}" for end in ("pte", "ptd")]
    if not files[0].exists():
        sizes = {} if args.large else llama.SMALL
        export(llama.build_on_cpu(args.layers, **sizes), files, args.device, args.sm)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {args.layers} layers", flush=True)
    floor, whole, paths = ws.required_budget(files[0]), files[1].stat().st_size, [str(path) for path in files]
    good = play(paths, floor, whole, {}, args.device)
    if args.device == "cuda":
        print("by graph", flush=True)
        good = play(paths, floor, whole, {"weight_offload_cuda_graph": True}, args.device) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
