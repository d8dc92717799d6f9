"""Modules that callers call from outside: each has an order of its own, over the same weights and one budget.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import weightstream as ws
from support import error_of
from test_offload import DEVICE, PAGE, WIDTH, everything, given, least, stack
from torch import nn

pytestmark = pytest.mark.no_export


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


class Autoencoder(nn.Module):
    """Has an encoder and a decoder that callers call, a method that is no forward, and a forward that calls both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.encoder, self.between, self.decoder = stack(4), nn.Linear(WIDTH, WIDTH), stack(3)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.between(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encoder(x))


def calls(model: Autoencoder, x: torch.Tensor) -> list[torch.Tensor]:
    return [model(x), model.encoder(x), model.decode(x), model.decoder[1](x), model.encoder[:2](x), model(x)]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_each_module_that_is_called_from_outside_has_an_order_of_its_own(share):
    model, x = Autoencoder().eval(), given()
    wanted = calls(copy.deepcopy(model).to(DEVICE), x)
    floor = least(model, x)
    # The least budget of all entries is the root's: it reads what they read.
    budget = int(floor + share * (everything(model) - floor))
    with ws.torch.offload(model, budget=budget, device=DEVICE) as handle:
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(calls(model, x), wanted, strict=True))
            assert all(p.device.type == "cpu" for p in model.parameters())
        stats = handle.stats()
        # A slice of a Sequential is a module of its own, which calls the layers.
        assert set(stats["entries"]) == {"Autoencoder", "encoder", "between", "decoder", "decoder.1", "encoder.0", "encoder.1"}
        assert stats["entries"]["Autoencoder"]["passes"] == 6 - 1
        assert stats["recorded"] == 7
        assert stats["astray"] == 0
        assert stats["peak_bytes"] + stats["buffer_bytes"] <= budget


def test_an_entry_that_joins_copies_nothing_that_is_there():
    model, x = Autoencoder().eval(), given()
    with ws.torch.offload(model, budget=everything(model), device=DEVICE) as handle:
        model(x)
        model(x)
        copied = handle.stats()["bytes_copied"]
        for _ in range(3):
            model.encoder(x)
            model.decode(x)
        assert handle.stats()["bytes_copied"] == copied


def test_the_least_budget_grows_with_an_entry_that_needs_more():
    torch.manual_seed(0)
    model = nn.ModuleDict({"small": nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), "large": stack(2, 4 * WIDTH)})
    x, y = given(), given(4 * WIDTH)
    wanted = copy.deepcopy(model).to(DEVICE)
    with ws.torch.offload(model, device=DEVICE) as handle:
        assert torch.equal(model["small"](x), wanted["small"](x))
        floor = handle.stats()["floor_bytes"]
        for _ in range(2):
            assert torch.equal(model["large"](y), wanted["large"](y))
            assert torch.equal(model["small"](x), wanted["small"](x))
        grown = handle.stats()["floor_bytes"]
        assert grown > floor
    with ws.torch.offload(model, budget=floor, device=DEVICE):
        model["small"](x)
        text = error_of(lambda: model["large"](y))
        assert f"at least {grown} bytes (budget={grown})" in text
        # The others go on.
        assert torch.equal(model["small"](x), wanted["small"](x))


class Hooks(nn.Module):
    """Does what ``act`` does in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.first, self.second = stack(3), stack(3)
        self.__dict__["act"] = lambda x: x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.act(self.first(x)))


def test_entries_inside_of_each_other_and_recursion():
    model = Hooks().eval()
    reference = copy.deepcopy(model).to(DEVICE)
    depth = [0]

    def again(module: Hooks):
        def act(x: torch.Tensor) -> torch.Tensor:
            depth[0] += 1
            found = module(x) if depth[0] < 3 else module.first(x)
            depth[0] = 0
            return found

        return act

    with ws.torch.offload(model, device=DEVICE) as handle:
        for act in (lambda module: module.second, lambda module: module.first, again, lambda module: lambda x: x):
            model.__dict__["act"], reference.__dict__["act"] = act(model), act(reference)
            for _ in range(3):
                assert torch.equal(model(given()), reference(given()))
                assert torch.equal(model.first(given()), reference.first(given()))
        assert handle.stats()["entries"].keys() == {"Hooks", "first"}


def test_an_exception_in_one_entry_leaves_the_others_right():
    model = Hooks().eval()
    reference = copy.deepcopy(model).to(DEVICE)

    def fails(_: torch.Tensor) -> torch.Tensor:
        raise ValueError("in the middle")

    with ws.torch.offload(model, device=DEVICE):
        for act in (None, fails, None, fails, fails, None, None):
            model.__dict__["act"] = act or reference.act
            if act:
                with pytest.raises(ValueError, match="in the middle"):
                    model(given())
            else:
                assert torch.equal(model(given()), reference(given()))
            assert torch.equal(model.second(given()), reference.second(given()))


def test_a_forward_that_is_a_generator():
    class Steps(Hooks):
        def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
            yield (x := self.first(x))
            yield self.second(x)

    model = Steps().eval()
    wanted = list(copy.deepcopy(model).to(DEVICE)(given()))
    with ws.torch.offload(model, device=DEVICE):
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(model(given()), wanted, strict=True))
            # One that nobody finishes.
            next(model(given()))


def test_what_runs_often_keeps_its_weights():
    """An encoder once, a denoiser eight times, a decoder once, as a pipeline does: the budget goes to what runs every step."""
    torch.manual_seed(9)
    parts = nn.ModuleDict({"encoder": stack(8), "denoiser": stack(8), "decoder": stack(8)})
    x = given()
    budget = everything(parts["denoiser"]) + 4 * max(PAGE, 4 * WIDTH * WIDTH)
    with ws.torch.offload(parts, budget=budget, device=DEVICE) as handle:
        for _ in range(6):
            before = handle.stats()["entries"]
            y = parts["encoder"](x)
            for _ in range(8):
                y = parts["denoiser"](y)
            parts["decoder"](y)
        now = handle.stats()["entries"]
        copied = {name: now[name]["bytes_copied"] - before[name]["bytes_copied"] for name in now}
        weights = sum(p.nbytes for p in parts["denoiser"].parameters())
        assert copied["denoiser"] < 0.1 * 8 * weights, copied


class Words(nn.Module):
    """An embedding that is the head's weight as well if ``tied``, between layers."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.embed, self.layers, self.head = nn.Embedding(8 * WIDTH, WIDTH), stack(4), nn.Linear(WIDTH, 8 * WIDTH, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_is_read_in_place_unless_everything_stays(tied, mode):
    model, tokens = Words(tied).eval(), torch.arange(5).to(DEVICE)
    reference = copy.deepcopy(model).to(DEVICE)
    floor, whole, table = least(model, tokens), everything(model), model.embed.weight.nbytes
    with mode(), ws.torch.offload(model, budget=floor, device=DEVICE) as handle:
        for budget in (floor, (floor + whole) // 2, whole, floor, whole):
            handle.set_budget(budget)
            for at in range(3):
                assert torch.equal(model(tokens + at), reference(tokens + at))
                assert torch.equal(model.embed(tokens), reference.embed(tokens))
            # A table that is read as a whole too is streamed for that.
            if not tied:
                assert handle.stats()["gathered_bytes"] == (0 if budget == whole else table)
            # A row that changes is seen, wherever it is read.
            for one in (model, reference):
                one.embed.weight[2].mul_(1.5)
            handle.invalidate("embed.weight")
            assert torch.equal(model(tokens), reference(tokens))
