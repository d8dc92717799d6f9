"""Models in the forms in which people export: layouts of examples, state, sizes, names of one tensor, operators with odd arguments.

Each was wrong without an error, or could not be called, until its form was cured (docs/compiler-facts.md).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim
from zoo import ZOO, Spec, register, share


class Layouts(nn.Module):
    """Inputs whose examples are sliced, halved, stepped, expanded, transposed and channels-last."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.filter = nn.Conv2d(3, 4, 3)

    def forward(self, sliced, half, stepped, expanded, turned, picture, late):
        y = self.mix(sliced) + half.repeat(1, 2) + stepped.sum() + expanded * 2
        return y, turned.reshape(-1), self.filter(picture), turned.t().reshape(4, -1), late.view(2, 8)


def layouts():
    examples = (
        torch.randn(3, 32)[:, :16],
        torch.randn(3, 16).chunk(2, 1)[0],
        torch.randn(8, 4)[::2],
        torch.randn(1, 16).expand(3, 16),
        torch.randn(6, 4).t(),
        torch.randn(2, 8, 8, 4)[..., :3].permute(0, 3, 1, 2),
        torch.randn(20)[4:],
    )
    dense = tuple(torch.randn(x.shape) for x in examples)
    other = tuple(torch.randn(*x.shape, 2)[..., 0] for x in examples)
    return [examples, dense, other]


class State(nn.Module):
    """Buffers of one element and more, read before and after they are written, swapped and returned."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.counter = Counter()
        for name in ("a", "b", "old", "scaled", "given"):
            self.register_buffer(name, torch.randn(4, 4))
        self.register_buffer("one", torch.zeros(1))
        self.register_buffer("flag", torch.zeros(1, 1, dtype=torch.bool))

    def forward(self, x):
        before, after = self.counter()
        self.one[0] = self.one[0] + x[0, 0]
        self.flag.copy_(~self.flag)
        kept = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(kept)
        old = self.old.clone()
        self.old.copy_(x[:4, :4] + 1)
        scaled = (self.scaled + 0).reshape(2, 8) * 1
        self.scaled.copy_(x[:4, 4:8])
        self.given.copy_(x[:4, 8:12])
        return self.mix(x), before, after, self.one.clone(), self.flag.clone(), self.a + 0, self.b * 1, old, scaled, self.given + 1


class Counter(nn.Module):
    """A step counter in a sub-module, and numbers of other types."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("share", torch.ones(1, 1))

    def forward(self):
        before = self.steps * 1
        self.steps.add_(1)
        self.share.mul_(0.5)
        return before, self.steps + self.share


class Overlap(nn.Module):
    """Updates that read what they write, and a state's clone that is written."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("state", torch.randn(4, 4))

    def forward(self, x, rows):
        y = self.mix(x)
        copied = y.index_copy(0, rows, y[:2])
        put = y.index_put((rows,), y[1:3])
        shifted = y.clone()
        shifted[1:] = shifted[:-1].clone()
        other = self.state.clone()
        other.index_copy_(0, rows, x[:2])
        seen = self.state + 1
        self.state.copy_(other * 2)
        return copied, put, shifted, other, seen


class Sizes(nn.Module):
    """Sizes that depend on each other, and a size of 1."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.shift = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x, longer, groups, both):
        y = self.mix(x) + self.shift
        mask = torch.ones(x.shape[1], x.shape[1], device=x.device).tril()
        return (y @ y.transpose(1, 2)) * mask, y[:, -1:], y.reshape(-1, 16), longer * 2, groups.reshape(-1, 8).sum(1), both.cumsum(0)


class Diagonals(nn.Module):
    """Lengths that are the smaller of a dynamic size and a fixed one, on both sides of where they are equal."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x):
        y = x * self.scale
        return y.diagonal().sum(), y.diagonal() * 2, y.diagonal(1) + 1, y.diagonal(-1) * 3


ROWS = Dim("rows", min=4, max=9)
LENGTH = Dim("length", min=1, max=31)


def sizes():
    def of(n: int):
        return torch.randn(2, n, 16), torch.randn(n + 1, 3), torch.randn(8 * n), torch.randn(2 * n + 1)

    return [of(n) for n in (5, 1, 2, 31, 1, 8)]


class Names(nn.Module):
    """Weights in a plain list, under a second name and detached; strided buffers that are not persistent; outputs that are one.

    And bytes that are seen as another type, with items of the same size and of others."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.listed = [self.mix.weight, torch.randn(16, 16)]
        self.register_buffer("scale", torch.randn(16))
        self.original_scale = self.scale
        self.register_buffer("strided", torch.randn(4, 24).t()[:16], persistent=False)
        self.register_buffer("bytes", torch.arange(120, 184, dtype=torch.uint8))

    def forward(self, x):
        y = self.mix(x) @ self.listed[0] + x @ self.listed[1] + self.scale * self.original_scale
        y = y + self.mix.weight.detach().sum() + self.strided.sum(1)
        seen = self.bytes.view(torch.int8)[:16] + x, self.bytes.view(torch.int16) + 1, self.scale.view(torch.int32) >> 23
        given = x.view(torch.int32), (y * 2).view(torch.float16)[:, 1::2] > 0, x.to(torch.bfloat16).view(torch.int16)
        weight = self.mix.weight.view(torch.int16)[:, 1::2] >> 7
        return y * 1, y, y.chunk(2, 1)[-1], y, x, *seen, *given, weight


class Recurrent(nn.Module):
    """Layers that return their states: both directions, several layers, batches of one and more, smaller states; and cells."""

    def __init__(self):
        super().__init__()
        self.long = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5)
        self.single = nn.LSTM(8, 6)
        self.projected = nn.LSTM(8, 6, proj_size=3)
        self.gated = nn.GRU(8, 6, bidirectional=True)
        self.plain = nn.RNN(8, 6, nonlinearity="relu", batch_first=True)
        self.gru_cell, self.lstm_cell = nn.GRUCell(8, 6), nn.LSTMCell(8, 6)
        self.tanh_cell, self.relu_cell = nn.RNNCell(8, 6), nn.RNNCell(8, 6, bias=False, nonlinearity="relu")

    def forward(self, x):
        y, (h, c) = self.long(x)
        z, (hs, cs) = self.single(x[:1].transpose(0, 1))
        p, (hp, cp) = self.projected(x[:, :2].transpose(0, 1))
        g, hg = self.gated(x.transpose(0, 1))
        r, hr = self.plain(x[:, :2])
        now, kept = x[:, 0], hg[0]
        cells = self.gru_cell(now, kept), *self.lstm_cell(now, (kept, hg[1])), self.tanh_cell(now, kept), self.relu_cell(now)
        return y, h, c, z, hs, cs, g, hg, p, hp, cp, r, hr, *cells


class Convolutions(nn.Module):
    """Convolutions whose lists have one value, or a word, in 1, 2 and 3 dimensions."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4, padding="valid")
        self.line = nn.Conv1d(4, 4, 3, padding="same")
        self.volume = nn.Parameter(torch.randn(4, 2, 2, 2, 2))
        self.plane = nn.Parameter(torch.randn(8, 4, 3, 3))

    def forward(self, picture, line, volume):
        patches = self.patches(picture)
        a = torch.ops.aten.convolution(volume, self.volume, None, [2], [1], [1], False, [0], 1)
        b = torch.ops.aten.convolution(patches, self.plane, None, [2], [1], [1], True, [1], 1)
        return patches, self.line(line), a, b


class Cursor(nn.Module):
    """A cache that is written where a number of the caller's says."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(10, 4))

    def forward(self, x, place):
        at = place.item()
        torch._check(at >= 0)
        torch._check(at < 9)
        self.cache[at] = self.mix(x)[0]
        self.cache.narrow(0, at, 2).add_(1)
        return self.cache.sum(1), self.cache[at] * 2


def form(name, build, inputs, shows, **more):
    register(Spec(f"form_{name}", build, inputs, shows, **more))


form("layouts", Layouts, layouts, "the example's strides are compiled into kernels that get dense rows")
form("state", State, lambda: [(torch.randn(5, 16),) for _ in range(4)], "the new state is returned as the old one", stateful=True)
form(
    "overlap",
    Overlap,
    lambda: [(torch.randn(4, 4), torch.tensor(rows)) for rows in ([0, 1], [1, 2], [2, 0], [3, 1])],
    "an update in place reads rows that it has just written",
    stateful=True,
)
form(
    "sizes",
    Sizes,
    sizes,
    "any sizes within their ranges are taken, and a size of 1 never",
    dynamic_shapes=({1: LENGTH}, {0: LENGTH + 1}, {0: 8 * LENGTH}, {0: 2 * LENGTH + 1}),
)
form(
    "diagonals",
    Diagonals,
    lambda: [(torch.randn(rows, 6),) for rows in (4, 5, 6, 7, 9)],
    "the smaller of two sizes is the one that is smaller for the example: elements outside of the tensor are read",
    dynamic_shapes=({0: ROWS},),
)
form("names", Names, lambda: [(torch.randn(3, 16),) for _ in range(2)], "a weight's second name is read around its probe")
form("recurrent", Recurrent, lambda: [(torch.randn(3, 5, 8),) for _ in range(2)], "states have a dimension too many")
form(
    "convolutions",
    Convolutions,
    lambda: [(torch.randn(2, 3, 16, 16), torch.randn(2, 4, 9), torch.randn(1, 2, 5, 5, 5)) for _ in range(2)],
    "lists of one value are refused",
)
form(
    "cursor",
    Cursor,
    lambda: [(torch.randn(1, 4), torch.tensor(place)) for place in (3, 0, 8, 3)],
    "sizes and places that depend on data stop the export",
    stateful=True,
    refused_on_a_gpu="aten.item",
)
FORMS = [name for name in ZOO if name.startswith("form_")]
share("shared_forms", "form_state", "form_overlap", "form_names", "form_recurrent", "form_convolutions")
