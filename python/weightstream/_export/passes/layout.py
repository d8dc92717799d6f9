"""Layouts of inputs and outputs: compiled code takes and gives dense rows, whatever the example looked like.

An example such as ``x[:, :16]`` has strides, and the compiler builds them into its kernels. A caller's bytes are dense. So inputs
are compiled dense, and a caller's tensor of another layout is copied once.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..._native.errors import ExportError

_ATEN = torch.ops.aten
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default)
_BY_STRIDES = (_ATEN.as_strided.default, _ATEN.as_strided_copy.default)


def make_inputs_dense(program: ExportedProgram) -> int:
    """Lets ``program``, whose mutation is functional, take inputs that are dense rows, and views copy where they must. Returns how
    many inputs were not dense.

    Other nodes keep values of the old layouts until the program is traced again.
    Raises :class:`ExportError` if an operator reads a strided input by its strides (``as_strided``).
    """
    strided = [node for node in _inputs(program) if not _is_dense(node.meta.get("val"))]
    for node in strided:
        _refuse_strides(node)
        _densify(node)
    for node in program.graph.nodes:
        # Which views can do without a copy depends on the layouts, which have changed.
        if node.op == "call_function" and node.target in _VIEWS:
            node.target = _ATEN.reshape.default
    return len(strided)


def make_outputs_dense(program: ExportedProgram) -> None:
    """Lets the program around the delegate tell of dense outputs where ExecuTorch cannot express the compiler's layout."""
    output = next(node for node in program.graph.nodes if node.op == "output")
    for node in output.all_input_nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and node.op != "placeholder" and not _is_ordered(value):
            _densify(node)


def _inputs(program: ExportedProgram) -> list[torch.fx.Node]:
    user_inputs = set(program.graph_signature.user_inputs)
    return [node for node in program.graph.nodes if node.op == "placeholder" and node.name in user_inputs]


def _refuse_strides(node: torch.fx.Node) -> None:
    for user in node.users:
        if user.target in _BY_STRIDES:
            raise ExportError(
                f"operator '{user.target}' (node '{user.name}') reads input '{node.name}' by the strides of its example; give a dense "
                "example (x.contiguous()) to torch.export.export, or use indices instead of as_strided"
            )


def _densify(node: torch.fx.Node) -> None:
    node.meta["val"] = torch.empty_like(node.meta["val"], memory_format=torch.contiguous_format)


def _is_dense(value: object) -> bool:
    """Whether a tensor is exactly what a caller gives: a dimension of size 1 may have any stride, and a tensor may start late."""
    if not isinstance(value, torch.Tensor):
        return True
    rows = torch._prims_common.make_contiguous_strides_for(value.shape)
    same = all(statically_known_true(found == wanted) for found, wanted in zip(value.stride(), rows))
    return same and statically_known_true(value.storage_offset() == 0)


def _is_ordered(value: torch.Tensor) -> bool:
    """Whether a tensor is dense in some order of its dimensions, which ExecuTorch can express."""
    return torch._prims_common.is_non_overlapping_and_dense_or_false(value)
