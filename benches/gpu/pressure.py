#!/usr/bin/env python3
"""Three models in a row, each with activations as large as its weights, on a device that holds one and a half of them.

    python benches/gpu/pressure.py --out results.jsonl            # `ws.torch.offload` and comfy-aimdo, each in a process of its own

For ours the device's budget is that memory; for comfy-aimdo other memory is taken until so much is free, and half a GB more. A round is
a pass of each model. `least_ms` is what the link takes for the bytes that were copied. The status is 1 if an output differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from measure import GB, Results, link
from torch import nn

DEVICE = "cuda:0"
WIDTH, LAYERS, MODELS, ROUNDS = 4096, 64, 3, 6
WEIGHTS = 2 * WIDTH * WIDTH * LAYERS


class Model(nn.Module):
    """Layers, and between them activations of as many bytes as the layers have."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16, device=DEVICE) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: LAYERS // 2]:
            x = x + torch.tanh(layer(x))
        rows = WEIGHTS // (2 * WIDTH)
        wide = x[:1].expand(rows, WIDTH).contiguous().mul_(0.5)
        x = x + wide[::64].float().mean(0).to(x.dtype)
        del wide
        for layer in self.layers[LAYERS // 2 :]:
            x = x + torch.tanh(layer(x))
        return x


def rounds(models: list[nn.Module], x: torch.Tensor, expected: list[torch.Tensor], copied, before) -> dict:
    """Rounds after two that warm up: the time of one, and the bytes that it copies."""
    good, times, start = True, [], 0
    for number in range(ROUNDS):
        if number == 2:
            start = copied()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for at, model in enumerate(models):
            before(at)
            good = torch.equal(model(x), expected[at]) and good
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    moved = (copied() - start) / (ROUNDS - 2)
    speed = link([1 << 30] * 4, runs=3)["64_mib_median"]
    timed = sorted(times[2:])
    return {
        "ms": timed[len(timed) // 2],
        "copied_gb": moved / GB,
        "least_ms": moved / GB / speed * 1e3,
        "link_gb_s": speed,
        "right": good,
    } | {
        "times": times,
        "weights_gb": WEIGHTS / GB,
    }


def make() -> tuple[list[nn.Module], torch.Tensor, list[torch.Tensor]]:
    models, x = [], torch.linspace(-1, 1, 16 * WIDTH, device=DEVICE).reshape(16, WIDTH).to(torch.bfloat16)
    expected = []
    for seed in range(MODELS):
        model = Model(seed).eval().requires_grad_(False)
        expected.append(model(x))
        models.append(model.cpu())
    torch.cuda.empty_cache()
    return models, x, expected


def ours() -> dict:
    import weightstream as ws

    models, x, expected = make()
    ws.set_device_budget(DEVICE, WEIGHTS * 3 // 2)
    handles = [ws.torch.offload(model, shared=True, device=DEVICE, name=f"model {at}") for at, model in enumerate(models)]
    found = rounds(models, x, expected, lambda: sum(one.stats()["bytes_copied"] for one in handles), lambda at: None)
    report = ws.device_report(DEVICE)
    held = {one["name"]: one["held_bytes"] for one in report["tenants"]} | {"activations": report["range_bytes"]}
    return found | {"gave_way": [one.stats()["gave_way"] for one in handles], "held": held}


def theirs() -> dict:
    import aimdo

    models, x, expected = make()
    aimdo.start()
    taken = aimdo.ballast(WEIGHTS * 3 // 2)
    offloaded = [aimdo.Offloaded(model) for model in models]
    found = rounds(models, x, expected, lambda: sum(one.copied for one in offloaded), lambda at: offloaded[at].range.prioritize())
    return found | {"ballast_gb": taken.nbytes / GB}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("pressure.jsonl"), help="a line for each system")
    parser.add_argument("--who", choices=["ours", "aimdo"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.who:
        with torch.inference_mode():
            found = ours() if args.who == "ours" else theirs()
        Results(args.out).write(system=args.who, gpu=torch.cuda.get_device_name(), **found)
        return 0 if found["right"] else 1
    command = [sys.executable, str(Path(__file__).resolve()), "--out", str(args.out), "--who"]
    return max(subprocess.call([*command, who]) for who in ("ours", "aimdo"))


if __name__ == "__main__":
    sys.exit(main())
