"""The outputs of a program after passes that change its graph."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram


def rename_outputs(program: ExportedProgram) -> None:
    """The signature names the nodes that are returned: after a pass that put others in their place, those."""
    output = next(node for node in program.graph.nodes if node.op == "output")
    for spec, value in zip(program.graph_signature.output_specs, output.args[0]):
        if isinstance(value, torch.fx.Node) and hasattr(spec.arg, "name"):
            spec.arg.name = value.name
