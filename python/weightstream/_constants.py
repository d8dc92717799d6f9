"""Constants of a program: dense, and each under one name.

Kernels index a weight as its probe's output, which is dense. A weight that is reached through a plain list or a second attribute
becomes a constant of its own at export, with the same storage: it is that weight, and is read through its probes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ._errors import ExportError

_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def own_constants(program: ExportedProgram) -> None:
    """Gives ``program``, a copy of the user's, dense constants and one placeholder for each storage.

    Raises :class:`ExportError` if a buffer that the program writes shares its storage with another constant.
    """
    program._state_dict, program._constants = dict(program.state_dict), dict(program.constants)
    held = _held(program)
    _join_names(program, held)
    copies: dict[Any, torch.Tensor] = {}
    for node, (fqn, value) in held.items():
        if is_dense(value):
            continue
        copy = copies.setdefault(_key(value), value.detach().contiguous().clone())
        table = program._state_dict if fqn in program._state_dict else program._constants
        table[fqn] = torch.nn.Parameter(copy, requires_grad=False) if isinstance(value, torch.nn.Parameter) else copy
        node.meta["val"] = torch.empty_like(node.meta["val"], memory_format=torch.contiguous_format)


def is_dense(value: torch.Tensor) -> bool:
    """Whether the tensor is its whole storage, in some order of its dimensions."""
    whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return whole and value.storage_offset() == 0 and torch._prims_common.is_non_overlapping_and_dense_or_false(value)


def _held(program: ExportedProgram) -> dict[torch.fx.Node, tuple[str, torch.Tensor]]:
    """Placeholder to FQN and tensor of each constant that holds bytes."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in _KINDS and spec.target is not None:
            value = program.state_dict.get(spec.target, program.constants.get(spec.target))
            if isinstance(value, torch.Tensor) and isinstance(placeholders[spec.arg.name].meta.get("val"), torch.Tensor):
                found[placeholders[spec.arg.name]] = spec.target, value
    return found


def _join_names(program: ExportedProgram, held: dict[torch.fx.Node, tuple[str, torch.Tensor]]) -> None:
    """Lets all readers of one tensor read its first name, parameters and buffers before bare tensors."""
    mutated = set(program.graph_signature.buffers_to_mutate.values())
    bare = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.CONSTANT_TENSOR}
    first: dict[Any, torch.fx.Node] = {}
    written: dict[int, str] = {value.untyped_storage()._cdata: fqn for fqn, value in held.values() if fqn in mutated and value.numel()}
    for node in sorted(held, key=lambda node: node.name in bare):
        fqn, value = held[node]
        if value.numel() == 0:
            continue
        other = written.get(value.untyped_storage()._cdata, fqn)
        if other != fqn:
            raise ExportError(
                f"'{fqn}' shares its memory with '{other}', which the program writes: after lowering they would be two; "
                "register the buffer under one name, or give one of them a clone"
            )
        owner = first.setdefault(_key(value), node)
        if owner is not node and fqn not in mutated:
            node.replace_all_uses_with(owner)


def _key(value: torch.Tensor) -> Any:
    return value.untyped_storage()._cdata, value.storage_offset(), value.dtype, tuple(value.shape), tuple(value.stride())
