"""Calls of operators that the export rewrites, drawn at random: sizes of 0 and 1, both sides of every edge, all modes, other dtypes.

A row draws the arguments of one call. Where eager PyTorch refuses a call, nothing is compared.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

aten = torch.ops.aten
Call = tuple[tuple[Any, ...], dict[str, Any]]

FLOATS = (torch.float32, torch.float64)


class Draw(random.Random):
    """Random numbers, tensors among them."""

    def one(self, *of: Any) -> Any:
        return self.choice(of)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, odd: bool = False) -> torch.Tensor:
        x = torch.randn(shape).to(dtype)
        if odd and x.numel():
            x.view(-1)[self.randrange(x.numel())] = self.one(math.nan, math.inf, -math.inf)
        return x

    def mask(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape) > self.one(0, 0.5, 1)


def histc(d: Draw) -> Call:
    x = d.one(d.normal(20), d.normal(3, 4), d.normal(0), d.normal(1), d.normal(50).round(), torch.ones(4), d.normal(9, odd=True))
    low, high = d.one((0, 0), (-1, 1), (2, 2), (1, 0), (-3, 3), (-0.3, 0.7))
    return (x.to(d.one(*FLOATS, torch.bfloat16)), d.one(1, 2, 7, 100), low, high), {}


def masked_scatter(d: Draw) -> Call:
    shape = d.one((3, 4), (4,), (2, 1, 3), (0, 3), (1,))
    dtype = d.one(torch.float32, torch.int64, torch.bool)
    mask = d.mask(*d.one(shape, shape[-1:], (1,) * len(shape)))
    return (d.normal(*shape, dtype=dtype), mask, d.normal(d.one(30, 12, 3), dtype=dtype)), {}


def adaptive_max_pool2d(d: Draw) -> Call:
    batch, size = d.one((2, 3), (3,), (0, 3), (1, 1)), d.one((5, 7), (1, 1), (2, 9), (12, 3))
    x = d.normal(*batch, *size, dtype=d.one(*FLOATS, torch.bfloat16), odd=d.one(True, False))
    return (x, [d.one(0, 1, 2, 3, 8), d.one(1, 4, 5)]), {}


def window(*more: Any) -> Callable[[Draw], Call]:
    # In bfloat16 the kernel counts in bfloat16: its steps are equal from 256 on. The rewrite does not repeat this.
    def draw(d: Draw) -> Call:
        return (d.one(0, 1, 2, 3, 16, 17, 400), *more), d.one({}, {"dtype": torch.float64}, {"dtype": torch.int64})

    return draw


def stft(d: Draw) -> Call:
    n = d.one(4, 5, 16, 1, 2)
    length = d.one(None, n, max(1, n - 1), n + 1)
    x = d.normal(*d.one((20,), (2, 33), (16,)), dtype=d.one(*FLOATS))
    x = d.one(x, x, torch.complex(x, x * 2))
    window = d.one(None, torch.rand(length or n), torch.rand(length or n).double(), torch.rand(length or n).cfloat())
    return (x, n, d.one(None, 1, 3, 7), length, window, d.one(True, False), d.one(True, False, None), d.one(True, False, None)), {}


def int8pack_mm(d: Draw) -> Call:
    dtype, n, k = d.one(torch.float32, torch.bfloat16), d.one(16, 32), d.one(32, 64)
    weight = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    return (d.normal(d.one(1, 3, 8), k, dtype=dtype), weight, (torch.rand(n) / 50).to(dtype)), {}


def inverse(d: Draw) -> Call:
    n, batch = d.one(0, 1, 2, 3, 7), d.one((), (2,), (0,), (2, 3))
    x = d.normal(*batch, n, n, dtype=d.one(*FLOATS)) + 3 * torch.eye(n)
    return (x[..., torch.randperm(n)],), {}


def check_errors(d: Draw) -> Call:
    return (torch.zeros(d.one((), (3,)), dtype=torch.int32), "inv"), {"is_matrix": True}


def resize(d: Draw) -> Call:
    size = d.one((5, 7), (1, 1), (2, 9), (12, 3), (16, 16))
    scales = d.one((None, None), (None, None), (0.6, 1.7), (2.5, 0.45))
    # torch 2.14's kernel gives every row the first one where the result is one column wide. The rewrite does not repeat this.
    out = [d.one(1, 2, 3, 8, 20), d.one(2, 4, 5, 31)]
    if scales[0]:
        out = [max(1, int(n * scale)) for n, scale in zip(size, scales)]
        scales = scales if out[1] > 1 else (None, None)
        out[1] = max(2, out[1])
    return (d.normal(*d.one((2, 3), (1, 1), (0, 3)), *size, dtype=d.one(*FLOATS)), out, d.one(True, False), *scales), {}


def grid_sampler(dims: int) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        batch, dtype, reach = d.one((1, 2), (2, 3), (0, 2)), d.one(*FLOATS), d.one(1, 2, 10)
        size = d.one((4, 5, 6), (1, 1, 1), (2, 1, 3))[:dims]
        grid = (torch.rand(batch[0], *d.one((3, 3, 2), (1, 2, 5))[:dims], dims, dtype=dtype) * 2 - 1) * reach
        # Numbers without a fraction lie on the edges.
        grid = d.one(grid, grid.round())
        return (d.normal(*batch, *size, dtype=dtype), grid, d.one(0, 1), d.one(0, 1, 2), d.one(True, False)), {}

    return draw


def grouped_mm(d: Draw) -> Call:
    dtype, groups, k, n, rows = d.one(torch.bfloat16, torch.float32), d.one(1, 3, 5), d.one(16, 32), d.one(16, 24), d.one(0, 1, 7, 20)
    weights = d.normal(groups, k, n, dtype=dtype)
    if d.one(True, False):
        return (d.normal(groups, 4, k, dtype=dtype), weights, None), {}
    # Rows after the last group have no defined value.
    ends = torch.cat((torch.randint(0, rows + 1, (groups - 1,)), torch.tensor([rows]))).sort().values
    return (d.normal(rows, k, dtype=dtype), weights, ends.int()), {}


def ordered(d: Draw) -> torch.Tensor:
    """Without equal elements, whose order only a stable sort knows."""
    shape = d.one((3, 4), (1,), (), (7,), (0,), (2, 3, 4))
    x = torch.randperm(math.prod(shape)).reshape(shape)
    return d.one(x, x.float().masked_fill(x == 1, math.nan), x.bfloat16().masked_fill(x == 0, -math.inf))


def sort(d: Draw) -> Call:
    return (ordered(d), d.one(-1, 0), d.one(True, False)), {}


def sort_stable(d: Draw) -> Call:
    return (d.one(ordered(d), torch.randint(0, 3, (3, 5))),), {"stable": True, "dim": d.one(-1, 0), "descending": d.one(True, False)}


def topk(d: Draw) -> Call:
    return (ordered(d), d.one(0, 1, 2), d.one(-1, 0), d.one(True, False)), {}


def transposed(d: Draw, dims: int | None = None) -> tuple[Any, ...]:
    dims, groups = dims or d.one(1, 2, 3), d.one(1, 2)
    x = d.normal(d.one(0, 1, 2), 4, *(d.one(3, 4, 6) for _ in range(dims)))
    weight = d.normal(4, 3, *(d.one(1, 2, 3) for _ in range(dims)))
    stride = d.one([2], [d.one(1, 2, 3) for _ in range(dims)])
    return x, weight, d.one(None, d.normal(3 * groups)), stride, [d.one(0, 1)], [d.one(1, 2)], [d.one(0, 0, 1)], groups


def convolution(d: Draw) -> Call:
    *first, more, groups = transposed(d)
    return (*first, True, more, groups), {}


def conv_transpose(dims: int) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x, weight, bias, stride, padding, dilation, more, groups = transposed(d, dims)
        x = x[0] if len(x) and d.one(True, False) else x
        return (x, weight, bias, stride, padding, more, groups, dilation), {}

    return draw


def convolution_mode(d: Draw) -> Call:
    dims, groups = d.one(1, 2, 3), d.one(1, 2)
    weight = d.normal(4, 4 // groups, *(d.one(1, 2, 3, 4) for _ in range(dims)))
    x = d.normal(d.one(0, 1, 2), 4, *(d.one(7, 9) for _ in range(dims)))
    return (x, weight, d.one(None, d.normal(4)), [d.one(1, 1, 2)], d.one("same", "valid"), [d.one(1, 2)], groups), {}


def roi_align(d: Draw) -> Call:
    height, width = d.one((1, 1), (5, 7), (1, 6), (12, 9))
    boxes = d.one(0, 1, 5)
    # Whole and half numbers lie on the edges; some boxes are empty, turned around, far outside, or much larger than the picture.
    corners = torch.randint(-8, 20, (boxes, 4)) / d.one(1, 2, 3) * d.one(1, 1, 9)
    if d.one(True, False):
        corners = torch.cat((corners[:, :2], corners[:, :2] + torch.randint(0, 9, (boxes, 2)) * d.one(0.5, 1, 20)), 1)
    rois = torch.cat((torch.randint(0, 2, (boxes, 1)), corners), 1)
    dtype = d.one(*FLOATS)
    modes = d.one(1.0, 0.5, 0.25), d.one(1, 2, 3), d.one(1, 3), d.one(-1, 0, 1, 2, 3), d.one(True, False)
    return (d.normal(2, d.one(0, 3), height, width, dtype=dtype), rois.to(dtype), *modes), {}


def masked(d: Draw) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    shape = d.one((3, 4), (4,), (2, 3, 4), (1, 3))
    dims = d.randint(1, len(shape))
    mask = d.mask(*shape[:dims])
    places: list[Any] = [d.one(mask, mask, mask.to(torch.uint8))]
    if dims < len(shape):
        places += d.one([], [torch.randint(-shape[dims], shape[dims], (1,))])
    if len(shape) > 1 and d.one(True, False, False):
        places = [None, d.mask(*shape[1:])]
    return d.normal(*shape, dtype=d.one(torch.float32, torch.int64)), places


def index(d: Draw) -> Call:
    return masked(d), {}


def index_put(d: Draw) -> Call:
    x, places = masked(d)
    shape = aten.index.Tensor(x, places).shape
    return (x, places, d.normal(*d.one(shape, (), (1,)), dtype=x.dtype), d.one(True, False)), {}


def masked_select(d: Draw) -> Call:
    shape = d.one((3, 4), (4,), (), (2, 3, 4), (0, 3))
    return (d.normal(*shape), d.mask(*d.one(shape, shape[-1:], ()))), {}


def mask_alone(d: Draw) -> Call:
    return (d.mask(*d.one((3, 4), (4,), (), (2, 3, 4), (0, 3))),), {}


def unique(d: Draw) -> Call:
    x = torch.randint(0, 4, d.one((3, 4), (1,), (), (7,), (0,))).to(d.one(torch.float32, torch.int64, torch.bool))
    if x.is_floating_point():
        x = x.masked_fill(x == 1, d.one(math.nan, math.inf))
    return (x, d.one(True, False), True, True), {}


def cell(kind: type[nn.RNNCellBase], **how: Any) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        rows, made = d.one(0, 1, 3), kind(4, 5, bias=d.one(True, False), **how).to(dtype := d.one(*FLOATS))
        h = d.normal(rows, 5, dtype=dtype)
        state = [h, d.normal(rows, 5, dtype=dtype)] if kind is nn.LSTMCell else h
        return (d.normal(rows, 4, dtype=dtype), state, made.weight_ih, made.weight_hh, made.bias_ih, made.bias_hh), {}

    return draw


def layer(kind: type[nn.RNNBase], packed: bool, **how: Any) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        sides, layers, bias = d.one(1, 2), d.one(1, 2), d.one(True, False)
        projected = d.one(0, 3) if kind is nn.LSTM else 0
        given = {"bias": bias, "bidirectional": sides == 2, "num_layers": layers, "dropout": 0.5 * (layers - 1), **how}
        made = kind(4, 5, **given, **({"proj_size": projected} if projected else {}))
        rows, first = d.one(1, 3), d.one(True, False)
        state = d.normal(layers * sides, rows, projected or 5)
        state = [state, d.normal(layers * sides, rows, 5)] if kind is nn.LSTM else state
        modes = made._flat_weights, bias, layers, 0.5, False, sides == 2
        if not packed:
            return (d.normal(*((rows, 6) if first else (6, rows)), 4), state, *modes, first), {}
        lengths = torch.tensor([6, 4, 1][:rows])
        sequence = nn.utils.rnn.pack_padded_sequence(d.normal(6, rows, 4), lengths)
        return (sequence.data, sequence.batch_sizes, state, *modes), {}

    return draw


LAYERS = (("lstm", nn.LSTM, {}), ("gru", nn.GRU, {}), ("rnn_tanh", nn.RNN, {}), ("rnn_relu", nn.RNN, {"nonlinearity": "relu"}))

ROWS: dict[str, Callable[[Draw], Call]] = {
    "aten._convolution_mode.default": convolution_mode,
    "aten._grouped_mm.default": grouped_mm,
    "aten._linalg_check_errors.default": check_errors,
    "aten._neg_view.default": lambda d: ((d.normal(2, 3),), {}),
    "aten._neg_view_copy.default": lambda d: ((d.normal(2, 3),), {}),
    "aten._reshape_alias_copy.default": lambda d: ((d.normal(2, 3), [3, 2], [2, 1]), {}),
    "aten._unique2.default": unique,
    "aten._upsample_bicubic2d_aa.default": resize,
    "aten._upsample_bilinear2d_aa.default": resize,
    "aten._weight_int8pack_mm.default": int8pack_mm,
    "aten.adaptive_max_pool2d.default": adaptive_max_pool2d,
    "aten.argwhere.default": mask_alone,
    "aten.conv_transpose2d.input": conv_transpose(2),
    "aten.conv_transpose3d.input": conv_transpose(3),
    "aten.convolution.default": convolution,
    "aten.detach.default": lambda d: ((d.normal(2, 3),), {}),
    "aten.grid_sampler.default": lambda d: grid_sampler(d.one(2, 3))(d),
    "aten.grid_sampler_3d.default": grid_sampler(3),
    "aten.gru_cell.default": cell(nn.GRUCell),
    "aten.hamming_window.default": window(),
    "aten.hamming_window.periodic": window(False),
    "aten.hamming_window.periodic_alpha": window(False, 0.3),
    "aten.hamming_window.periodic_alpha_beta": window(True, 0.3, 0.9),
    "aten.hann_window.default": window(),
    "aten.hann_window.periodic": window(False),
    "aten.histc.default": histc,
    "aten.index.Tensor": index,
    "aten.index_put.default": index_put,
    "aten.linalg_inv_ex.default": inverse,
    "aten.lstm_cell.default": cell(nn.LSTMCell),
    "aten.masked_scatter.default": masked_scatter,
    "aten.masked_select.default": masked_select,
    "aten.nonzero_numpy.default": mask_alone,
    "aten.sort.default": sort,
    "aten.sort.stable": sort_stable,
    "aten.stft.default": stft,
    "aten.topk.default": topk,
    "aten.where.default": mask_alone,
    "torchvision.roi_align.default": roi_align,
    **{f"aten.{name}.input": layer(kind, packed=False, **how) for name, kind, how in LAYERS},
    **{f"aten.{name}.data": layer(kind, packed=True, **how) for name, kind, how in LAYERS},
}
#: Without a kernel on the CPU. They are what the function of another row consists of.
PARTS = {"aten._thnn_fused_gru_cell.default": "aten.gru_cell.default", "aten._thnn_fused_lstm_cell.default": "aten.lstm_cell.default"}
