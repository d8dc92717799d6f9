#!/usr/bin/env python3
"""Four models under one budget on a GPU, one pass of each in turn: bytes copied, beside two ways to do without an arbiter.

    python benches/gpu/turns.py FOLDER --layers 12

Exports a Llama of `llama.py` into FOLDER, without tuning, unless it is there, and loads it `--models` times: each has its own store. The
budget is `--percent` of all weights. Printed for each round: bytes copied over bytes of all weights, and milliseconds. Two fixed
alternatives follow: an equal budget for each model; and the whole budget for the model at work, which is loaded for its pass. With
`--calls` the driver's calls are counted: those between passes, and those inside of them.

One model alone says what the driver counts beside weights: modules, activations. The process is warm by then. The status is 1 if an
output differs from that of a model loaded alone, if the device holds more than the budget, if what the driver counts differs from
weights and four times that by more than a unit, or if memory is mapped, allocated or waited for in a pass after the first round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import driver_calls
import llama
import torch


def export(model: torch.nn.Module, files: list[Path], device: str, sm: str) -> None:
    import weightstream as ws

    target: dict[str, Any] = {"device": device, "attention": "math", "sm": sm} if device == "cuda" else {}
    begin = time.monotonic()
    ws.export(model, (llama.tokens(1, model.embed.num_embeddings),), *files, **target)
    print(f"exported in {time.monotonic() - begin:.0f} s", flush=True)


def copied(module: Any) -> int:
    return module.stats()["bytes_copied"]


def free_bytes(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device != "cpu" else 0


MIB = 1 << 20
#: Bytes in which memory of a store is mapped.
UNIT = 32 * MIB


def alone(paths: list[str], given: list[torch.Tensor], device: str) -> tuple[list[torch.Tensor], int]:
    """The outputs of a model that nothing is beside, and what the driver counts for it that is no weight."""
    import weightstream as ws

    expected, beside = [], 0
    for _ in range(2):  # the first one warms the process
        before = free_bytes(device)
        with ws.Module(*paths, weight_offload_budget="shared") as module:
            expected = [module.forward(one).clone() for one in given]
            beside = before - free_bytes(device) - ws.device_report(device)["held_bytes"]
    return expected, beside


def say_calls(name: str, found: dict[str, driver_calls.Count], rounds: int) -> None:
    for function, count in found.items():
        between = (count.milliseconds - count.milliseconds_in_pass) / rounds
        print(
            f"{name}: {function}: {count.calls / rounds:.1f} calls per round, {between:.3f} ms between passes, {count.in_pass} calls in passes"
        )


class Turns:
    """Rounds of one pass of each model."""

    def __init__(self, expected: list[torch.Tensor], given: list[torch.Tensor], whole: int):
        self.expected, self.given, self.whole = expected, given, whole
        self.good = True

    def play(self, name: str, modules: list[Any], rounds: int) -> None:
        shares, times, calls = [], [], driver_calls.counts()
        for number in range(rounds):
            if number == 1:  # the first pass of a model registers memory for its outputs
                first = driver_calls.counts()
            before, begin = sum(map(copied, modules)), time.perf_counter()
            for module, given, expected in zip(modules, self.given, self.expected, strict=True):
                driver_calls.pass_begins()
                self.good = torch.equal(module.forward(given), expected) and self.good
            times.append(1e3 * (time.perf_counter() - begin))
            shares.append((sum(map(copied, modules)) - before) / (len(modules) * self.whole))
        print(f"{name}: copied per round, of all weights: {' '.join(f'{share:.3f}' for share in shares)}", flush=True)
        print(f"{name}: ms per round: {' '.join(f'{each:.0f}' for each in times)}", flush=True)
        found = driver_calls.since(calls)
        say_calls(name, found, rounds)
        later = driver_calls.since(first)
        self.good = self.good and not any(later[name].in_pass for name in later.keys() & set(driver_calls.COUNTED))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=12, help="of 0.4 GB each (default 12)")
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--percent", type=int, default=75, help="budget, of all models' weights (default 75)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="layers of 33 MB")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is a dry run")
    parser.add_argument("--sm", default="90", help="compute capability of this GPU (default 90)")
    parser.add_argument("--calls", action="store_true", help="count the driver's calls")
    args = parser.parse_args()
    if args.calls:
        driver_calls.restart_counted()
    import weightstream as ws

    args.folder.mkdir(parents=True, exist_ok=True)
    sizes = llama.SMALL if args.small else {}
    device = "cuda:0" if args.device == "cuda" else "cpu"
    files = [args.folder / f"turns-{args.device}-{args.layers}.{end}" for end in ("pte", "ptd")]
    if not files[0].exists():
        export(llama.build_on_cpu(args.layers, **sizes), files, args.device, args.sm)
    paths, whole = [str(path) for path in files], files[1].stat().st_size
    budget = args.models * whole * args.percent // 100
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{name}, {args.models} models of {whole / 1e9:.1f} GB under {budget / 1e9:.1f} GB", flush=True)
    given = [llama.tokens(1 + at, sizes.get("vocabulary", llama.VOCABULARY))[:, -1:].contiguous() for at in range(args.models)]
    ws.set_device_budget(device, budget)
    expected, beside = alone(paths, given, device)
    turns = Turns(expected, given, whole)
    with contextlib.ExitStack() as stack:
        before = free_bytes(device)
        modules = [stack.enter_context(ws.Module(*paths, weight_offload_budget="shared")) for _ in given]
        turns.play("shared", modules, args.rounds)
        report = ws.device_report(device)
        taken = before - free_bytes(device)
        more = taken - args.models * beside - report["held_bytes"]
        turns.good = turns.good and report["held_bytes"] <= budget and (device == "cpu" or abs(more) <= UNIT)
        print(f"held {report['held_bytes'] / MIB:.1f} of {budget / MIB:.1f} MiB; by the driver {taken / MIB:.1f}", flush=True)
        print(f"beside weights, one model alone: {beside / MIB:.1f} MiB; not told apart: {more / MIB:.1f} MiB", flush=True)
        print(json.dumps(report), flush=True)
    with contextlib.ExitStack() as stack:
        modules = [stack.enter_context(ws.Module(*paths, weight_offload_budget_bytes=budget // args.models)) for _ in given]
        turns.play("equal budgets", modules, args.rounds)
    begin = time.perf_counter()
    for one, right in zip(given, expected, strict=True):
        with ws.Module(*paths, weight_offload_budget_bytes=whole) as module:
            turns.good = torch.equal(module.forward(one), right) and turns.good
    print(f"loaded for each pass: copied 1.000, ms per round: {1e3 * (time.perf_counter() - begin):.0f}", flush=True)
    print("right" if turns.good else "WRONG", flush=True)
    return 0 if turns.good else 1


if __name__ == "__main__":
    sys.exit(main())
