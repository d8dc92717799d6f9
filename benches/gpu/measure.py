"""Times, and where they are written: one JSON object per line, as soon as it is known."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

GB = 1e9
MIB = 1 << 20


def say(text: str) -> None:
    print(f"compare: {text}", file=sys.stderr, flush=True)


class Results:
    """The file of measured figures; each line says what it is about."""

    def __init__(self, path: Path, **about: Any):
        self.path, self.about = path, about

    def write(self, **figures: Any) -> None:
        line = {**self.about, **figures}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        say(", ".join(f"{key} {f'{value:.4g}' if isinstance(value, float) else value}" for key, value in line.items() if key != "stats"))


def timed_ms(step: Callable[[], object]) -> float:
    """One step, from an idle device to an idle device."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def median_ms(step: Callable[[], object], passes: int, warm_up: int = 2, seconds: float = 8.0) -> float:
    """Median of up to `passes` steps; fewer, and at least three, where they would take longer than `seconds`."""
    for _ in range(warm_up):
        step()
    times, end = [], time.monotonic() + seconds
    while len(times) < passes and (len(times) < 3 or time.monotonic() < end):
        times.append(timed_ms(step))
    return statistics.median(times)


def back_to_back_ms(step: Callable[[], object], passes: int, warm_up: int = 2, seconds: float = 8.0) -> float:
    """Median time from the end of one step to the end of the next, as in a loop that needs each output before its next input.

    A step ends when its output is in the host's memory; nothing else is waited for, so that what streams goes on copying for the next one.
    """
    for _ in range(warm_up):
        step()
    times, last, limit = [], time.perf_counter(), time.monotonic() + seconds
    while len(times) < passes and (len(times) < 3 or time.monotonic() < limit):
        step()
        end = time.perf_counter()
        times.append((end - last) * 1e3)
        last = end
    return statistics.median(times)


def link(sizes: list[int], runs: int = 15) -> dict[str, float]:
    """GB/s of copies of so many bytes from pinned memory, in pieces of 64 MiB and in pieces of the weights' sizes: median and best run.

    The source is as large as all weights, so that it comes from memory and not from a cache of the processor.
    """
    total, piece = sum(sizes), 64 * MIB
    source = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    source[::4096] = 1
    target = [torch.empty(max(piece, *sizes), dtype=torch.uint8, device="cuda") for _ in range(2)]

    def run(pieces: list[int]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        at = 0
        begin.record()
        for number, size in enumerate(pieces):
            target[number % 2][:size].copy_(source[at : at + size], non_blocking=True)
            at += size
        end.record()
        end.synchronize()
        return total / begin.elapsed_time(end) / 1e6

    found = {}
    even = [piece] * (total // piece) + ([total % piece] if total % piece else [])
    for name, pieces in (("64_mib", even), ("weights", sizes)):
        run(pieces)
        speeds = [run(pieces) for _ in range(runs)]
        found[f"{name}_median"], found[f"{name}_best"] = statistics.median(speeds), max(speeds)
    return found


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest `|found - expected| / (1 + |expected|)`."""
    return ((found - expected).abs() / (1 + expected.abs())).max().item()
