#!/usr/bin/env python3
"""The decoder of the package dfloat11 beside ours, on one bf16 weight of random normal numbers: stored bytes, and GB/s of raw bytes.

    python benches/gpu/dfloat11.py [--mb 64] [--runs 50] [--weights 24]

Needs the packages dfloat11, dahuffman==0.4.2 and CuPy. The package's public calls compress the weight and load it; the hook that these
make launches its kernel. Its time is the median by CUDA events, in which the kernel stands alone. Before each run other memory is written:
the weight is then in no cache, as in a model, and the launch does not wait for the host. Our time is of all kernels of the decoder in one
pass over `--weights` copies of the weight at the least budget, by the profiler, as in `packed_forms.py`. The bytes that this budget keeps
do not count. Compression is one loop in Python: 64 MiB take 15 to 30 seconds. The status is 1 if a bit differs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.resources
import importlib.util
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import weightstream as ws
from measure import MIB
from packed_forms import DEVICE, GB, Reads, decoded_per_second
from torch import nn

#: Bytes that are written before each run: more than the caches hold, and enough to prepare a launch meanwhile.
BETWEEN = 1 << 30


@contextlib.contextmanager
def resources():
    """dfloat11 finds its kernel by pkg_resources, which setuptools has no more since 82: the one call that it makes."""
    if importlib.util.find_spec("pkg_resources") is not None:
        yield
        return
    stand_in = ModuleType("pkg_resources")
    stand_in.resource_filename = lambda package, name: str(importlib.resources.files(package) / name)
    sys.modules["pkg_resources"] = stand_in
    try:
        yield
    finally:
        del sys.modules["pkg_resources"]


def package() -> ModuleType:
    """The package dfloat11, and not this file, which has its name."""
    here, paths = Path(__file__).resolve().parent, sys.path[:]
    sys.path[:] = [path for path in paths if Path(path).resolve() != here]
    try:
        with resources():
            import dfloat11
    except ImportError as problem:
        raise SystemExit(f"dfloat11.py: {problem}. Install: pip install dfloat11 dahuffman==0.4.2 cupy-cuda13x") from problem
    finally:
        sys.path[:] = paths
    return dfloat11


def linear(shape: torch.Size) -> nn.Linear:
    """With no memory: the weight is put in, or comes from a file."""
    return nn.Linear(shape[1], shape[0], bias=False, dtype=torch.bfloat16, device="meta")


def compressed(dfloat11: ModuleType, weight: torch.Tensor, device: str = DEVICE) -> nn.Linear:
    """A layer on the device that has the weight in the package's form, by the package's own calls."""
    plain = linear(weight.shape)
    plain.weight = nn.Parameter(weight, requires_grad=False)
    begin = time.monotonic()
    # It prints its tables; that of dahuffman is seen all the same.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        dfloat11.compress_model(nn.Sequential(plain), {"0": []}, folder, check_correctness=False)
        model = nn.Sequential(linear(weight.shape))
        (layer,) = dfloat11.DFloat11Model.from_pretrained(folder, device=device, bfloat16_model=model)
    print(f"dfloat11 compressed {weight.nbytes / MIB:.0f} MiB in {time.monotonic() - begin:.1f} s", flush=True)
    return layer


def decoder(layer: nn.Linear) -> Callable[[], torch.Tensor]:
    """Decodes the layer's weight as before each of its calls."""
    (hook,) = layer._forward_pre_hooks.values()

    def decode() -> torch.Tensor:
        hook(layer, ())
        return layer.weight

    return decode


def kernel_ms(step: Callable[[], object], runs: int) -> float:
    """Median time of a step on the device, which was busy until it began."""
    other, times = torch.empty(BETWEEN, dtype=torch.uint8, device=DEVICE), []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        other.zero_()
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def theirs(dfloat11: ModuleType, weight: torch.Tensor, runs: int) -> tuple[bool, float, float]:
    """Whether the bits are equal, stored over raw bytes, raw bytes per second."""
    layer = compressed(dfloat11, weight)
    decode = decoder(layer)
    stored = sum(one.nbytes for one in layer.buffers())
    same = torch.equal(decode().cpu().view(torch.int16), weight.view(torch.int16))
    return same, stored / weight.nbytes, weight.nbytes / kernel_ms(decode, runs) * 1e3


def ours(one: Reads, count: int) -> tuple[bool, float, float]:
    """The same, of copies of the weight in one module; of its bits the sum is compared."""
    module = nn.Sequential(*(copy.deepcopy(one) for _ in range(count))).eval()
    x = torch.zeros((), dtype=torch.int64, device=DEVICE)
    expected = count * one.weight.view(torch.int32).sum()
    with ws.torch.offload(module, device=DEVICE, packed=True) as handle:
        same = all(torch.equal(module(x).cpu(), expected) for _ in range(4))
        speed, stats = decoded_per_second(module, x, handle), handle.stats()
    return same, stats["packed_stored_bytes"] / stats["packed_bytes"], speed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=64, help="MiB of the weight (default 64: 4096 x 8192)")
    parser.add_argument("--runs", type=int, default=50, help="of dfloat11's kernel")
    parser.add_argument("--weights", type=int, default=24, help="copies of the weight in the module that ours decodes")
    args = parser.parse_args()
    dfloat11 = package()
    torch.manual_seed(0)
    one = Reads(torch.bfloat16, args.mb * MIB)
    with torch.inference_mode():
        rows = {"dfloat11": theirs(dfloat11, one.weight.data, args.runs), "WeightStream": ours(one, args.weights)}
    print("| decoder | stored / raw | GB/s of raw bytes |\n|---|---|---|")
    for name, (_, ratio, speed) in rows.items():
        print(f"| {name} | {ratio:.3f} | {speed / GB:.0f} |")
    wrong = [name for name, (same, _, _) in rows.items() if not same]
    print(f"BITS DIFFER: {', '.join(wrong)}" if wrong else "all bits are equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
