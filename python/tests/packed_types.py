"""A module with weights of one type, and what packing leaves of them."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, DEPTH = 512, 6


class Typed(nn.Module):
    """Layers with weights of one type, which products convert."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        scale = 16.0 if dtype.itemsize == 1 else 0.05
        made = [(torch.randn(WIDTH, WIDTH) * scale).to(dtype) for _ in range(DEPTH)]
        self.layers = nn.ParameterList(nn.Parameter(one, requires_grad=False) for one in made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(x @ layer.to(x.dtype) / 16)
        return x


#: What packing leaves of random normal numbers.
RATIOS = {
    torch.bfloat16: 0.667,
    torch.float16: 0.852,
    torch.float32: 0.833,
    torch.float8_e4m3fn: 0.831,
    torch.float8_e5m2: 0.706,
}
