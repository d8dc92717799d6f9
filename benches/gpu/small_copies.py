#!/usr/bin/env python3
"""Whether small copies wait for large ones of another stream, as a pass's inputs would for the copies that are queued for its weights.

Prints for each size and kind of copy the microseconds from its call to its end: on an idle device, and while four copies of 8 MiB and
two of 64 MiB are under way on another stream; `*` where these were over by then.

    python benches/gpu/small_copies.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

MIB = 1 << 20
RUNS = 12


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    source = torch.ones(64 * MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    large, small = torch.cuda.Stream(), torch.cuda.Stream()
    pageable, pinned = torch.zeros(MIB, dtype=torch.uint8), torch.zeros(MIB, dtype=torch.uint8, pin_memory=True)
    device = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    ways = {
        "to the device, pageable": (device, pageable),
        "to the device, pinned": (device, pinned),
        "to the host, pageable": (pageable, device),
        "to the host, pinned": (pinned, device),
    }

    def once(to: torch.Tensor, of: torch.Tensor, count: int, piece: int) -> tuple[float, bool]:
        torch.cuda.synchronize()
        with torch.cuda.stream(large):
            for _ in range(count):
                target[:piece].copy_(source[:piece], non_blocking=True)
            end = torch.cuda.Event()
            end.record()
        begin = time.perf_counter()
        with torch.cuda.stream(small):
            to.copy_(of, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        done.synchronize()
        return (time.perf_counter() - begin) * 1e6, count > 0 and end.query()

    for size in (8, 4096, 65536, MIB):
        for name, (to, of) in ways.items():
            cells = []
            for count, piece in ((0, 0), (4, 8 * MIB), (2, 64 * MIB)):
                found = [once(to[:size], of[:size], count, piece) for _ in range(RUNS)][2:]
                cells.append(f"{statistics.median(one[0] for one in found):8.1f}{'*' if all(one[1] for one in found) else ' '}")
            print(f"{size:8} bytes {name:24}", *cells, flush=True)


if __name__ == "__main__":
    main()
