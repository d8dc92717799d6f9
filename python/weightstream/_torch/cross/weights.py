"""Weights of a program that is compiled for a device that is not there: the compiler sees fake ones, and the bytes stay where they are."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map

from ..._native.errors import ExportError

_DEVICE = torch.device("cuda", 0)


def move(program: ExportedProgram) -> None:
    """In the place of `move_to_device_pass`: node values move, and fake tensors on the device take the constants' places, ties kept."""
    mode = _mode(program)
    fakes: dict[Any, torch.Tensor] = {}

    def fake_of(value: torch.Tensor) -> torch.Tensor:
        key = (value.untyped_storage()._cdata, value.storage_offset(), value.dtype, tuple(value.shape), tuple(value.stride()))
        if key not in fakes:
            with mode, torch.no_grad():
                fakes[key] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_DEVICE)
        return fakes[key]

    for table in (program._state_dict, program._constants):
        for name, value in table.items():
            if isinstance(value, torch.Tensor):
                fake = fake_of(value)
                table[name] = torch.nn.Parameter(fake, requires_grad=False) if isinstance(value, torch.nn.Parameter) else fake
    program._example_inputs = None
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            _move_nodes(module.graph, mode)


def _mode(program: ExportedProgram) -> FakeTensorMode:
    values = (node.meta.get("val") for node in program.graph.nodes)
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None) or FakeTensorMode()


def _move_nodes(graph: torch.fx.Graph, mode: FakeTensorMode) -> None:
    def moved(value: Any) -> Any:
        if isinstance(value, FakeTensor):
            # Of a literal: its number would be moved too, to a device that is not there.
            value.constant = None
        return value.to(_DEVICE) if isinstance(value, torch.Tensor) else value

    for node in graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": _DEVICE}
        if node.op == "call_function" and node.target is torch.ops.aten.to.device:
            node.args = (node.args[0], _DEVICE, *node.args[2:])
        if "val" in node.meta:
            with mode:
                node.meta["val"] = tree_map(moved, node.meta["val"])


def compare_by_storage() -> None:
    """The compiler finds tied constants by their addresses. Fake tensors have none, so that all weights of one shape would be one."""
    from torch._inductor import graph, utils

    for module in (graph, utils):
        module.is_same_tensor = _is_same_tensor


def _is_same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    return (
        one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and one.size() == other.size()
        and one.stride() == other.stride()
        and one.dtype == other.dtype
        and one.device == other.device
        and one.storage_offset() == other.storage_offset()
    )


def strip(constants: dict[str, Any], program: ExportedProgram) -> None:
    """Names of the program's tensors take the places of those in a trace's ``constants``, which go to another process. What the compiler
    made itself stays."""
    held = {**program.constants, **program.state_dict}
    for fqn, constant in constants.items():
        if fqn in held:
            constant.tensor = fqn
        elif isinstance(constant.tensor, FakeTensor):
            # Literals get a name of the compiler's.
            same = (name for name, tensor in held.items() if isinstance(tensor, torch.Tensor) and _is_same_tensor(tensor, constant.tensor))
            constant.tensor = next(same, None)
            if constant.tensor is None:
                raise ExportError(f"constant '{fqn}' was computed by the compiler, which had no bytes to compute with; please report this")


def give_back(constants: dict[str, Any], program: ExportedProgram) -> None:
    """Puts the program's own tensors, with their bytes, in."""
    held = {**program.constants, **program.state_dict}
    for constant in constants.values():
        if isinstance(constant.tensor, str):
            constant.tensor = held[constant.tensor]
