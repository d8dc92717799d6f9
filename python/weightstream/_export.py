"""From a model to its two files in one call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from torch.export import ExportedProgram

from ._backend import WeightStreamPartitioner
from ._progress import step
from ._save import edge_compile_config, save


def export(
    model: torch.nn.Module | ExportedProgram,
    inputs: Any,
    pte_path: str | os.PathLike[str],
    ptd_path: str | os.PathLike[str],
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    strict: bool = False,
    device: str = "cpu",
    device_io: bool | str = False,
    check: bool = True,
    defaults: dict[str, Any] | None = None,
    **partitioner: Any,
) -> None:
    """Exports ``model``, compiles it and writes the program and its weights: what the steps in docs/export.md do.

    ``inputs``: a tuple of examples, or one tensor. ``kwargs``, ``dynamic_shapes`` and ``strict`` go to ``torch.export.export``; with a program
    that is exported already (``inputs`` is then ``None``) they are refused. The model is exported in evaluation mode, and left in the
    mode that it had. ``device_io``, ``check`` and ``defaults``: see :func:`save`; other keywords: see :class:`WeightStreamPartitioner`.

    Raises :class:`ExportError` for what cannot be served.
    """
    program = _program(model, inputs, kwargs=kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    edge = to_edge_transform_and_lower(
        program, partitioner=[WeightStreamPartitioner(device=device, **partitioner)], compile_config=edge_compile_config()
    )
    save(edge, pte_path, ptd_path, device_io=device_io, check=check, defaults=defaults)


def _program(model: torch.nn.Module | ExportedProgram, inputs: Any, **options: Any) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        given = [name for name, value in {"inputs": inputs, **options}.items() if value]
        if given:
            raise TypeError(f"the model is exported already, so that {', '.join(given)} could have no effect")
        return model
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"export takes a torch.nn.Module or an ExportedProgram, not {type(model).__name__}")
    examples = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    with step("tracing the model with torch.export"), _evaluating(model), torch.no_grad():
        return torch.export.export(model, examples, **options)


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
