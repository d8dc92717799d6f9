"""New nodes and new constants of a program whose values are known."""

from __future__ import annotations

from typing import Any

import torch
import torch._dispatch.python
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument


def call(graph: torch.fx.Graph, before: torch.fx.Node, operator: torch._ops.OpOverload, *args: Any) -> torch.fx.Node:
    """A node with its value. Not traced: a tracer makes copies of views, and a product's weight is one."""
    with graph.inserting_before(before):
        node = graph.call_function(operator, args)
    values = torch.fx.map_arg(args, lambda one: one.meta["val"])
    mode = torch._guards.detect_fake_mode([one.meta["val"] for one in node.all_input_nodes])
    with mode, torch.no_grad(), torch._dispatch.python.enable_python_dispatcher():
        node.meta["val"] = operator(*values)
    node.meta.update({key: before.meta[key] for key in ("nn_module_stack", "stack_trace") if key in before.meta})
    return node


def constants(program: ExportedProgram) -> dict[torch.fx.Node, InputSpec]:
    """Placeholders of parameters and buffers that the program does not write."""
    written = set(program.graph_signature.buffers_to_mutate.values())
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if spec.kind in kinds and spec.target not in written}
    return {node: specs[node.name] for node in program.graph.nodes if node.op == "placeholder" and node.name in specs}


def value_of(program: ExportedProgram, spec: InputSpec) -> torch.Tensor | None:
    found = program.state_dict.get(spec.target, program.constants.get(spec.target))
    return found.detach() if isinstance(found, torch.Tensor) else None


def add(program: ExportedProgram, before: torch.fx.Node, fqn: str, value: torch.Tensor) -> torch.fx.Node:
    """A buffer of this name, whose placeholder comes before another constant's."""
    position = next(at for at, spec in enumerate(program.graph_signature.input_specs) if spec.arg.name == before.name)
    with program.graph.inserting_before(before):
        node = program.graph.placeholder("b_" + fqn.replace(".", "_"))
    node.meta = {**before.meta, "val": before.meta["val"].new_empty(value.shape, dtype=value.dtype)}
    program.graph_signature.input_specs.insert(position, InputSpec(InputKind.BUFFER, TensorArgument(name=node.name), fqn, True))
    program._state_dict[fqn] = value
    return node


def drop(program: ExportedProgram, node: torch.fx.Node) -> None:
    """Removes a constant that nothing reads."""
    (spec,) = (spec for spec in program.graph_signature.input_specs if spec.arg.name == node.name)
    program.graph_signature.input_specs.remove(spec)
    program.graph.erase_node(node)
    if all(other.target != spec.target for other in program.graph_signature.input_specs):
        program._state_dict.pop(spec.target, None)
        program._constants.pop(spec.target, None)
