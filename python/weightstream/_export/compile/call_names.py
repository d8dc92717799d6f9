"""How a program's inputs are called: as the arguments of a call."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree

from ..._native.progress import note
from .record import Fields


def call_of(program: ExportedProgram) -> Fields:
    """The fields of the record that name the method's inputs as the arguments of a call: ``x``, ``state[0]``, ``cache['k']``."""
    inputs = [spec.arg for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    leaves = [one.value if isinstance(one, ConstantArgument) else values.get(one.name) for one in inputs]
    try:
        found, _ = _pytree.tree_flatten_with_path(_pytree.tree_unflatten(leaves, program.call_spec.in_spec))
    except Exception as error:
        # The code of a class that a library registered.
        note(f"the inputs have no names, and a call gives them by position: their structure cannot be built again ({error})")
        return {}
    names = _argument_names(program, len(program.call_spec.in_spec.children()[0].children()))
    places = [(names[at.idx], at.idx, rest) if kind.idx == 0 else (at.key, -1, rest) for (kind, at, *rest), _ in found]
    paths = [name + _pytree.keystr(tuple(rest)) for name, _, rest in places]
    if len(paths) != len(inputs) or len(set(paths)) < len(paths):
        note(f"the inputs have no names, and a call gives them by position: {len(inputs)} inputs are {', '.join(paths)}")
        return {}
    constants = [repr(one.value) if isinstance(one, ConstantArgument) else "" for one in inputs]
    return {"x_call": paths, "x_call_places": [place for _, place, _ in places], "x_call_constants": constants}


def _argument_names(program: ExportedProgram, count: int) -> list[str]:
    """The names of positional arguments; programs that an older torch saved have none."""
    signature = program.module_call_graph[0].signature if program.module_call_graph else None
    names = list(getattr(signature, "forward_arg_names", None) or [])[:count]
    return names + [f"arg_{place}" for place in range(len(names), count)]
