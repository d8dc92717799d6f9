"""Calls of operators on complex numbers, drawn at random: see `rewrite_rows`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rewrite_rows import Call, Draw

aten = torch.ops.aten
SHAPES = ((3, 4), (4,), (1, 4), (), (0, 4))
COMPLEX = (torch.complex64, torch.complex128)


def z(d: Draw, *shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    x = torch.complex(torch.randn(shape), torch.randn(shape)) * d.one(1, 1, 1e-3, 10)
    return d.one(x, x, x.real + 0j, 1j * x.real, x.masked_fill(torch.rand(shape) > 0.7, 0)).to(dtype)


def any_shape(d: Draw, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    return z(d, *d.one(*SHAPES), dtype=dtype)


def real(d: Draw) -> torch.Tensor:
    shape = d.one(*SHAPES)
    return d.one(torch.randn(shape), torch.randn(shape).double(), torch.randint(1, 5, shape), torch.rand(shape) > 0.5)


def number(d: Draw) -> complex:
    return d.one(2, 2.5, 1j, 3 - 2j, -0.5j, -1, True)


def two(d: Draw) -> tuple[Any, Any]:
    """Of which one is complex at least."""
    a, b = any_shape(d), d.one(any_shape(d), any_shape(d, torch.complex128), real(d), number(d))
    if isinstance(b, torch.Tensor):
        return d.one((a, b), (b, a))
    return d.one((a, b), (real(d), d.one(1j, 3 - 2j)))


def one_of(function: Callable[[Draw], Any], *more: Any, **named: Any) -> Callable[[Draw], Call]:
    return lambda d: ((function(d), *more), named)


def pair(d: Draw) -> Call:
    return two(d), {}


def scaled(d: Draw) -> Call:
    return two(d), d.one({}, {"alpha": 2}, {"alpha": 1j}, {"alpha": 0.5})


def reversed_difference(d: Draw) -> Call:
    return (any_shape(d), number(d)), d.one({}, {"alpha": 2})


def quotient(d: Draw) -> Call:
    a, b = two(d)
    # What a division by zero gives depends on the place in the tensor.
    b = torch.where(b == 0, 1, b) if isinstance(b, torch.Tensor) else b
    if isinstance(b, torch.Tensor) and b.dtype is torch.complex64:
        size = d.one(1, 1e30, 1e-30)
        a, b = a * size * d.one(1, 1e-3), b * size
    return (a, b), {}


def power(d: Draw) -> Call:
    x, exponent = any_shape(d), d.one(0, 1, 2, 3, 4, 7, -1, -2, 0.5, 1.5, -0.5, 1j, 2 - 1j)
    positive = isinstance(exponent, (int, float)) and exponent >= 0
    return d.one((x if positive else torch.where(x == 0, 1, x), exponent), (real(d).float().abs() + 1, d.one(1j, 2 - 1j))), {}


def power_of_tensors(d: Draw) -> Call:
    x, exponent = (torch.as_tensor(one) for one in two(d))
    return (torch.where(x == 0, 1, x), exponent), {}


def power_of_a_number(d: Draw) -> Call:
    return (d.one(2, 2.5, -2.0, 1j, 2 - 1j), any_shape(d)), {}


def choice(d: Draw) -> Call:
    return (d.mask(*d.one((4,), (3, 4))), *(torch.as_tensor(one) for one in two(d))), {}


def matrices(*batch: int) -> Callable[[Draw], tuple[torch.Tensor, torch.Tensor]]:
    return lambda d: (z(d, *batch, d.one(0, 1, 3), 4), z(d, *batch, 4, 2))


def product(*batch: int) -> Callable[[Draw], Call]:
    return lambda d: (matrices(*batch)(d), {})


def product_and_sum(*batch: int) -> Callable[[Draw], Call]:
    return lambda d: ((z(d, *batch, 1, 2), *matrices(*batch)(d)), d.one({}, {"alpha": 1j}, {"beta": 2, "alpha": 0.5}))


def transform(kind: str) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        rows, columns = d.one((2, 8), (3, 5), (1, 6), (2, 1))
        dims, normalization = d.one([0], [1], [0, 1], [1, 0]), d.one(0, 1, 2)
        if kind == "r2c":
            return (torch.randn(rows, columns), dims, normalization, d.one(True, False)), {}
        x = z(d, rows, columns)
        if kind == "c2c":
            return (x, dims, normalization, d.one(True, False)), {}
        # One half of a spectrum of real numbers, of an even or of an odd length.
        last = x.shape[dims[-1]]
        return (x, dims, normalization, max(1, 2 * (last - 1) + d.one(0, 1))), {}

    return draw


def like(op: Any, *more: Any) -> tuple[Any, Callable[[Draw], Call]]:
    return op, lambda d: ((d.one(z(d, 3, 4), torch.randn(3, 4)), *more), {"dtype": d.one(*COMPLEX)})


def made(op: Any, *arguments: Any) -> tuple[Any, Callable[[Draw], Call]]:
    return op, lambda d: (arguments, {"dtype": d.one(*COMPLEX)})


def moved(op: Any, *more: Any, **named: Any) -> tuple[Any, Callable[[Draw], Call]]:
    return op, lambda d: ((z(d, 3, 4), *more), named)


def both(op: Any, *before: Any, shape: tuple[int, ...] = (3, 4)) -> tuple[Any, Callable[[Draw], Call]]:
    """Something is written into a tensor; one of the two may be real."""
    return op, lambda d: ((z(d, 3, 4), d.one(z(d, *shape), torch.randn(shape)), *before), {})


def cast(d: Draw) -> Call:
    return (d.one(any_shape(d), torch.randn(3), torch.arange(3)),), {"dtype": d.one(*COMPLEX)}


def seen(d: Draw) -> Call:
    return d.one((z(d, 3, 4), torch.float32), (torch.randn(3, 4), torch.complex64)), {}


_ROWS = torch.tensor([2, 0, 2])
_MASK = torch.tensor([True, False, True, False])
_FIRST = torch.tensor([[0, 1, 2, 0]])

#: By name, without the overload: the operator and its calls.
COMPLEX_ROWS: dict[str, tuple[Any, Callable[[Draw], Call]]] = {
    "_conj": (aten._conj.default, one_of(any_shape)),
    "_fft_c2c": (aten._fft_c2c.default, transform("c2c")),
    "_fft_c2r": (aten._fft_c2r.default, transform("c2r")),
    "_fft_r2c": (aten._fft_r2c.default, transform("r2c")),
    "_to_copy": (aten._to_copy.default, cast),
    "_unsafe_view": moved(aten._unsafe_view.default, [2, 6]),
    "abs": (aten.abs.default, one_of(any_shape)),
    "add": (aten.add.Tensor, scaled),
    "addmm": (aten.addmm.default, product_and_sum()),
    "alias": moved(aten.alias.default),
    "angle": (aten.angle.default, one_of(any_shape)),
    "baddbmm": (aten.baddbmm.default, product_and_sum(2)),
    "bmm": (aten.bmm.default, product(2)),
    "cat": (aten.cat.default, lambda d: (([z(d, 3, 4), d.one(torch.randn(3, 4), z(d, 3, 4))], d.one(0, 1)), {})),
    "clone": moved(aten.clone.default),
    "complex": (aten.complex.default, lambda d: ((torch.randn(3, 4), torch.randn(d.one((3, 4), (4,), ()))), {})),
    "conj_physical": (aten.conj_physical.default, one_of(any_shape)),
    "constant_pad_nd": (aten.constant_pad_nd.default, lambda d: ((z(d, 3, 4), [1, 2], d.one(0, 1.5, 1j)), {})),
    "contiguous": moved(aten.contiguous.default),
    "copy": both(aten.copy.default, shape=(1, 4)),
    "cumsum": moved(aten.cumsum.default, 1),
    "detach": moved(aten.detach.default),
    "diagonal": moved(aten.diagonal.default, 1),
    "div": (aten.div.Tensor, quotient),
    "empty": (aten.zeros.default, lambda d: (([2],), {"dtype": torch.complex64})),
    "eq": (aten.eq.Tensor, lambda d: (tuple(torch.as_tensor(one) for one in two(d)), {})),
    "exp": (aten.exp.default, one_of(any_shape)),
    "expand": moved(aten.expand.default, [2, 3, 4]),
    "eye": made(aten.eye.default, 3),
    "fill": (aten.fill.Scalar, lambda d: ((z(d, 3, 4), number(d)), {})),
    "flip": moved(aten.flip.default, [1]),
    "full": (aten.full.default, lambda d: (([2, 3], number(d)), {"dtype": d.one(*COMPLEX)})),
    "full_like": (aten.full_like.default, lambda d: ((z(d, 3, 4), number(d)), d.one({}, {"dtype": torch.complex128}))),
    "gather": moved(aten.gather.default, 0, _FIRST),
    "imag": (aten.imag.default, one_of(any_shape)),
    "index": moved(aten.index.Tensor, [_ROWS]),
    "index_put": (aten.index_put.default, lambda d: ((z(d, 3, 4), [_ROWS[:2]], d.one(z(d, 4), torch.randn(2, 4))), {})),
    "index_select": moved(aten.index_select.default, 0, _ROWS),
    "isfinite": (aten.isfinite.default, lambda d: ((z(d, 4) / d.one(0, 1),), {})),
    "isinf": (aten.isinf.default, lambda d: ((z(d, 4) / d.one(0, 1),), {})),
    "isnan": (aten.isnan.default, lambda d: ((z(d, 4) / d.one(0, 1),), {})),
    "lift_fresh": moved(aten.lift_fresh.default),
    "linalg_vector_norm": (aten.linalg_vector_norm.default, lambda d: ((z(d, 3, 4), d.one(1, 2, 3), d.one(None, [1])), {})),
    "log": (aten.log.default, one_of(any_shape)),
    "masked_fill": (aten.masked_fill.Scalar, lambda d: ((z(d, 3, 4), _MASK, number(d)), {})),
    "mean": moved(aten.mean.dim, [1]),
    "mm": (aten.mm.default, product()),
    "mul": (aten.mul.Tensor, pair),
    "ne": (aten.ne.Scalar, lambda d: ((any_shape(d), d.one(0, 1j, 2.0)), {})),
    "neg": moved(aten.neg.default),
    "new_empty": (aten.new_zeros.default, lambda d: ((z(d, 2), [3]), {})),
    "new_full": (aten.new_full.default, lambda d: ((z(d, 2), [3], number(d)), {})),
    "new_ones": (aten.new_ones.default, lambda d: ((z(d, 2), [3]), d.one({}, {"dtype": torch.float32}))),
    "new_zeros": (aten.new_zeros.default, lambda d: ((z(d, 2), [3]), d.one({}, {"dtype": torch.float32}))),
    "ones": made(aten.ones.default, [2, 3]),
    "ones_like": like(aten.ones_like.default),
    "permute": moved(aten.permute.default, [1, 0]),
    "polar": (aten.polar.default, lambda d: ((torch.rand(3, 4), torch.randn(d.one((3, 4), (4,), ()))), {})),
    "pow": (aten.pow.Tensor_Scalar, power),
    "pow of a number": (aten.pow.Scalar, power_of_a_number),
    "pow of tensors": (aten.pow.Tensor_Tensor, power_of_tensors),
    "real": (aten.real.default, one_of(any_shape)),
    "reciprocal": (aten.reciprocal.default, lambda d: ((torch.where((x := any_shape(d)) == 0, 1e20, x) * d.one(1, 1e18),), {})),
    "repeat": moved(aten.repeat.default, [2, 1]),
    "reshape": moved(aten.reshape.default, [2, 6]),
    "resolve_conj": moved(aten.resolve_conj.default),
    "resolve_neg": moved(aten.resolve_neg.default),
    "roll": moved(aten.roll.default, [1], [1]),
    "rsub": (aten.rsub.Scalar, reversed_difference),
    "scalar_tensor": (aten.scalar_tensor.default, lambda d: ((number(d),), {"dtype": torch.complex64})),
    "scatter": (aten.scatter.src, lambda d: ((z(d, 3, 4), 0, _FIRST, d.one(z(d, 1, 4), torch.randn(1, 4).cfloat())), {})),
    "scatter_add": (aten.scatter_add.default, lambda d: ((z(d, 3, 4), 0, _FIRST, z(d, 1, 4)), {})),
    "select": moved(aten.select.int, 0, 1),
    "select_scatter": both(aten.select_scatter.default, 0, 1, shape=(4,)),
    "slice": moved(aten.slice.Tensor, 1, 1, 3),
    "slice_scatter": both(aten.slice_scatter.default, 1, 1, 3, shape=(3, 2)),
    "split": moved(aten.split.Tensor, 2, 1),
    "split_with_sizes": moved(aten.split_with_sizes.default, [1, 3], 1),
    "sqrt": (aten.sqrt.default, one_of(any_shape)),
    "square": (aten.square.default, one_of(any_shape)),
    "squeeze": moved(aten.squeeze.default),
    "stack": (aten.stack.default, lambda d: (([z(d, 4), z(d, 4)], d.one(0, 1)), {})),
    "sub": (aten.sub.Tensor, scaled),
    "sum": (aten.sum.dim_IntList, lambda d: ((d.one(z(d, 3, 4), torch.randn(3, 4)), [1], d.one(True, False)), {"dtype": torch.complex64})),
    "t": moved(aten.t.default),
    "transpose": moved(aten.transpose.int, 0, 1),
    "tril": moved(aten.tril.default),
    "triu": moved(aten.triu.default, 1),
    "unbind": moved(aten.unbind.int, 1),
    "unfold": moved(aten.unfold.default, 1, 2, 1),
    "unsqueeze": moved(aten.unsqueeze.default, 1),
    "view": moved(aten.view.default, [2, 6]),
    "view as another type": (aten.view.dtype, seen),
    "view_as_complex": (aten.view_as_complex.default, lambda d: ((torch.randn(3, 2),), {})),
    "view_as_real": (aten.view_as_real.default, one_of(any_shape)),
    "where": (aten.where.self, choice),
    "where and a number": (aten.where.ScalarOther, lambda d: ((_MASK, z(d, 3, 4), number(d)), {})),
    "zeros": made(aten.zeros.default, [2, 3]),
    "zeros_like": like(aten.zeros_like.default),
    "empty_like": (aten.zeros_like.default, lambda d: ((z(d, 3),), {})),
}
