"""Tensors of a program that nothing here can hold."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.value_ranges import bound_sympy

from ..._native.errors import ExportError
from ..._torch.shapes import UNBOUNDED
from .places import place_of

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def refuse_kinds(program: ExportedProgram) -> None:
    """Raises :class:`ExportError` for sparse and quantized tensors, which fail somewhere inside of torch."""
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target is not None}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            where = f"constant '{targets[node.name]}'" if node.name in targets else f"input '{node.name}'"
        else:
            where = place_of(node)
        values = [value for value in torch.utils._pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
        sparse = next((value.layout for value in values if value.layout != torch.strided), None)
        if sparse is not None:
            raise ExportError(f"{where} has a sparse tensor ({sparse}); only dense ones are computed with: use to_dense()")
        # Shapes are traced as if the result was not quantized: only the operator's argument says it.
        dtypes = [value.dtype for value in values] + torch.utils._pytree.tree_leaves((node.args, node.kwargs))
        quantized = next((dtype for dtype in dtypes if isinstance(dtype, torch.dtype) and dtype in _QUANTIZED), None)
        if quantized is not None:
            raise ExportError(f"{where} has quantized tensors ({quantized}); use integers and their scales")


def refuse_endless_outputs(program: ExportedProgram) -> None:
    """Raises :class:`ExportError` for an output whose size depends on data and has no upper bound: no memory can be planned for it."""
    output = next(node for node in program.graph.nodes if node.op == "output")
    for node in output.all_input_nodes:
        for dim, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if free_unbacked_symbols(size) and _upper(size) >= UNBOUNDED:
                raise ExportError(
                    f"an output of the program, from {place_of(node)}, has a size that depends on data and has no upper bound (dimension "
                    f"{dim}): give the dimensions of the inputs one (torch.export.Dim(name, max=...)), or state it "
                    "(torch._check(size <= ...))"
                )


def _upper(size: torch.SymInt) -> Any:
    return bound_sympy(size.node.expr, size.node.shape_env.var_to_range).upper
