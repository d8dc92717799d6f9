#!/usr/bin/env python3
"""What a prepared batch of ten faults that hit costs through Python, and its release: microseconds, the best of 50 runs.

python benches/range_hits.py [DEVICE]    # cpu, or cuda:0
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import weightstream as ws

MB, BATCH, RUNS, CALLS = 1 << 20, 10, 50, 20


def microseconds(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        step()
    return 1e6 * (time.perf_counter() - begin) / CALLS


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    ws.set_device_budget(device, 256 * MB)
    with ws.Range(device, BATCH * MB, "hits") as weights:
        batch = weights.batch([weights.alloc(MB) for _ in range(BATCH)])
        stream = torch.cuda.current_stream(device).cuda_stream if device.startswith("cuda") else None
        batch.fault(stream)
        batch.unpin(stream)
        hits = [(microseconds(lambda: batch.fault(stream)), microseconds(lambda: batch.unpin(stream))) for _ in range(RUNS)]
    print(f"{BATCH} hits in a batch: {min(hit for hit, _ in hits):.2f} us, their release {min(release for _, release in hits):.2f} us")


if __name__ == "__main__":
    main()
