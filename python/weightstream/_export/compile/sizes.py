"""What a program assumes of its sizes, written down for the runtime: ranges, relations and guards.

The compiler computes every size from symbols, and trusts that the inputs agree with them. The record therefore says how each symbol
is found, which expression every other size is, and which conditions hold. Expressions are postfix text over ``s0, s1, ...``.
"""

from __future__ import annotations

import dataclasses
import fractions
import functools
import re

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy import functions
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import bound_sympy

from ..._native.errors import ExportError
from ..._torch.shapes import UNBOUNDED, Facts, facts_of
from .record import Fields

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
_ROUNDED = (functions.CeilToInt, functions.FloorToInt, functions.TruncToInt)
#: Factors from here on may be rounded in a product with a size.
_FEW = 1 << 20
#: What people call functions that the runtime does not compute.
_TOLD = {
    "FloatPow": "a power of floats",
    "ToFloat": "a float",
    "RoundToInt": "round()",
    "FloatTrueDiv": "a quotient of floats",
    "Pow": "a power",
}


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
    #: Where symbols come from, for messages: `dimension 0 of 'x'`.
    places: dict[sympy.Symbol, str] = dataclasses.field(default_factory=dict)

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
            self.places.setdefault(expression, f"dimension {dim} of '{name}'")
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
        guards = [self._written(guard, "a condition of the model's code") for guard in self._guards()]
        names = [self.facts.names.get(symbol, str(symbol)) for symbol in self.numbers]
        return {"symbols": names, "solutions": self.solutions, "relations": relations, "guards": guards}

    def _guards(self) -> list[sympy.Basic]:
        return list(dict.fromkeys(guard for guard in self.facts.guards if guard.free_symbols <= self.known))

    def remarks(self) -> list[str]:
        """What the user should know of the sizes, in words, once :meth:`fields` was called."""
        return [
            f"it is right only for sizes with {self._words(guard)}, as in the example; a call with others is refused"
            for guard in self._guards()
        ]

    def _words(self, expression: sympy.Basic) -> str:
        """An expression as Python writes it, with the names of its symbols, and where those without a name come from."""
        symbols = sorted(expression.free_symbols, key=str)
        names = {symbol: sympy.Symbol(self.facts.names.get(symbol, str(symbol)), integer=True) for symbol in symbols}
        text = PythonPrinter().doprint(expression.xreplace(names)).replace("torch.sym_float(", "float(")
        text = re.sub(r"(\.\d+?)0+\b", r"\1", text)
        unnamed = [f"{symbol} is {self.places[symbol]}" for symbol in symbols if symbol not in self.facts.names and symbol in self.places]
        return f"{text} ({', '.join(unnamed)})" if unnamed else text

    def _input_relations(self) -> list[str]:
        relations, left = [], list(self.derived)
        while left:
            ready = [one for one in left if len(one[3].free_symbols - self.known) <= 1]
            if not ready:
                places = ", ".join(f"dimension {dim} of input '{name}' ({self._words(expression)})" for _, dim, name, expression in left)
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
            raise ExportError(
                f"dimension {dim} of input '{name}' is {self._words(expression)}: '{symbol}' cannot be computed from it when a call comes"
            )
        self.known.add(symbol)
        solution = functions.FloorDiv(_X - rest, slope)
        self.solutions.append(f"{self.number(symbol)} {index} {dim} {self._written(solution, 'a solution')}")

    def _written(self, expression: sympy.Basic, what: str) -> str:
        try:
            return " ".join(self._postfix(expression))
        except Unwritable as problem:
            raise ExportError(
                f"{what} is {self._words(expression)}, which cannot be checked when a call comes: the runtime computes sizes in whole numbers "
                f"({problem}); compute it so in the model (n // 2, -(-n // 3)), or leave these dimensions out of dynamic_shapes"
            ) from None

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
        if type(expression) in _ROUNDED:
            return self._quotient(type(expression), *_ratio(expression.args[0]))
        sign = _BINARY.get(type(expression))
        if sign is None:
            raise Unwritable(f"it has {_TOLD.get(type(expression).__name__, type(expression).__name__)}")
        parts = [self._postfix(argument) for argument in expression.args]
        return functools.reduce(lambda left, right: [*left, *right, sign], parts)

    def _quotient(self, rounding: type, above: sympy.Expr, below: sympy.Expr) -> list[str]:
        """A quotient, rounded. The model computes it with floats, which are exact for all sizes that fit into a memory."""
        if rounding is functions.CeilToInt:
            return ["0", "0", *self._postfix(above), "-", *self._postfix(below), "//", "-"]
        signs = [bound_sympy(part, self.facts.ranges).lower for part in (above, below)]
        if rounding is functions.TruncToInt and not (signs[0] >= 0 and signs[1] > 0):
            raise Unwritable("it has int() of what may be negative")
        return [*self._postfix(above), *self._postfix(below), "//"]


def _ratio(expression: sympy.Basic) -> tuple[sympy.Expr, sympy.Expr]:
    """A float as a quotient of whole numbers: ``n / 3``, and ``1.5 * n``, whose factor has few binary digits."""
    if isinstance(expression, (functions.IntTrueDiv, functions.FloatTrueDiv)):
        (above, below), (one, other) = (_ratio(part) for part in expression.args)
        return above * other, below * one
    if isinstance(expression, functions.ToFloat):
        return expression.args[0], sympy.Integer(1)
    if isinstance(expression, sympy.Float):
        exact = fractions.Fraction(float(expression))
        if max(abs(exact.numerator), exact.denominator) < _FEW:
            return sympy.Integer(exact.numerator), sympy.Integer(exact.denominator)
        raise Unwritable(f"it has the factor {float(expression)}, which no float holds exactly")
    if isinstance(expression, sympy.Mul):
        parts = [_ratio(part) for part in expression.args]
        return sympy.Mul(*(above for above, _ in parts)), sympy.Mul(*(below for _, below in parts))
    if expression.is_integer:
        return expression, sympy.Integer(1)
    raise Unwritable(f"it has {_TOLD.get(type(expression).__name__, type(expression).__name__)}")


def sizes_of(program: ExportedProgram) -> Sizes:
    """An empty collection for ``program``."""
    return Sizes(facts_of(program))
