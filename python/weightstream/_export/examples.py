"""Example inputs of an export, checked before torch traces with them: its own errors do not say which argument is meant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree

from .._native.errors import ExportError

_VALUES = (bool, int, float, str, type(None))


def examples(model: torch.nn.Module, inputs: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``inputs`` as a tuple, and ``kwargs`` as a dictionary. Raises :class:`ExportError` for what no program can take."""
    if isinstance(inputs, Mapping):
        raise ExportError(
            "inputs is a dictionary: give arguments by name as kwargs={...}, with () as inputs; put a dictionary that is one argument into a "
            "tuple, ({...},)"
        )
    if inputs is None and not kwargs:
        raise ExportError("inputs is None: give a tuple of examples, or () if the model takes none")
    if not isinstance(inputs, (torch.Tensor, tuple, list, type(None))):
        raise ExportError(f"inputs is {_kind(inputs)}: give a tuple of examples, or one tensor")
    if not isinstance(kwargs, (Mapping, type(None))):
        raise ExportError(f"kwargs is {_kind(kwargs)}: give a dictionary of examples by name")
    given = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs or ())
    named = dict(kwargs or {})
    for what, values in (("inputs", given), ("kwargs", named)):
        for path, value in _pytree.tree_flatten_with_path(values)[0]:
            _refuse(what + _pytree.keystr(path), value)
    try:
        inspect.signature(model.forward).bind(*given, **named)
    except TypeError as error:
        raise ExportError(f"the examples are not what forward of {type(model).__name__} takes: {error}") from None
    return given, named


def _refuse(name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise ExportError(f"{name} is a sparse tensor ({value.layout}); only dense ones are computed with: use to_dense()")
        if value.is_quantized:
            raise ExportError(f"{name} is a quantized tensor ({value.dtype}); give its integers (int_repr()) and scales")
    elif not isinstance(value, _VALUES):
        raise ExportError(
            f"{name} is {_kind(value)}; inputs are tensors, numbers, texts and None, in tuples, lists and dictionaries: make it an attribute "
            "of the module"
        )
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ExportError(f"{name} is {value}, which does not fit into an integer of 64 bits")


def _kind(value: Any) -> str:
    module = type(value).__module__
    return f"of the type {'' if module == 'builtins' else f'{module}.'}{type(value).__qualname__}"
