"""What an entry of the zoo is, and what all of them need: calls by keyword, flat outputs, weights that matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from zoo import Inputs, Spec

BATCH = Dim("batch", min=1, max=4)


@dataclass(frozen=True)
class Entry:
    """One model of a public library."""

    spec: Spec
    library: str
    #: How the model is called where it is deployed: which sizes change from call to call.
    deployed: str

    @property
    def dynamic(self) -> bool:
        return self.spec.dynamic_shapes is not None


PUBLIC: dict[str, Entry] = {}


def enter(library: str, spec: Spec, deployed: str) -> None:
    """Adds a model to the zoo; names are unique."""
    if spec.name in PUBLIC:
        raise ValueError(f"two models are called {spec.name!r}")
    PUBLIC[spec.name] = Entry(spec, library, deployed)


class Called(nn.Module):
    """A model whose inputs have names, called with them in order; gives all tensors of its output, in order."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], fixed: Mapping[str, Any]):
        super().__init__()
        self.model, self.names, self.fixed = model, names, dict(fixed)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensors_of(self.model(**dict(zip(self.names, inputs)), **self.fixed)))


class Positional(nn.Module):
    """A model or a method of one, called with its inputs in order; gives all tensors of its output, in order."""

    def __init__(self, model: nn.Module, method: str = "forward"):
        super().__init__()
        self.model, self.method = model, method

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensors_of(getattr(self.model, self.method)(*inputs)))


def tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of a model's output, whose classes differ from library to library."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from tensors_of(value)
    elif output is not None:
        raise TypeError(f"the model gives a {type(output).__name__}")


def stirred(model: nn.Module) -> nn.Module:
    """Random weights under which every layer counts.

    Fresh models have zeros for biases, layer scales and last layers, and products that shrink everything: their outputs say little."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_floating_point():
                continue
            if weight.dim() > 1 and not name.endswith("A_log"):
                weight.normal_().mul_(weight[0].numel() ** -0.5)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_().mul_(0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    return model


def model_of(
    library: str,
    name: str,
    build: Callable[[], nn.Module],
    inputs: Callable[[], list[Inputs]],
    deployed: str,
    shapes: tuple[Any, ...] | None = None,
    **more: Any,
) -> None:
    """An entry whose module takes its inputs as `*inputs`; `shapes` are the dynamic dimensions of each of them."""
    dynamic = None if shapes is None else (shapes,)
    spec = Spec(f"{library}_{name}", lambda: stirred(build()), inputs, deployed, dynamic_shapes=dynamic, **more)
    enter(library, spec, deployed)


def pictures(size: int, batches: tuple[int, ...] = (2, 1, 4), channels: int = 3) -> Callable[[], list[Inputs]]:
    """Passes with batches of square pictures."""
    return lambda: [(torch.randn(batch, channels, size, size),) for batch in batches]
