#!/usr/bin/env python3
"""A graph for every shape, on a GPU: bits, how many calls are replays, what a switch between shapes costs, and memory.

    python benches/gpu/shapes.py FOLDER --layers 4

Runs `prefill` of the program that `methods.py` exports into FOLDER, with 2 to 64 tokens. Printed for each budget: calls and replays over
all shapes in random order, milliseconds of a replay of one shape over and over and of replays that switch, both for the same shapes, over
a pass without a graph; the counted bytes of graphs, and what the driver says is gone since before the first capture. Before that all shapes are
captured at load: seconds of the load over one without, and the same figures of memory. And before all this, in a process of its own for each
budget, a table of the driver's free memory after each step, with the counters beside it. The status is 1 if a bit differs, if less than
99 % of the calls after each shape's first two are replays, if a first call over a shape that was captured at load is none, or if
`graph_bytes` or `graph_block_bytes` are further than 2 MiB from the driver's figure.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import methods
import torch

CALLS, TIMED = 1000, 12
LENGTHS = range(2, methods.LONGEST + 1)
MIB = 2**20
#: The driver takes memory in such steps.
STEP = 2 * MIB
COUNTERS = ("graphs", "graph_bytes", "graph_block_bytes", "activation_peak_bytes")


class Log:
    """Free memory around each growth of the block and each graph, from debug lines of the library."""

    def __init__(self) -> None:
        from weightstream._native.bindings import library

        self.lines: list[str] = []
        # Kept, since the library calls it.
        self._sink = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)(lambda _, text: self.lines.append(text.decode()))
        library().ws_set_log(self._sink)

    def around(self, begin: str) -> list[tuple[int, int]]:
        found = (re.search(r"free memory (\d+), then (\d+) bytes", line) for line in self.lines if line.startswith(begin))
        return [(int(match[1]), int(match[2])) for match in found if match]


def steps(files: list[str], budget: int) -> bool:
    """Memory by the driver and by the counters, step by step. Nothing was captured in this process before: the driver keeps what graphs had."""
    import weightstream as ws

    log, rows = Log(), [("the context is there", torch.cuda.mem_get_info()[0], {})]
    given = {length: methods.tokens(length) for length in LENGTHS}
    with ws.Module(*files, weight_offload_budget_bytes=budget, weight_offload_cuda_graph=True) as module:

        def step(name: str, lengths: Iterable[int] = ()) -> None:
            for length in lengths:
                module.prefill(given[length])
            rows.append((name, torch.cuda.mem_get_info()[0], dict(module.stats())))

        step("loaded")
        step("a pass over each shape by calls: kernels loaded", LENGTHS)
        step("first graph", [max(LENGTHS)])
        (trimmed, backed), *_ = log.around("the block of activations")
        (before, _), *_ = log.around("a graph of")
        rows[-1:-1] = [("memory of activations given back", trimmed, {}), ("block backed", backed, {})]
        step("all graphs", reversed(LENGTHS))
        step("all replayed", LENGTHS)
        _, end, stats = rows[-1]
    rows.append(("closed", torch.cuda.mem_get_info()[0], {}))
    print(f"\n{budget / MIB:.0f} MB, MiB:\n| step | free | gone | {' | '.join(COUNTERS)} |\n|{'---|' * (3 + len(COUNTERS))}")
    for (_, last, _), (name, free, counted) in zip(rows[:1] + rows, rows, strict=False):
        figures = [(f"{counted[key] / MIB:.1f}" if key.endswith("bytes") else str(counted[key])) if counted else "" for key in COUNTERS]
        print(f"| {name} | {free / MIB:.1f} | {(last - free) / MIB:.1f} | {' | '.join(figures)} |")
    growths = [one - other for one, other in log.around("the block of activations")]
    seen = sum(one - other for one, other in log.around("a graph of"))
    driver, block = before - end - sum(growths[1:]), sum(growths)
    off = [abs(driver - stats["graph_bytes"]), abs(block - stats["graph_block_bytes"])]
    good = max(off) <= STEP and stats["graphs"] == len(LENGTHS)
    print(
        f"{stats['graphs']} graphs: {driver / MIB:.2f} MiB gone by the driver from before the first one on, {seen / MIB:.2f} of it around captures, "
        f"{stats['graph_bytes'] / MIB:.2f} counted; block {block / MIB:.2f} by the driver, {stats['graph_block_bytes'] / MIB:.2f} counted; "
        f"off by {off[0] / MIB:.2f} and {off[1] / MIB:.2f}, of {STEP / MIB:.0f}: {'right' if good else 'WRONG'}\n",
        flush=True,
    )
    return good


def milliseconds(module: Any, given: torch.Tensor) -> float:
    begin = time.perf_counter()
    module.prefill(given)
    return 1e3 * (time.perf_counter() - begin)


def check(files: list[str], budget: int) -> bool:
    """Everything at one budget."""
    import weightstream as ws

    given = {length: methods.tokens(length) for length in LENGTHS}
    with ws.Module(*files, weight_offload_budget_bytes=budget) as module:
        expected = {length: module.prefill(tokens).clone() for length, tokens in given.items()}
        eager = {length: statistics.median(milliseconds(module, tokens) for _ in range(TIMED)) for length, tokens in given.items()}
    draw = random.Random(0)
    with ws.Module(*files, weight_offload_budget_bytes=budget, weight_offload_cuda_graph=True) as module:
        begin, equal = time.perf_counter(), True
        for number in range(CALLS):
            if number == len(LENGTHS):
                # First passes are over, with all that they load.
                free = torch.cuda.mem_get_info()[0]
            length = LENGTHS[number % len(LENGTHS)] if number < 2 * len(LENGTHS) else draw.choice(LENGTHS)
            equal = torch.equal(module.prefill(given[length]), expected[length]) and equal
            if number + 1 == 2 * len(LENGTHS):
                first, replays = time.perf_counter() - begin, module.stats()["replays"]
        stats = module.stats()
        share = (stats["replays"] - replays) / (CALLS - 2 * len(LENGTHS))
        gone = free - torch.cuda.mem_get_info()[0]
        same = {length: statistics.median(milliseconds(module, given[length]) for _ in range(TIMED)) for length in LENGTHS}
        found: dict[int, list[float]] = {length: [] for length in LENGTHS}
        for _ in range(TIMED):
            for length in draw.sample(list(LENGTHS), len(LENGTHS)):
                found[length].append(milliseconds(module, given[length]))
        switched = {length: statistics.median(times) for length, times in found.items()}
    over = [statistics.mean(times[length] / eager[length] for length in LENGTHS) for times in (same, switched)]
    good = equal and share >= 0.99
    print(
        f"{budget / 2**20:.0f} MB: {len(LENGTHS)} shapes, {stats['captures']} captured in {first:.2f} s with their first passes, {share:.1%} of the "
        f"later calls replayed; a replay takes {over[0]:.3f} of a pass, after another shape {over[1]:.3f}; graphs {stats['graph_bytes'] / 2**20:.1f} MB, "
        f"gone from the driver {gone / 2**20:.1f} MB; {'right' if good else 'WRONG'}",
        flush=True,
    )
    return good


def at_load(files: list[str], budget: int) -> bool:
    """All shapes are captured at load. Beside it a load that captures none, whose calls say what is right."""
    import weightstream as ws

    given, equal = {length: methods.tokens(length) for length in LENGTHS}, True
    shapes = f"prefill:length={','.join(map(str, LENGTHS))}"
    with ws.Module(*files, weight_offload_budget_bytes=budget) as module:
        expected = {length: module.prefill(tokens).clone() for length, tokens in given.items()}
    seconds, taken = [], []
    for options in ({}, {"weight_offload_graph_shapes": shapes}):
        begin, free = time.perf_counter(), torch.cuda.mem_get_info()[0]
        with ws.Module(*files, weight_offload_budget_bytes=budget, weight_offload_cuda_graph=True, **options) as module:
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
            taken.append(free - torch.cuda.mem_get_info()[0])
            before = module.stats()
            for length in random.Random(1).sample(list(LENGTHS), len(LENGTHS)):
                equal = torch.equal(module.prefill(given[length]), expected[length]) and equal
            after = module.stats()
    good = equal and before["captures"] == len(LENGTHS) == after["replays"] - before["replays"]
    print(
        f"{budget / 2**20:.0f} MB: {before['captures']} shapes captured at load, which takes {seconds[1]:.2f} s, without them {seconds[0]:.2f} s; "
        f"graphs {before['graph_bytes'] / 2**20:.1f} MB, gone from the driver beyond the other load {(taken[1] - taken[0]) / 2**20:.1f} MB with the "
        f"block of activations; {after['replays'] - before['replays']} of {len(LENGTHS)} first calls were replays; {'right' if good else 'WRONG'}",
        flush=True,
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4, help="as for methods.py (default 4)")
    parser.add_argument("--steps", type=int, metavar="BYTES", help="only the steps of memory, at this budget")
    args = parser.parse_args()
    import weightstream as ws

    files = [args.folder / f"methods-{args.layers}-layers.{end}" for end in ("pte", "ptd")]
    if not files[0].exists():
        raise SystemExit(f"shapes: {files[0]} is missing: methods.py makes it")
    if args.steps:
        return 0 if steps([str(path) for path in files], args.steps) else 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.layers} layers", flush=True)
    floor, whole, paths = ws.required_budget(files[0]), files[1].stat().st_size, [str(path) for path in files]
    budgets = (max(floor, whole // 2), 2 * whole)
    again = [sys.executable, __file__, str(args.folder), "--layers", str(args.layers), "--steps"]
    good = [subprocess.run([*again, str(budget)]).returncode == 0 for budget in budgets]
    # The driver keeps what graphs that ended had, so the first figure of memory is the one that counts.
    good += [at_load(paths, budget) for budget in budgets] + [check(paths, budget) for budget in budgets]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
