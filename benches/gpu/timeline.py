#!/usr/bin/env python3
"""Where the time of an offloaded pass goes: how long kernels and copies run, how fast copies are, how long the link and the GPU wait.

    python benches/gpu/timeline.py --part transformer --percent 0 50 90          # two minutes on an H200

The models of `pipelines.py`, under PyTorch's profiler, which sees the runtime's copies too. Of some passes in a row, per pass, in
milliseconds; gaps are those of over 20 microseconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import weightstream as ws
from measure import GB, back_to_back_ms
from pipeline_models import DEVICE, SUBJECTS, to_host
from torch.profiler import ProfilerActivity, profile

PASSES = 3
GAP = 20.0


def union(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """Microseconds in which at least one of them runs, and of gaps between."""
    busy = gaps = 0.0
    end = None
    for begin, until in sorted(spans):
        if end is None or begin > end:
            if end is not None and begin - end > GAP:
                gaps += begin - end
            busy, end = busy + until - begin, until
        elif until > end:
            busy, end = busy + until - end, until
    return busy, gaps


def look(name: str, step: Callable[[], object], copied_gb: float = 0.0) -> None:
    """One line of a table."""
    plain = back_to_back_ms(step, 6)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(PASSES):
            step()
        torch.cuda.synchronize()
    events = [one for one in seen.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    spans = [(one.name, one.time_range.start, one.time_range.end) for one in events]
    copies = [(a, b) for label, a, b in spans if "HtoD" in label]
    kernels = [(a, b) for label, a, b in spans if not label.startswith(("Memcpy", "Memset"))]
    link, link_gaps = union(copies)
    gpu, gpu_gaps = union(kernels)
    both = union(copies + kernels)[0]
    per = 1e3 * PASSES
    speed = copied_gb / (link / per) * 1e3 if link else 0.0
    figures = [
        plain,
        len(kernels) / PASSES,
        gpu / per,
        gpu_gaps / per,
        len(copies) / PASSES,
        link / per,
        link_gaps / per,
        speed,
        both / per,
    ]
    print(f"| {name} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |", flush=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="transformer", choices=["transformer", "decoder"])
    parser.add_argument(
        "--percent", type=int, nargs="+", default=[0, 50, 90], help="budgets, of all weights; 0 is the least (default: 0 50 90)"
    )
    args = parser.parse_args()
    subject = SUBJECTS[args.part]()
    subject.on_gpu()
    model = subject.modules[0]
    print("| pass | ms | kernels | they run | gaps | copies | they run | gaps | GB/s | either runs |\n" + "|---" * 10 + "|", flush=True)
    look("on the GPU", subject.step)
    to_host(model)
    with ws.torch.offload(model, device=DEVICE) as handle:
        subject.ready()
        for _ in range(2):
            subject.step()
        floor = handle.stats()["floor_bytes"]
        for percent in args.percent:
            handle.set_budget(max(floor, subject.whole * percent // 100))
            subject.ready()
            for _ in range(4):
                subject.step()
            look(f"{percent} %", subject.step, handle.stats()["bytes_copied_last_pass"] / GB)


if __name__ == "__main__":
    main()
