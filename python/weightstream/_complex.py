"""Complex tensors as two real ones each: no compiled code knows complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_map

from ._errors import ExportError
from ._inline import (
    Pair,
    Refusal,
    Tensor,
    inline,
    is_complex,
    node_name,
    number,
    operator_of,
    touches_complex,
)
from ._torch.probe import is_probe

aten = torch.ops.aten

#: Points of a Fourier transform, which is computed as a product with a table of that many rows and columns.
LARGEST_TRANSFORM = 4096
REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


class Parts:
    """Replaces every complex tensor of a program by two real ones."""

    def __init__(self, program: ExportedProgram):
        self.program = program
        self.graph = program.graph_module.graph
        self.parts: dict[Node, tuple[Node, Node]] = {}

    def split(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "placeholder" and is_complex(node.meta.get("val")):
                self._constant(node)
            elif is_probe(node) and is_complex(node.meta["val"]):
                value, node.meta["val"] = node.meta["val"], node.args[0].meta["val"]
                self._halve(node, value)
            elif node.op == "call_function" and (touches_complex(node) or any(n in self.parts for n in node.all_input_nodes)):
                self._call(node)
            elif node.op == "output" and any(n in self.parts for n in node.all_input_nodes):
                raise ExportError("an output of the program is complex; return torch.view_as_real of it")
        for node in reversed(self.parts):
            if node.op == "call_function" and not is_probe(node):
                self.graph.erase_node(node)

    def _call(self, node: Node) -> None:
        op = operator_of(node)
        function = None if op is None else _complex_function(op)
        if function is None:
            raise ExportError(f"{node_name(node)}: it has no form for complex numbers here; compute with real ones (torch.view_as_real)")
        results = inline(self.graph, node, function, {}, self.parts)
        if is_complex(node.meta["val"]):
            self.parts[node] = (results[0], results[1])
        else:
            node.replace_all_uses_with(results[0])
            self.graph.erase_node(node)

    def _constant(self, node: Node) -> None:
        """A complex constant becomes a real one with a last dimension of two."""
        signature = self.program.graph_signature
        spec = next(spec for spec in signature.input_specs if getattr(spec.arg, "name", None) == node.name)
        if spec.target is None:
            raise ExportError(f"input '{node.name}' is complex; take torch.view_as_real of it as the input")
        if spec.target in signature.buffers_to_mutate.values():
            raise ExportError(f"buffer '{spec.target}' is complex, and the program writes it; keep torch.view_as_real of it")
        for table in (self.program._state_dict, self.program._constants):
            value = table.get(spec.target)
            if value is not None and value.is_complex():
                real = torch.view_as_real(value.detach().resolve_conj()).clone().contiguous()
                table[spec.target] = torch.nn.Parameter(real, requires_grad=False) if isinstance(value, torch.nn.Parameter) else real
        value = node.meta["val"]
        with value.fake_mode:
            node.meta["val"] = torch.empty((*value.shape, 2), dtype=REAL_OF[value.dtype], device=value.device)
        self._halve(node, value)

    def _halve(self, node: Node, value: Tensor) -> None:
        """``node``, which was ``value``, has its parts in a last dimension of two."""
        with self.graph.inserting_after(node):
            halves = [self.graph.call_function(aten.select.int, (node, -1, i)) for i in (0, 1)]
        for half in halves:
            half.meta["val"] = torch.empty_like(value, dtype=REAL_OF[value.dtype])
        self.parts[node] = (halves[0], halves[1])


def _pair(x: Any) -> Pair:
    if isinstance(x, Pair):
        return x
    if isinstance(x, Tensor):
        return Pair(x, torch.zeros_like(x))
    return Pair(x.real, x.imag) if isinstance(x, complex) else Pair(x, 0)


def _bilinear(op: Any) -> Callable[..., Pair]:
    def product(a: Any, b: Any) -> Pair:
        if not isinstance(a, (Pair, complex)):
            return Pair(op(b.re, a), op(b.im, a)) if not isinstance(a, Tensor) else Pair(op(a, b.re), op(a, b.im))
        if not isinstance(b, (Pair, complex)):
            return Pair(op(a.re, b), op(a.im, b))
        a, b = _pair(a), _pair(b)
        return Pair(op(a.re, b.re) - op(a.im, b.im), op(a.re, b.im) + op(a.im, b.re))

    return product


def _each(name: str, op: Any) -> Callable[..., Pair]:
    """An operator that does the same to both parts: one that moves elements, or adds them up."""

    def both(*args: Any, **kwargs: Any) -> Pair:
        if name in ("cat", "stack"):
            args = ([_pair(x) for x in args[0]], *args[1:])
        if name == "where":
            args = (args[0], _pair(args[1]), _pair(args[2]))
        if name == "constant_pad_nd" and args[2:] and args[2] != 0:
            raise Refusal(f"complex numbers padded with {args[2]}; only zero is supported")
        if kwargs.get("dtype") is not None:
            kwargs["dtype"] = REAL_OF[kwargs["dtype"]]

        def half(i: int) -> Tensor:
            given, named = tree_map(lambda x: x[i] if isinstance(x, Pair) else x, (args, kwargs), is_leaf=lambda x: isinstance(x, Pair))
            return op(*given, **named)

        return Pair(half(0), half(1))

    return both


def _sum(sign: int) -> Callable[..., Pair]:
    def add(a: Any, b: Any, *, alpha: float = 1) -> Pair:
        a, b = _pair(a), _pair(b)
        return Pair(a.re + sign * alpha * b.re, a.im + sign * alpha * b.im)

    return add


def _quotient(a: Any, b: Any) -> Pair:
    if not isinstance(b, (Pair, complex)):
        return Pair(a.re / b, a.im / b)
    a, b = _pair(a), _pair(b)
    norm = b.re * b.re + b.im * b.im
    return Pair((a.re * b.re + a.im * b.im) / norm, (a.im * b.re - a.re * b.im) / norm)


def _to(x: Any, dtype: Any = None, **how: Any) -> Pair:
    """A cast to a complex dtype; one to a real dtype is no cast of torch's (it warns), and is refused."""
    if dtype is not None and dtype not in REAL_OF:
        raise Refusal(f"a cast of complex numbers to {dtype} drops the imaginary part; take .real")
    return Pair(*(part.to(REAL_OF[dtype]) if dtype is not None else part.clone() for part in _pair(x)))


def _exp(x: Pair) -> Pair:
    return _polar(torch.exp(x.re), x.im)


def _polar(length: Tensor, angle: Tensor) -> Pair:
    return Pair(length * torch.cos(angle), length * torch.sin(angle))


def _power(x: Pair, exponent: Any) -> Pair:
    if exponent != 2:
        raise Refusal(f"the power {exponent} of complex numbers; only squares are computed")
    return Pair(x.re * x.re - x.im * x.im, 2 * x.re * x.im)


# Fourier transforms: products with tables of cosines and sines.


def _turns(n: int, rows: int, columns: int, like: Tensor) -> Pair:
    """cos and sin of 2 pi r c / n, from whole turns and one period."""
    angle = torch.arange(n, device=like.device, dtype=torch.float64) * (2 * math.pi / n)
    place = torch.outer(torch.arange(rows, device=like.device), torch.arange(columns, device=like.device)) % n
    return Pair(torch.cos(angle).to(like.dtype)[place], torch.sin(angle).to(like.dtype)[place])


def _points(n: Any) -> int:
    if number(n, "the number of points") > LARGEST_TRANSFORM:
        raise Refusal(f"a Fourier transform of {n} points; at most {LARGEST_TRANSFORM} are computed")
    return n


def _scaled(x: Pair, sizes: list[int], normalization: int) -> Pair:
    factor = math.prod(sizes) ** (-normalization / 2)
    return x if normalization == 0 else Pair(x.re * factor, x.im * factor)


def _transform(x: Pair, dim: int, sign: int, columns: int | None = None) -> Pair:
    """The sums of x[k] exp(sign 2 pi i k c / n) for the first ``columns`` c."""
    n = _points(x.re.shape[dim])
    table = _turns(n, n, columns or n, x.re)
    re, im = x.re.movedim(dim, -1), x.im
    if isinstance(im, Tensor):
        im = im.movedim(dim, -1)
        out = (re @ table.re - sign * (im @ table.im), im @ table.re + sign * (re @ table.im))
    else:
        out = (re @ table.re, sign * (re @ table.im))
    return Pair(*(half.movedim(-1, dim) for half in out))


def _fft_r2c(x: Tensor, dims: list[int], normalization: int, onesided: bool) -> Pair:
    sizes = [_points(x.shape[dim]) for dim in dims]
    out = _transform(Pair(x, 0), dims[-1], -1, sizes[-1] // 2 + 1 if onesided else None)
    for dim in dims[:-1]:
        out = _transform(out, dim, -1)
    return _scaled(out, sizes, normalization)


def _fft_c2c(x: Pair, dims: list[int], normalization: int, forward: bool) -> Pair:
    sizes = [_points(x.re.shape[dim]) for dim in dims]
    for dim in dims:
        x = _transform(x, dim, -1 if forward else 1)
    return _scaled(x, sizes, normalization)


def _fft_c2r(x: Pair, dims: list[int], normalization: int, last: int) -> Tensor:
    """The last dimension holds one half; the other one is its mirror image, so that most elements count twice."""
    last = _points(last)
    sizes = [*(_points(x.re.shape[dim]) for dim in dims[:-1]), last]
    for dim in dims[:-1]:
        x = _transform(x, dim, 1)
    half = last // 2 + 1
    k = torch.arange(half, device=x.re.device).unsqueeze(1)
    twice = torch.where((k == 0) | (2 * k == last), 1, 2)
    table = _turns(last, half, last, x.re)
    re, im = (part.movedim(dims[-1], -1)[..., :half] for part in x)
    out = re @ (table.re * twice) - im @ (table.im * twice)
    return _scaled(Pair(out, out), sizes, normalization).re.movedim(-1, dims[-1])


_SAME_TO_BOTH = {
    "_unsafe_view",
    "alias",
    "cat",
    "clone",
    "constant_pad_nd",
    "contiguous",
    "detach",
    "expand",
    "flip",
    "gather",
    "index",
    "index_select",
    "lift_fresh",
    "mean",
    "neg",
    "permute",
    "repeat",
    "reshape",
    "roll",
    "select",
    "slice",
    "squeeze",
    "stack",
    "sum",
    "t",
    "transpose",
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
    "rsub": lambda a, b: _sum(-1)(b, a),
    "mul": _bilinear(torch.mul),
    "mm": _bilinear(torch.mm),
    "bmm": _bilinear(torch.bmm),
    "div": _quotient,
    "reciprocal": lambda x: _quotient(1, x),
    "exp": _exp,
    "pow": _power,
    "_to_copy": _to,
    "_fft_r2c": _fft_r2c,
    "_fft_c2c": _fft_c2c,
    "_fft_c2r": _fft_c2r,
}


def _complex_function(op: Any) -> Callable[..., Any] | None:
    if op.namespace != "aten":
        return None
    name = op._schema.name.removeprefix("aten::")
    if name.removesuffix("_copy") in _SAME_TO_BOTH:
        return _each(name, op)
    return _COMPLEX.get(name) or _COMPLEX.get(name.removesuffix("_copy"))
