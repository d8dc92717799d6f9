"""What a partitioner is told: keywords of ours, compile specs of ExecuTorch's, and defaults for the runtime's options."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from executorch.exir.backend.compile_spec_schema import CompileSpec

from ..._native import bindings
from ..._native.errors import Error, ExportError
from .record import Fields

#: What the keys of the runtime's options start with.
OPTION = "weight_offload"
DEFAULT_METHOD = "forward"
#: Options that methods of one program may have each for itself.
_OF_A_METHOD = ("weight_offload_cuda_graph", "weight_offload_graph_mb", "weight_offload_graph_shapes")
_SHARED_STATE, _LATE, _CALL = "weightstream_shared_state", "weightstream_late", "weightstream_call"
_SWITCH = {"ON": "auto", "OFF": "math"}


def read_stock(specs: Sequence[CompileSpec]) -> tuple[dict[str, str], list[CompileSpec]]:
    """Keywords that compile specs of ExecuTorch's CUDA backend stand for, and the specs that hold options of the runtime.

    ``method_name``, ``target_device`` (``cpu``, ``cuda``, ``cuda:0``), ``triton_kernel_mode`` (``ON``: ``attention="auto"``, ``OFF``:
    ``"math"``), ``platform`` (``linux``) and ``weight_offload_*``. Others could have no effect, and are refused.
    """
    if isinstance(specs, str) or not all(isinstance(spec, CompileSpec) for spec in specs):
        raise TypeError(f"WeightStreamPartitioner takes a list of CompileSpec, or keywords (device={specs!r}), not {type(specs).__name__}")
    keywords: dict[str, str] = {}
    options = [spec for spec in specs if spec.key.startswith(OPTION)]
    for spec in specs:
        value = spec.value.decode()
        if spec.key == "method_name":
            keywords["method"] = value
        elif spec.key == "target_device" and value in ("cpu", "cuda", "cuda:0"):
            keywords["device"] = value.partition(":")[0]
        elif spec.key == "triton_kernel_mode" and value in _SWITCH:
            keywords["attention"] = _SWITCH[value]
        elif not spec.key.startswith(OPTION) and (spec.key, value) != ("platform", "linux"):
            raise ExportError(_refusal(spec.key, value))
    return keywords, options


def checked_state(shared: dict[str, str] | None) -> dict[str, str] | None:
    """A copy of ``shared_state``; raises :class:`TypeError` for what is none."""
    if shared is None:
        return None
    if not isinstance(shared, dict) or not all(isinstance(name, str) for pair in shared.items() for name in pair):
        raise TypeError(f'shared_state takes {{"<method>.<buffer>": "<method>.<buffer>"}}, not {shared!r}')
    return dict(shared)


@dataclasses.dataclass
class Internal:
    """What partitioners tell the backend, and no file holds."""

    shared_state: dict[str, str] | None = None
    #: Whether a method was prepared together with others that are lowered already.
    late: bool = False
    #: Method to the fields of its record that say how it is called.
    calls: dict[str, Fields] = dataclasses.field(default_factory=dict)


def internal(shared: dict[str, str] | None, late: bool, call: Fields) -> list[CompileSpec]:
    """Compile specs that :func:`take_internal` takes away."""
    told = [CompileSpec(_CALL, json.dumps(call).encode())]
    told += [] if shared is None else [CompileSpec(_SHARED_STATE, json.dumps(shared).encode())]
    return told + ([CompileSpec(_LATE, b"")] if late else [])


def take_internal(specs: dict[str, list[CompileSpec]]) -> Internal:
    """Takes them out of the methods' lists. Raises :class:`ExportError` where methods say different things."""
    found, by = Internal(), ""
    for method, own in specs.items():
        for spec in own:
            if spec.key == _LATE:
                found.late = True
            elif spec.key == _CALL:
                found.calls[method] = json.loads(spec.value)
            elif spec.key == _SHARED_STATE:
                shared = json.loads(spec.value)
                if found.shared_state not in (None, shared):
                    raise ExportError(f"shared_state is {found.shared_state} for '{by}' and {shared} for '{method}': a program has one")
                found.shared_state, by = shared, method
        own[:] = [spec for spec in own if spec.key not in (_LATE, _SHARED_STATE, _CALL)]
    return found


def method_of(specs: Sequence[CompileSpec]) -> str:
    """The method that a partitioner's specs are for."""
    return next(spec.value.decode() for spec in specs if spec.key == "method_name")


def name_methods(specs: dict[str, list[CompileSpec]]) -> None:
    """Names methods as the dictionary of programs does. A single method may have been given another name: ``save`` says so."""
    for method, own in specs.items():
        for place, spec in enumerate(own):
            if spec.key == "method_name" and (len(specs) > 1 or spec.value == DEFAULT_METHOD.encode()):
                own[place] = CompileSpec(spec.key, method.encode())


def agree_on_options(specs: dict[str, list[CompileSpec]]) -> None:
    """Gives all methods of a program the defaults of each, as they share what the options are about: the store."""
    by: dict[str, tuple[str, CompileSpec]] = {}
    for method, own in specs.items():
        for spec in (spec for spec in own if spec.key.startswith(OPTION) and spec.key not in _OF_A_METHOD):
            first, known = by.setdefault(_group(spec.key), (method, spec))
            if (known.key, known.value) != (spec.key, spec.value):
                raise ExportError(
                    f"compile spec '{known.key}' is '{known.value.decode()}' for '{first}', and '{spec.key}' is '{spec.value.decode()}' for "
                    f"'{method}': the methods of a program share one store of weights, so give all of them the same"
                )
    options = [spec for _, spec in by.values()]
    for own in specs.values():
        own[:] = replaced(own, options)


def _refusal(key: str, value: str) -> str:
    if key == "target_device":
        return f"compile spec 'target_device' is '{value}': a program is for 'cpu' or 'cuda'; weight_offload_device chooses the GPU at load"
    if key == "triton_kernel_mode":
        return f"compile spec 'triton_kernel_mode' is '{value}': it takes ON or OFF"
    return (
        f"compile spec '{key}' ('{value}') could have no effect here; known are method_name, target_device, triton_kernel_mode, "
        f"platform (linux) and {OPTION}_*"
    )


def option_specs(defaults: dict[str, Any]) -> list[CompileSpec]:
    """Options of the runtime as a program holds them: as texts. Raises :class:`ExportError` for what the runtime would refuse."""
    for key in defaults:
        if not key.startswith(OPTION):
            raise ExportError(f"default '{key}' is unknown: options of the runtime start with '{OPTION}'")
    try:
        plain = {key: bindings.plain(key, value) for key, value in defaults.items()}
        # Without the library here, the one that loads the program refuses what is wrong.
        if plain and bindings.is_here():
            bindings.check_defaults(plain)
    except Error as error:
        raise ExportError(f"default: {error}") from None
    return [CompileSpec(key, _text(value).encode()) for key, value in plain.items()]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def replaced(specs: Sequence[CompileSpec], by: Sequence[CompileSpec]) -> list[CompileSpec]:
    """``specs``, with the specs of ``by`` in the place of equal keys; the ways to give a budget are one key."""
    keys = {_group(spec.key) for spec in by}
    return [*(spec for spec in specs if _group(spec.key) not in keys), *by]


def _group(key: str) -> str:
    return "budget" if key.startswith(f"{OPTION}_budget") else key
