#!/usr/bin/env python3
"""Where the time of a pass goes that is not that of its bytes: the copies of some passes, as the GPU's own clock saw them.

Loads the model that `compare.py --only exports` has exported, at each budget, runs passes under the profiler and prints, for each, one
line of JSON: how many copies a pass makes, how long they take, and how long the copy engine stands still between two of them: within a
pass (median, and what is above twice that, by copy), and at its end. The profiler itself adds about a microsecond to each copy: compare within one run only.

    python benches/gpu/gaps.py --keep /tmp/models --tokens 1 --percent 50 75 90
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path

import torch
from llama import tokens
from measure import median_ms
from torch.profiler import ProfilerActivity, profile

PASSES = 6


def copies_of(run) -> list[tuple[int, int]]:
    """Start and end of each large copy to the device, in nanoseconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(PASSES):
            run()
        torch.cuda.synchronize()
    events = prof.profiler.kineto_results.events()
    found = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if "HtoD" in e.name() and e.duration_ns() > 20_000]
    return sorted(found)


def shown(found: list[tuple[int, int]], each: int) -> dict[str, object]:
    """`each`: copies of a pass. The first and the last pass are left out."""
    found = found[each : each * (PASSES - 1)]
    gaps = [(after[0] - before[1]) / 1e3 for before, after in itertools.pairwise(found)]
    usual = statistics.median(gaps)
    by_place = [statistics.median(gaps[at::each]) for at in range(each)]
    late = {at: round(gap, 1) for at, gap in enumerate(by_place) if gap > 2 * usual + 2}
    copying = sum(end - begin for begin, end in found) / 1e3 / (PASSES - 2)
    return {
        "copies": each,
        "copying_us": round(copying),
        "still_us": round(sum(by_place)),
        "gap_us": round(usual, 2),
        "late_gaps_us": late,
        "shortest_and_longest_copy_us": [round(f((b - a) / 1e3 for a, b in found)) for f in (min, max)],
    }


def main() -> None:
    import weightstream as ws

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, help="where compare.py keeps its models")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--percent", type=int, nargs="+", default=[25, 50, 75, 90])
    args = parser.parse_args()
    folder = args.keep / f"{args.layers}-layers-{args.tokens}-tokens"
    files, given = (str(folder / "offload.pte"), str(folder / "offload.ptd")), tokens(args.tokens)
    with ws.Module(*files) as module:
        whole = module.stats()["total_weight_bytes"] + module.stats()["direct_bytes"]
    for percent in args.percent:
        with ws.Module(*files, weight_offload_budget_bytes=str(whole * percent // 100)) as module:
            ms = median_ms(lambda m=module: m.forward(given), 20)
            found = copies_of(lambda m=module: m.forward(given))
            copied = module.stats()["bytes_copied_last_pass"]
        row = {"percent": percent, "ms": round(ms, 3), "copied": copied, **shown(found, len(found) // PASSES)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
