"""Random modules under random budgets: shared, nested and compiled modules, tensor subclasses, weights read from elsewhere, entries;
orders, weights, layers, buffers and budgets that change.

PROPTEST_CASES says how many modules are drawn (12 without it).
"""

from __future__ import annotations

import copy
import os
import random

import pytest
import torch
import torch.nn.functional as F
import weightstream as ws
from device_under_test import ON_GPU
from halves import Halves, halve
from torch import nn

pytestmark = pytest.mark.no_export
DEVICE = "cuda:0" if ON_GPU else "cpu"
WIDTH = 1024 if ON_GPU else 64
CASES = int(os.environ.get("PROPTEST_CASES", "12"))
PASSES = 25
#: Bytes of one weight.
WEIGHT = 4 * WIDTH * WIDTH


class Node(nn.Module):
    """Runs some of its children in some order; may have a weight of its own, and read one of another module."""

    def __init__(self, depth: int, draw: random.Random, pool: list[nn.Module]):
        super().__init__()
        self.own = nn.Parameter(torch.randn(WIDTH)) if draw.random() < 0.3 else None
        self.children_ = nn.ModuleList(self._child(depth, draw, pool) for _ in range(draw.randint(2, 4)))
        self.order = list(range(len(self.children_)))
        if draw.random() < 0.5:
            self.register_buffer("scale", torch.rand(WIDTH))
        #: When a pass writes to the buffer.
        self.writes: str | None = None
        # Not registered: the module belongs to another one.
        self.__dict__["other"] = draw.choice(pool) if pool and draw.random() < 0.3 else None

    @staticmethod
    def _child(depth: int, draw: random.Random, pool: list[nn.Module]) -> nn.Module:
        kind = draw.random()
        if pool and kind < 0.15:
            return draw.choice(pool)
        if depth and kind < 0.5:
            node = Node(depth - 1, draw, pool)
            if depth < 3 and draw.random() < 0.2:
                node.compile(backend="eager")
                for one in node.modules():
                    # What compiled code reads of a module outside is not seen.
                    one.__dict__["other"] = None
            return node
        linear = nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.5)
        pool.append(halve(linear) if draw.random() < 0.2 else linear)
        return pool[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.own is not None:
            x = x * self.own
        self._write("before")
        if "scale" in self._buffers:
            x = x * self.scale
        for index in self.order:
            x = torch.tanh(self.children_[index](x))
        self._write("behind")
        self._write("through data")
        return x if self.other is None else F.linear(x, self.other.weight)

    def _write(self, when: str) -> None:
        if self.writes == when and "scale" in self._buffers:
            (self.scale.data if when == "through data" else self.scale).mul_(-1)


def make(seed: int) -> Node:
    torch.manual_seed(seed)
    return Node(3, random.Random(seed), [])


def change(draw: random.Random, pair: tuple[Node, Node], handle: ws.torch.Offloaded) -> None:
    """Something else than before, in both modules alike."""
    nodes = [[one for one in module.modules() if isinstance(one, Node)] for module in pair]
    which = draw.randrange(len(nodes[0]))
    here = [one[which] for one in nodes]
    weights = [list(module.parameters()) for module in pair]
    number = draw.randrange(len(weights[0]))
    match draw.randrange(20):
        case 0 | 1 | 2:
            count = len(here[0].children_)
            here[0].order = here[1].order = [draw.randrange(count) for _ in range(draw.randint(0, 4))]
        case 3:
            for one in weights:
                one[number].mul_(1.5)
        case 4:
            for one in weights:
                # Of a subclass that flattens, what `data` gives is another one of the same inner tensors.
                inner = one[number].high if isinstance(one[number], Halves) else one[number]
                inner.data.mul_(0.5)
        case 5 if "floor_bytes" in (stats := handle.stats()):
            handle.set_budget(stats["floor_bytes"] + draw.randrange(24 * WEIGHT))
        case 6:
            state = torch.randn(WIDTH)
            for one, device in zip(here, ("cpu", DEVICE), strict=True):
                one.own = nn.Parameter(state.to(device, copy=True))
        case 7:
            place, layer = draw.randrange(len(here[0].children_)), nn.Linear(WIDTH, WIDTH)
            # A module that is in no tree any more is on the host, also for who reads its weight.
            if {one.other for one in nodes[0]} & set(here[0].children_[place].modules()):
                return
            for one, device in zip(here, ("cpu", DEVICE), strict=True):
                one.children_[place] = copy.deepcopy(layer).to(device)
        case 8:
            scale = torch.rand(WIDTH)
            for one, device in zip(here, ("cpu", DEVICE), strict=True):
                one.register_buffer("scale", scale.to(device, copy=True))
        case 9 | 10:
            # Writes of compiled code through `data` are not seen.
            compiled = any(one._compiled_call_impl for one in nodes[0] if here[0] in one.modules())
            how = draw.choice([None, None, "before", "behind", "through data"])
            here[0].writes = here[1].writes = None if compiled and how == "through data" else how
        case 11 if "scale" in here[0]._buffers:
            for one in here:
                one.scale.mul_(0.5)


def called(draw: random.Random, pair: tuple[Node, Node]) -> tuple[nn.Module, nn.Module]:
    """What is called from outside: mostly the root."""
    if draw.random() < 0.6:
        return pair
    # What is in a compiled block is called by that only, and a new layer is not known yet.
    names = [name for name, one in pair[0].named_modules() if isinstance(one, (Node, nn.Linear)) and ws.torch.Offloaded.of(one)]
    name = draw.choice(names[: len(names) // 2 + 1])
    return pair[0].get_submodule(name), pair[1].get_submodule(name)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(CASES))
def test_random_modules_compute_the_same(seed, monkeypatch):
    # Small buffers stream as large ones do.
    monkeypatch.setattr("weightstream._eager.module._LARGE", 1)
    draw = random.Random(-1 - seed)
    module, reference = make(seed), make(seed).to(DEVICE)
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    with ws.torch.offload(module, device=DEVICE) as handle:
        for number in range(PASSES):
            change(draw, (module, reference), handle)
            one, other = called(draw, (module, reference))
            try:
                assert torch.equal(one(x), other(x)), f"pass {number}"
            except ws.Error as error:
                # Another order may need more; then the module is as it was.
                if "is too small" not in str(error):
                    raise
                handle.remove()
                assert torch.equal(module.to(DEVICE)(x), reference(x))
                return
