"""Mixtures of experts of transformers, exported so that a pass reads the experts that it needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .._native.errors import ExportError
from .passes import experts  # noqa: F401 - defines the operators
from .passes.quantized import pack_halves

#: What transformers calls the function below.
_NAME = "weightstream"


#: The largest value that a type can hold, beside the smallest scale of a row or group.
_LARGEST = {"int4": 7.5, "int8": 127.5, "fp8": 448.0}
#: Columns of one scale of four bits, where rows divide into such groups.
_GROUP = 32


class QuantizedExperts(nn.Module):
    """The matrices of all experts in four or eight bits. Its buffers have the names that weights get which :mod:`passes.quantized` packs.

    ``matrices`` [E, N, K]; ``kind``: ``"int4"``, in groups of 32 columns, ``"int8"`` or ``"fp8"``, with one scale for a row.
    """

    def __init__(self, matrices: torch.Tensor, kind: str):
        super().__init__()
        columns = matrices.shape[2]
        self.kind, self.group = kind, _GROUP if kind == "int4" and columns % _GROUP == 0 else columns
        # One at a time: all of them in float32 would take twice the memory of the layer.
        packed, scales = zip(*(self._packed(one.float()) for one in matrices), strict=True)
        self.register_buffer(kind, torch.stack(packed))
        self.register_buffer("scales", torch.stack(scales).to(matrices.dtype))

    def _packed(self, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        groups = matrix.unflatten(1, (-1, self.group))
        scales = (groups.abs().amax(2, keepdim=True) / _LARGEST[self.kind]).clamp(min=torch.finfo(torch.float32).tiny)
        values = (groups / scales).flatten(1)
        if self.kind == "fp8":
            stored = values.to(torch.float8_e4m3fn)
        else:
            half = 8 if self.kind == "int4" else 128
            stored = values.round().clamp(-half, half - 1).to(torch.int8)
        return pack_halves(stored + 8) if self.kind == "int4" else stored, scales.squeeze(2)

    def forward(self, x: torch.Tensor, numbers: torch.Tensor, each: int) -> torch.Tensor:
        """``x`` [T, K] and ``numbers`` [T * each]: [T * each, N]."""
        return torch.ops.weightstream.expert_quantized_mm(x, numbers, getattr(self, self.kind), self.scales, each, self.group)


def quantize(module: nn.Module, kind: str) -> None:
    """Gives experts that transformers lets others compute weights of fewer bits."""
    for name in names_of(module):
        matrices = getattr(module, name).detach()
        if matrices.shape[1 if module.is_transposed else 2] % 2:
            raise ExportError(f"quantize: '{name}' of {type(module).__name__} has rows of an odd number of columns")
        delattr(module, name)
        module.add_module(name, QuantizedExperts(matrices.transpose(1, 2) if module.is_transposed else matrices, kind))


def is_experts(module: nn.Module) -> bool:
    """Whether transformers lets somebody else compute these experts."""
    return hasattr(type(module), "_apply_gate") and hasattr(getattr(module, "config", None), "_experts_implementation")


def is_dense(module: nn.Module) -> bool:
    """Whether these are such experts, with matrices of floating point."""
    return is_experts(module) and all(getattr(module, name).is_floating_point() for name in names_of(module))


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
