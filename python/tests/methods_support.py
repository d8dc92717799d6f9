"""Small modules for programs of several methods, and their lowering and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import weightstream as ws
from doctor import Ptd, decode_payload, payloads
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from support import error_of
from torch import nn

WEIGHT, DIRECT, MUTABLE = 0, 1, 2
X = torch.linspace(-1, 1, 8)[None]


class Net(nn.Module):
    """A weight, a bias and a state."""

    def __init__(self, seed: int = 0, state: tuple[int, ...] = (1, 8)) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(8, 8, generator=generator), requires_grad=False)
        self.bias = nn.Parameter(torch.randn(8, generator=generator), requires_grad=False)
        self.register_buffer("cache", torch.zeros(state))

    def forward(self, x):
        self.cache.add_(x.sum())
        return x @ self.weight + self.bias + self.cache.sum()


class Reads(nn.Module):
    """A weight of its own, and a buffer that it only reads."""

    def __init__(self, cache: torch.Tensor, name: str = "cache") -> None:
        super().__init__()
        self.own = nn.Parameter(torch.full((8, 8), 0.5), requires_grad=False)
        self.name = name
        self.register_buffer(name, cache)

    def forward(self, x):
        return x @ self.own + getattr(self, self.name).sum(0)


class Wrapped(nn.Module):
    """The same module under other names."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Norms(nn.Module):
    """Four constants of equal bytes: two norms, and two states."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.zeros(8), requires_grad=False) for _ in range(2))
        self.register_buffer("keys", torch.zeros(8))
        self.register_buffer("values", torch.zeros(8))

    def forward(self, x):
        self.keys.add_(x[0])
        self.values.sub_(x[0])
        return x * self.one + self.two + self.keys + self.values


class Scaled(Net):
    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x):
        return super().forward(x) * torch.tensor(self.numbers * 4)


def exported(**modules: nn.Module) -> dict[str, torch.export.ExportedProgram]:
    with torch.no_grad():
        return {name: torch.export.export(module.eval(), (X,)) for name, module in modules.items()}


def lower(partitioner: Any = None, constant_methods: Any = None, **modules: nn.Module) -> EdgeProgramManager:
    partitioner = [ws.WeightStreamPartitioner()] if partitioner is None else partitioner
    return to_edge_transform_and_lower(
        exported(**modules), partitioner=partitioner, compile_config=ws.edge_compile_config(), constant_methods=constant_methods
    )


def refused(partitioner: Any = None, **modules: nn.Module) -> str:
    return error_of(lambda: lower(partitioner, **modules), ws.ExportError)


def refused_map(shared: Any, **modules: nn.Module) -> str:
    return refused([ws.WeightStreamPartitioner(shared_state=shared)], **modules)


class Written:
    """The files of a program, read by code that knows nothing of the exporter's."""

    def __init__(self, folder: Path, edge: EdgeProgramManager) -> None:
        self.pte, self.ptd = folder / "model.pte", folder / "model.ptd"
        ws.save(edge, self.pte, self.ptd, check=False)
        self.payloads = payloads(self.pte)
        self.records = {name: decode_payload(payload) for name, payload in self.payloads.items()}

    def column(self, method: str, field: str) -> dict[str, Any]:
        """FQN to what a field says of it."""
        return dict(zip(self.records[method]["fqns"], self.records[method][field], strict=True))

    def keys(self, method: str) -> dict[str, str]:
        return self.column(method, "keys")

    def kinds(self, method: str) -> dict[str, int]:
        return self.column(method, "kinds")


def weight_entries(ptd: Path) -> dict[str, bytes]:
    found = Ptd(ptd)
    return {key: found.bytes_of(key) for key in found.entries if not key.startswith("weightstream_")}
