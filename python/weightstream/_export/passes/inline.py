"""A function of tensors in the place of a node of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.fx import Graph, Node, map_arg
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from ..._native.errors import ExportError

Tensor = torch.Tensor
Table = dict[Any, Callable[..., Any]]


class Refusal(Exception):
    """Why an operator cannot be decomposed; becomes an :class:`ExportError` with its name and module."""


class Pair(NamedTuple):
    """A complex tensor."""

    re: Tensor
    im: Tensor


def operator_of(node: Node) -> Any:
    op = node.target if node.op == "call_function" else None
    if isinstance(op, EdgeOpOverload):
        op = op._op
    return op if isinstance(op, torch._ops.OpOverload) else None


def is_composite(op: Any) -> bool:
    return op._can_decompose()


def values_of(node: Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, (list, tuple)) else [value]


def is_complex(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_complex()


def touches_complex(node: Node) -> bool:
    return any(is_complex(value) for n in (node, *node.all_input_nodes) for value in values_of(n))


def know_names(graph: Graph) -> None:
    """Exported graphs have inputs that were named by hand: a new node does not get the name of one."""
    graph._graph_namespace._used_names.update(node.name for node in graph.nodes)


def inline(graph: Graph, node: Node, function: Callable[..., Any], table: Table, parts: dict[Node, Any] | None = None) -> list[Node]:
    """Puts the nodes of ``function``, called as ``node``, before ``node``; returns the nodes of its results.

    A node in ``parts`` is two real ones: the function gets a :class:`Pair` for it."""
    sources = [part for n in node.all_input_nodes for part in (parts or {}).get(n, (n,))]
    place = {source: i for i, source in enumerate(sources)}

    def run(*given: Any) -> Any:
        def value(n: Node) -> Any:
            halves = [given[place[part]] for part in (parts or {}).get(n, (n,))]
            return Pair(*halves) if len(halves) == 2 else halves[0]

        args, kwargs = map_arg((node.args, node.kwargs), value)
        return tree_leaves(function(*args, **kwargs))

    fakes = [source.meta["val"] for source in sources]
    mode = torch._guards.detect_fake_mode([n.meta.get("val") for n in graph.nodes])
    try:
        with mode, torch.no_grad(), torch._dispatch.python.enable_python_dispatcher():
            inner = make_fx(torch.func.functionalize(run), decomposition_table=table)(*fakes).graph
    except Refusal as why:
        raise ExportError(f"{node_name(node)}: {why}") from None
    except Exception as problem:
        raise ExportError(f"{node_name(node)} cannot be written with other operators: {type(problem).__name__}: {problem}") from problem
    return _copy(graph, node, inner, sources)


def _copy(graph: Graph, before: Node, inner: Graph, sources: list[Node]) -> list[Node]:
    copies: dict[Node, Node] = dict(zip((n for n in inner.nodes if n.op == "placeholder"), sources))
    with graph.inserting_before(before):
        for n in inner.nodes:
            if n.op == "output":
                return [copies[result] for result in n.args[0]]
            if n.op == "get_attr":
                raise ExportError(f"{node_name(before)}: its decomposition made a constant; please report this")
            if n not in copies:
                copies[n] = graph.node_copy(n, lambda x: copies[x])
                copies[n].meta.update({key: before.meta[key] for key in ("nn_module_stack", "stack_trace") if key in before.meta})
    raise AssertionError("a graph without an output")


def replace(graph: Graph, node: Node, results: list[Node]) -> None:
    if isinstance(node.meta["val"], (list, tuple)):
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(results[0])
    graph.erase_node(node)


def node_name(node: Node) -> str:
    """The operator and the module that called it, for people: ``aten.median in layers.3.norm``."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0].replace("L['self'].", "").replace("L['self']", "") if stack else ""
    op = operator_of(node)
    return (str(op.overloadpacket) if op else str(node.target)) + (f" in {path}" if path else "")


def number(size: Any, what: str) -> int:
    if not isinstance(size, int):
        raise Refusal(f"{what} is dynamic ({size}); export with it fixed")
    return size
