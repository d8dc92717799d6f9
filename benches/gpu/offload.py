#!/usr/bin/env python3
"""`ws.torch.offload` on a GPU, one token: an eager decoder at four budgets, beside itself without offloading and beside the limit.

    python benches/gpu/offload.py                    # 16 layers, 7.0 GB; then four models of 5 GB under 15 GB

Part one: time per pass with 100, 75, 50 and 25 % of the weights as budget. 100 % is compared with the module on the GPU, the others with
the limit: bytes that exceed the budget over the speed of the link, which is measured in this run. Part two: four models share a budget,
in turn and in phases of 20 passes; bytes copied, of all weights. The status is 1 if an output differs from the module's own.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import llama
import torch
import weightstream as ws
from measure import back_to_back_ms, link
from torch import nn

DEVICE = "cuda:0"
GB = 1e9
PERCENT = (100, 75, 50, 25)


def bytes_of(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def build(layers: int, sizes: dict[str, int]) -> nn.Module:
    """Drawn on the GPU, in seconds, and brought to host memory."""
    return llama.build(layers, **sizes).cpu()


def out(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    return model(given).cpu()


def budgets(layers: int, sizes: dict[str, int], passes: int) -> bool:
    """Part one."""
    model = build(layers, sizes)
    given = llama.tokens(1, sizes.get("vocabulary", llama.VOCABULARY)).to(DEVICE)
    whole, good = bytes_of(model), True
    model.to(DEVICE)
    expected = out(model, given)
    eager = back_to_back_ms(lambda: out(model, given), passes)
    model.cpu()
    torch.cuda.empty_cache()
    weights = [p.numel() * p.element_size() for p in model.parameters()]
    speed = link(weights)["64_mib_median"]
    torch.cuda.empty_cache()
    print(f"{whole / GB:.2f} GB; eager {eager:.2f} ms; link {speed:.1f} GB/s, all weights {whole / speed / 1e6:.1f} ms", flush=True)
    # Weights begin at pages of 2 MB: what covers all of them is a little more than their bytes.
    paged = sum(-(-one // (2 << 20)) * (2 << 20) for one in weights)
    for percent in PERCENT:
        budget = paged if percent == 100 else whole * percent // 100
        with ws.torch.offload(model, budget=budget, device=DEVICE) as handle:
            for _ in range(4):
                good = torch.equal(out(model, given), expected) and good
            before = handle.stats()
            ms = back_to_back_ms(lambda: out(model, given), passes)
            after = handle.stats()
            copied = (after["bytes_copied"] - before["bytes_copied"]) / (after["passes"] - before["passes"])
            good = torch.equal(out(model, given), expected) and after["astray"] == 0 and good
            limit = max(eager, (whole - budget) / speed / 1e6)
            # In the time of copies alone, and in that of what exceeds the budget.
            print(
                f"{percent:>4} %: {ms:7.2f} ms, {ms / eager:6.3f} of eager, {ms / limit:.3f} of the limit, copied {copied / GB:.3f} GB a pass"
                f" ({copied / speed / 1e6:.1f} ms), {after['peak_bytes'] / GB:.3f} of {budget / GB:.3f} GB used, {after['misses']} misses",
                flush=True,
            )
    return good


def together(count: int, layers: int, share: float, sizes: dict[str, int]) -> bool:
    """Part two."""
    vocabulary = sizes.get("vocabulary", llama.VOCABULARY)
    models = [build(layers, sizes) for _ in range(count)]
    given = [torch.full((1, 1), at % vocabulary, device=DEVICE) for at in range(count)]
    expected = []
    for model, one in zip(models, given):
        model.to(DEVICE)
        expected.append(out(model, one))
        model.cpu()
        torch.cuda.empty_cache()
    whole, good = bytes_of(models[0]), True
    budget = int(share * count * whole)
    print(f"{count} models of {whole / GB:.2f} GB under {budget / GB:.2f} GB", flush=True)
    for name, turns in (("in turn", list(range(count)) * 12), ("phases of 20", [at for at in range(count) for _ in range(20)] * 2)):
        ws.set_device_budget(DEVICE, budget)
        handles = [ws.torch.offload(model, shared=True, device=DEVICE, name=f"model {at}") for at, model in enumerate(models)]

        def copied(handles: list[Any] = handles) -> int:
            return sum(handle.stats().get("bytes_copied", 0) for handle in handles)

        # The first half is learning: what counts is a round, or a phase, after it.
        half = len(turns) // 2
        for at, turn in enumerate(turns):
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16, help="of 0.4 GB each (default 16)")
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--models", type=int, default=4, help="0 leaves part two out")
    parser.add_argument("--model-layers", type=int, default=11, help="of each model of part two (default 11: 5.0 GB)")
    parser.add_argument("--share", type=float, default=0.75, help="budget of part two, of all its weights (default 0.75)")
    parser.add_argument("--small", action="store_true", help="layers of 33 MB")
    args = parser.parse_args()
    sizes = llama.SMALL if args.small else {}
    print(torch.cuda.get_device_name(), flush=True)
    good = budgets(args.layers, sizes, args.passes)
    if args.models:
        good = together(args.models, args.model_layers, args.share, sizes) and good
    print("right" if good else "WRONG", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
