"""Operators for which neither the compiler nor the runtime has code, written with operators that they have.

    operator of a table        traced with fake tensors        its nodes take its place
    complex operator     ->    the same on two real parts  ->  no complex tensor is left

It runs before a program is lowered: passes of ``to_edge`` fail at complex numbers. What cannot be
written otherwise is refused here, by operator and module. Shapes may be dynamic unless a function asks for a number.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from .inline import inline, is_complex, is_composite, operator_of, replace, touches_complex
from .operators import COMPOSITES, CPU_ONLY, CUDA_ONLY, table_of_operators
from .outputs import rename_outputs
from .split_complex import Parts

aten = torch.ops.aten


def decompose(program: ExportedProgram, device: str) -> ExportedProgram:
    """Rewrites the program's graph in place, and returns it; ``device`` is that of the target."""
    others = CUDA_ONLY if device == "cpu" else CPU_ONLY
    table = {op: function for op, function in table_of_operators().items() if function not in others}
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        op = operator_of(node)
        if op is aten.convolution.default and not node.args[6]:
            continue
        if op in table or op in COMPOSITES or (op is not None and is_composite(op) and touches_complex(node)):
            values = inline(graph, node, lambda *args, op=op, **kwargs: table.get(op, op)(*args, **kwargs), table)
            replace(graph, node, values)
    if any(is_complex(node.meta.get("val")) for node in graph.nodes):
        Parts(program).split()
    graph.lint()
    program.graph_module.recompile()
    rename_outputs(program)
    return program
