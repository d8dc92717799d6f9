"""From a model to its two files in one call."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from torch.export import ExportedProgram

from .._native.errors import ExportError
from .._native.progress import step
from . import asked_sizes, experts
from . import quantize as quantization
from .compile.backend import WeightStreamPartitioner
from .examples import examples
from .save import edge_compile_config, save


def export(
    model: torch.nn.Module | ExportedProgram | Mapping[str, torch.nn.Module | ExportedProgram],
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
    constant_methods: dict[str, Any] | None = None,
    shared_state: dict[str, str] | None = None,
    quantize: Any = None,
    packed: bool = False,
    **partitioner: Any,
) -> None:
    """Exports ``model``, compiles it and writes the program and its weights: what the steps in docs/export.md do.

    ``inputs``: a tuple of examples, or one tensor. ``kwargs``: examples by name, which calls give by name too. ``kwargs``, ``dynamic_shapes`` and ``strict`` go to ``torch.export.export``; with a program
    that is exported already (``inputs`` is then ``None``) they are refused. The model is exported in evaluation mode, and left in the
    mode that it had. ``device_io``, ``check``, ``defaults`` and ``packed``: see :func:`save`; other keywords: see :class:`WeightStreamPartitioner`.
    ``constant_methods``: further methods of the program, with the value that each returns.

    A dictionary of models is a program of several methods, which share weights and state: see "Several methods" in docs/export.md.
    ``inputs``, ``kwargs`` and ``dynamic_shapes`` are dictionaries with the same keys then. ``shared_state`` joins buffers that have different
    names in two methods: ``{"decode.cache.k": "prefill.cache.k"}``.

    ``quantize``: ``"int4"``, ``"int8"`` or ``"fp8"`` for the weights of linear layers, a config of torchao, or a function that gives one of
    these, or ``None``, for a layer. The model is left as it is. See "Quantized weights" in docs/export.md.

    Raises :class:`ExportError` for what cannot be served.
    """
    if quantize is not None:
        if not quantization.is_gguf(quantize):
            quantization.needs_torchao()
        model = quantization.quantized(model, quantize)
    programs: ExportedProgram | dict[str, ExportedProgram]
    if isinstance(model, Mapping):
        if "method" in partitioner:
            raise TypeError("method could have no effect: the keys of the dictionary name the methods")
        programs = _programs(model, inputs, kwargs, dynamic_shapes, strict)
    else:
        programs = _program(model, inputs, kwargs=kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    with _seldom_collected():
        edge = to_edge_transform_and_lower(
            programs,
            partitioner=[WeightStreamPartitioner(device=device, shared_state=shared_state, **partitioner)],
            compile_config=edge_compile_config(),
            constant_methods=constant_methods,
        )
    save(edge, pte_path, ptd_path, device_io=device_io, check=check, defaults=defaults, packed=packed)


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """Lets Python look for garbage more seldom: lowering makes millions of objects that stay, and looking took a seventh of its time."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(before[0], 100_000), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _programs(
    models: Mapping[str, torch.nn.Module | ExportedProgram], inputs: Any, kwargs: Any, dynamic_shapes: Any, strict: bool
) -> dict[str, ExportedProgram]:
    """The program of each method."""
    if not models:
        raise TypeError("export takes at least one method, and the dictionary is empty")
    given = {"inputs": inputs, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes}
    by_method = {name: _by_method(name, value, models) for name, value in given.items()}
    if strict and all(isinstance(model, ExportedProgram) for model in models.values()):
        raise TypeError("the models are exported already, so that strict could have no effect")
    found = {}
    for method, model in models.items():
        own = {name: values.get(method) for name, values in by_method.items()}
        if isinstance(model, torch.nn.Module) and own["inputs"] is None:
            raise TypeError(f"inputs has no examples for method '{method}'")
        try:
            found[method] = _program(model, **own, strict=strict and not isinstance(model, ExportedProgram))
        except (TypeError, ExportError) as error:
            raise type(error)(f"method '{method}': {error}") from error
    return found


def _by_method(name: str, value: Any, models: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a keyword gives for each method."""
    methods = ", ".join(models)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a {type(value).__name__}; for a dictionary of models it is one too, by method: {methods}")
    unknown = [str(key) for key in value if key not in models]
    if unknown:
        raise TypeError(f"{name} has entries for {', '.join(unknown)}; the methods are {methods}")
    return value


def _program(model: torch.nn.Module | ExportedProgram, inputs: Any, **options: Any) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        given = [name for name, value in {"inputs": inputs, **options}.items() if isinstance(value, torch.Tensor) or value]
        if given:
            raise TypeError(f"the model is exported already, so that {', '.join(given)} could have no effect")
        return model
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"export takes a torch.nn.Module or an ExportedProgram, not {type(model).__name__}")
    given, options["kwargs"] = examples(model, inputs, options["kwargs"])
    with step("tracing the model with torch.export"), _evaluating(model), experts.as_operators(model), torch.no_grad():
        program = torch.export.export(model, given, **options)
    asked_sizes.say(model, given, options["kwargs"], options["dynamic_shapes"], program)
    return program


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
