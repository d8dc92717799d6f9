#!/usr/bin/env python3
"""Passes with and without `weight_offload_cuda_graph`, at each budget, interleaved, and both against the non-offloaded baseline's.

On files that `compare.py --only exports` has exported. Both modules of a pair are loaded at the same time, so that twice the budget
has to fit. Prints a Markdown table of ratios (medians), and with `--out` the figures, one JSON object per line.

    python benches/gpu/graphs.py --keep /tmp/models --tokens 1 --out graphs.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from pathlib import Path

import torch
from llama import tokens
from measure import Results, timed_ms


def interleaved(modules, given, passes: int) -> list[float]:
    """Median of each module's passes, in milliseconds; each goes first in turn."""
    times: list[list[float]] = [[] for _ in modules]
    for module in modules:
        for _ in range(4):
            module.forward(given)
    order = list(range(len(modules)))
    for _ in range(passes):
        for at in order:
            times[at].append(timed_ms(lambda m=modules[at]: m.forward(given)))
        order = order[1:] + order[:1]
    return [statistics.median(column) for column in times]


def main() -> None:
    import weightstream as ws

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, help="folder of the models that compare.py exported")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--budgets", nargs="+", default=["100", "90", "75", "50", "25"], help="percent of the weights")
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("graphs.jsonl"))
    args = parser.parse_args()
    folder = args.keep / f"{args.layers}-layers-{args.tokens}-tokens"
    results, given = Results(args.out, tokens=args.tokens, layers=args.layers), tokens(args.tokens)

    def load(kind: str, graph: int, **specs):
        return ws.Module(str(folder / f"{kind}.pte"), str(folder / f"{kind}.ptd"), weight_offload_cuda_graph=graph, **specs)

    with load("offload", 0) as module:
        stats = module.stats()
    # What is read in place is no part of a percentage, as in compare.py; where all is resident it is there, too.
    whole = stats["total_weight_bytes"] + stats["direct_bytes"]
    everything = whole + stats["gathered_bytes"] + (16 << 20)
    print("| budget | with graph / without | without, ms | with graph, ms |\n|---|---|---|---|", flush=True)
    baselines = None
    for percent in args.budgets:
        with contextlib.ExitStack() as stack:
            budget = str(everything if percent == "100" else whole * int(percent) // 100)
            both = [stack.enter_context(load("offload", graph, weight_offload_budget_bytes=budget)) for graph in (0, 1)]
            if percent == "100" and (folder / "baseline.pte").exists():
                both += [stack.enter_context(load("baseline", graph)) for graph in (0, 1)]
            found = [module.forward(given).clone() for module in both for _ in range(4)]
            same = all(torch.equal(one.view(torch.int16), found[0].view(torch.int16)) for one in found[:8])
            plain, graph, *baselines = interleaved(both, given, args.passes)
            results.write(budget=percent, plain_ms=plain, graph_ms=graph, ratio=graph / plain, same_bits=same)
            print(f"| {percent} % | {graph / plain:.3f} | {plain:.3f} | {graph:.3f} |", flush=True)
            if baselines:
                results.write(baseline_ms=baselines[0], baseline_graph_ms=baselines[1], resident_graph_ratio=graph / baselines[1])
                print(
                    f"\nEverything resident with a graph / the baseline with a graph: {graph / baselines[1]:.3f}; "
                    f"without graphs: {plain / baselines[0]:.3f}; the baseline's graph / without: {baselines[1] / baselines[0]:.3f}\n",
                    flush=True,
                )


if __name__ == "__main__":
    main()
