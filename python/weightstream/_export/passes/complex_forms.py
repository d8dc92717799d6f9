"""Operators on complex numbers, written as operators on their real and imaginary parts.

A function of :func:`form_of` takes a :class:`Pair` for each complex tensor, and gives one for a complex result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..._torch.snapshot import SNAPSHOT
from .fourier import c2c, c2r, r2c
from .inline import Pair, Refusal, Tensor

aten = torch.ops.aten

REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def _pair(x: Any) -> Pair:
    if isinstance(x, Pair):
        return x
    if isinstance(x, Tensor):
        return Pair(x, torch.zeros_like(x))
    return Pair(x.real, x.imag) if isinstance(x, complex) else Pair(x, 0)


def _bilinear(op: Any) -> Callable[..., Pair]:
    def product(a: Any, b: Any) -> Pair:
        # One of them is real: two products instead of four.
        if not isinstance(a, (Pair, complex)):
            b = _pair(b)
            return Pair(op(b.re, a), op(b.im, a)) if not isinstance(a, Tensor) else Pair(op(a, b.re), op(a, b.im))
        if not isinstance(b, (Pair, complex)):
            a = _pair(a)
            return Pair(op(a.re, b), op(a.im, b)) if isinstance(a.re, Tensor) else Pair(op(b, a.re), op(b, a.im))
        a, b = (a, b) if isinstance(a, Pair) else (b, a)
        b = _pair(b)
        return Pair(op(a.re, b.re) - op(a.im, b.im), op(a.re, b.im) + op(a.im, b.re))

    return product


_times = _bilinear(torch.mul)

#: Which arguments are values where it is not the first one alone: a number or a real tensor there has an imaginary part of zero.
_VALUES = {
    "cat": (0,),
    "constant_pad_nd": (0, 2),
    "copy": (0, 1),
    "fill": (0, 1),
    "index_put": (0, 2),
    "masked_fill": (0, 2),
    "scatter": (0, 3),
    "select_scatter": (0, 1),
    "slice_scatter": (0, 1),
    "where": (1, 2),
}


def _each(name: str, op: Any) -> Callable[..., Pair]:
    """An operator that does the same to both parts: one that moves elements, or adds them up."""
    places = _VALUES.get(name, (0,))

    def both(*args: Any, **kwargs: Any) -> Pair:
        if kwargs.get("dtype") is not None:
            if kwargs["dtype"] not in REAL_OF:
                raise Refusal(f"it makes {kwargs['dtype']} of complex numbers, which drops the imaginary part; take .real")
            kwargs["dtype"] = REAL_OF[kwargs["dtype"]]
        given = [_pairs(x) if place in places else x for place, x in enumerate(args)]

        def half(i: int) -> Any:
            mine, named = tree_map(lambda x: x[i] if isinstance(x, Pair) else x, (given, kwargs), is_leaf=lambda x: isinstance(x, Pair))
            return op(*mine, **named)

        return Pair(half(0), half(1))

    return both


def _made(name: str, op: Any) -> Callable[..., Any]:
    """An operator that makes a tensor of one number."""
    place = _MADE[name]

    def make(*args: Any, dtype: Any = None, **how: Any) -> Any:
        given = [x.re if isinstance(x, Pair) else x for x in args]
        if dtype is not None and dtype not in REAL_OF:
            return op(*given, dtype=dtype, **how)
        imaginary = 0.0
        if place is not None:
            given[place], imaginary = _pair(given[place])
        re = op(*given, dtype=REAL_OF.get(dtype), **how)
        return Pair(re, torch.full_like(re, imaginary))

    return make


def _pairs(x: Any) -> Any:
    return [_pair(one) for one in x] if isinstance(x, (list, tuple)) and not isinstance(x, Pair) else _pair(x)


def _sum(sign: int) -> Callable[..., Pair]:
    def add(a: Any, b: Any, alpha: Any = 1) -> Pair:
        if alpha != 1:
            b = _times(b, alpha) if isinstance(b, (Pair, Tensor)) else b * alpha
        a, b = _pair(a), _pair(b)
        return Pair(a.re + sign * b.re, a.im + sign * b.im)

    return add


def _product_and_sum(op: Any) -> Callable[..., Pair]:
    def add(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Pair:
        return _sum(1)(c if beta == 1 else _times(c, beta), _bilinear(op)(a, b), alpha=alpha)

    return add


def _quotient(a: Any, b: Any) -> Pair:
    if not isinstance(b, (Pair, complex)):
        a = _pair(a)
        return Pair(a.re / b, a.im / b)
    if isinstance(b, complex):
        return _times(a, 1 / b)
    # Squares of large and of small numbers leave the range of their type, so the divisor's larger part becomes 1.
    a, size = _pair(a), torch.maximum(b.re.abs(), b.im.abs())
    b = Pair(b.re / size, b.im / size)
    norm = b.re * b.re + b.im * b.im
    return Pair((a.re * b.re + a.im * b.im) / norm / size, (a.im * b.re - a.re * b.im) / norm / size)


def _to(x: Any, dtype: Any = None, **how: Any) -> Pair:
    """A cast to a complex dtype; one to a real dtype is no cast of torch's (it warns), and is refused."""
    if dtype is not None and dtype not in REAL_OF:
        raise Refusal(f"a cast of complex numbers to {dtype} drops the imaginary part; take .real")
    return Pair(*(part.to(REAL_OF[dtype]) if dtype is not None else part.clone() for part in _pair(x)))


def _exp(x: Pair) -> Pair:
    return _polar(torch.exp(x.re), x.im)


def _polar(length: Tensor, angle: Tensor) -> Pair:
    return Pair(length * torch.cos(angle), length * torch.sin(angle))


def _log(x: Pair) -> Pair:
    return Pair(torch.log(torch.hypot(x.re, x.im)), torch.atan2(x.im, x.re))


def _sqrt(x: Pair) -> Pair:
    return _polar(torch.hypot(x.re, x.im).sqrt(), torch.atan2(x.im, x.re) / 2)


def _power(x: Any, exponent: Any) -> Pair:
    if not isinstance(exponent, (Pair, Tensor, complex)) and exponent == int(exponent) and 0 < abs(exponent) <= 4:
        result = x
        for _ in range(abs(int(exponent)) - 1):
            result = _times(result, x)
        return result if exponent > 0 else _quotient(1, result)
    if not isinstance(exponent, (Pair, Tensor)) and exponent == 0:
        return Pair(torch.ones_like(x.re), torch.zeros_like(x.re))
    x, e = _floats(x, exponent)
    dtype = torch.result_type(x.re, e.re)
    x, e = (Pair(one.re.to(dtype), one.im.to(dtype)) for one in (x, e))
    # exp(e log x), but for zeros: their logarithm is infinite.
    nothing = (x.re == 0) & (x.im == 0)
    result = _exp(_times(_log(Pair(torch.where(nothing, 1, x.re), x.im)), e))
    return Pair(*(torch.where(nothing, torch.where(e.re > 0, 0.0, torch.nan), part) for part in result))


def _floats(*values: Any) -> list[Pair]:
    """Numbers and integers beside tensors as tensors of one floating type."""
    pairs = [_pair(value) for value in values]
    tensors = [part for pair in pairs for part in pair if isinstance(part, Tensor)]
    dtype = next((x.dtype for x in tensors if x.is_floating_point()), torch.get_default_dtype())

    def tensor(x: Any) -> Tensor:
        if isinstance(x, Tensor):
            return x if x.is_floating_point() else x.to(dtype)
        return torch.full((), float(x), dtype=dtype, device=tensors[0].device)

    return [Pair(*map(tensor, pair)) for pair in pairs]


def _equal(a: Any, b: Any) -> Tensor:
    a, b = _pair(a), _pair(b)
    return (a.re == b.re) & (a.im == b.im)


def _view_as(x: Any, dtype: torch.dtype) -> Any:
    """The bytes as another type: complex numbers as real ones of twice as many, or the other way round."""
    if isinstance(x, Pair) and REAL_OF.get(dtype, dtype) == x.re.dtype:
        return x if dtype in REAL_OF else torch.stack(x, -1).flatten(-2)
    if isinstance(x, Tensor) and REAL_OF.get(dtype) == x.dtype:
        halves = x.unflatten(-1, (-1, 2))
        return Pair(halves[..., 0], halves[..., 1])
    raise Refusal(f"complex numbers and {dtype}; take torch.view_as_real first")


_SAME_TO_BOTH = {
    "_unsafe_view",
    "alias",
    "cat",
    "clone",
    "constant_pad_nd",
    "contiguous",
    "copy",
    "cumsum",
    "detach",
    "diagonal",
    "expand",
    "fill",
    "flip",
    "gather",
    "index",
    "index_put",
    "index_select",
    "lift_fresh",
    "masked_fill",
    "mean",
    "neg",
    "permute",
    "repeat",
    "reshape",
    "roll",
    "scatter",
    "scatter_add",
    "select",
    "select_scatter",
    "slice",
    "slice_scatter",
    "split",
    "split_with_sizes",
    "squeeze",
    "stack",
    "sum",
    "t",
    "transpose",
    "tril",
    "triu",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
    "where",
}

_COMPLEX: dict[str, Callable[..., Any]] = {
    "complex": Pair,
    "polar": _polar,
    "view_as_complex": lambda x: Pair(x[..., 0], x[..., 1]),
    "view_as_real": lambda x: torch.stack(x, -1),
    "real": lambda x: x.re,
    "imag": lambda x: x.im,
    "abs": lambda x: torch.hypot(x.re, x.im),
    "angle": lambda x: torch.atan2(x.im, x.re),
    "_conj": lambda x: Pair(x.re, -x.im),
    "conj_physical": lambda x: Pair(x.re, -x.im),
    "resolve_conj": lambda x: x,
    "resolve_neg": lambda x: x,
    "add": _sum(1),
    "sub": _sum(-1),
    "rsub": lambda a, b, alpha=1: _sum(-1)(b, a, alpha),
    "mul": _times,
    "square": lambda x: _times(x, x),
    "mm": _bilinear(torch.mm),
    "bmm": _bilinear(torch.bmm),
    "addmm": _product_and_sum(torch.mm),
    "baddbmm": _product_and_sum(torch.bmm),
    "div": _quotient,
    "reciprocal": lambda x: _quotient(1, x),
    "exp": _exp,
    "log": _log,
    "sqrt": _sqrt,
    "pow": _power,
    "eq": _equal,
    "ne": lambda a, b: ~_equal(a, b),
    "isnan": lambda x: x.re.isnan() | x.im.isnan(),
    "isinf": lambda x: x.re.isinf() | x.im.isinf(),
    "isfinite": lambda x: x.re.isfinite() & x.im.isfinite(),
    "linalg_vector_norm": lambda x, *how, **named: torch.linalg.vector_norm(torch.hypot(x.re, x.im), *how, **named),
    "_to_copy": _to,
    "_fft_r2c": r2c,
    "_fft_c2c": c2c,
    "_fft_c2r": c2r,
}

#: Which argument is the number, if one is.
_MADE = {
    **dict.fromkeys(("empty", "empty_like", "eye", "new_empty", "new_ones", "new_zeros", "ones", "ones_like", "zeros", "zeros_like")),
    "full": 1,
    "full_like": 1,
    "new_full": 2,
    "scalar_tensor": 0,
}


def form_of(op: Any) -> Callable[..., Any] | None:
    if op is SNAPSHOT:
        return _each("snapshot", op)
    if op.namespace != "aten":
        return None
    if op in (aten.view.dtype, aten.view_copy.dtype):
        return _view_as
    name = op._schema.name.removeprefix("aten::")
    if name.removesuffix("_copy") in _SAME_TO_BOTH:
        return _each(name, op)
    if name in _MADE:
        return _made(name, op)
    return _COMPLEX.get(name) or _COMPLEX.get(name.removesuffix("_copy"))
