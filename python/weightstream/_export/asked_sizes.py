"""Sizes that an export asked torch to find out about (``Dim.AUTO``, ``Dim.DYNAMIC``), and that its trace fixed or joined without a word."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from .._native.progress import note
from .compile.call_names import call_of


def say(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any, program: ExportedProgram) -> None:
    """A line of progress for each such size. A :class:`torch.export.Dim` with a name needs none: torch refuses what it cannot be."""
    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    if isinstance(shapes, (tuple, list)):
        shapes = dict(zip(given, shapes))
    if not isinstance(shapes, Mapping):
        return
    asked = [one for name, spec in shapes.items() if name in given for one in _hints(name, given[name], spec)]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = dict(zip(call_of(program).get("x_call", []), (values.get(str(name)) for name in program.graph_signature.user_inputs)))
    joined = defaultdict(list)
    for path, dim in asked:
        if not isinstance(inputs.get(path), torch.Tensor):
            continue
        # A symbol that torch found to be a number prints as one.
        size, place = str(inputs[path].shape[dim]), f"dimension {dim} of '{path}'"
        if size.isdigit():
            note(
                f"{place} is {size} in every call: the model's code, another input or an example of size 0 or 1 fixes it; to see what does, "
                "give the dimension a name (torch.export.Dim)"
            )
        else:
            joined[size].append(place)
    for places in joined.values():
        if len(places) > 1:
            note(
                f"{', '.join(places)} are one size in every call: their examples are equal, or the model's code compares them; give examples of "
                "different sizes, or dimensions with names (torch.export.Dim)"
            )


def _hints(path: str, value: Any, spec: Any) -> Iterator[tuple[str, int]]:
    """Each dimension inside of an argument that has a hint in the place of a name."""
    if isinstance(value, torch.Tensor):
        dims = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        yield from ((path, dim) for dim, hint in dims if getattr(getattr(hint, "type", None), "name", None) in ("AUTO", "DYNAMIC"))
    elif isinstance(value, (tuple, list)) and isinstance(spec, (tuple, list)):
        for index, (one, its) in enumerate(zip(value, spec)):
            yield from _hints(f"{path}[{index}]", one, its)
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key in spec:
            yield from _hints(f"{path}[{key!r}]", value.get(key), spec[key])
