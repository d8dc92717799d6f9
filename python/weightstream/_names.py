"""How errors name a place of the user's program."""

from __future__ import annotations

import torch


def place_of(node: torch.fx.Node) -> str:
    """``operator 'aten.median' in layers.3.norm``: the operator and the module that called it."""
    target = getattr(node.target, "_op", node.target)
    name = str(target).removesuffix(".default") if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))
    module = module_of(node)
    return f"operator '{name}'" + (f" in {module}" if module else "")


def module_of(node: torch.fx.Node) -> str:
    """The path of the innermost module whose forward made the node; empty in the outermost or if nothing tells."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()] if stack else []
    return paths[-1].removeprefix("L['self'].").removeprefix("L['self']") if paths else ""
