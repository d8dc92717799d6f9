"""Whether a program does for every size of its range what it did for the example's.

A trace turns sizes into numbers where an operator wants a number. The diagonal of a dynamic dimension keeps the example's length,
and a slice ``x[:2]`` is two rows even if there is one. So the program is played at both ends of each range, with shapes and without
data. Each result's shape is compared with the trace's.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram

from ..._native.errors import ExportError
from ..._torch.shapes import facts_of
from .places import place_of

#: Played instead of a size without an upper bound, and of one that nobody's memory has.
_LARGE = 1 << 20


def check(program: ExportedProgram) -> None:
    """Raises :class:`ExportError`, naming operator, module and size, where a result's shape is not the trace's."""
    facts = facts_of(program)
    symbols = _input_symbols(program)
    if not symbols:
        return
    for pick in (lambda r: int(r.lower), lambda r: int(min(r.upper, _LARGE))):
        values = {symbol: pick(facts.ranges[symbol]) for symbol in symbols}
        if all(guard.xreplace(values) in (True, sympy.true) for guard in facts.guards if guard.free_symbols <= symbols):
            _play(program, values, facts.names)


def _input_symbols(program: ExportedProgram) -> set[sympy.Symbol]:
    user_inputs = set(program.graph_signature.user_inputs)
    found: set[sympy.Symbol] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in user_inputs:
            for size in getattr(node.meta.get("val"), "shape", ()):
                found |= set() if isinstance(size, int) else size.node.expr.free_symbols
    return found


def _play(program: ExportedProgram, values: dict[sympy.Symbol, int], names: dict[sympy.Symbol, str]) -> None:
    """Runs the graph with fake tensors of the sizes that ``values`` give."""
    results: dict[torch.fx.Node, Any] = {}
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        for node in program.graph.nodes:
            expected = node.meta.get("val")
            if node.op == "placeholder":
                results[node] = _fake(expected, values)
            elif node.op == "call_function":
                if any(results.get(source) is _UNKNOWN for source in node.all_input_nodes):
                    results[node] = _UNKNOWN
                    continue
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: results[source])
                try:
                    results[node] = node.target(*args, **kwargs)
                except Exception as problem:
                    results[node] = _after_failure(node, problem, values, names)
                _compare(node, results[node], expected, values, names)
            elif node.op == "get_attr":
                results[node] = _UNKNOWN


#: A result that depends on data, or on something that cannot be played.
_UNKNOWN = object()


def _after_failure(node: torch.fx.Node, problem: Exception, values: dict[sympy.Symbol, int], names: dict[sympy.Symbol, str]) -> Any:
    if isinstance(problem, RuntimeError) and not isinstance(problem, NotImplementedError) and type(problem) is RuntimeError:
        raise ExportError(f"{place_of(node)} cannot work at {_told(values, names)}: {str(problem).splitlines()[0]}; {_CURE}") from None
    return _UNKNOWN


def _compare(node: torch.fx.Node, found: Any, expected: Any, values: dict[sympy.Symbol, int], names: dict[sympy.Symbol, str]) -> None:
    for one, traced in zip(_tensors(found), _tensors(expected)):
        wanted = _shape(traced, values)
        if wanted is not None and tuple(one.shape) != wanted:
            raise ExportError(
                f"{place_of(node)} gives {list(one.shape)} at {_told(values, names)}, and the export fixed {list(wanted)}: it would be wrong "
                f"there; {_CURE}"
            )


_CURE = "give the dimension a range without that size (torch.export.Dim(name, min=..., max=...)), or rewrite the operator"


def _told(values: dict[sympy.Symbol, int], names: dict[sympy.Symbol, str]) -> str:
    return ", ".join(f"{names.get(symbol, symbol)} = {value}" for symbol, value in values.items())


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _shape(traced: torch.Tensor, values: dict[sympy.Symbol, int]) -> tuple[int, ...] | None:
    """None where a size depends on data."""
    sizes = [sympy.Integer(size) if isinstance(size, int) else sympy.sympify(size.node.expr.xreplace(values)) for size in traced.shape]
    return tuple(int(size) for size in sizes) if all(size.is_number for size in sizes) else None


def _fake(expected: Any, values: dict[sympy.Symbol, int]) -> Any:
    if not isinstance(expected, torch.Tensor):
        return expected
    shape = _shape(expected, values)
    return _UNKNOWN if shape is None else torch.empty(shape, dtype=expected.dtype, device=expected.device)
