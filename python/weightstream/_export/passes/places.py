"""How errors name a place of the user's program."""

from __future__ import annotations

import torch


def place_of(node: torch.fx.Node) -> str:
    """``operator 'aten.median' in layers.3.norm``: the operator and the module that called it."""
    operator = operator_of(node)
    name = str(operator).removesuffix(".default") if operator is not None else getattr(node.target, "__name__", str(node.target))
    module = module_of(node)
    return f"operator '{name}'" + (f" in {module}" if module else "")


def operator_of(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """The ATen operator of a node in the ATen or in the edge dialect."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target
    inner = getattr(node.target, "_op", None)
    return inner if isinstance(inner, torch._ops.OpOverload) else None


def packet_of(node: torch.fx.Node) -> torch._ops.OpOverloadPacket | None:
    """The same without its overload: ``aten.index_put``."""
    operator = operator_of(node)
    return None if operator is None else operator.overloadpacket


def writes_to(node: torch.fx.Node, value: torch.fx.Node) -> bool:
    """Whether the node's operator writes to ``value`` in place."""
    operator = operator_of(node)
    if operator is None:
        return False
    given = [*zip(operator._schema.arguments, node.args), *((a, node.kwargs.get(a.name)) for a in operator._schema.arguments)]
    return any(one is value and argument.alias_info is not None and argument.alias_info.is_write for argument, one in given)


def module_of(node: torch.fx.Node) -> str:
    """The path of the innermost module whose forward made the node; empty in the outermost or if nothing tells."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()] if stack else []
    return paths[-1].removeprefix("L['self'].").removeprefix("L['self']") if paths else ""
