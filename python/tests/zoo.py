"""What the test models have in common: a registry, seeded weights, and eager PyTorch as the reference.

Every model is written here from a configuration and gets random weights from a seed made of its name, so that the
exporting process, the eager reference and a later run all see the same bytes.
"""

from __future__ import annotations

import io
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from device_under_test import DEVICE
from torch import nn

Inputs = tuple[torch.Tensor, ...]


#: Held while torch's one generator is seeded and drawn from: two threads would draw each some of the other's numbers.
SEEDED = threading.RLock()


@dataclass(frozen=True)
class Spec:
    """One model of the tests."""

    name: str
    build: Callable[[], nn.Module]
    #: The inputs of successive passes; the first is also the example for `torch.export.export`.
    inputs: Callable[[], list[Inputs]]
    #: What it shows: a sentence for people.
    shows: str
    dynamic_shapes: Any = None
    #: Largest allowed difference from eager PyTorch: both the absolute and the relative tolerance of `torch.allclose`.
    tolerance: float = 1e-4
    #: A model with a mutated buffer: pass k must follow pass k-1, and the reference is run once per sequence.
    stateful: bool = False
    #: Without it the program is the non-offloaded baseline.
    offload: bool = True
    #: The name of the model whose weights and inputs it shares (default: its own).
    seed_name: str = ""
    #: Words of the export's refusal, for a model that cannot run on a GPU.
    refused_on_a_gpu: str = ""
    #: The names of a pass's inputs, where the program takes them by keyword.
    keywords: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        return zlib.crc32((self.seed_name or self.name).encode())

    def model(self) -> nn.Module:
        """A fresh copy of the model, weights and mutable buffers in their initial state."""
        with SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build().eval().requires_grad_(False)

    def passes(self, count: int | None = None) -> list[Inputs]:
        """Inputs for `count` passes: the model's own list, repeated from its start as often as needed."""
        with SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            once = self.inputs()
        return [once[i % len(once)] for i in range(len(once) if count is None else count)]

    def eager(self, passes: list[Inputs]) -> list[list[torch.Tensor]]:
        """Outputs of eager PyTorch for these passes, in order, on a fresh copy, computed on the device under test."""
        model = moved(self.model(), DEVICE)
        # What the model makes by itself (`torch.arange`) belongs there too.
        with torch.no_grad(), torch.device(DEVICE), SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 2)
            found = [as_list(model(*(x.to(DEVICE, copy=True) for x in inputs))) for inputs in passes]
            return [[out.to("cpu", copy=True) for out in outputs] for outputs in found]

    def export(self) -> torch.export.ExportedProgram:
        """`torch.export.export` of a fresh copy: where every user starts."""
        with torch.no_grad():
            return torch.export.export(self.model(), self.passes(1)[0], dynamic_shapes=self.dynamic_shapes)


def moved(model: nn.Module, device: str) -> nn.Module:
    """The model on that device with all that it holds: `nn.Module.to` leaves tensors in lists and plain attributes where they are."""
    if device == "cpu":
        return model
    written = io.BytesIO()
    torch.save(model, written)
    written.seek(0)
    return torch.load(written, map_location=device, weights_only=False)


ZOO: dict[str, Spec] = {}


def register(spec: Spec) -> Spec:
    """Adds a model to the zoo; names are unique."""
    if spec.name in ZOO:
        raise ValueError(f"two models are called {spec.name!r}")
    ZOO[spec.name] = spec
    return spec


class Together(nn.Module):
    """Several models in one program, each with inputs and outputs of its own."""

    def __init__(self, members: list[Spec]):
        super().__init__()
        self.parts = nn.ModuleDict({spec.name: spec.build() for spec in members})
        self.counts = [len(spec.passes(1)[0]) for spec in members]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, rest = [], list(inputs)
        for part, count in zip(self.parts.values(), self.counts, strict=True):
            outputs += as_list(part(*rest[:count]))
            rest = rest[count:]
        return tuple(outputs)


#: The program that a model shares with others.
SHARED: dict[str, str] = {}


def share(name: str, *members: str) -> None:
    """Registers one program for several models that differ in what they show: an export takes a while."""
    specs = [ZOO[member] for member in members]

    def inputs() -> list[Inputs]:
        each = [spec.inputs() for spec in specs]
        return [tuple(x for one in each for x in one[at % len(one)]) for at in range(max(map(len, each)))]

    def build() -> nn.Module:
        return Together(specs)

    # Where its models are defined: the key of its export holds that file.
    build.__module__ = specs[0].build.__module__
    shows = "; ".join(spec.shows for spec in specs)
    tolerance, stateful = max(spec.tolerance for spec in specs), any(spec.stateful for spec in specs)
    register(Spec(name, build, inputs, shows, tolerance=tolerance, stateful=stateful))
    SHARED.update(dict.fromkeys(members, name))


def outputs_in(program: str, name: str) -> slice:
    """Which outputs of a program are the model's: all of its own program."""
    if program == name:
        return slice(None)
    start = 0
    for member in (member for member, shared in SHARED.items() if shared == program):
        count = len(ZOO[member].eager(ZOO[member].passes(1))[0])
        if member == name:
            return slice(start, start + count)
        start += count
    raise ValueError(f"'{program}' does not hold '{name}'")


def as_list(output: Any) -> list[torch.Tensor]:
    """One output or several, as a list."""
    return list(output) if isinstance(output, tuple | list) else [output]


def largest_error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest `|found - expected| / (1 + |expected|)`: `torch.allclose` with equal tolerances. Shapes and dtypes must agree."""
    assert len(found) == len(expected), f"{len(found)} outputs, eager has {len(expected)}"
    worst = 0.0
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, f"output {number}: shape {tuple(a.shape)}, eager has {tuple(b.shape)}"
        assert a.dtype == b.dtype, f"output {number}: dtype {a.dtype}, eager has {b.dtype}"
        a, b = a.double(), b.double()
        assert torch.isfinite(a).all(), f"output {number} holds values that are not finite"
        if b.numel():
            worst = max(worst, ((a - b).abs() / (1 + b.abs())).max().item())
    return worst


def bits(outputs: list[torch.Tensor]) -> list[bytes]:
    """Outputs as bytes, for comparisons that allow no difference at all."""
    return [out.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for out in outputs]


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and persistent buffers, tied ones once."""
    seen: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(seen.values())
