#!/usr/bin/env python3
"""Passes that only wait for the GPU, and passes that go through what comes next while they wait (weightstream/_meanwhile.py), in turn.

On files that `compare.py --only exports` has exported. Prints one line of JSON per number of tokens and budget: the medians in milliseconds,
and their ratio.

    python benches/gpu/waits.py --keep /tmp/models --tokens 1 512 --percent 50 75 90
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from llama import tokens


def times_of(module, given, passes: int) -> list[float]:
    """Milliseconds from the end of a pass to the end of the next."""
    times = []
    for _ in range(2):
        module.forward(given)
    last = time.perf_counter()
    for _ in range(passes):
        module.forward(given)
        end = time.perf_counter()
        times.append((end - last) * 1e3)
        last = end
    return times


def main() -> None:
    import weightstream as ws
    from weightstream._meanwhile import Callback

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, help="where compare.py keeps its models")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1])
    parser.add_argument("--percent", type=int, nargs="+", default=[50, 75, 90])
    parser.add_argument("--passes", type=int, default=25, help="of one kind in a row")
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    for count in args.tokens:
        folder = args.keep / f"{args.layers}-layers-{count}-tokens"
        files, given = (str(folder / "offload.pte"), str(folder / "offload.ptd")), tokens(count)
        with ws.Module(*files) as module:
            whole = module.stats()["total_weight_bytes"] + module.stats()["direct_bytes"]
        for percent in args.percent:
            with ws.Module(*files, weight_offload_budget_bytes=str(whole * percent // 100)) as module:
                ways = {"plain": Callback(), "meanwhile": module._meanwhile.callback}
                times_of(module, given, 4)
                times: dict[str, list[float]] = {name: [] for name in ways}
                for number in range(args.rounds):
                    for name in list(ways)[:: 1 if number % 2 else -1]:
                        module._meanwhile.callback = ways[name]
                        times[name] += times_of(module, given, args.passes)
            ms = {name: statistics.median(column) for name, column in times.items()}
            print(json.dumps({"tokens": count, "percent": percent, **ms, "ratio": ms["meanwhile"] / ms["plain"]}), flush=True)


if __name__ == "__main__":
    main()
