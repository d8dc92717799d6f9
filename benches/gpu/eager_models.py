"""What `offload.py` and `aimdo.py` share: models in host memory, their outputs without offloading, the order of passes, arguments."""

from __future__ import annotations

import argparse
from typing import NamedTuple

import llama
import torch
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


def on_gpu(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """What it computes there. Then it is in host memory again."""
    found = out(model.to(DEVICE), given)
    model.cpu()
    torch.cuda.empty_cache()
    return found


class One(NamedTuple):
    """The model of part one."""

    model: nn.Module
    given: torch.Tensor
    expected: torch.Tensor
    #: Bytes of each weight.
    weights: list[int]
    whole: int
    #: Milliseconds of a pass without offloading.
    eager: float
    #: GB/s of copies to the device.
    speed: float

    def limit(self, budget: int) -> float:
        """Milliseconds of a pass, if nothing but kernels and the link counts."""
        return max(self.eager, (self.whole - budget) / self.speed / 1e6)


def one(layers: int, sizes: dict[str, int], passes: int) -> One:
    model = build(layers, sizes)
    given = llama.tokens(1, sizes.get("vocabulary", llama.VOCABULARY)).to(DEVICE)
    model.to(DEVICE)
    eager = back_to_back_ms(lambda: out(model, given), passes)
    expected = on_gpu(model, given)
    weights = [p.numel() * p.element_size() for p in model.parameters()]
    speed = link(weights)["64_mib_median"]
    torch.cuda.empty_cache()
    return One(model, given, expected, weights, sum(weights), eager, speed)


def several(count: int, layers: int, sizes: dict[str, int]) -> tuple[list[nn.Module], list[torch.Tensor], list[torch.Tensor]]:
    """The models of part two, an input for each, and what it computes."""
    vocabulary = sizes.get("vocabulary", llama.VOCABULARY)
    models = [build(layers, sizes) for _ in range(count)]
    given = [torch.full((1, 1), at % vocabulary, device=DEVICE) for at in range(count)]
    return models, given, [on_gpu(*both) for both in zip(models, given, strict=True)]


def turns(count: int) -> dict[str, list[int]]:
    """Which model passes when. The first half is learning: what counts comes after it."""
    return {"in turn": list(range(count)) * 12, "phases of 20": [at for at in range(count) for _ in range(20)] * 2}


def arguments(doc: str | None) -> argparse.Namespace:
    """With `sizes`, those of a layer."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16, help="of 0.4 GB each (default 16)")
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--models", type=int, default=4, help="0 leaves part two out")
    parser.add_argument("--model-layers", type=int, default=11, help="of each model of part two (default 11: 5.0 GB)")
    parser.add_argument("--share", type=float, default=0.75, help="memory of part two, of all its weights (default 0.75)")
    parser.add_argument("--packed", action="store_true", help="of offload.py: weights have packed copies")
    parser.add_argument("--small", action="store_true", help="layers of 33 MB")
    args = parser.parse_args()
    args.sizes = llama.SMALL if args.small else {}
    return args
