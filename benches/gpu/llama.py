"""The model that is measured: a stack of Llama-like layers in bf16 with random weights, 16 layers and 7.0 GB by default.

    python benches/gpu/llama.py MODEL.pte MODEL.ptd --tokens 8192 --twice

exports it for any number of tokens up to `--tokens` as one program, for `builds.py`. It needs the GPU, which draws the weights.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 32000
#: Of a model that is small: 33 MB a layer.
SMALL = {"dim": 1024, "heads": 8, "hidden": 4096, "vocabulary": 4096}


class Layer(nn.Module):
    """Attention without positions and a gated MLP: what counts is the bytes of its weights."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Token numbers in, logits of the last token out. Each layer runs `turns` times, one time after the other."""

    def __init__(self, layers: int, dim: int = 4096, heads: int = 32, hidden: int = 11008, turns: int = 1, vocabulary: int = VOCABULARY):
        super().__init__()
        self.turns = turns
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            for _ in range(self.turns):
                x = layer(x)
        return self.head(self.norm(x[:, -1:]))


def build(layers: int, device: str = "cpu", **sizes: int) -> nn.Module:
    """The model; the same weights each time on one kind of GPU, where they are drawn: that takes seconds instead of minutes."""
    with torch.device("meta"):
        model = Llama(layers, **sizes)
    model = model.to(torch.bfloat16).to_empty(device=device).eval().requires_grad_(False)
    draw = torch.Generator("cuda").manual_seed(0)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.fill_(1)
        else:
            drawn = torch.randn(weight.shape, device="cuda", dtype=torch.bfloat16, generator=draw)
            weight.copy_(drawn * weight.shape[-1] ** -0.5)
    return model


def build_on_cpu(layers: int, **sizes: int) -> nn.Module:
    """The same weights each time, on the CPU."""
    with torch.device("meta"):
        model = Llama(layers, **sizes)
    model = model.to(torch.bfloat16).to_empty(device="cpu").eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.fill_(1)
        else:
            weight.normal_(0, weight.shape[-1] ** -0.5, generator=draw)
    return model


def weight_sizes(layers: int) -> list[int]:
    """Bytes of each weight, in the order of their names."""
    with torch.device("meta"):
        model = Llama(layers).to(torch.bfloat16)
    return [p.numel() * p.element_size() for p in model.parameters()]


def tokens(count: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(count))


def main() -> None:
    import weightstream as ws

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="MODEL.pte")
    parser.add_argument("data", help="MODEL.ptd")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=8192, help="the largest number of tokens; kernels are chosen for it")
    parser.add_argument("--fixed", action="store_true", help="this number of tokens and no other")
    parser.add_argument("--twice", action="store_true", help="each layer runs twice")
    parser.add_argument("--sm", help="compute capability: kernels are not tuned, which takes less time")
    args = parser.parse_args()
    begin = time.monotonic()
    model = build(args.layers, turns=2 if args.twice else 1)
    sizes = None if args.fixed else ({1: torch.export.Dim("tokens", min=1, max=args.tokens)},)
    ws.export(model, tokens(args.tokens), args.model, args.data, device="cuda", dynamic_shapes=sizes, sm=args.sm)
    print(f"{args.model}: exported in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
