"""Buffers of offloaded modules: large ones stream, and what passes or owners write to them is seen."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from support import error_of
from test_offload import DEVICE, everything, given
from torch import nn

pytestmark = pytest.mark.no_export

#: Of a layer's buffer: 1 MB of float32.
WIDTH = 512
LARGE = 4 * WIDTH * WIDTH


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


class Packed(nn.Module):
    """A layer that keeps its weights in buffers, as AWQ and GPTQ do. `then` runs after it read them."""

    def __init__(self, seed: int, then: Callable[[Packed], None] | None = None):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.register_buffer("codes", torch.randint(-8, 8, (WIDTH, WIDTH), generator=draw, dtype=torch.int32))
        self.register_buffer("scales", torch.rand(WIDTH, generator=draw) / WIDTH)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ (self.codes * self.scales)
        if self.then:
            self.then(self)
        return y


def layers(count: int = 5) -> nn.Sequential:
    with torch.inference_mode(False):
        return nn.Sequential(*(Packed(seed) for seed in range(count))).eval()


def x() -> torch.Tensor:
    return given(WIDTH)


def on_device(module: nn.Module) -> nn.Module:
    with torch.inference_mode(False):
        return copy.deepcopy(module).to(DEVICE)


def budgets(module: nn.Module) -> list[int | None]:
    return [None, 3 * LARGE + (4 << 20), 2 * len(list(module.modules())) * LARGE + everything(module) + (64 << 20)]


def same_buffers(one: nn.Module, other: nn.Module) -> bool:
    """Of the module that was offloaded, and of the other one."""
    return all(torch.equal(mine.to(DEVICE), its) for mine, its in zip(one.buffers(), other.buffers(), strict=True))


def test_large_buffers_stream_and_small_ones_stay():
    module = layers()
    reference = on_device(module)
    for budget in budgets(module):
        with ws.torch.offload(module, budget=budget, device=DEVICE) as handle:
            for _ in range(4):
                assert torch.equal(module(x()), reference(x()))
                assert module[0].codes.device.type == "cpu", "between passes it shows the host's bytes"
            stats = handle.stats()
            assert stats["buffer_bytes"] == 5 * 4 * WIDTH
            assert stats["floor_bytes"] <= 3 * LARGE + (8 << 20), "two or three layers, not all of them"
            assert stats["resident"] or stats["bytes_copied_last_pass"] >= LARGE
    assert same_buffers(module, reference)


#: What a pass does to a buffer.
WRITES = {
    "in place": lambda m: m.codes.add_(1),
    "to a view": lambda m: m.codes.view(-1)[7:].mul_(-1),
    "through data": lambda m: m.codes.data.add_(2),
    "to a view of data": lambda m: m.codes.data[3].zero_(),
    "by index": lambda m: m.codes.index_copy_(0, torch.tensor([1], device=m.codes.device), m.codes[2:3].clone()),
    "as an output": lambda m: torch.add(m.codes, 1, out=m.codes),
    "with copy_": lambda m: m.codes.copy_(m.codes.flip(0)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_a_later_pass_writes_is_seen(write, at):
    module = layers()
    reference = on_device(module)
    with ws.torch.offload(module, budget=budgets(module)[at], device=DEVICE) as handle:
        for turn in range(9):
            if turn in (3, 6):
                # The second layer is called twice in a pass from here on: what it wrote is there at once.
                for one in (module, reference):
                    one[1].then = WRITES[write] if turn == 3 else None
            wanted = reference[1](reference(x()))
            assert torch.equal(module[1](module(x())), wanted), turn
        stats = handle.stats()
        assert stats["buffer_bytes"] == 5 * 4 * WIDTH + LARGE, "what is written stays on the device"
        assert stats["floor_bytes"] <= 4 * LARGE + (8 << 20)
    assert same_buffers(module, reference)


class Twice(nn.Module):
    """One layer that is called twice in a pass, and others in between."""

    def __init__(self):
        super().__init__()
        self.first, self.others = Packed(1), layers(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.others(self.first(x))) + self.first.codes[0]


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("write", ["in place", "through data"])
def test_a_write_is_seen_in_the_same_pass(at, write):
    with torch.inference_mode(False):
        module = Twice().eval()
    reference = on_device(module)
    with ws.torch.offload(module, budget=budgets(module)[at], device=DEVICE):
        for turn in range(6):
            for one in (module, reference):
                one.first.then = WRITES[write] if turn in (2, 4) else None
            assert torch.equal(module(x()), reference(x())), turn
    assert same_buffers(module, reference)


def write_unseen(layer: Packed) -> None:
    layer.codes.numpy()[:] += 1


@pytest.mark.parametrize("write", WRITES if ON_GPU else [*WRITES, "unseen"])
def test_what_the_recorded_pass_writes_stays_on_the_device(write):
    with torch.inference_mode(False):
        module = nn.Sequential(Packed(0), Packed(1, WRITES.get(write, write_unseen)), Packed(2)).eval()
    reference = on_device(module)
    with ws.torch.offload(module, device=DEVICE) as handle:
        for _ in range(4):
            assert torch.equal(module(x()), reference(x()))
        stats = handle.stats()
        assert stats["buffer_bytes"] == 3 * 4 * WIDTH + LARGE
        assert (stats["recorded"], stats["astray"], stats["plans"]) == (1, 0, 1)
    assert same_buffers(module, reference)


class Keeps(nn.Module):
    """Leaves a view of a table to a later call, as positions are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(1024, WIDTH))
        self.layer = Packed(3)
        self.kept = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.kept


class Positions(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, layer in enumerate(self):
            layer.kept = layer.table[at]
        return super().forward(x)


def test_a_table_of_which_somebody_keeps_a_view_stays_on_the_device():
    with torch.inference_mode(False):
        module = Positions(Keeps(), Keeps(), Keeps()).eval()
    reference = on_device(module)
    with ws.torch.offload(module, device=DEVICE) as handle:
        for _ in range(4):
            assert torch.equal(module(x()), reference(x()))
        assert handle.stats()["buffer_bytes"] >= 3 * 4 * 1024 * WIDTH


class Returns(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(1024, WIDTH))

    def forward(self, count: int) -> torch.Tensor:
        return self.table[:count]


def test_a_table_that_is_returned_stays_on_the_device():
    with torch.inference_mode(False):
        module = Returns()
    with ws.torch.offload(module, device=DEVICE) as handle:
        first = module(5)
        for _ in range(3):
            assert torch.equal(module(7), module.table[:7].to(DEVICE))
        assert torch.equal(first, module.table[:5].to(DEVICE))
        assert handle.stats()["buffer_bytes"] == 4 * 1024 * WIDTH


def fresh() -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.randint(-8, 8, (WIDTH, WIDTH), generator=torch.Generator().manual_seed(9), dtype=torch.int32)


#: What owners do to a large buffer between passes, in both modules alike.
CHANGES = {
    "a write": lambda m: m[1].codes.add_(1),
    "a write through data": lambda m: m[1].codes.data.mul_(2),
    "memory is replaced": lambda m: setattr(m[1].codes, "data", fresh().to(m[1].codes.device)),
    "a buffer is replaced": lambda m: setattr(m[2], "codes", fresh().to(m[2].codes.device)),
    "a layer is replaced": lambda m: m.__setitem__(3, on_device(Packed(8)) if m[3].codes.device.type != "cpu" else Packed(8)),
    "a state is copied": lambda m: m.load_state_dict({k: v.cpu() // 2 for k, v in m.state_dict().items()}),
    "a state is assigned": lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
}


@pytest.mark.parametrize("at", [0, 2])
def test_what_owners_do_to_buffers_is_seen_before_the_next_pass(at):
    module = layers()
    reference = on_device(module)
    with ws.torch.offload(module, budget=budgets(module)[at], device=DEVICE):
        for _ in range(2):
            module(x())
        for name, change in CHANGES.items():
            with torch.inference_mode(False), torch.no_grad():
                change(module)
                change(reference)
            for _ in range(3):
                assert torch.equal(module(x()), reference(x())), name
    assert same_buffers(module, reference)


class Scales(nn.Module):
    """A module that may write to the weight of a layer: before, behind and within its calls."""

    def __init__(self):
        super().__init__()
        self.layer, self.writes = nn.Linear(WIDTH, WIDTH), None
        self.others = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        for other in self.others:
            x = other(x)
        if self.writes:
            self.writes(self.layer.weight)
        return self.layer(x)


@pytest.mark.parametrize("write", [lambda weight: weight.mul_(1.5), lambda weight: weight.data.mul_(1.5)], ids=["counted", "through data"])
def test_a_pass_that_writes_to_a_weight_is_right_and_then_refused(write):
    with torch.inference_mode(False):
        module = Scales().eval().requires_grad_(False)
    reference = on_device(module)
    with ws.torch.offload(module, device=DEVICE):
        for writes in (None, None, write, None, write, None, write):
            module.writes = reference.writes = writes
            assert torch.equal(module(x()), reference(x())), writes
        module.writes = reference.writes = write
        assert torch.equal(module(x()), reference(x()))
        if write is not None:
            assert "writes to the weight 'layer.weight'" in error_of(lambda: module(x()))
    assert torch.equal(module.layer.weight.to(DEVICE), reference.layer.weight)


def test_a_buffer_is_named_to_invalidate():
    module = layers()
    reference = on_device(module)
    with ws.torch.offload(module, device=DEVICE) as handle:
        module(x())
        # NumPy shares the memory, and nobody counts what it writes.
        module[1].codes.numpy()[:] += 1
        reference[1].codes.add_(1)
        handle.invalidate("1.codes")
        assert torch.equal(module(x()), reference(x()))
        assert "no buffer of this name that streams" in error_of(lambda: handle.invalidate("1.scales"))


# -- what leaves a pass, and what shares memory --


class Leaks(nn.Module):
    """May return a view of its table, and may cut it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(1024, WIDTH))
        self.layers, self.last = layers(6), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, take: int = 0, cut: int = 0) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        if cut:
            self.table = self.table[:-cut]
        y = self.last(self.layers(x)) + self.table[0]
        return y, self.table[:take] if take else None, self.last.weight[:take] if take else None


def same(one: tuple[torch.Tensor | None, ...], other: tuple[torch.Tensor | None, ...]) -> bool:
    return all(a is b is None or torch.equal(a.to(DEVICE), b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("at", [0, 2])
def test_what_a_later_pass_returns_has_memory_of_its_own(at):
    with torch.inference_mode(False):
        module = Leaks().eval().requires_grad_(False)
    reference = on_device(module)
    kept = []
    with ws.torch.offload(module, budget=budgets(module)[at], device=DEVICE):
        for take in (0, 0, 5, 0, 7):
            kept.append((module(x(), take), reference(x(), take)))
            assert same(*kept[-1])
    assert all(same(*pair) for pair in kept)


@pytest.mark.parametrize("at", [0, 2])
def test_a_later_pass_may_put_a_view_in_the_place_of_a_buffer(at):
    with torch.inference_mode(False):
        module = Leaks().eval().requires_grad_(False)
    reference = on_device(module)
    with ws.torch.offload(module, budget=budgets(module)[at], device=DEVICE):
        for cut in (0, 0, 1, 0, 2, 0, 0):
            assert same(module(x(), cut=cut), reference(x(), cut=cut)), cut
    assert module.table.shape == (1021, WIDTH)


class Lends(nn.Module):
    """A layer that gives its caller a view of its weight, or a copy."""

    def __init__(self):
        super().__init__()
        self.weight, self.view = nn.Parameter(torch.rand(WIDTH, WIDTH)), False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ self.weight, self.weight[3] if self.view else self.weight[3].clone()


class Borrows(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layers = Lends(), layers(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, row = self.first(x)
        return self.layers(y) * row


def test_a_caller_of_a_later_pass_may_take_a_view():
    with torch.inference_mode(False):
        module = Borrows().eval().requires_grad_(False)
    reference = on_device(module)
    with ws.torch.offload(module, device=DEVICE):
        for view in (False, False, True, True, False):
            module.first.view = reference.first.view = view
            assert torch.equal(module(x()), reference(x()))


class Caches(nn.Module):
    """A cache and views of it: registered, or as plain attributes."""

    def __init__(self, registered: bool):
        super().__init__()
        cache = torch.zeros(2, 600, WIDTH)
        self.register_buffer("cache", cache)
        if registered:
            self.register_buffer("keys", cache[0])
            self.register_buffer("values", cache[1])
        else:
            self.keys, self.values = cache[0], cache[1]
        self.layers = layers(6)

    def forward(self, x: torch.Tensor, at: int) -> torch.Tensor:
        self.keys[at] += x[0]
        self.values[at] -= x[0]
        return self.layers(x) + self.cache.sum() + (self.cache[0, at] * x).sum()


@pytest.mark.skipif(ON_GPU, reason="views do not follow a module to another device, with or without offloading")
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("at", [0, 2])
def test_buffers_that_share_memory_go_on_sharing_it(registered, at):
    with torch.inference_mode(False):
        module, reference = Caches(registered).eval(), Caches(registered).eval()
    with ws.torch.offload(module, budget=budgets(module)[at], device=DEVICE):
        for turn in range(6):
            assert torch.equal(module(x(), turn), reference(x(), turn)), turn
    assert same_buffers(module, reference)


def test_statistics_of_a_norm_that_trains_later():
    with torch.inference_mode(False):
        module = nn.Sequential(nn.BatchNorm1d(300_000), nn.ReLU(), nn.BatchNorm1d(300_000)).eval()
    reference = on_device(module)
    x = torch.rand(3, 300_000, device=DEVICE)
    with ws.torch.offload(module, device=DEVICE):
        for trains in (False, False, True, True, False):
            module.train(trains)
            reference.train(trains)
            assert torch.equal(module(x), reference(x)), trains
    assert same_buffers(module, reference)


def test_writes_through_data_of_a_view_are_seen():
    module = layers()
    reference = on_device(module)
    with ws.torch.offload(module, device=DEVICE):
        for turn in range(6):
            for one in (module, reference):
                one[1].then = (lambda m: m.codes[3:5].data.add_(1)) if turn in (2, 4) else None
            assert torch.equal(module[1](module(x())), reference[1](reference(x()))), turn
    assert same_buffers(module, reference)


def test_buffers_that_are_not_strided_stay():
    with torch.inference_mode(False):
        module = nn.Sequential(Packed(0), nn.Linear(WIDTH, WIDTH)).eval()
        module.register_buffer("sparse", torch.eye(WIDTH).to_sparse())
    reference = on_device(module)
    with ws.torch.offload(module, device=DEVICE):
        for _ in range(3):
            assert torch.equal(module(x()), reference(x()))
