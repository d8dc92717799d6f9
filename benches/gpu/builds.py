#!/usr/bin/env python3
"""Two builds of the library against each other on one GPU, in turns: what a change costs or gains.

    python benches/gpu/builds.py OLD.so NEW.so MODEL.pte MODEL.ptd --sizes 1x1 1x512 --turns 7
    python benches/gpu/builds.py OLD.so NEW.so MODEL.pte MODEL.ptd --runners OLD/weightstream-run NEW/weightstream-run

Each build runs in a process of its own. For each budget both are loaded, and take turns of a few passes, so that whatever else the
machine does meets both. The first pass of a turn does not count: copies of the other build's last pass may still run then. Prints
new over old for each budget: of the medians, and the middle half of the pairs of turns; and how many bytes a pass copies. The status
is 1 if a ratio of the medians is above `--bar`.

A build that another Python package drives gets that package: `--old-python FOLDER`, the folder that holds `weightstream/`. With
`--calls`, calls that move memory take turns too: `set_budget` between 50 and 75 %, faults of a range that take memory from another
allocation, captures of a graph pool. With `--runners`, whole runs of `weightstream-run` take turns instead; `--sizes` must be the largest, and the first passes count there too.
`benches/gpu/llama.py` exports models for this.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Budgets as parts of the file of the weights, between the floor and everything.
SHARES = (0.25, 0.5, 0.75, 0.9)
#: Timed passes of one turn.
TURN = 5
#: Turns in which a build loads, fills the ring, times kernels and follows the new plan.
WARM = 1


def change_budget(module: Any, whole: int) -> None:
    for share in (0.75, 0.5):
        module.set_budget(int(whole * share))


def faults(count: int = 32, size: int = 64 << 20) -> Callable[[], None]:
    """Two ranges under a cap for one: each fault takes the memory of the other range."""
    import torch
    import weightstream as ws

    ws.set_device_budget("cuda:0", size)
    ranges = [ws.Range("cuda:0", size, name) for name in ("one", "other")]
    allocs, stream = [one.alloc(size) for one in ranges], torch.cuda.Stream()

    def run() -> None:
        for at in range(count):
            one, alloc = ranges[at % 2], allocs[at % 2]
            one.prioritize()
            if one.fault(alloc, stream).refused:
                raise RuntimeError("a fault was refused")
            one.unpin(alloc, stream)
            stream.synchronize()

    return run


def captures(size: int = 256 << 20) -> Callable[[], None]:
    """A graph whose activations need new memory each time."""
    import torch
    import weightstream as ws

    # The faults may have left a cap.
    ws.set_device_budget("cuda:0", "auto")
    x = torch.zeros(size // 8, device="cuda")

    def run() -> None:
        pool = ws.torch.GraphPool("cuda:0")
        graph = pool.graph()
        with pool.capture(graph):
            y = x + 1
        del graph, y
        pool.close()

    return run


def serve(model: str, data: str) -> None:
    """The child: loads at a budget, runs passes, says how long each took. One JSON object per line, both ways."""
    import torch
    import weightstream as ws

    module, inputs = None, None
    calls: dict[str, Any] = {}
    answer: dict[str, Any]
    for line in sys.stdin:
        request = json.loads(line)
        if "floor" in request:
            answer = {"floor": ws.required_budget(model)}
        elif "budget" in request:
            if module is not None:
                module.close()
            module = ws.Module(model, data, weight_offload_budget_bytes=request["budget"])
            inputs = torch.zeros(*request["sizes"], dtype=torch.int64)
            answer = {}
        elif "call" in request:
            made = calls.get(request["call"])
            if made is None:
                made = calls[request["call"]] = {"faults": faults, "captures": captures}.get(request["call"], lambda: None)()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            change_budget(module, request["whole"]) if made is None else made()
            torch.cuda.synchronize()
            answer = {"seconds": time.perf_counter() - begin, "copied": 0}
        else:
            module.forward(inputs)
            begin = time.perf_counter()
            for _ in range(TURN):
                module.forward(inputs)
            answer = {"seconds": (time.perf_counter() - begin) / TURN, "copied": module.stats()["bytes_copied_last_pass"]}
        print(json.dumps(answer), flush=True)


class Build:
    """One build of the library, in a process of its own."""

    def __init__(self, library: str, python: str | None, files: list[str]):
        environment = {**os.environ, "WEIGHTSTREAM_LIBRARY": os.path.abspath(library)}
        if python:
            environment["PYTHONPATH"] = os.pathsep.join([os.path.abspath(python), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, __file__, "--serve", *files]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a build ended with status {self.process.wait()}: its error is above")
        return json.loads(answer)


class Runner:
    """One build's `weightstream-run`: a process for each run of several passes."""

    def __init__(self, program: str, library: str, files: list[str], passes: int, zeros: Path):
        self.command = [os.path.abspath(program), *files, "--json", "--passes", str(passes)]
        self.zeros = zeros
        folders = [str(Path(library).resolve().parent), os.environ.get("LD_LIBRARY_PATH", "")]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}
        self.budget = 0

    def ask(self, budget: int | None = None, sizes: list[int] | None = None) -> dict[str, Any]:
        if budget is not None and sizes is not None:
            self.budget = budget
            self.zeros.write_bytes(bytes(8 * math.prod(sizes)))
            return {}
        command = [*self.command, "--budget-bytes", str(self.budget), "--input", str(self.zeros)]
        found = json.loads(subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
        return {"seconds": found["ms_per_pass"] / 1e3, "copied": found["bytes_copied_last_pass"]}


def compare(builds: dict[str, Any], load: dict[str, Any], call: dict[str, Any], warm: int, count: int) -> tuple[float, str]:
    """Loads, and then has the builds make a call in turns: the ratio of the medians, and a line that tells it."""
    for build in builds.values():
        build.ask(**load)
    seconds: dict[str, list[float]] = {name: [] for name in builds}
    copied: dict[str, int] = {}
    for at in range(warm + count):
        for name, build in builds.items():
            answer = build.ask(**call)
            copied[name] = answer["copied"]
            if at >= warm:
                seconds[name].append(answer["seconds"])
    old, new = (statistics.median(seconds[name]) for name in builds)
    pairs = sorted(after / before for before, after in zip(*seconds.values(), strict=True))
    middle = f"{pairs[len(pairs) // 4]:.3f} to {pairs[-1 - len(pairs) // 4]:.3f}"
    bytes_ratio = copied["new"] / copied["old"] if copied["old"] else 1.0
    return new / old, f"new over old {new / old:.3f} (pairs {middle}), bytes copied {bytes_ratio:.3f}, old {1e3 * old:.2f} ms"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("old", "new", "model", "data"):
        parser.add_argument(name)
    parser.add_argument("--sizes", nargs="+", default=["1x1"], help="sizes of the input, as 1x512")
    parser.add_argument("--turns", type=int, default=7, help=f"of {TURN} timed passes each, or runs with --runners")
    parser.add_argument("--passes", type=int, default=30, help="passes of a run, with --runners")
    parser.add_argument("--budgets", nargs="+", default=["floor", *(f"{share:.0%}" for share in SHARES), "everything"])
    parser.add_argument("--bar", type=float, default=math.inf, help="the most that new over old may be")
    parser.add_argument("--old-python", metavar="FOLDER", help="holds the package `weightstream` that drives the old build")
    parser.add_argument("--new-python", metavar="FOLDER", help="likewise")
    parser.add_argument("--calls", action="store_true", help="calls that move memory too")
    parser.add_argument("--runners", nargs=2, metavar=("OLD", "NEW"), help="time these instead of the Python module")
    return parser.parse_args()


def bytes_of(name: str, floor: int, whole: int) -> int:
    special = {"floor": floor, "everything": 2 * whole}
    return special[name] if name in special else max(floor, whole * int(name.rstrip("%")) // 100)


def run(args: argparse.Namespace, folder: Path) -> float:
    """Prints a line for each size and budget; the largest ratio."""
    files = [args.model, args.data]
    builds: dict[str, Any] = {"old": Build(args.old, args.old_python, files), "new": Build(args.new, args.new_python, files)}
    whole = Path(args.data).stat().st_size
    # Two builds may differ in the least that they take.
    floor = max(build.ask(floor=True)["floor"] for build in builds.values())
    warm = WARM
    if args.runners:
        of_each = zip(builds, args.runners, (args.old, args.new), strict=True)
        builds = {name: Runner(program, library, files, args.passes, folder / "zeros.bin") for name, program, library in of_each}
        warm = 0
    worst = 0.0
    for sizes in args.sizes:
        for name in args.budgets:
            given = [int(size) for size in sizes.split("x")]
            load = {"budget": bytes_of(name, floor, whole), "sizes": given}
            ratio, line = compare(builds, load, {}, warm, args.turns)
            worst = max(worst, ratio)
            about = "weightstream-run " if args.runners else ""
            print(f"{about}{sizes} {name}: {line}" + (f"  ABOVE {args.bar}" if ratio > args.bar else ""), flush=True)
    for call in ("set_budget", "faults", "captures") if args.calls else ():
        load = {"budget": bytes_of("50%", floor, whole), "sizes": [1, 1]}
        ratio, line = compare(builds, load, {"call": call, "whole": whole}, 2, 3 * args.turns)
        worst = max(worst, ratio)
        print(f"{call}: {line}" + (f"  ABOVE {args.bar}" if ratio > args.bar else ""), flush=True)
    return worst


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return 0
    args = parse()
    with tempfile.TemporaryDirectory() as folder:
        return int(run(args, Path(folder)) > args.bar)


if __name__ == "__main__":
    sys.exit(main())
