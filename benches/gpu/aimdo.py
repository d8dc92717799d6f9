#!/usr/bin/env python3
"""comfy-aimdo through its public calls, on the models and budgets of `offload.py`: what `ws.torch.offload` is compared with.

    python benches/gpu/aimdo.py                      # needs the package comfy-aimdo

Part one: time per pass with 100, 75, 50 and 25 % of the weights. Part two: four models under 15 GB, in turn and in phases of 20 passes,
with and without `prioritize()` at each change of the model; bytes copied. It knows no cap that is a number: other memory is taken until
so much is free, and half a GB more. Host memory is pinned. The status is 1 if an output differs from the module's own.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

import torch
from comfy_aimdo import control
from eager_models import DEVICE, GB, PERCENT, arguments, bytes_of, one, out, several, turns
from measure import back_to_back_ms
from torch import nn

#: Its modules, which are imported once it was started.
vbar: Any = None
tensors: Any = None
#: What is left free beside the budget, for activations and temporaries.
SPARE = 512 << 20


class Weight:
    """One parameter: host bytes, and its place in the range."""

    def __init__(self, parameter: nn.Parameter, range_: Any):
        self.parameter, self.host = parameter, parameter.data.pin_memory()
        parameter.data = self.host
        self.alloc = range_.alloc(self.host.nbytes)
        self.signature: Any = None
        self.shown: torch.Tensor | None = None

    def show(self) -> int:
        """Bytes that were copied."""
        self.faulted = vbar.vbar_fault(self.alloc)
        if self.faulted is None:
            self.parameter.data = self.host.to(DEVICE, non_blocking=True)
            return self.host.nbytes
        if self.shown is None:
            bytes = tensors.aimdo_to_tensor(self.alloc, torch.device(DEVICE)).view(torch.uint8)
            self.shown = bytes[: self.host.nbytes].view(self.host.dtype).view(self.host.shape)
        self.parameter.data = self.shown
        if self.signature is not None and vbar.vbar_signature_compare(self.faulted, self.signature):
            return 0
        self.shown.copy_(self.host, non_blocking=True)
        self.signature = self.faulted
        return self.host.nbytes

    def hide(self) -> None:
        self.parameter.data = self.host
        if self.faulted is not None:
            vbar.vbar_unpin(self.alloc)


class Offloaded:
    """A module whose layers fault their weights before they run, and unpin them afterwards."""

    def __init__(self, module: nn.Module):
        weights = list(module.parameters())
        rounded = sum(-(-p.nbytes // (2 << 20)) * (2 << 20) for p in weights)
        self.range = vbar.ModelVBAR(10 * rounded, device=0)
        self.module, self.copied = module, 0
        self.wrapped: list[nn.Module] = []
        for layer in module.modules():
            own = list(layer.parameters(recurse=False))
            if own:
                self.wrap(layer, [Weight(parameter, self.range) for parameter in own])

    def wrap(self, layer: nn.Module, weights: list[Weight]) -> None:
        inner = layer.forward

        def forward(*args: Any, **named: Any) -> Any:
            self.copied += sum(weight.show() for weight in weights)
            found = inner(*args, **named)
            for weight in weights:
                weight.hide()
            return found

        layer.forward = forward
        self.wrapped.append(layer)

    def close(self) -> None:
        for layer in self.wrapped:
            del layer.forward
        torch.cuda.synchronize()
        self.range.close()
        gc.collect()


def ballast(budget: int) -> torch.Tensor:
    """Other memory, so that `budget` and a little more is free."""
    return torch.empty(torch.cuda.mem_get_info()[0] - budget - SPARE, dtype=torch.uint8, device=DEVICE)


def budgets(layers: int, sizes: dict[str, int], passes: int) -> bool:
    """Part one."""
    found, good = one(layers, sizes, passes), True
    model, given, expected, _, whole, eager, speed = found
    print(f"comfy-aimdo: {whole / GB:.2f} GB; eager {eager:.2f} ms; link {speed:.1f} GB/s", flush=True)
    for percent in PERCENT:
        budget = whole * percent // 100
        taken = ballast(budget) if percent < 100 else None
        offloaded = Offloaded(model)
        for _ in range(4):
            good = torch.equal(out(model, given), expected) and good
        before = offloaded.copied
        ms = back_to_back_ms(lambda: out(model, given), passes)
        copied = (offloaded.copied - before) / (passes + 1)
        good = torch.equal(out(model, given), expected) and good
        limit = found.limit(budget)
        held = offloaded.range.loaded_size()
        offloaded.close()
        del taken
        torch.cuda.empty_cache()
        print(
            f"{percent:>4} %: {ms:7.2f} ms, {held / GB:.2f} GB held, {ms / eager:6.3f} of eager, {ms / limit:.3f} of the limit, about {copied / GB:.3f} GB a pass",
            flush=True,
        )
    return good


def together(count: int, layers: int, share: float, sizes: dict[str, int]) -> bool:
    """Part two."""
    models, given, expected = several(count, layers, sizes)
    whole, good = bytes_of(models[0]), True
    budget = int(share * count * whole)
    taken = ballast(budget)
    print(f"comfy-aimdo: {count} models of {whole / GB:.2f} GB, {torch.cuda.mem_get_info()[0] / GB:.2f} GB free", flush=True)
    offloaded = [Offloaded(model) for model in models]
    for name, order in turns(count).items():
        for prioritize in (True, False):
            half, before, last = len(order) // 2, 0, -1
            for at, turn in enumerate(order):
                if at == half:
                    before = sum(one.copied for one in offloaded)
                if prioritize and turn != last:
                    offloaded[turn].range.prioritize()
                last = turn
                good = torch.equal(out(models[turn], given[turn]), expected[turn]) and good
            copied = sum(one.copied for one in offloaded) - before
            how = "with" if prioritize else "without"
            print(f"{name}, {how} prioritize(): {copied / GB:.2f} GB copied in {len(order) - half} passes", flush=True)
    del taken
    return good


def start() -> None:
    """PyTorch has to have made its context first."""
    print(torch.cuda.get_device_name(), torch.zeros(1, device=DEVICE).item(), flush=True)
    if not control.init() or not control.init_device(0):
        raise RuntimeError("comfy-aimdo does not start here")
    global vbar, tensors
    vbar, tensors = (importlib.import_module(f"comfy_aimdo.{name}") for name in ("model_vbar", "torch"))


@torch.inference_mode()
def main() -> int:
    args = arguments(__doc__)
    start()
    good = budgets(args.layers, args.sizes, args.passes)
    if args.models:
        good = together(args.models, args.model_layers, args.share, args.sizes) and good
    print("right" if good else "WRONG", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
