"""Operators for which neither the compiler nor the runtime has code, written with operators that they have.

    operator of a table        traced with fake tensors        its nodes take its place
    complex operator     ->    the same on two real parts  ->  no complex tensor is left

It runs before a program is lowered: passes of ``to_edge`` fail at complex numbers. What cannot be
written otherwise is refused here, by operator and module. Shapes may be dynamic unless a function asks for a number.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.export import ExportedProgram
from torch.fx import Graph, Node, map_arg
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import custom_op
from torch.utils._pytree import tree_leaves, tree_map

from . import _convolution, _order
from ._errors import ExportError
from ._offload import rename_outputs
from ._torch.probe import is_probe

aten = torch.ops.aten
Tensor = torch.Tensor
Table = dict[Any, Callable[..., Any]]

#: Points of a Fourier transform, which is computed as a product with a table of that many rows and columns.
LARGEST_TRANSFORM = 4096
#: Rows of a matrix that is inverted: its elimination is unrolled.
LARGEST_INVERSE = 32

REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


class Refusal(Exception):
    """Why an operator cannot be decomposed; becomes an :class:`ExportError` with its name and module."""


def decompose(program: ExportedProgram, device: str) -> ExportedProgram:
    """Rewrites the program's graph in place, and returns it; ``device`` is that of the target."""
    others = _CUDA_ONLY if device == "cpu" else _CPU_ONLY
    table = {op: function for op, function in _table().items() if op not in others}
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        op = _operator(node)
        if op is aten.convolution.default and not node.args[6]:
            continue
        if op in table or op in _COMPOSITES or (op is not None and _is_composite(op) and _touches_complex(node)):
            values = _inline(graph, node, lambda *args, op=op, **kwargs: table.get(op, op)(*args, **kwargs), table)
            _replace(graph, node, values)
    if any(_is_complex(node.meta.get("val")) for node in graph.nodes):
        _Parts(program).split()
    graph.lint()
    program.graph_module.recompile()
    rename_outputs(program)
    return program


def c_shims(device: str) -> dict[Any, list[str]]:
    """The runtime's functions for operators of this module: the compiler's option ``custom_ops_to_c_shims``."""
    if device != "cpu":
        return {}
    return {
        GROUPED_MM: ["AOTITorchError aoti_torch_cpu_grouped_mm(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*)"]
    }


# Inlining


def _operator(node: Node) -> Any:
    op = node.target if node.op == "call_function" else None
    if isinstance(op, EdgeOpOverload):
        op = op._op
    return op if isinstance(op, torch._ops.OpOverload) else None


def _is_composite(op: Any) -> bool:
    return op._can_decompose()


def _values(node: Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _is_complex(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_complex()


def _touches_complex(node: Node) -> bool:
    return any(_is_complex(value) for n in (node, *node.all_input_nodes) for value in _values(n))


def _inline(graph: Graph, node: Node, function: Callable[..., Any], table: Table, parts: dict[Node, Any] | None = None) -> list[Node]:
    """Puts the nodes of ``function``, called as ``node``, in front of it; returns those of its results.

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


def _replace(graph: Graph, node: Node, results: list[Node]) -> None:
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
    op = _operator(node)
    return (str(op.overloadpacket) if op else str(node.target)) + (f" in {path}" if path else "")


def _number(size: Any, what: str) -> int:
    if not isinstance(size, int):
        raise Refusal(f"{what} is dynamic ({size}); export with it fixed")
    return size


# Real operators


def _histc(x: Tensor, bins: int = 100, low: float = 0, high: float = 0) -> Tensor:
    x = x.reshape(-1)
    if low == high:
        low, high = x.amin(), x.amax()
        low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    inside = (x >= low) & (x <= high)
    place = torch.where(inside, ((x - low) * bins / (high - low)).to(torch.int64).clamp(max=bins - 1), -1)
    return (place == torch.arange(bins, device=x.device).unsqueeze(1)).sum(1).to(x.dtype)


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    # Too few elements in the source fail the compiled code's check of indices.
    place = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).reshape(x.shape)
    return torch.where(mask, source.reshape(-1)[torch.where(mask, place, 0)], x)


def _adaptive_max_pool2d(x: Tensor, output_size: list[int]) -> tuple[Tensor, Tensor]:
    """Windows of one size, those that are shorter with places masked out."""
    height, width = (_number(n, "the size of the image") for n in x.shape[-2:])
    rows, row_mask = _windows(height, output_size[0], x.device)
    columns, column_mask = _windows(width, output_size[1], x.device)
    place = rows[:, None, :, None] * width + columns[None, :, None, :]
    mask = row_mask[:, None, :, None] & column_mask[None, :, None, :]
    found = torch.where(mask, x.flatten(-2)[..., place], -math.inf).flatten(-2)
    best = found.argmax(-1, keepdim=True)
    values = found.gather(-1, best).squeeze(-1)
    return values, place.flatten(-2).expand(found.shape).gather(-1, best).squeeze(-1)


def _windows(size: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(-(-((i + 1) * size) // count) - i * size // count for i in range(count))
    i = torch.arange(count, device=device).unsqueeze(1)
    start, end = i * size // count, ((i + 1) * size + count - 1) // count
    place = start + torch.arange(longest, device=device)
    return place.clamp(max=size - 1), place < end


def _raised_cosine(n: int, periodic: bool, alpha: float, beta: float, **how: Any) -> Tensor:
    dtype = how.get("dtype") or torch.get_default_dtype()
    if n == 1:
        return torch.ones(1, dtype=dtype, device=how.get("device"))
    steps = torch.arange(n, dtype=torch.float64, device=how.get("device"))
    return (alpha - beta * torch.cos(steps * (2 * math.pi / (n if periodic else n - 1)))).to(dtype)


def _hann(n: int, periodic: bool = True, **how: Any) -> Tensor:
    return _raised_cosine(n, periodic, 0.5, 0.5, **how)


def _hamming(n: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **how: Any) -> Tensor:
    return _raised_cosine(n, periodic, alpha, beta, **how)


def _stft(
    x: Tensor,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    if align_to_window or not return_complex:
        raise Refusal("align_to_window, or return_complex=False; take torch.view_as_real of the complex result")
    length = length or n
    if window is None:
        window = torch.ones(length, dtype=x.dtype, device=x.device)
    before = (n - length) // 2
    frames = x.unfold(-1, n, hop or n // 4) * torch.nn.functional.pad(window, (before, n - length - before))
    transform = torch.fft.fft if onesided is False else torch.fft.rfft
    return transform(frames, norm="ortho" if normalized else None).transpose(-1, -2)


def _int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    return x @ weight.to(x.dtype).t() * scales


def _inverse(matrix: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Gauss-Jordan elimination with partial pivoting, unrolled."""
    n = _number(matrix.shape[-1], "the number of rows")
    if n > LARGEST_INVERSE:
        raise Refusal(f"a matrix of {n} rows; at most {LARGEST_INVERSE} are inverted. Invert constant matrices before the export")
    order = torch.arange(n, device=matrix.device)
    both = torch.cat([matrix, torch.eye(n, dtype=matrix.dtype, device=matrix.device).expand(matrix.shape)], -1)
    info = torch.zeros(matrix.shape[:-2], dtype=torch.int32, device=matrix.device)
    for i in range(n):
        column = both[..., i]
        pivot = torch.where(order < i, -1, column.abs()).argmax(-1, keepdim=True)
        swapped = torch.where(order == i, pivot, torch.where(order == pivot, i, order))
        both = both.gather(-2, swapped.unsqueeze(-1).expand(both.shape))
        head = both[..., i : i + 1, i : i + 1]
        info = torch.where((head[..., 0, 0] == 0) & (info == 0), i + 1, info)
        row = both[..., i : i + 1, :] / head
        both = torch.where((order == i).unsqueeze(-1), row, both - both[..., i : i + 1] * row)
    return both[..., n:].contiguous(), info.to(torch.int32)


def _check_errors(info: Tensor, name: str, *, is_matrix: bool) -> None:
    aten._assert_async.msg((info == 0).all(), f"{name}: the matrix is singular")


def _roi_align(x: Tensor, rois: Tensor, scale: float, height: int, width: int, sampling: int, aligned: bool) -> Tensor:
    """torchvision's own form for compilers, without its decorator, which would compile it here."""
    module = importlib.import_module("torchvision.ops.roi_align")
    return module._roi_align.__wrapped__(x, rois, scale, height, width, sampling, aligned)


def _aa_weights(size: Any, out: Any, align: bool, scale: float | None, cubic: bool, like: Tensor) -> Tensor:
    """The matrix [out, size] by which one dimension is resized: a filter around each place, as wide as the step."""
    size, out = _number(size, "the size of the image"), _number(out, "the size of the result")
    step = 1 / scale if scale else size / out
    if align:
        step = (size - 1) / (out - 1) if out > 1 else 0.0
    support = (2.0 if cubic else 1.0) * max(step, 1.0)
    center = (torch.arange(out, device=like.device, dtype=torch.float32) + 0.5).unsqueeze(1) * step
    place = torch.arange(size, device=like.device).unsqueeze(0)
    first = (center - support + 0.5).to(torch.int64).clamp(min=0)
    last = (center + support + 0.5).to(torch.int64).clamp(max=size)
    distance = ((place + 0.5 - center) / max(step, 1.0)).abs()
    weight = _cubic(distance) if cubic else (1 - distance).clamp(min=0)
    weight = torch.where((place >= first) & (place < last), weight, 0)
    return (weight / weight.sum(1, keepdim=True)).to(like.dtype)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _resize_aa(cubic: bool) -> Callable[..., Tensor]:
    def resize(x: Tensor, size: list[int], align: bool, scale_h: float | None = None, scale_w: float | None = None) -> Tensor:
        rows = _aa_weights(x.shape[-2], size[0], align, scale_h, cubic, x)
        columns = _aa_weights(x.shape[-1], size[1], align, scale_w, cubic, x)
        return rows @ (x @ columns.t())

    return resize


def _grid_sampler(x: Tensor, grid: Tensor, interpolation: int, padding: int, align: bool) -> Tensor:
    if x.dim() == 5:
        return _grid_sampler_3d(x, grid, interpolation, padding, align)
    return aten.grid_sampler_2d(x, grid, interpolation, padding, align)


def _grid_sampler_3d(x: Tensor, grid: Tensor, interpolation: int, padding: int, align: bool) -> Tensor:
    batch = torch.arange(x.shape[0], device=x.device).reshape(-1, 1, 1, 1)
    sizes = x.shape[:1:-1]  # width, height, depth: the order of the grid's coordinates
    at = [_source(grid[..., i], sizes[i], padding, align) for i in range(3)]
    if interpolation == 1:
        corners = [[(p.round(), torch.ones_like(p))] for p in at]
    else:
        corners = [[(p.floor(), p.floor() + 1 - p), (p.floor() + 1, p - p.floor())] for p in at]
    total = 0
    for i, wi in corners[0]:
        for j, wj in corners[1]:
            for k, wk in corners[2]:
                inside = True
                for place, size in zip((i, j, k), sizes):
                    inside = inside & (place >= 0) & (place < size)
                w, h, d = (torch.where(inside, place, 0).to(torch.int64) for place in (i, j, k))
                # Indices around a slice: the channels come last.
                total = total + torch.where(inside, wi * wj * wk, 0).unsqueeze(-1) * x[batch, :, d, h, w]
    return total.permute(0, 4, 1, 2, 3)


def _source(place: Tensor, size: Any, padding: int, align: bool) -> Tensor:
    place = (place + 1) * ((size - 1) / 2) if align else ((place + 1) * size - 1) / 2
    if padding == 2:
        low, span = (0, size - 1) if align else (-0.5, size)
        away = (place - low).abs()
        flips, rest = (away / span).floor(), torch.fmod(away, span)
        place = torch.where(flips % 2 == 0, rest + low, span - rest + low) if span else torch.zeros_like(place)
    return place.clamp(0, size - 1) if padding else place


@custom_op("weightstream::grouped_mm", mutates_args=())
def grouped_mm(x: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """Rows of ``x`` up to the first offset times the first matrix, those up to the second times the second, and so on."""
    out = x.new_zeros(x.shape[0], weights.shape[2])
    starts = [0, *offsets.tolist()]
    for i, (start, end) in enumerate(itertools.pairwise(starts)):
        out[start:end] = x[start:end] @ weights[i]
    return out


@grouped_mm.register_fake
def _(x: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weights.shape[2])


GROUPED_MM = torch.ops.weightstream.grouped_mm.default


def _grouped_mm(a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None) -> Tensor:
    if a.dim() == 3 and b.dim() == 3 and offs is None:
        out = torch.bmm(a, b)
    elif a.dim() == 2 and b.dim() == 3 and offs is not None:
        out = GROUPED_MM(a, b, offs)
    else:
        raise Refusal(f"groups of {a.dim()} and {b.dim()} dimensions; the left rows are grouped, 2 and 3, or nothing is, 3 and 3")
    if bias is not None:
        raise Refusal("it has a bias; add it afterwards")
    return out.to(out_dtype or a.dtype)


def _transposed_as_in_eager(
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    output_padding: Any = (0,),
    groups: int = 1,
    dilation: Any = (1,),
) -> Tensor:
    return _convolution.transposed(x, weight, bias, stride, padding, dilation, True, output_padding, groups)


def _table() -> Table:
    table = {
        aten.detach.default: lambda x: x,
        aten.detach_copy.default: lambda x: x,
        aten.histc.default: _histc,
        aten.masked_scatter.default: _masked_scatter,
        aten.adaptive_max_pool2d.default: _adaptive_max_pool2d,
        aten.hann_window.default: _hann,
        aten.hann_window.periodic: _hann,
        aten.hamming_window.default: _hamming,
        aten.hamming_window.periodic: _hamming,
        aten.hamming_window.periodic_alpha: _hamming,
        aten.hamming_window.periodic_alpha_beta: _hamming,
        aten.stft.default: _stft,
        aten._weight_int8pack_mm.default: _int8pack_mm,
        aten.linalg_inv_ex.default: _inverse,
        aten._linalg_check_errors.default: _check_errors,
        aten._upsample_bilinear2d_aa.default: _resize_aa(cubic=False),
        aten._upsample_bicubic2d_aa.default: _resize_aa(cubic=True),
        aten.grid_sampler_3d.default: _grid_sampler_3d,
        aten.grid_sampler.default: _grid_sampler,
        aten._grouped_mm.default: _grouped_mm,
        aten.sort.default: _order.sort,
        aten.sort.stable: _order.sort_stable,
        aten.topk.default: _order.topk,
        aten.convolution.default: _convolution.transposed,
        aten.conv_transpose2d.input: _transposed_as_in_eager,
        aten.conv_transpose3d.input: _transposed_as_in_eager,
    }
    # Operators of other packages: there only if the program's author imported them.
    for namespace, name, function in (("torchvision", "roi_align", _roi_align), ("transformers", "grouped_mm_fallback", _grouped_mm)):
        if hasattr(getattr(torch.ops, namespace), name):
            table[getattr(getattr(torch.ops, namespace), name).default] = function
    return table


#: They reach operators of the table through ATen's own definitions.
_COMPOSITES = {
    aten.inverse.default,
    aten.linalg_inv.default,
    aten._upsample_bilinear2d_aa.vec,
    aten._upsample_bicubic2d_aa.vec,
}

_CPU_ONLY = {aten._grouped_mm.default}
#: The runtime has functions for them on the CPU.
_CUDA_ONLY = {
    aten.sort.default,
    aten.sort.stable,
    aten.topk.default,
    aten.convolution.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
}


# Complex operators


class Pair(NamedTuple):
    """A complex tensor."""

    re: Tensor
    im: Tensor


class _Parts:
    """Replaces every complex tensor of a program by two real ones."""

    def __init__(self, program: ExportedProgram):
        self.program = program
        self.graph = program.graph_module.graph
        self.parts: dict[Node, tuple[Node, Node]] = {}

    def split(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "placeholder" and _is_complex(node.meta.get("val")):
                self._constant(node)
            elif is_probe(node) and _is_complex(node.meta["val"]):
                value, node.meta["val"] = node.meta["val"], node.args[0].meta["val"]
                self._halve(node, value)
            elif node.op == "call_function" and (_touches_complex(node) or any(n in self.parts for n in node.all_input_nodes)):
                self._call(node)
            elif node.op == "output" and any(n in self.parts for n in node.all_input_nodes):
                raise ExportError("an output of the program is complex; return torch.view_as_real of it")
        for node in reversed(self.parts):
            if node.op == "call_function" and not is_probe(node):
                self.graph.erase_node(node)

    def _call(self, node: Node) -> None:
        op = _operator(node)
        function = None if op is None else _complex_function(op)
        if function is None:
            raise ExportError(f"{node_name(node)}: it has no form for complex numbers here; compute with real ones (torch.view_as_real)")
        results = _inline(self.graph, node, function, {}, self.parts)
        if _is_complex(node.meta["val"]):
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
    if _number(n, "the number of points") > LARGEST_TRANSFORM:
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
