#!/usr/bin/env python3
"""`ws.torch.offload` on a GPU, one token: an eager decoder at four budgets, beside itself without offloading and beside the limit.

    python benches/gpu/offload.py                    # 16 layers, 7.0 GB; then four models of 5 GB under 15 GB
    python benches/gpu/offload.py --packed --models 0   # packed copies; only part one

Part one: time per pass with 100, 75, 50 and 25 % of the weights as budget. 100 % is compared with the module on the GPU, the others with
the limit: bytes that exceed the budget over the speed of the link, which is measured in this run. Part two: four models share a budget,
in turn and in phases of 20 passes; bytes copied, of all weights. The status is 1 if an output differs from the module's own.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import weightstream as ws
from eager_models import DEVICE, GB, PERCENT, arguments, bytes_of, one, out, several, turns
from measure import back_to_back_ms


def budgets(layers: int, sizes: dict[str, int], passes: int, packed: bool) -> bool:
    """Part one. The limit is that of raw bytes."""
    found, good = one(layers, sizes, passes), True
    model, given, expected, weights, whole, eager, speed = found
    print(f"{whole / GB:.2f} GB; eager {eager:.2f} ms; link {speed:.1f} GB/s, all weights {whole / speed / 1e6:.1f} ms", flush=True)
    # Weights begin at pages of 2 MB: what covers all of them is a little more than their bytes.
    paged = sum(-(-bytes // (2 << 20)) * (2 << 20) for bytes in weights)
    for percent in PERCENT:
        budget = paged if percent == 100 else whole * percent // 100
        with ws.torch.offload(model, budget=budget, device=DEVICE, packed=packed) as handle:
            for _ in range(4):
                good = torch.equal(out(model, given), expected) and good
            before = handle.stats()
            ms = back_to_back_ms(lambda: out(model, given), passes)
            after = handle.stats()
            copied = (after["bytes_copied"] - before["bytes_copied"]) / (after["passes"] - before["passes"])
            good = torch.equal(out(model, given), expected) and after["astray"] == 0 and good
            limit = found.limit(budget)
            # In the time of copies alone, and in that of what exceeds the budget.
            print(
                f"{percent:>4} %: {ms:7.2f} ms, {ms / eager:6.3f} of eager, {ms / limit:.3f} of the limit, copied {copied / GB:.3f} GB a pass"
                f" ({copied / speed / 1e6:.1f} ms), {after['peak_bytes'] / GB:.3f} of {budget / GB:.3f} GB used, {after['misses']} misses",
                flush=True,
            )
    return good


def together(count: int, layers: int, share: float, sizes: dict[str, int]) -> bool:
    """Part two."""
    models, given, expected = several(count, layers, sizes)
    whole, good = bytes_of(models[0]), True
    budget = int(share * count * whole)
    print(f"{count} models of {whole / GB:.2f} GB under {budget / GB:.2f} GB", flush=True)
    for name, order in turns(count).items():
        ws.set_device_budget(DEVICE, budget)
        handles = [ws.torch.offload(model, shared=True, device=DEVICE, name=f"model {at}") for at, model in enumerate(models)]

        def copied(handles: list[Any] = handles) -> int:
            return sum(handle.stats().get("bytes_copied", 0) for handle in handles)

        half = len(order) // 2
        for at, turn in enumerate(order):
            if at == half:
                before = copied()
            good = torch.equal(out(models[turn], given[turn]), expected[turn]) and good
        rounds = half / count
        held = ws.device_report(DEVICE)
        good = held["held_bytes"] <= budget and good
        print(
            f"{name}: {(copied() - before) / GB:.2f} GB copied in {half} passes, {(copied() - before) / GB / rounds:.2f} GB per {count} passes;"
            f" rule {held['rule']}, {held['held_bytes'] / GB:.2f} GB held",
            flush=True,
        )
        for handle in handles:
            handle.remove()
    ws.set_device_budget(DEVICE, "auto")
    return good


@torch.inference_mode()
def main() -> int:
    args = arguments(__doc__)
    print(torch.cuda.get_device_name(), flush=True)
    good = budgets(args.layers, args.sizes, args.passes, args.packed)
    if args.models:
        good = together(args.models, args.model_layers, args.share, args.sizes) and good
    print("right" if good else "WRONG", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
