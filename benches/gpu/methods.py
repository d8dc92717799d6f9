#!/usr/bin/env python3
"""Two methods over one copy of the weights, on a GPU: right in any order, what a switch copies, and a graph of `decode` beside `prefill`.

    python benches/gpu/methods.py FOLDER --layers 4

Exports a Llama of `llama.py` as `prefill` (2 to 64 tokens) and `decode` (one token) into FOLDER, without tuning, unless it is there. Then
for budgets between the floor and everything: outputs against eager PyTorch, bytes of a steady pass and of the pass after a switch,
and milliseconds of a decode pass with and without a graph, with a prefill pass after every ten. The status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import llama
import torch

#: The largest difference of outputs, relative to the largest output: both are rounded to bf16 all along.
TOLERANCE = 0.05
LONGEST, TURNS, DECODES = 64, 6, 10


def tokens(count: int) -> torch.Tensor:
    return llama.tokens(count, llama.SMALL["vocabulary"])


def export(model: torch.nn.Module, files: list[Path], sm: str) -> None:
    import weightstream as ws

    length = torch.export.Dim("length", min=2, max=LONGEST)
    begin = time.monotonic()
    ws.export(
        {"prefill": model, "decode": model},
        {"prefill": (tokens(LONGEST),), "decode": (tokens(1),)},
        *files,
        dynamic_shapes={"prefill": {"tokens": {1: length}}},
        device="cuda",
        attention="math",
        sm=sm,
    )
    print(f"exported in {time.monotonic() - begin:.0f} s", flush=True)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


def copied(module, method: str, given: torch.Tensor) -> int:
    before = module.stats()["bytes_copied"]
    module.execute(method, given)
    return module.stats()["bytes_copied"] - before


def check(files: list[str], budget: int, expected: dict[str, torch.Tensor]) -> bool:
    """Outputs and bytes at one budget."""
    import weightstream as ws

    given = {"prefill": tokens(LONGEST), "decode": tokens(1)}
    with ws.Module(*files, weight_offload_budget_bytes=budget) as module:
        worst = 0.0
        for number in range(20):
            method = ("prefill", "decode", "decode")[number % 3]
            worst = max(worst, off(module.execute(method, given[method]), expected[method]))
        steady = [copied(module, "decode", given["decode"]) for _ in range(3)][-1]
        switched = []
        for _ in range(TURNS):
            copied(module, "prefill", given["prefill"])
            switched.append(copied(module, "decode", given["decode"]))
            copied(module, "decode", given["decode"])
        stats = module.stats()
    good = worst <= TOLERANCE and stats["peak_bytes"] <= budget
    print(
        f"{budget / 2**20:.1f} MB: off by {worst:.1e}; decode copies {steady}, after prefill {max(switched)}; peak {stats['peak_bytes']}; "
        f"{'right' if good else 'WRONG'}",
        flush=True,
    )
    return good


def graph(files: list[str], budget: int, expected: dict[str, torch.Tensor]) -> bool:
    """Milliseconds of a decode pass beside prefill passes, with a graph and without."""
    import weightstream as ws

    given, found, worst = {"prefill": tokens(LONGEST), "decode": tokens(1)}, {}, 0.0
    for on in (False, True):
        with ws.Module(*files, weight_offload_budget_bytes=budget, weight_offload_cuda_graph=on) as module:
            times, first = [], []
            for _ in range(TURNS):
                module.prefill(given["prefill"])
                for at in range(DECODES):
                    begin = time.perf_counter()
                    output = module.decode(given["decode"])
                    (times if at else first).append(time.perf_counter() - begin)
                    worst = max(worst, off(output, expected["decode"]))
            found[on] = 1e3 * statistics.median(times), 1e3 * statistics.median(first)
    good = worst <= TOLERANCE
    print(
        f"{budget / 2**20:.1f} MB, a prefill and {DECODES} decodes: decode {found[False][0]:.3f} ms, by graph {found[True][0]:.3f} ms, ratio "
        f"{found[True][0] / found[False][0]:.3f}; the first after a prefill {found[False][1]:.3f} and {found[True][1]:.3f} ms; "
        f"{'right' if good else 'WRONG'}",
        flush=True,
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4, help="of 33 MB each (default 4)")
    parser.add_argument("--sm", default="90", help="compute capability of this GPU (default 90)")
    args = parser.parse_args()
    import weightstream as ws

    args.folder.mkdir(parents=True, exist_ok=True)
    files = [args.folder / f"methods-{args.layers}-layers.{end}" for end in ("pte", "ptd")]
    model = llama.build_on_cpu(args.layers, **llama.SMALL)
    if not files[0].exists():
        export(model, files, args.sm)
    eager = model.to("cuda")
    with torch.no_grad():
        expected = {name: eager(tokens(count).cuda()).cpu() for name, count in (("prefill", LONGEST), ("decode", 1))}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.layers} layers", flush=True)
    floor, whole, paths = ws.required_budget(files[0]), files[1].stat().st_size, [str(path) for path in files]
    budgets = [floor, max(floor, whole // 2), max(floor, whole * 3 // 4), 2 * whole]
    good = [check(paths, budget, expected) for budget in budgets]
    good += [graph(paths, budget, expected) for budget in budgets[1:]]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
