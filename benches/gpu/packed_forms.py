#!/usr/bin/env python3
"""Packed weights of each type on a GPU: bytes, time of packing, the decoder's speed, and passes at four budgets beside raw weights.

    python benches/gpu/packed_forms.py [--mb 32] [--weights 48]

An eager module reads weights of random normal numbers and adds their bits; all sums must be the same. Times are of a pass, over the time in
which the link, measured in this run, carries the raw bytes beyond the budget. The decoder's speed is that of its kernels in one pass at the
least budget, by the profiler, in raw bytes. The status is 1 if a sum differs.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import weightstream as ws
from measure import back_to_back_ms, link
from torch import nn
from torch.profiler import ProfilerActivity, profile

DEVICE = "cuda:0"
GB = 1e9
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2)
PERCENT = (0, 25, 50, 75)


class Reads(nn.Module):
    """A weight, all of whose bits are added."""

    def __init__(self, dtype: torch.dtype, bytes: int):
        super().__init__()
        scale = 64 if dtype.itemsize == 1 else 1 / 64
        weight = torch.randn(4096, bytes // dtype.itemsize // 4096, device=DEVICE) * scale
        self.weight = nn.Parameter(weight.to(dtype).cpu(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.view(torch.int32).sum()


def decoded_per_second(module: nn.Module, x: torch.Tensor, handle: ws.torch.Offloaded) -> float:
    """Raw bytes in the time of the decoder's kernels. What stays on the device is not decoded again."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        module(x).cpu()
        torch.cuda.synchronize()
    kernels = [one for one in seen.events() if "weightstream_unpack" in one.name]
    micros, stats = sum(one.device_time for one in kernels), handle.stats()
    decoded = stats["packed_bytes"] * stats["bytes_copied_last_pass"] / stats["packed_stored_bytes"]
    return decoded / micros * 1e6 if micros else float("nan")


def measure(dtype: torch.dtype, count: int, bytes: int, speed: float) -> bool:
    torch.manual_seed(0)
    module = nn.Sequential(*(Reads(dtype, bytes) for _ in range(count))).eval()
    x, whole = torch.zeros((), dtype=torch.int64, device=DEVICE), count * bytes
    expected, good, line = None, True, {}
    for packed in (False, True):
        with ws.torch.offload(module, device=DEVICE, packed=packed) as handle:
            begin = time.monotonic()
            module(x).cpu()
            first = time.monotonic() - begin
            least = handle.stats()["floor_bytes"]
            for percent in PERCENT:
                budget = max(least, whole * percent // 100)
                handle.set_budget(budget)
                for _ in range(3):
                    found = module(x).cpu()
                    expected = found if expected is None else expected
                    good = good and torch.equal(found, expected)
                ms = back_to_back_ms(lambda: module(x).cpu(), 20, seconds=3)
                line[packed, percent] = ms * speed * 1e6 / (whole - budget)
                if packed and percent == 0:
                    decoded = decoded_per_second(module, x, handle) / GB
            if packed:
                ratio = handle.stats()["packed_stored_bytes"] / handle.stats()["packed_bytes"]
                print(
                    f"{dtype}: {ratio:.3f} of the bytes, first pass {first:.1f} s for {whole / GB:.2f} GB, decoder {decoded:.0f} GB/s",
                    flush=True,
                )
    for packed in (False, True):
        over = "  ".join(f"{percent} %: {line[packed, percent]:.3f}" for percent in PERCENT)
        print(f"    {'packed' if packed else 'raw   '} {over}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=32, help="MiB of each weight (default 32)")
    parser.add_argument("--weights", type=int, default=48)
    args = parser.parse_args()
    bytes = args.mb << 20
    speed = link([bytes] * args.weights)["64_mib_median"]
    print(f"link {speed:.1f} GB/s", flush=True)
    with torch.inference_mode():
        good = [measure(dtype, args.weights, bytes, speed) for dtype in TYPES]
    print("all sums are equal" if all(good) else "SUMS DIFFER")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
