"""What a program assumes of its sizes, written down for the runtime: ranges, relations and guards.

The compiler computes every size from symbols, and trusts that the inputs agree with them. The record therefore says how each symbol
is found, which expression every other size is, and which conditions hold. Expressions are postfix text over ``s0, s1, ...``.
"""

from __future__ import annotations

import dataclasses
import functools

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy import functions
from torch.utils._sympy.value_ranges import bound_sympy

from ._activations import UNBOUNDED
from ._errors import ExportError
from ._record import Fields
from ._torch.shapes import Facts, facts_of

_BINARY = {
    sympy.Add: "+",
    sympy.Mul: "*",
    functions.FloorDiv: "//",
    functions.CleanDiv: "//",
    functions.Mod: "%",
    functions.PythonMod: "%",
    functions.Min: "min",
    functions.Max: "max",
    sympy.Min: "min",
    sympy.Max: "max",
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.StrictLessThan: "<",
    sympy.LessThan: "<=",
    sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
    sympy.And: "and",
    sympy.Or: "or",
}
_X = sympy.Symbol("x", integer=True)


class Unwritable(Exception):
    """An expression with something that the runtime cannot compute."""


@dataclasses.dataclass
class Sizes:
    """Collects the sizes of one method. Symbols are numbered as they are met."""

    facts: Facts
    numbers: dict[sympy.Symbol, int] = dataclasses.field(default_factory=dict)
    solutions: list[str] = dataclasses.field(default_factory=list)
    #: Symbols that are the size of some input's dimension, or are computed from one.
    known: set[sympy.Symbol] = dataclasses.field(default_factory=set)
    #: Dimensions of inputs that are expressions: place, name of the input, expression.
    derived: list[tuple[int, int, str, sympy.Expr]] = dataclasses.field(default_factory=list)

    def number(self, symbol: sympy.Symbol) -> int:
        return self.numbers.setdefault(symbol, len(self.numbers))

    def input_dimension(self, index: int, dim: int, name: str, size: int | torch.SymInt) -> tuple[int, int, int]:
        """``(min, max, symbol)`` for the record. An expression has no symbol of its own: a relation follows in :meth:`fields`."""
        expression = sympy.Integer(size) if isinstance(size, int) else size.node.expr
        if expression.is_number:
            return int(expression), int(expression), -1
        low, high = self._bounds(expression)
        if isinstance(expression, sympy.Symbol):
            self.known.add(expression)
            return low, high, self.number(expression)
        self.derived.append((index, dim, name, expression))
        return low, high, -1

    def _bounds(self, expression: sympy.Expr) -> tuple[int, int]:
        bounds = bound_sympy(expression, self.facts.ranges)
        return max(int(bounds.lower), 0), int(bounds.upper) if bounds.upper < UNBOUNDED else UNBOUNDED

    def fields(self, outputs: list[tuple[int | torch.SymInt, ...]]) -> Fields:
        """``symbols``, ``solutions``, ``relations`` and ``guards``, once all inputs were given."""
        relations = self._input_relations()
        for index, shape in enumerate(outputs):
            for dim, size in enumerate(shape):
                expression = sympy.Integer(size) if isinstance(size, int) else size.node.expr
                # A size that depends on data is what the compiled code says.
                if expression.free_symbols <= self.known:
                    relations.append(f"o{index}.{dim} {self._written(expression, f'dimension {dim} of output {index}')}")
        guards = [self._written(guard, "a guard") for guard in self.facts.guards if guard.free_symbols <= self.known]
        names = [self.facts.names.get(symbol, str(symbol)) for symbol in self.numbers]
        return {"symbols": names, "solutions": self.solutions, "relations": relations, "guards": guards}

    def _input_relations(self) -> list[str]:
        relations, left = [], list(self.derived)
        while left:
            ready = [one for one in left if len(one[3].free_symbols - self.known) <= 1]
            if not ready:
                places = ", ".join(f"dimension {dim} of input '{name}' ({expression})" for _, dim, name, expression in left)
                raise ExportError(f"the sizes of {places} cannot be checked: no input tells their symbols by itself")
            for index, dim, name, expression in ready:
                self._solve(index, dim, name, expression)
                relations.append(f"i{index}.{dim} {self._written(expression, f'dimension {dim} of input {name!r}')}")
            left = [one for one in left if one not in ready]
        return relations

    def _solve(self, index: int, dim: int, name: str, expression: sympy.Expr) -> None:
        """How the one symbol of ``expression`` that nothing else tells is found from its value: by a floor division, which the relation
        then checks."""
        unknown = expression.free_symbols - self.known
        if not unknown:
            return
        (symbol,) = unknown
        slope = sympy.expand(expression).coeff(symbol, 1)
        rest = sympy.expand(expression - slope * symbol)
        if not slope.is_Integer or slope == 0 or symbol in rest.free_symbols:
            raise ExportError(f"dimension {dim} of input '{name}' is {expression}: '{symbol}' cannot be computed from it when a call comes")
        self.known.add(symbol)
        solution = functions.FloorDiv(_X - rest, slope)
        self.solutions.append(f"{self.number(symbol)} {index} {dim} {self._written(solution, 'a solution')}")

    def _written(self, expression: sympy.Basic, what: str) -> str:
        try:
            return " ".join(self._postfix(expression))
        except Unwritable as problem:
            raise ExportError(f"{what} is {expression}, which cannot be checked when a call comes ({problem})") from None

    def _postfix(self, expression: sympy.Basic) -> list[str]:
        if expression == _X:
            return ["x"]
        if isinstance(expression, sympy.Symbol):
            return [f"s{self.number(expression)}"]
        if expression.is_Integer:
            return [str(int(expression))]
        if isinstance(expression, sympy.Not):
            return [*self._postfix(expression.args[0]), "not"]
        if isinstance(expression, sympy.Pow) and expression.exp.is_Integer and 0 < expression.exp < 8:
            factors = [self._postfix(expression.base)] * int(expression.exp)
            return functools.reduce(lambda left, right: [*left, *right, "*"], factors)
        sign = _BINARY.get(type(expression))
        if sign is None:
            raise Unwritable(f"'{type(expression).__name__}'")
        parts = [self._postfix(argument) for argument in expression.args]
        return functools.reduce(lambda left, right: [*left, *right, sign], parts)


def sizes_of(program: ExportedProgram) -> Sizes:
    """An empty collection for ``program``."""
    return Sizes(facts_of(program))
