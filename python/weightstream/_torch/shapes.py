"""The shapes that a program takes: compiling must neither narrow them nor assume that they are small."""

from __future__ import annotations

import contextlib
import dataclasses
import unittest.mock
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch._inductor.codegen import simd, triton_utils
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.utils import sympy_subs
from torch._inductor.virtualized import V
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import Max, Min
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

#: The values that each symbol of a program may have.
Ranges = dict[sympy.Symbol, ValueRanges]

#: More than any device has: a dimension without an upper bound, or one that nobody meant.
UNBOUNDED = 2**62
_INT32_MAX = torch.iinfo(torch.int32).max


@dataclasses.dataclass
class Facts:
    """What a program said of its symbols when the user exported it."""

    ranges: Ranges
    #: Conditions of sizes that are no ranges: the trace went one way because they hold.
    guards: list[sympy.Basic]
    #: The names that the user gave to dimensions.
    names: dict[sympy.Symbol, str]


_FACTS = "_weightstream_facts"


def facts_of(program: ExportedProgram) -> Facts:
    """What ``program`` says of its symbols. Kept with them when first asked: passes that trace again narrow ranges and add guards of
    their own, which are choices of a layout."""
    environment = environment_of(program)
    if environment is None:
        return Facts({}, [], {})
    if not hasattr(environment, _FACTS):
        setattr(environment, _FACTS, _read_facts(program, environment))
    return getattr(environment, _FACTS)


def _read_facts(program: ExportedProgram, environment: ShapeEnv) -> Facts:
    known = dict(environment.var_to_range)
    wanted = {symbol: bounds for symbol, bounds in program.range_constraints.items() if isinstance(symbol, sympy.Symbol)}
    ranges = {**known, **{s: ValueRanges(max(r.lower, 0), r.upper) for s, r in wanted.items()}}
    guards = [environment.simplify(guard.expr) for guard in environment.guards]
    named = environment.source_name_to_debug_name
    names = {}
    for symbol, sources in environment.var_to_sources.items():
        given = [named[source.name if isinstance(source.name, str) else source.name()] for source in sources if _is_named(source, named)]
        names.update({symbol: given[0]} if given else {})
    # `known` begins at 2. What it implies is how torch tells that a size is not 1, and no condition of the program.
    return Facts(ranges, [guard for guard in guards if guard not in (sympy.true, True) and not _is_implied(guard, known)], names)


def _is_implied(guard: sympy.Basic, ranges: Ranges) -> bool:
    bounds = bound_sympy(guard, ranges)
    return bounds.lower in (sympy.true, True)


def _is_named(source: Any, named: dict[str, str]) -> bool:
    return (source.name if isinstance(source.name, str) else source.name()) in named


def widen(program: ExportedProgram) -> None:
    """Gives the program's symbols the ranges that the program was exported with.

    A symbol's range begins at 2 inside of torch, whatever the user said: sizes 0 and 1 broadcast. What is traced with that range
    is right for larger sizes only, and says so nowhere. With the whole range, an expression such as ``min(2, n)`` stays as it is.
    """
    environment = environment_of(program)
    if environment is None:
        return
    for symbol, bounds in facts_of(program).ranges.items():
        environment.var_to_range[symbol] = bounds
    # What was known of the narrower ranges is kept by version.
    environment._update_version_counter()


def forget_pending(program: ExportedProgram) -> None:
    """Lets a program with sizes that depend on data be traced again: passes that played its operators made symbols that no trace took."""
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            mode.shape_env.pending_fresh_unbacked_symbols.clear()
            return


def environment_of(program: ExportedProgram) -> ShapeEnv | None:
    """Where the program's symbols live; None if all its sizes are numbers."""
    values = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    sizes = (size for value in values for size in getattr(value, "shape", ()) if isinstance(size, torch.SymInt))
    return next((size.node.shape_env for size in sizes), None)


@contextlib.contextmanager
def every_shape(inputs: tuple[Any, ...]) -> Iterator[Ranges]:
    """What is compiled inside is right for every shape that ``inputs`` stand for, and leaves their symbols' ranges, which it gives, as
    they are.

    Where a size has no upper bound, the compiler indexes with 32 bits if the example is small enough, and notes that as a guard. In
    ahead-of-time compilation nobody checks guards: past 2**31 elements a kernel would read and write somewhere else. Other guards are
    choices of what is fast for the example (a batch below 16, a row below 4096), not limits of the code; but each narrows the range of
    its symbol, and ExecuTorch plans the memory of inputs and outputs for the upper end of the range, which may be hundreds of GB.
    """
    environments = [dim.node.shape_env for value in inputs for dim in getattr(value, "shape", ()) if isinstance(dim, torch.SymInt)]
    # All inputs of a program have one environment.
    before = dict(environments[0].var_to_range) if environments else {}
    try:
        with (
            unittest.mock.patch.object(simd, "expr_fits_within_32bit", fits_in_32_bits),
            unittest.mock.patch.object(triton_utils, "expr_fits_within_32bit", fits_in_32_bits),
            unittest.mock.patch.object(SizeVarAllocator, "evaluate_min", least),
            unittest.mock.patch.object(SizeVarAllocator, "evaluate_max", greatest),
        ):
            yield before
    finally:
        if environments:
            environments[0].var_to_range.update(before)


def least(self: SizeVarAllocator, left: sympy.Expr, right: sympy.Expr) -> sympy.Expr:
    """The smaller of two sizes for every value of their symbols.

    The compiler takes the size that is smaller for the example. If the example has 7 rows, the diagonal of ``[n, 6]`` would have 6
    elements, and a tensor of 4 rows would be read out of bounds."""
    left, right = (sympy_subs(sympy.sympify(size), self.inv_precomputed_replacements) for size in (left, right))
    if self.statically_known_leq(left, right):
        return left
    return right if self.statically_known_leq(right, left) else Min(left, right)


def greatest(self: SizeVarAllocator, left: sympy.Expr, right: sympy.Expr) -> sympy.Expr:
    """The larger one, in the same way."""
    left, right = (sympy_subs(sympy.sympify(size), self.inv_precomputed_replacements) for size in (left, right))
    if self.statically_known_leq(left, right):
        return right
    return left if self.statically_known_leq(right, left) else Max(left, right)


def fits_in_32_bits(size: sympy.Expr) -> bool:
    """Whether a size is at most 2**31 - 1 for every value of its symbols, not only for the example's."""
    return V.graph.sizevars.statically_known_true(size <= _INT32_MAX)
