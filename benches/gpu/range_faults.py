#!/usr/bin/env python3
"""Random faults over two ranges on a GPU, with kernels running: every byte of every hit is compared with what was written.

    python benches/gpu/range_faults.py --faults 1000000

Each range is used on a stream of its own, under a cap of less than half of what both need. A fill writes a number that was never used
before; a hit compares all elements with it, on the device. Priorities, calls of `free_bytes`, invalidations and long kernels come in between.
Printed: answers by kind, elements that were wrong, and faults per second. The status is 1 if an element was wrong. `--unordered` unpins
on another stream than the kernels use: a control, in which wrong elements are expected.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time

import torch
import weightstream as ws

MB = 1 << 20
DEVICE = "cuda:0"
#: Allocations of a range, and the bytes of one: not a multiple of a unit, which has 32 MB.
COUNT, BYTES = 40, 12 * MB
CAP = 384 * MB
LONG_KERNEL = 2_000_000


class Model:
    """A range, the stream that uses it, and what was written last to each allocation."""

    def __init__(self, name: str, unordered: bool):
        self.range = ws.Range(DEVICE, COUNT * BYTES, name)
        self.allocs = [self.range.alloc(BYTES) for _ in range(COUNT)]
        self.stream = torch.cuda.Stream()
        self.ends_on = torch.cuda.Stream() if unordered else self.stream
        self.written: dict[int, int] = {}
        self.wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def fault(self, alloc: int, number: int) -> str:
        with torch.cuda.stream(self.stream):
            fault = self.range.fault(alloc, self.stream)
            if fault.refused:
                return fault.why
            tensor = self.range.tensor(alloc, torch.int32, (BYTES // 4,), self.ends_on)
            if fault.fill:
                self.written[alloc] = number
                tensor.fill_(number)
            else:
                self.wrong += torch.count_nonzero(tensor != self.written[alloc])
            del tensor
            self.range.unpin(alloc, self.ends_on)
        return "fill" if fault.fill else "hit"


def disturb(draw: random.Random, models: list[Model]) -> None:
    model = draw.choice(models)
    match draw.randrange(5):
        case 0 | 1:
            model.range.prioritize()
        case 2:
            model.range.free_bytes(draw.randrange(CAP // 4), wait=draw.random() < 0.1)
        case 3:
            model.range.invalidate(draw.choice(model.allocs))
        case 4:
            with torch.cuda.stream(model.stream):
                torch.cuda._sleep(LONG_KERNEL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unordered", action="store_true", help="unpin on another stream: wrong elements are expected")
    args = parser.parse_args()
    draw, answers = random.Random(args.seed), collections.Counter()
    ws.set_device_budget(DEVICE, CAP)
    models = [Model(name, args.unordered) for name in ("one", "other")]
    begin = time.perf_counter()
    for number in range(args.faults):
        if number % 50 == 0:
            disturb(draw, models)
        model = draw.choice(models)
        # Low addresses are asked for more often, as weights that stay.
        answers[model.fault(min(draw.choice(model.allocs), draw.choice(model.allocs)), number)] += 1
        if number % 1000 == 999:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    wrong = sum(int(model.wrong) for model in models)
    held = ws.device_report(DEVICE)["range_bytes"]
    print(
        f"{torch.cuda.get_device_name()}: {args.faults} faults, {args.faults / seconds:.0f} a second; {held / MB:.0f} of {CAP // MB} MB held"
    )
    print(", ".join(f"{why} {count}" for why, count in answers.most_common()))
    print(f"{wrong} elements wrong: {'right' if wrong == 0 else 'WRONG'}", flush=True)
    for model in models:
        model.range.close()
    return 0 if wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
