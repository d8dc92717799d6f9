#!/usr/bin/env python3
"""Two builds of the library against each other on one GPU, in turns: what a change costs or gains.

    python benches/gpu/builds.py OLD.so NEW.so MODEL.pte MODEL.ptd --sizes 1x1 1x512 --passes 30

Each build runs in a process of its own. For each budget both are loaded in turn, and a pass of one follows a pass of the other, so
that whatever else the machine does meets both. Prints new over old for each budget, and how many bytes a pass copies.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Budgets as parts of the file of the weights, between the floor and everything.
SHARES = (0.25, 0.5, 0.75, 0.9)


def serve(model: str, data: str) -> None:
    """The child: loads at a budget, runs passes, says how long each took. One JSON object per line, both ways."""
    import torch
    import weightstream as ws

    module, inputs = None, None
    for line in sys.stdin:
        request = json.loads(line)
        if "budget" in request:
            if module is not None:
                module.close()
            module = ws.Module(model, data, weight_offload_budget_bytes=request["budget"])
            inputs = torch.zeros(*request["sizes"], dtype=torch.int64)
            answer: dict[str, Any] = {}
        else:
            begin = time.perf_counter()
            module.forward(inputs)
            answer = {"seconds": time.perf_counter() - begin, "copied": module.stats()["bytes_copied_last_pass"]}
        print(json.dumps(answer), flush=True)


class Build:
    """One build of the library, in a process of its own."""

    def __init__(self, library: str, files: list[str]):
        environment = {**os.environ, "WEIGHTSTREAM_LIBRARY": library}
        command = [sys.executable, __file__, "--serve", *files]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a build ended with status {self.process.wait()}: its error is above")
        return json.loads(answer)


def compare(builds: dict[str, Build], budget: int, sizes: list[int], passes: int) -> str:
    for build in builds.values():
        build.ask(budget=budget, sizes=sizes)
    seconds: dict[str, list[float]] = {name: [] for name in builds}
    copied: dict[str, int] = {}
    for at in range(passes + 4):  # loads, fills the ring, times kernels, follows the new plan
        for name, build in builds.items():
            answer = build.ask()
            copied[name] = answer["copied"]
            if at >= 4:
                seconds[name].append(answer["seconds"])
    old, new = (statistics.median(seconds[name]) for name in builds)
    bytes_ratio = copied["new"] / copied["old"] if copied["old"] else 1.0
    return f"new over old {new / old:.3f}, bytes copied {bytes_ratio:.3f}, old {1e3 * old:.2f} ms"


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("old", "new", "model", "data"):
        parser.add_argument(name)
    parser.add_argument("--sizes", nargs="+", default=["1x1"], help="sizes of the input, as 1x512")
    parser.add_argument("--passes", type=int, default=30)
    args = parser.parse_args()
    import weightstream as ws

    files = [args.model, args.data]
    builds = {name: Build(os.path.abspath(library), files) for name, library in (("old", args.old), ("new", args.new))}
    whole, floor = Path(args.data).stat().st_size, ws.required_budget(args.model)
    budgets = {"floor": floor, **{f"{share:.0%}": max(floor, int(share * whole)) for share in SHARES}, "everything": 2 * whole}
    for sizes in args.sizes:
        for name, budget in budgets.items():
            print(f"{sizes} {name}: {compare(builds, budget, [int(size) for size in sizes.split('x')], args.passes)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
