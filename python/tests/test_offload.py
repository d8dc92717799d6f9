"""`ws.torch.offload`: an eager module under a budget computes the bits that it computes without, at every budget and in every order.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import weightstream as ws
from device_under_test import ON_GPU, exact_products
from support import error_of
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
pytestmark = pytest.mark.no_export
DEVICE = "cuda:0" if ON_GPU else "cpu"
#: Pages of a device: with smaller weights there would be nothing to plan.
PAGE = (2 << 20) if ON_GPU else 4096
WIDTH = 1024 if ON_GPU else 64


@pytest.fixture(autouse=True)
def _inference():
    exact_products()
    with torch.no_grad():
        yield


def stack(layers: int = 6, width: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).eval()


def given(width: int = WIDTH, rows: int = 2) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * width).reshape(rows, width).to(DEVICE)


def expected(module: nn.Module, *args: torch.Tensor) -> torch.Tensor:
    """What a copy of the module computes that is on the device as a whole."""
    return copy.deepcopy(module).to(DEVICE)(*args)


def least(module: nn.Module, *args: torch.Tensor) -> int:
    with ws.torch.offload(copy.deepcopy(module), device=DEVICE, example=args) as handle:
        return handle.stats()["floor_bytes"]


def everything(module: nn.Module) -> int:
    return sum(-(-p.numel() * p.element_size() // PAGE) * PAGE for p in module.parameters()) + 4 * PAGE


def check(module: nn.Module, *args: torch.Tensor, passes: int = 4) -> None:
    """Bits at the floor, at half, and with everything resident."""
    wanted = expected(module, *args)
    floor, whole = least(module, *args), everything(module)
    host = {name: p.data_ptr() for name, p in module.named_parameters()}
    for budget in (floor, (floor + whole) // 2, whole):
        with ws.torch.offload(module, budget=budget, device=DEVICE) as handle:
            for _ in range(passes):
                assert torch.equal(module(*args), wanted)
                assert {name: p.data_ptr() for name, p in module.named_parameters()} == host
            stats = handle.stats()
            assert (stats["passes"], stats["plans"], stats["recorded"], stats["astray"]) == (passes, 1, 1, 0)
            assert stats["peak_bytes"] + stats["buffer_bytes"] <= budget
            # Of a small model the least budget may be everything.
            assert stats["resident"] or budget < whole
        assert "forward" not in vars(module)


def test_a_stack_computes_the_same_at_every_budget():
    check(stack(), given())


def test_everything_resident_copies_nothing():
    module, x = stack(), given()
    with ws.torch.offload(module, budget=everything(module), device=DEVICE) as handle:
        for _ in range(2):
            module(x)
        copied = handle.stats()["bytes_copied"]
        module(x)
        assert handle.stats()["bytes_copied"] == copied


class Tied(nn.Module):
    """An embedding whose weight is the head's as well, and a layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(WIDTH, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(torch.relu(self.layer(self.embed(tokens)))))


class Outside(nn.Module):
    """Reads weights outside of the modules that have them, and has a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed, self.middle = nn.Embedding(WIDTH, WIDTH), stack(3)
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.middle(self.embed(tokens)) * self.scale, self.embed.weight)


class Table(nn.Module):
    """Returns a view of its weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, rows: int) -> torch.Tensor:
        return self.weight[:rows]


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = Table(), stack(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.table(x.shape[0])
        return self.body(x) + rows


class Odd(nn.Module):
    """Weights that are transposed, expanded, slices of one storage, scalars, and without elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        whole = torch.randn(3 * WIDTH, WIDTH)
        self.q, self.k = nn.Parameter(whole[:WIDTH]), nn.Parameter(whole[WIDTH // 2 : 2 * WIDTH])
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        self.wide = nn.Parameter(torch.randn(1, WIDTH).expand(4, WIDTH))
        self.one, self.none = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.empty(0, WIDTH))
        self.body = stack(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x @ self.q.t() @ self.turned) * self.one + self.wide.sum(0)
        return torch.cat([self.body(x), x @ self.k.t()[:, :WIDTH], self.none])


@pytest.mark.parametrize("make", [Tied, Outside])
def test_weights_that_are_shared(make):
    check(make(), torch.arange(5).to(DEVICE))


@pytest.mark.parametrize("make", [Positions, Odd, lambda: nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH).eval()])
def test_weights_of_any_form(make):
    check(make(), given())


@pytest.mark.parametrize("whole", [False, True])
def test_modules_that_were_made_in_inference_mode(whole):
    with torch.inference_mode():
        module, x = stack(), given()
        wanted = expected(module, x)
    with ws.torch.offload(module, budget=everything(module) if whole else None, device=DEVICE):
        for inference in (True, True, False, False, True):
            with torch.inference_mode(inference), torch.no_grad():
                assert torch.equal(module(x), wanted)


def test_modules_that_keep_lists_of_weights():
    torch.manual_seed(5)
    module = nn.LSTM(WIDTH, WIDTH, num_layers=2)
    wanted = copy.deepcopy(module).to(DEVICE)(given())[0]
    with ws.torch.offload(module, device=DEVICE):
        for _ in range(3):
            assert torch.equal(module(given())[0], wanted)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_weights_of_any_dtype(dtype):
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter((torch.arange(WIDTH * WIDTH).reshape(WIDTH, WIDTH) % 7).to(dtype), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight.real if dtype.is_complex else self.weight).to(torch.float32)

    check(nn.Sequential(*(Cast() for _ in range(4))), given() * 1e-3)


def test_buffers_are_on_the_device_and_come_back():
    torch.manual_seed(6)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)).train()
    reference = copy.deepcopy(module).to(DEVICE)
    with ws.torch.offload(module, device=DEVICE) as handle:
        assert handle.stats()["buffer_bytes"] == 2 * 4 * WIDTH + 8
        for _ in range(3):
            assert torch.equal(module(given()), reference(given()))
    assert module[1].running_mean.device.type == "cpu"
    assert torch.equal(module[1].running_mean, reference[1].running_mean.cpu())
    assert module[1].num_batches_tracked == 3


class Choice(nn.Module):
    """Runs its halves in the order that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.other = stack(3), stack(3), stack(2)
        self.order = [0, 1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in self.order:
            x = (self.first, self.second, self.other)[index](x)
        return x


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_another_order_is_right_and_then_recorded(share):
    module, x = Choice(), given()
    floor = least(module, x)
    budget = int(floor + share * (everything(module) - floor))
    with ws.torch.offload(module, budget=budget, device=DEVICE) as handle:

        def run(*order: int) -> dict:
            module.order = list(order)
            reference = copy.deepcopy(
                {"first": module.first.state_dict(), "second": module.second.state_dict(), "other": module.other.state_dict()}
            )
            fresh = Choice()
            for name, state in reference.items():
                getattr(fresh, name).load_state_dict(state)
            fresh.order = list(order)
            assert torch.equal(module(x), fresh.to(DEVICE)(x))
            return handle.stats()

        for _ in range(2):
            run(0, 1)
        # Shorter, longer, turned round, and with a module that was never called.
        assert run(0)["recorded"] == 1
        for order in ([1, 0], [0, 1, 1], [0, 2, 1]):
            for _ in range(4):
                stats = run(*order)
        assert stats["recorded"] >= 2
        # Now and then is no reason to learn another order.
        before = run(0, 2, 1)
        for _ in range(3):
            run(1, 2)
            after = run(0, 2, 1)
        assert after["recorded"] == before["recorded"]


def test_an_error_in_the_middle_leaves_the_next_pass_right():
    class Fails(nn.Module):
        fail: type[BaseException] | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fail:
                raise self.fail("in the middle")
            return x

    module = nn.Sequential(stack(3), Fails(), stack(3))
    wanted = expected(module, given())
    with ws.torch.offload(module, device=DEVICE):
        for fail in (ValueError, KeyboardInterrupt, None, ValueError, None, KeyboardInterrupt, None, None):
            module[1].fail = fail
            if fail:
                with pytest.raises(fail, match="in the middle"):
                    module(given())
                assert all(p.device.type == "cpu" for p in module.parameters())
            else:
                assert torch.equal(module(given()), wanted)


@pytest.mark.parametrize("whole", [False, True])
def test_weights_that_change(whole):
    module, x = stack(), given()
    with ws.torch.offload(module, budget=everything(module) if whole else None, device=DEVICE) as handle:
        module(x)
        # PyTorch counts a write, and other memory is seen; so is who asks for `.data`.
        module[1].weight.mul_(2)
        assert torch.equal(module(x), expected_of_state(module, x))
        module[2].weight.data = torch.ones_like(module[2].weight)
        assert torch.equal(module(x), expected_of_state(module, x))
        module[3].weight.data.mul_(3)
        assert torch.equal(module(x), expected_of_state(module, x))
        module[4].bias.data.mul_(3)
        handle.invalidate(module[4].bias)
        assert torch.equal(module(x), expected_of_state(module, x))
        module.load_state_dict(stack(6).state_dict())
        assert torch.equal(module(x), expected_of_state(module, x))
        plans = handle.stats()["plans"]
        copied = handle.stats()["bytes_copied"]
        for change in (lambda: module[0].weight.mul_(2), lambda: module[2].weight.data.mul_(2)):
            change()
            handle.invalidate("2.weight")
            assert torch.equal(module(x), expected_of_state(module, x))
        assert handle.stats()["plans"] == plans, "what changed is copied again by the plan that there is"
        if whole:
            assert handle.stats()["bytes_copied"] - copied == module[0].weight.nbytes + 2 * module[2].weight.nbytes
        # A layer that comes later is its owner's to bring to the device.
        module[5] = nn.Linear(WIDTH, WIDTH).to(DEVICE)
        assert torch.equal(module(x), expected_of_state(module, x))
        assert "no parameter 'nobody'" in error_of(lambda: handle.invalidate("nobody"))
        assert "is expected" in error_of(lambda: handle.invalidate(nn.Parameter(x)))


def test_a_copy_that_fails_leaves_no_old_bytes(monkeypatch):
    module, x = stack(), given()
    with ws.torch.offload(module, device=DEVICE) as handle:
        module(x)

        def fails(*_):
            raise ws.Error("no copy")

        with monkeypatch.context() as patch:
            patch.setattr(type(handle._passes.plan), "copy_again", fails)
            module[1].weight.mul_(2)
            assert "no copy" in error_of(lambda: module(x))
        assert torch.equal(module(x), expected_of_state(module, x))


def expected_of_state(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a fresh stack with the same weights computes."""
    fresh = stack()
    fresh.load_state_dict({name: value.clone() for name, value in module.state_dict().items()})
    return fresh.to(DEVICE)(x)


def test_the_budget_changes():
    module, x = stack(), given()
    wanted, floor, whole = expected(module, x), least(module, x), everything(module)
    with ws.torch.offload(module, budget=whole, device=DEVICE) as handle:
        for budget in (whole, floor, (floor + whole) // 2, whole, floor):
            handle.set_budget(budget)
            for _ in range(3):
                assert torch.equal(module(x), wanted)
            assert handle.stats()["budget_bytes"] == budget
            # On pages of a GPU, half of them may hold everything.
            if budget in (floor, whole):
                assert handle.stats()["resident"] == (budget == whole)
        assert handle.stats()["plans"] == 1
        text = error_of(lambda: handle.set_budget(floor - 1))
        assert f"at least {floor} bytes (budget={floor})" in text
        assert torch.equal(module(x), wanted)


def test_a_budget_below_the_least_leaves_the_module_as_it_was():
    module, x = stack(), given()
    floor = least(module, x)
    text = error_of(lambda: ws.torch.offload(module, budget=floor - 1, device=DEVICE, example=(x,)))
    assert f"at least {floor} bytes (budget={floor})" in text
    assert not any("forward" in vars(one) for one in module.modules())
    handle = ws.torch.offload(module, budget=floor - 1, device=DEVICE)
    assert f"at least {floor} bytes" in error_of(lambda: module(x))
    assert not any("forward" in vars(one) for one in module.modules())
    handle.remove()
    with ws.torch.offload(module, budget=floor, device=DEVICE, example=(x,)):
        assert torch.equal(module(x), expected_of_state(module, x))


def test_modules_share_a_device():
    models, x = [stack(6), stack(4), stack(3)], given()
    wanted = [expected(one, x) for one in models]
    whole = [everything(one) for one in models]
    ws.set_device_budget(DEVICE, int(0.7 * sum(whole)))
    try:
        handles = [ws.torch.offload(one, shared=True, device=DEVICE, name=f"model {n}") for n, one in enumerate(models)]
        for turn in [0, 1, 2] * 5 + [0] * 10 + [2] * 10 + [1] * 4:
            assert torch.equal(models[turn](x), wanted[turn])
            report = ws.device_report(DEVICE)
            assert report["held_bytes"] <= report["cap_bytes"]
        assert {one["name"] for one in report["tenants"]} == {"model 0", "model 1", "model 2"}
        assert "shares its device" in error_of(lambda: handles[0].set_budget(1 << 30))
        for handle in handles[:2]:
            handle.remove()
        # A handle and a module that are dropped give their memory back too.
        del handle
        handles.clear()
        models.clear()
        gc.collect()
        assert ws.device_report(DEVICE)["tenants"] == []
    finally:
        ws.set_device_budget(DEVICE, "auto")


def test_one_pass_at_a_time():
    entered, leave = threading.Event(), threading.Event()

    class Waits(nn.Module):
        waits = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.waits:
                entered.set()
                assert leave.wait(60)
            return x

    module = nn.Sequential(stack(3), Waits(), stack(3))
    with ws.torch.offload(module, device=DEVICE, example=(given(),)) as handle:
        module[1].waits = True
        with torch.no_grad():
            thread = threading.Thread(target=torch.no_grad()(module), args=(given(),))
        thread.start()
        assert entered.wait(60)
        texts = [
            error_of(work) for work in (lambda: module(given()), handle.remove, lambda: handle.set_budget(1), lambda: module[0][0](given()))
        ]
        leave.set()
        thread.join()
        assert all("is running already" in text for text in texts)
        module[1].waits = False
        assert torch.equal(module(given()), expected_of(module, given()))


def expected_of(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for half in (0, 2):
        fresh = stack(3)
        fresh.load_state_dict(module[half].state_dict())
        x = fresh.to(DEVICE)(x)
    return x


def test_a_forward_that_would_need_gradients_is_refused():
    module = stack()
    with ws.torch.offload(module, device=DEVICE):
        with torch.enable_grad():
            assert "gradients of '0.weight'" in error_of(lambda: module(given()))
            module.requires_grad_(False)
            for _ in range(2):
                module(given())
        with torch.inference_mode():
            wanted = module(given())
        assert torch.equal(module(given()), wanted)


def test_what_cannot_be_offloaded_is_refused():
    def refused(module: nn.Module, **options) -> str:
        text = error_of(lambda: ws.torch.offload(module, device=DEVICE, **options))
        assert not any("forward" in vars(one) for one in module.modules())
        return text

    assert "an nn.Module, or an object or dictionary that has some, is expected" in error_of(lambda: ws.torch.offload(given()))
    assert "either a budget or shared" in refused(stack(), budget=1, shared=True)
    assert "a number of bytes" in refused(stack(), budget=-1)
    assert "parameter '0.weight' is on meta" in refused(nn.Sequential(nn.Linear(4, 4, device="meta")))
    assert "has no sizes yet" in refused(nn.LazyLinear(4))
    assert "ScriptModule" in error_of(lambda: ws.torch.offload(torch.jit.script(stack()), device=DEVICE))
    assert "device is 'cpu'" in error_of(lambda: ws.torch.offload(stack(), device="meta"))
    sparse = nn.Sequential(nn.Linear(4, 4))
    sparse[0].weight = nn.Parameter(torch.eye(4).to_sparse(), requires_grad=False)
    assert "is sparse" in refused(sparse)
    module = stack()
    with ws.torch.offload(module, device=DEVICE):
        assert "is offloaded already" in error_of(lambda: ws.torch.offload(module))
        assert "module '1' of Sequential is offloaded already" in error_of(lambda: ws.torch.offload(nn.Sequential(nn.ReLU(), module)))
        for work in (lambda: copy.deepcopy(module), lambda: pickle.dumps(module)):
            assert "is offloaded" in error_of(work)


def test_weights_that_a_forward_returns_or_writes_are_refused():
    assert "returns its weight 'weight'" in error_of(lambda: ws.torch.offload(Table(), device=DEVICE, example=(2,)))

    class Writes(Table):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.t().add_(1)
            return x

    assert "writes to the weight 'weight'" in error_of(lambda: ws.torch.offload(Writes(), device=DEVICE, example=(given(),)))


def test_saving_between_passes_saves_the_weights():
    module = stack()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with ws.torch.offload(module, budget=everything(module), device=DEVICE):
        for _ in range(3):
            module(given())
            assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_example_runs():
    from three_modules import run

    text, right = run(DEVICE)
    assert right, text
    assert text.count("denoiser") == 4
