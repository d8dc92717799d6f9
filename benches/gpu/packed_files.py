#!/usr/bin/env python3
"""Packed copies in a file, of a checkpoint on disk: packing, comparing, and passes in each way to hold weights on the host.

    python benches/gpu/packed_files.py [--weights 64] [--mb 128]

The status is 1 if a sum of all bits differs from that of the weights. Files are in the system's cache: what is measured is no disk.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
import weightstream as ws
from measure import back_to_back_ms, link
from packed_forms import DEVICE, GB, Reads
from safetensors.torch import save_file
from torch import nn


class Empty(Reads):
    """The same on ``meta``."""

    def __init__(self, shape: torch.Size):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device="meta"), requires_grad=False)


def measure(shapes: list[torch.Size], checkpoint: Path, packed: bool | Path, host: str, expected: torch.Tensor) -> bool:
    module, x = nn.Sequential(*(Empty(shape) for shape in shapes)), torch.zeros((), dtype=torch.int64, device=DEVICE)
    with ws.torch.offload(module, device=DEVICE, packed=packed, weights=checkpoint, host=host, budget=1 << 30) as handle:
        begin = time.monotonic()
        good = all(torch.equal(module(x).cpu(), expected) for _ in range(4))
        first = time.monotonic() - begin
        ms = back_to_back_ms(lambda: module(x).cpu(), 10, seconds=3)
        stats = handle.stats()
    held = {name: f"{stats[f'host_{name}_bytes'] / GB:.2f} GB" for name in ("pinned", "mapped")}
    what = "raw" if packed is False else "copies in memory" if packed is True else "copies in a file"
    print(f"{what}, {host}: four passes {first:.1f} s, then {ms:.1f} ms; {held}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=64)
    parser.add_argument("--mb", type=int, default=128, help="MiB of each weight (default 128)")
    args = parser.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        made = nn.Sequential(*(Reads(torch.bfloat16, args.mb << 20) for _ in range(args.weights)))
        shapes = [one.weight.shape for one in made]
        expected = sum(one.weight.view(torch.int32).sum() for one in made)
        checkpoint, file = Path(folder) / "model.safetensors", Path(folder) / "model.packed"
        save_file(made.state_dict(), checkpoint)
        del made
        print(f"link {link([args.mb << 20] * args.weights)['64_mib_median']:.1f} GB/s", flush=True)
        runs = [(False, "mapped"), (False, "staged"), (True, "auto"), *((file, host) for host in ("auto", "mapped", "pinned", "staged"))]
        good = [measure(shapes, checkpoint, packed, host, expected) for packed, host in runs]
    print("all sums are equal" if all(good) else "SUMS DIFFER")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
