"""Models that each provoke one fact about compiled code (docs/compiler-facts.md lists the facts and their cures).

None of them is useful. Each is wrong, or refuses to compile, as soon as the cure of its fact is taken away; the
sentence in `shows` says what goes wrong then.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from zoo import ZOO, Spec, register, share

__all__ = ["FACTS", "ZOO"]


class Position(nn.Module):
    """A positional embedding added to an activation of equal shape."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 64, 64))
        self.out = nn.Linear(64, 64)

    def forward(self, x):
        return self.out(torch.sin(x) + self.position)


class CloneWrite(nn.Module):
    """A weight that is cloned and written by index."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(16, 64))
        self.out = nn.Linear(64, 64)

    def forward(self, x, where):
        t = self.rows.clone()
        t[where] = x
        return self.out(t) + t.sum(0)


class SameShape(nn.Module):
    """Weights of exactly an activation's shape, between products whose outputs need that much memory."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(64, 64)) for _ in range(4))
        self.mixes = nn.ParameterList(nn.Parameter(torch.randn(64, 64) / 8) for _ in range(4))

    def forward(self, x):
        for scale, mix in zip(self.scales, self.mixes, strict=True):
            x = torch.cos(x @ mix) * scale + x
        return x + self.scales[0]


class LongLease(nn.Module):
    """An embedding that the fused norms of later layers read again, with a residual that nobody stores."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        self.norms = nn.ParameterList(nn.Parameter(1 + 0.1 * torch.randn(64)) for _ in range(5))
        self.ups = nn.ModuleList(nn.Linear(64, 256, bias=False) for _ in range(4))
        self.downs = nn.ModuleList(nn.Linear(256, 64, bias=False) for _ in range(4))

    def normed(self, x, layer):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norms[layer]

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in range(4):
            x = x + self.downs[layer](F.silu(self.ups[layer](self.normed(x, layer))))
        return self.normed(x, 4) + self.embed(tokens)


class ThreeReads(nn.Module):
    """One weight read at three places, with larger weights between them."""

    def __init__(self):
        super().__init__()
        self.often = nn.Parameter(torch.randn(128, 128) / 12)
        self.between = nn.ParameterList(nn.Parameter(torch.randn(128, 128) / 12) for _ in range(4))

    def forward(self, x):
        x = torch.tanh(x @ self.often)
        x = torch.tanh(torch.tanh(x @ self.between[0]) @ self.between[1])
        x = torch.tanh(x @ self.often.t())
        x = torch.tanh(torch.tanh(x @ self.between[2]) @ self.between[3])
        return x @ self.often + self.often.sum(0)


class Caches(nn.Module):
    """Two mutated buffers of equal bytes, and an equal weight; merging any two of them shows at once."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(8, 32))
        self.register_buffer("second", torch.zeros(8, 32))
        self.zeros = nn.Parameter(torch.zeros(8, 32))
        self.register_buffer("count", torch.zeros(16, dtype=torch.int64))
        self.mix = nn.Linear(32, 32)

    def forward(self, x, where):
        h = self.mix(x)
        self.first.index_copy_(0, where, h)
        self.second.index_copy_(0, where, h * 2)
        self.count.add_(1)
        return self.first + self.zeros, self.second - self.first, self.count + 0


class Returned(nn.Module):
    """Returns a weight, a view of another, and one that an operator reads as well."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Parameter(torch.randn(24, 16))
        self.viewed = nn.Parameter(torch.randn(16, 24))
        self.read_too = nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        y = x @ self.read_too
        return y, self.whole, self.viewed[4:12].t(), self.read_too


class OddConstants(nn.Module):
    """Scalars, eight elements, literals, strided and expanded weights, integers, booleans, an unused one."""

    def __init__(self):
        super().__init__()
        self.scalar = nn.Parameter(torch.tensor(1.5))
        self.eight = nn.Parameter(torch.randn(8))
        self.one = nn.Parameter(torch.randn(1))
        self.unused = nn.Parameter(torch.randn(32))
        self.register_buffer("strided", torch.randn(8, 32).t())
        self.register_buffer("stepped", torch.randn(32, 16)[:, ::2])
        self.register_buffer("expanded", torch.randn(1, 8).expand(32, 8))
        self.register_buffer("order", torch.randperm(32))
        self.register_buffer("keep", torch.rand(32, 8) > 0.3)
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, x):
        x = x * self.scalar + self.eight * torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0])
        x = x + self.strided * self.stepped + self.expanded
        x = torch.where(self.keep, x, x * self.one)[self.order]
        return x + torch.tensor(0.25) * self.steps


class Tied(nn.Module):
    """One weight under two names, and another of equal bytes that is not tied to it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(200, 64)
        self.mix = nn.Linear(64, 64)
        self.head = nn.Linear(64, 200, bias=False)
        self.head.weight = self.embed.weight
        self.twin = nn.Linear(64, 200, bias=False)
        self.twin.weight = nn.Parameter(self.embed.weight.detach().clone())

    def forward(self, tokens):
        h = torch.tanh(self.mix(self.embed(tokens)))
        return self.head(h) - 0.5 * self.twin(torch.sin(h))


class Names(nn.Module):
    """Constants whose names mean something in the generated C++."""

    def __init__(self):
        super().__init__()
        self.template = nn.Parameter(torch.randn(16, 16) / 4)
        self.buf0 = nn.Parameter(torch.randn(16, 16) / 4)
        self.register_buffer("constants_", torch.randn(16, 16) / 4)

    def forward(self, x):
        return torch.tanh(torch.tanh(x @ self.template) @ self.buf0) @ self.constants_


class Crossed(nn.Module):
    """Inputs taken in another order or not at all; outputs that are an input, or stand twice."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(64, 64)
        self.out = nn.Linear(64, 64)

    def forward(self, scale, unread, kept, x):
        y = self.out(torch.sin(self.mix(x)))
        return kept, y, y * scale, scale, y


def rows(*shape: int, count: int = 3):
    return lambda: [(torch.randn(*shape),) for _ in range(count)]


def written_rows(rows_of_weight: int, width: int):
    return lambda: [(torch.randn(1, width), torch.tensor([i])) for i in (0, rows_of_weight - 1, 3, 4)]


def fact(name, build, inputs, shows, **more):
    """Registers one fact model."""
    register(Spec(f"fact_{name}", build, inputs, shows, **more))


fact("position", Position, rows(1, 64, 64), "in-place fusion writes sin(x) + position into the weight")
fact("clone_write", CloneWrite, written_rows(16, 64), "re-inplacing drops the clone and writes into the weight")
fact("same_shape", SameShape, rows(64, 64), "the reuse pool hands a weight's memory to an activation")
fact(
    "long_lease",
    LongLease,
    lambda: [(torch.randint(0, 512, (1, 8)),) for _ in range(3)],
    "the embedding is evicted while later fused kernels still read it",
)
fact("three_reads", ThreeReads, rows(4, 128), "one weight, three probes, with evictions in between")
fact("caches", Caches, written_rows(8, 32), "the update of a probed buffer goes to a temporary", stateful=True)
fact("returned", Returned, rows(4, 16), "a returned weight is read around its probe")
fact("odd_constants", OddConstants, rows(32, 8), "small constants baked into the code, literals, strides lost")
fact(
    "crossed",
    Crossed,
    lambda: [(torch.randn(64), torch.randn(3), torch.randn(2, 5), torch.randn(4, 64)) for _ in range(3)],
    "the delegate's inputs and outputs are not the method's",
)
fact("names", Names, rows(4, 16), "a constant's name is a C++ keyword or one of the wrapper's own variables")
fact(
    "tied",
    Tied,
    lambda: [(torch.randint(0, 200, (1, 6)),) for _ in range(3)],
    "two names of one weight; equal bytes that are not tied",
)

FACTS = [name for name in ZOO if name.startswith("fact_")]
share("shared_facts", "fact_position", "fact_clone_write", "fact_odd_constants", "fact_tied")
