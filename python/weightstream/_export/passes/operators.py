"""Real operators that the compiler or the runtime has no code for, written with operators that they have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.library import custom_op

from . import convolution, experts, quantized, sorting
from .inline import Refusal, Table, Tensor, number

aten = torch.ops.aten

#: Rows of a matrix that is inverted: its elimination is unrolled.
LARGEST_INVERSE = 32


def c_shims(device: str) -> dict[Any, list[str]]:
    """The runtime's functions for operators of this module: the compiler's option ``custom_ops_to_c_shims``."""
    if device != "cpu":
        return {}
    return {
        GROUPED_MM: ["AOTITorchError aoti_torch_cpu_grouped_mm(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*)"],
        experts.PLACED_MM: [
            "AOTITorchError aoti_torch_cpu_placed_expert_mm(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, int64_t, int32_t, AtenTensorHandle*)"
        ],
        experts.PLACED_QUANTIZED_MM: [
            "AOTITorchError aoti_torch_cpu_placed_expert_quantized_mm(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, int64_t, int64_t, AtenTensorHandle*)"
        ],
        quantized.QUANTIZED_MM: [
            "AOTITorchError aoti_torch_cpu_quantized_mm(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, int64_t, AtenTensorHandle*)"
        ],
    }


def _histc(x: Tensor, bins: int = 100, low: float = 0, high: float = 0) -> Tensor:
    x = x.reshape(-1)
    if low > high:
        raise Refusal(f"its least value is {low}, and its largest one {high}")
    if low == high:
        ends = x.new_full((1,), math.inf)  # Of no elements.
        low, high = torch.cat((x, ends)).amin(), torch.cat((x, -ends)).amax()
        aten._assert_async.msg((high - low).isfinite() | (low > high), "histc: the range of the values is not finite")
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
    height, width = (number(n, "the size of the image") for n in x.shape[-2:])
    rows, row_mask = _windows(height, output_size[0], x.device)
    columns, column_mask = _windows(width, output_size[1], x.device)
    place = rows[:, None, :, None] * width + columns[None, :, None, :]
    mask = row_mask[:, None, :, None] & column_mask[None, :, None, :]
    found = torch.where(mask, x.flatten(-2)[..., place], -math.inf).flatten(-2)
    best = found.argmax(-1, keepdim=True)
    values = found.gather(-1, best).squeeze(-1)
    return values, place.flatten(-2).expand(found.shape).gather(-1, best).squeeze(-1)


def _windows(size: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max((-(-((i + 1) * size) // count) - i * size // count for i in range(count)), default=1)
    i = torch.arange(count, device=device).unsqueeze(1)
    start, end = i * size // count, ((i + 1) * size + count - 1) // count
    place = start + torch.arange(longest, device=device)
    return place.clamp(max=size - 1), place < end


def _raised_cosine(n: int, periodic: bool, alpha: float, beta: float, **how: Any) -> Tensor:
    dtype = how.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point:
        raise Refusal(f"a window of {dtype}")
    if n <= 1:
        return torch.ones(n, dtype=dtype, device=how.get("device"))
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
    if align_to_window:
        raise Refusal("align_to_window")
    length = length or n
    if window is None:
        window = torch.ones(length, dtype=x.dtype, device=x.device)
    before = (n - length) // 2
    frames = x.unfold(-1, n, hop or n // 4) * torch.nn.functional.pad(window, (before, n - length - before))
    whole = frames.is_complex() or onesided is False
    found = (torch.fft.fft if whole else torch.fft.rfft)(frames, norm="ortho" if normalized else None).transpose(-1, -2)
    return found if return_complex or (return_complex is None and frames.is_complex()) else torch.view_as_real(found)


def _int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    return x @ weight.to(x.dtype).t() * scales


def _inverse(matrix: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Gauss-Jordan elimination with partial pivoting, unrolled."""
    n = number(matrix.shape[-1], "the number of rows")
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
    """As torchvision's kernels, not as its form for compilers: that one extends the picture beyond its edge."""
    edges = rois[:, 1:] * scale - (0.5 if aligned else 0.0)
    rows, row_weights, row_count = _roi_samples(edges[:, 1], edges[:, 3], x.shape[2], height, sampling, aligned)
    columns, column_weights, column_count = _roi_samples(edges[:, 0], edges[:, 2], x.shape[3], width, sampling, aligned)
    # [boxes, channels, rows and columns of the result, samples of both]
    rows, row_weights = (one[:, None, :, None, :, None] for one in (rows, row_weights))
    columns, column_weights = (one[:, None, None, :, None, :] for one in (columns, column_weights))
    picture = rois[:, 0].to(torch.int64).reshape(-1, 1, 1, 1, 1, 1)
    channel = torch.arange(x.shape[1], device=x.device).reshape(1, -1, 1, 1, 1, 1)
    found = x[picture, channel, rows.clamp(min=0), columns.clamp(min=0)] * (row_weights * column_weights)
    total = torch.where((rows >= 0) & (columns >= 0), found, 0).sum((-1, -2))
    return (total / (row_count * column_count).clamp(min=1).reshape(-1, 1, 1, 1)).to(x.dtype)


def _roi_samples(start: Tensor, end: Tensor, size: Any, bins: int, sampling: int, aligned: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The two pixels on both sides of each sample of each bin, -1 outside of the picture; their weights; the samples of a bin."""
    length = end - start if aligned else (end - start).clamp(min=1)
    step = (length / bins).reshape(-1, 1, 1)
    count = torch.full_like(step, sampling) if sampling > 0 else step.ceil()
    begin = start.reshape(-1, 1, 1) + torch.arange(bins, device=start.device).unsqueeze(1) * step
    if sampling > 0:
        number = torch.arange(sampling, device=start.device)
    else:
        # A box far larger than the picture has more samples than there are pixels. At most `size + 2` in a row are inside.
        first = ((-1 - begin) / step * count - 2).floor().clamp(min=0)
        number = first + torch.arange(size + 5, device=start.device)
    place = begin + (number + 0.5) * step / count
    inside = (place >= -1) & (place <= size) & (number < count)
    place = torch.where(inside, place, 0).clamp(0, size - 1)
    low = place.to(torch.int64)
    part = place - low
    pixels = torch.where(inside, low, -1), torch.where(inside, (low + 1).clamp(max=size - 1), -1)
    return torch.cat(pixels, -1), torch.cat((1 - part, part), -1), count.reshape(-1)


def _aa_weights(size: Any, out: Any, align: bool, scale: float | None, cubic: bool, like: Tensor) -> Tensor:
    """The matrix [out, size] by which one dimension is resized: a filter around each place, as wide as the step."""
    size, out = number(size, "the size of the image"), number(out, "the size of the result")
    step = 1 / scale if scale else size / out
    if align:
        step = (size - 1) / (out - 1) if out > 1 else 0.0
    support = (2.0 if cubic else 1.0) * max(step, 1.0)
    center = (torch.arange(out, device=like.device, dtype=like.dtype) + 0.5).unsqueeze(1) * step
    place = torch.arange(size, device=like.device).unsqueeze(0)
    first = (center - support + 0.5).to(torch.int64).clamp(min=0)
    last = (center + support + 0.5).to(torch.int64).clamp(max=size)
    distance = ((place + 0.5 - center) / max(step, 1.0)).abs()
    weight = _cubic(distance) if cubic else (1 - distance).clamp(min=0)
    weight = torch.where((place >= first) & (place < last), weight, 0)
    return weight / weight.sum(1, keepdim=True)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _resize_aa(cubic: bool) -> Callable[..., Tensor]:
    def resize(x: Tensor, size: list[int], align: bool, scale_h: float | None = None, scale_w: float | None = None) -> Tensor:
        if not x.is_floating_point():
            raise Refusal(f"a picture of {x.dtype}, of which the kernel rounds otherwise; make it float first")
        wide = x if x.dtype is torch.float64 else x.float()
        rows = _aa_weights(x.shape[-2], size[0], align, scale_h, cubic, wide)
        columns = _aa_weights(x.shape[-1], size[1], align, scale_w, cubic, wide)
        return (rows @ (wide @ columns.t())).to(x.dtype)

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
    return convolution.transposed(x, weight, bias, stride, padding, dilation, True, output_padding, groups)


def table_of_operators() -> Table:
    table = {
        aten.detach.default: lambda x: x,
        aten._neg_view.default: torch.neg,
        aten._neg_view_copy.default: torch.neg,
        aten._reshape_alias_copy.default: lambda x, size, stride: x.reshape(size),
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
        aten.sort.default: sorting.sort,
        aten.sort.stable: sorting.sort_stable,
        aten.topk.default: sorting.topk,
        aten.convolution.default: convolution.transposed,
        aten.conv_transpose2d.input: _transposed_as_in_eager,
        aten.conv_transpose3d.input: _transposed_as_in_eager,
    }
    # Operators of other packages: there only if the program's author imported them.
    for namespace, name, function in (("torchvision", "roi_align", _roi_align), ("transformers", "grouped_mm_fallback", _grouped_mm)):
        if hasattr(getattr(torch.ops, namespace), name):
            table[getattr(getattr(torch.ops, namespace), name).default] = function
    return table


#: They reach operators of the table through ATen's own definitions.
COMPOSITES = {
    aten.inverse.default,
    aten.linalg_inv.default,
    aten._upsample_bilinear2d_aa.vec,
    aten._upsample_bicubic2d_aa.vec,
}

#: Functions of the table that are for one device. The runtime has grouped products on the CPU only, and sorting and transposed
#: convolutions there too.
CPU_ONLY = {_grouped_mm}
CUDA_ONLY = {sorting.sort, sorting.sort_stable, sorting.topk, convolution.transposed, _transposed_as_in_eager}
