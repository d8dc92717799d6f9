"""What a partitioner is told: keywords of ours, compile specs of ExecuTorch's, and defaults for the runtime's options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from executorch.exir.backend.compile_spec_schema import CompileSpec

from . import _native, _runtime
from ._errors import ExportError

#: What the keys of the runtime's options start with.
OPTION = "weight_offload"
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
    for key, value in defaults.items():
        if not key.startswith(OPTION):
            raise ExportError(f"default '{key}' is unknown: options of the runtime start with '{OPTION}'")
        if not isinstance(value, (bool, int, str, os.PathLike)):
            raise ExportError(f"default '{key}': takes an int, a str or a bool, not {type(value).__name__}")
    # Without the library here, the one that loads the program refuses what is wrong.
    if defaults and _native.is_here():
        try:
            _runtime.check_defaults(defaults)
        except _native.Error as error:
            raise ExportError(f"default: {error}") from None
    return [CompileSpec(key, _text(value).encode()) for key, value in defaults.items()]


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
