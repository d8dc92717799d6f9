"""Mixtures of experts of transformers, exported so that a pass reads the experts that it needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .integers import Integers
from .passes import experts  # noqa: F401 - defines the operators

#: What transformers calls the function below.
_NAME = "weightstream"


class QuantizedExperts(nn.Module):
    """The matrices of all experts as integers. Its buffers have the names that weights get which :mod:`passes.quantized` packs."""

    def __init__(self, weights: list[Integers], dtype: torch.dtype):
        super().__init__()
        self.group, self.kind = weights[0].group, weights[0].kind
        self.register_buffer(self.kind, torch.stack([one.packed() for one in weights]))
        self.register_buffer("scales", torch.stack([one.scales.to(dtype) for one in weights]))

    def forward(self, x: torch.Tensor, numbers: torch.Tensor, each: int) -> torch.Tensor:
        """``x`` [T, K] and ``numbers`` [T * each]: [T * each, N]."""
        return torch.ops.weightstream.expert_quantized_mm(x, numbers, getattr(self, self.kind), self.scales, each, self.group)


def is_experts(module: nn.Module) -> bool:
    """Whether transformers lets somebody else compute these experts."""
    return hasattr(type(module), "_apply_gate") and hasattr(getattr(module, "config", None), "_experts_implementation")


def names_of(module: nn.Module) -> list[str]:
    """What the matrices of experts are called."""
    return ["gate_up_proj" if module.has_gate else "up_proj", "down_proj"]


@contextlib.contextmanager
def as_operators(model: nn.Module) -> Iterator[None]:
    """Lets the experts of ``model`` be computed by the operators of :mod:`passes.experts`."""
    configs = {id(module.config): module.config for module in model.modules() if is_experts(module)}
    if not configs:
        yield
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(_NAME, _forward)
    before = [(config, config._experts_implementation) for config in configs.values()]
    for config in configs.values():
        config._experts_implementation = _NAME
    try:
        yield
    finally:
        for config, implementation in before:
            config._experts_implementation = implementation


def _forward(self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """What transformers calls for ``hidden_states`` [T, H], ``top_k_index`` and ``top_k_weights`` [T, k]. Gives [T, H].

    The k rows of a token are added in their order, so that nothing depends on where experts are."""
    first, last = names_of(self)
    numbers = top_k_index.reshape(-1)
    rows = _product(self, first, hidden_states, numbers, top_k_index.shape[1])
    rows = self._apply_gate(rows) if self.has_gate else self.act_fn(rows)
    rows = _product(self, last, rows, numbers, 1)
    if getattr(self, "has_post_expert_norm", False):
        rows = self.post_expert_norm(rows)
    rows = rows * top_k_weights.reshape(-1, 1)
    return rows.view(*top_k_index.shape, -1).sum(1).to(hidden_states.dtype)


def _product(self: Any, name: str, x: torch.Tensor, numbers: torch.Tensor, each: int) -> torch.Tensor:
    weights = getattr(self, name)
    if isinstance(weights, QuantizedExperts):
        rows = weights(x, numbers, each)
    else:
        rows = torch.ops.weightstream.expert_mm(x, numbers, weights, each, self.is_transposed)
    return rows + getattr(self, f"{name}_bias")[numbers] if self.has_bias else rows
