"""Constants of a program: dense, and each under one name.

Kernels index a weight as its probe's output, which is dense. A weight that is reached through a plain list or a second attribute
becomes a constant of its own at export, with the same storage. It is the same weight, and is read through its probes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ..._native.errors import ExportError
from .places import place_of, writes_to

_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def own_constants(program: ExportedProgram) -> dict[str, int]:
    """Gives ``program``, a copy of the user's, tables of its own and one placeholder for each tensor, and returns what memory each of
    the user's tensors has, by FQN.

    Raises :class:`ExportError` if it writes to a tensor that is no buffer.
    """
    program._state_dict, program._constants = dict(program.state_dict), dict(program.constants)
    held = _held(program)
    _join_names(program, held)
    for table in (program._state_dict, program._constants):
        # A cache that was filled outside of `no_grad` is the result of operators, which cannot be copied.
        table.update({fqn: one.detach() for fqn, one in table.items() if isinstance(one, torch.Tensor) and not one.is_leaf})
    memory = {fqn: value.untyped_storage()._cdata for fqn, value in held.values() if value.numel()}
    for fqn, value in held.values():
        # Inputs that share memory, one of which is written, cannot be traced. `refuse_shared_state` looks at them afterwards.
        if list(memory.values()).count(memory.get(fqn)) > 1:
            _put(program, fqn, value, _own_memory(value.detach()))
    return memory


def _own_memory(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    return value.as_strided((span,), (1,)).clone().as_strided(value.shape, value.stride())


def _put(program: ExportedProgram, fqn: str, old: torch.Tensor, new: torch.Tensor) -> None:
    table = program._state_dict if fqn in program._state_dict else program._constants
    table[fqn] = torch.nn.Parameter(new, requires_grad=False) if isinstance(old, torch.nn.Parameter) else new


def make_dense(program: ExportedProgram) -> int:
    """Gives ``program``, whose mutation is functional, dense constants, and returns how many were not."""
    copies: dict[Any, torch.Tensor] = {}
    held = [(node, fqn, value) for node, (fqn, value) in _held(program).items()]
    # ExecuTorch takes a buffer that is not persistent for a bare tensor, and cannot find it, where it makes rows of it.
    strided = [one for one in held if not is_dense(one[2]) or (one[1] in program.constants and not one[2].is_contiguous())]
    for node, fqn, value in strided:
        copy = copies.setdefault(_key(value), value.detach().contiguous().clone())
        _put(program, fqn, value, copy)
        node.meta["val"] = torch.empty_like(node.meta["val"], memory_format=torch.contiguous_format)
    return len(strided)


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
    """Lets all readers and writers of one tensor use its first name, parameters and buffers before bare tensors."""
    bare = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.CONSTANT_TENSOR}
    first: dict[Any, torch.fx.Node] = {}
    for node in sorted(held, key=lambda node: node.name in bare):
        fqn, value = held[node]
        owner = first.setdefault(_key(value), node) if value.numel() else node
        if owner is not node:
            node.replace_all_uses_with(owner)
            _forget(program, node, fqn)
            del held[node]
        elif node.name in bare:
            _refuse_write(node, fqn)


def _forget(program: ExportedProgram, node: torch.fx.Node, fqn: str) -> None:
    """Two inputs of one tensor that is written cannot be traced."""
    program.graph.erase_node(node)
    program.graph_signature.input_specs[:] = [spec for spec in program.graph_signature.input_specs if spec.arg.name != node.name]
    table = program._state_dict if fqn in program._state_dict else program._constants
    if all(spec.target != fqn for spec in program.graph_signature.input_specs):
        table.pop(fqn, None)


def _refuse_write(node: torch.fx.Node, fqn: str) -> None:
    for user in node.users:
        if writes_to(user, node):
            raise ExportError(
                f"{place_of(user)} writes to the tensor '{fqn}', which is no buffer: its new value would be lost; register it with register_buffer"
            )


def refuse_shared_state(program: ExportedProgram, memory: dict[str, int]) -> None:
    """Raises :class:`ExportError` if a buffer that the program writes shares memory with another constant that it reads."""
    mutated = set(program.graph_signature.buffers_to_mutate.values())
    written = {memory[fqn]: fqn for fqn in mutated if fqn in memory}
    for node, (fqn, _) in _held(program).items():
        other = written.get(memory.get(fqn, -1), fqn)
        if other != fqn and node.users:
            raise ExportError(
                f"'{fqn}' shares its memory with '{other}', which the program writes: after lowering they would be two; "
                "register the buffer under one name, or give one of them a clone"
            )


def _key(value: torch.Tensor) -> Any:
    return value.untyped_storage()._cdata, value.storage_offset(), value.dtype, tuple(value.shape), tuple(value.stride())
