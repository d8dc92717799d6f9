"""Modules whose weights, layers and buffers change while they are offloaded: seen before the next pass."""

from __future__ import annotations

import copy
import pickle
import re
import warnings

import pytest
import torch
import weightstream as ws
from support import error_of
from test_offload import DEVICE, WIDTH, everything, given, stack
from torch import nn

pytestmark = pytest.mark.no_export


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


def fresh(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(WIDTH, WIDTH)


#: What owners do to a module, in both of the modules alike.
CHANGES = {
    "a parameter is replaced": lambda m: setattr(m[1], "weight", nn.Parameter(m[1].weight.cpu() * 2)),
    "memory is replaced": lambda m: setattr(m[1].weight, "data", (m[1].weight.cpu() * 2).to(m[1].weight.device)),
    "a layer is replaced": lambda m: m.__setitem__(2, fresh(5)),
    "a layer is appended": lambda m: m.append(fresh(6)),
    "a layer is taken out": lambda m: m.__delitem__(3),
    "weights are tied": lambda m: setattr(m[4], "weight", m[0].weight),
    "weights are untied": lambda m: setattr(m[4], "weight", nn.Parameter(m[0].weight.cpu() + 1)),
    "a bias is taken out": lambda m: m[0].register_parameter("bias", None),
    "a write": lambda m: m[0].weight.mul_(3),
    "a write through data": lambda m: m[0].weight.data.mul_(0.5),
    "a sum through data": lambda m: add(m[0].weight),
    "a write to a view of data": lambda m: m[0].weight.data.view(-1)[5:].zero_(),
    "a state is assigned": lambda m: m.load_state_dict({k: v.cpu() / 2 for k, v in m.state_dict().items()}, assign=True),
    "a state is copied": lambda m: m.load_state_dict({k: v.cpu() * 2 for k, v in m.state_dict().items()}),
    "a buffer comes": lambda m: m[1].register_buffer("extra", torch.ones(3)),
}


def add(weight: torch.Tensor) -> None:
    weight.data += 1


@pytest.mark.parametrize("whole", [False, True])
def test_what_owners_change_is_seen_before_the_next_pass(whole):
    module = stack()
    with ws.torch.offload(module, budget=2 * everything(module) if whole else None, device=DEVICE) as handle:
        reference = nn.Sequential(*(copy.deepcopy(nn.Linear(WIDTH, WIDTH)) for _ in range(6))).eval()
        reference.load_state_dict(module.state_dict())
        for _ in range(2):
            module(given())
        for name, change in CHANGES.items():
            change(module)
            change(reference)
            for _ in range(3):
                expected = copy.deepcopy(reference).to(DEVICE)(given())
                assert torch.equal(module(given()), expected), name
        assert handle.stats()["resident"] == whole
        stats = handle.stats()
        assert stats["passes"] - stats["recorded"] - stats["astray"] >= 2 * len(CHANGES), "plans are made again after each change"
    assert all(type(one) is nn.Parameter for one in module.parameters())
    assert torch.equal(module(given().cpu()), reference(given().cpu()))


@pytest.mark.parametrize("whole", [False, True])
def test_a_tensor_that_data_gave_may_be_written_after_the_module_has_changed(whole):
    module = stack()
    with ws.torch.offload(module, budget=2 * everything(module) if whole else None, device=DEVICE):
        module(given())
        kept = module[2].weight.data
        module.append(fresh(5))
        module(given())
        kept.mul_(2)
        reference = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in module))
        reference.load_state_dict(module.state_dict())
        for _ in range(2):
            assert torch.equal(module(given()), reference.to(DEVICE)(given()))


def test_a_tensor_that_data_gave_may_be_written_later():
    module = stack()
    with ws.torch.offload(module, device=DEVICE) as handle:
        kept = module[2].weight.data
        before = module(given())
        for _ in range(2):
            plans, _ = handle.stats()["plans"], module(given())
            kept.mul_(2)
            after = module(given())
            assert not torch.equal(after, before)
            assert handle.stats()["plans"] == plans
            before = after
        # Who only looks has nothing copied again.
        copied = handle.stats()["bytes_copied_last_pass"]
        assert kept.sum() == module[2].weight.sum()
        module(given())
        assert handle.stats()["bytes_copied_last_pass"] == copied


def test_a_module_is_as_it_was_after_changes():
    module = stack()
    cls, types = type(module), [type(one) for one in module.modules()]
    with ws.torch.offload(module, device=DEVICE) as handle:
        for step in range(3):
            module(given())
            module[step].weight = nn.Parameter(module[step].weight * 2)
            module[step + 1] = fresh(step)
        module(given())
        assert all(type(one) is nn.Parameter for one in module.parameters())
        # As PyTorch's own wrappers of weights make parameters of parameters.
        assert torch.equal(nn.Parameter(module[0].weight), module[0].weight)
    assert type(module) is cls
    assert [type(one) for one in module.modules()] == types
    assert not any("forward" in vars(one) for one in module.modules())
    assert "data" not in vars(nn.Parameter)
    copied = pickle.loads(pickle.dumps(module))
    assert torch.equal(copied(given().cpu()), module(given().cpu()))
    with ws.torch.offload(module, device=DEVICE):
        # A handle that is removed has no say any more.
        handle.remove()
        assert "not offloaded any more" in error_of(lambda: handle.set_budget(1 << 20))
        assert "not offloaded any more" in error_of(handle.invalidate)
        for work in (lambda: copy.deepcopy(module), lambda: copy.deepcopy(module[1]), lambda: pickle.dumps(module[1]), module.half):
            assert "is offloaded" in error_of(work)
        assert torch.equal(module(given()), copied.to(DEVICE)(given()))


def test_a_weight_that_is_turned_in_place_is_seen():
    module, plain = stack(), stack().to(DEVICE)
    with ws.torch.offload(module, device=DEVICE):
        module(given())
        for one in (module, plain):
            one[2].weight.t_()
        for _ in range(2):
            assert torch.equal(module(given()), plain(given()))
    assert torch.equal(module[2].weight, plain[2].weight.cpu())


def test_a_forward_that_replaces_the_data_of_a_weight_is_refused():
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.writes = nn.Linear(WIDTH, WIDTH), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.writes:
                self.layer.weight.data = self.layer.weight * 2
            return self.layer(x)

    module = Writes()
    with ws.torch.offload(module, device=DEVICE):
        wanted = module(given())
        module.writes = True
        for _ in range(2):
            assert "replaces the data of the weight 'layer.weight'" in error_of(lambda: module(given()))
        module.writes = False
        assert torch.equal(module(given()), wanted)


def test_a_class_without_plain_subclasses_leaves_the_module_as_it_was():
    class Tagged(nn.Linear):
        def __init_subclass__(cls, tag: str) -> None:
            super().__init_subclass__()

    module = nn.Sequential(Tagged(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    wanted = module(given().cpu())
    with ws.torch.offload(module, device=DEVICE):
        module(given())
    assert "cannot say where it runs" in error_of(lambda: ws.torch.offload(module[0], device=DEVICE))
    assert torch.equal(module(given().cpu()), wanted)


def test_a_layer_that_cannot_be_offloaded_is_refused_until_it_is_gone():
    module = stack()
    with ws.torch.offload(module, device=DEVICE):
        wanted = module(given())
        before, module[3] = module[3], nn.Linear(WIDTH, WIDTH, device="meta")
        for _ in range(2):
            assert "'3.weight' is on meta" in error_of(lambda: module(given()))
        module[3] = before
        for _ in range(2):
            assert torch.equal(module(given()), wanted)


def test_adapters_of_peft():
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    base = stack()
    config = peft.LoraConfig(target_modules=["0", "2"], init_lora_weights=False, r=4)
    model = peft.get_peft_model(base, config).eval().requires_grad_(False)
    model.add_adapter("other", config)
    reference = copy.deepcopy(model).to(DEVICE)
    with ws.torch.offload(model, device=DEVICE) as handle:
        for step in ("merge_adapter", "unmerge_adapter", "other", "merge_adapter", "unmerge_adapter", "default"):
            for one in (model, reference):
                one.set_adapter(step) if step in ("default", "other") else getattr(one, step)()
            # The host adds up in another order than a GPU.
            if step.startswith(("merge", "unmerge")):
                reference.load_state_dict(model.state_dict())
            for _ in range(2):
                assert torch.equal(model(given()), reference(given())), step
        plan = handle._passes.plan
        model.merge_adapter()
        model(given())
        assert handle._passes.plan is plan, "what was merged is copied again, and nothing is registered again"


def test_adapters_come_after_a_module_was_offloaded():
    peft = pytest.importorskip("peft")
    base = stack()
    with ws.torch.offload(base, device=DEVICE):
        before = base(given())
        model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["0", "2"], init_lora_weights=False)).eval()
        model.requires_grad_(False)
        for _ in range(3):
            after = model(given())
        assert not torch.equal(after, before)
    assert torch.allclose(after, model.to(DEVICE)(given()))


def test_a_forward_that_is_replaced_is_seen():
    module, reference = stack(), stack().to(DEVICE)
    with ws.torch.offload(module, device=DEVICE) as handle:
        module(given())
        for one in (module, reference):
            # It reads the weight of another layer, which was no read of this one before.
            other = one[3]
            one[1].forward = lambda x, other=other: torch.tanh(x @ other.weight)
        for _ in range(4):
            assert torch.equal(module(given()), reference(given()))
        assert handle.stats()["recorded"] == 2
        wrapped = module[2].forward
        module[2].forward = lambda x: 2 * wrapped(x)
        reference[2].forward = lambda x, plain=reference[2].forward: 2 * plain(x)
        for _ in range(3):
            assert torch.equal(module(given()), reference(given()))
    # The lambda calls what stood there while the module was offloaded.
    assert torch.equal(module(given().cpu()), reference.cpu()(given().cpu()))


def test_a_lost_handle_is_found():
    module, parts = stack(), {"first": stack(), "other": 3}
    assert ws.torch.Offloaded.of(module) is None
    assert ws.torch.Offloaded.of(parts) is None
    ws.torch.offload(module, device=DEVICE)
    module(given())
    assert "Offloaded.of(module) finds" in error_of(lambda: ws.torch.offload(module, device=DEVICE))
    assert ws.torch.Offloaded.of(module).stats()["passes"] == 1
    handle = ws.torch.offload(parts, device=DEVICE)
    assert ws.torch.Offloaded.of(parts) is ws.torch.Offloaded.of(parts["first"]) is handle
    handle.remove()
    ws.torch.Offloaded.of(module).remove()
    assert ws.torch.Offloaded.of(module) is None


@pytest.mark.parametrize("whole", [False, True])
def test_gradients_of_inputs_are_refused(whole):
    module = stack().requires_grad_(False)
    with ws.torch.offload(module, budget=2 * everything(module) if whole else None, device=DEVICE), torch.enable_grad():
        for _ in range(3):
            assert "an input needs gradients" in error_of(lambda: module(given().requires_grad_()))
            assert not module(given()).requires_grad


class _Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [lambda: torch.device(DEVICE), _Mode], ids=["a device", "a function mode"])
@pytest.mark.parametrize("first", [True, False])
def test_passes_run_under_function_modes(mode, first):
    module, reference = stack(), stack().to(DEVICE)
    with ws.torch.offload(module, device=DEVICE):
        for under in (first, True, False, True, True):
            if under:
                with mode():
                    assert torch.equal(module(given()), reference(given()))
            else:
                assert torch.equal(module(given()), reference(given()))
        module[1].weight.data.mul_(2)
        reference[1].weight.data.mul_(2)
        with mode():
            assert torch.equal(module(given()), reference(given()))


@pytest.mark.parametrize("whole", [False, True])
def test_a_pass_that_cannot_show_its_weights_ends(whole, monkeypatch):
    module, reference = stack(), stack().to(DEVICE)
    with ws.torch.offload(module, budget=2 * everything(module) if whole else None, device=DEVICE):
        for _ in range(2):
            module(given())
        with monkeypatch.context() as patched:
            patched.setattr("weightstream._eager.plan.show_all", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                module(given())
        for _ in range(3):
            assert torch.equal(module(given()), reference(given()))


def test_a_parameter_of_two_handles():
    first, second = stack(), stack(2)
    second[0].weight = first[0].weight
    reference = copy.deepcopy(first).to(DEVICE)
    with ws.torch.offload(first, device=DEVICE):
        handle = ws.torch.offload(second, device=DEVICE)
        for _ in range(2):
            first(given())
            second(given())
        for _ in range(2):
            first[0].weight.data.mul_(2)
            reference[0].weight.data.mul_(2)
            assert torch.equal(first(given()), reference(given()))
            handle.remove()


def test_a_wrapper_that_outlives_its_handle_is_no_module_that_is_offloaded():
    module = stack()
    handle = ws.torch.offload(module, device=DEVICE)
    module(given())
    kept = module[0].forward
    module[0].forward = lambda x: x
    handle.remove()
    module[0].forward = kept
    assert ws.torch.Offloaded.of(module[0]) is None
    with ws.torch.offload(module, device=DEVICE):
        assert torch.equal(module(given()), stack().to(DEVICE)(given()))


def test_a_recorded_pass_sees_the_strides_that_the_weight_has():
    class Sliced(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(2 * WIDTH, 2 * WIDTH)[:, ::2])
            self.seen: list[tuple[int, ...]] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(self.weight.stride())
            return x * self.weight.sum()

    module = Sliced()
    with ws.torch.offload(module, device=DEVICE):
        values = [module(given()) for _ in range(3)]
    assert set(module.seen) == {(2 * WIDTH, 2)}
    assert all(torch.equal(one, values[0]) for one in values)


def test_data_of_what_has_no_memory_may_be_asked_for_in_a_pass():
    seen = []

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = stack()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch._subclasses.FakeTensorMode():
                seen.append(torch.empty(3).data.shape)
            seen.append(torch.empty(5, device="meta").data.shape)
            seen.append(torch.eye(2).to_sparse().data.shape)
            return self.layers(x)

    module = Asks()
    reference = copy.deepcopy(module).to(DEVICE)
    with ws.torch.offload(module, device=DEVICE):
        for _ in range(3):
            assert torch.equal(module(given()), reference(given()))
    assert len(seen) == 3 * 6


def test_data_that_is_held_in_inference_mode_is_warned_of():
    """Nothing tells whether it is written: each pass has to take it for written."""
    with torch.inference_mode():
        model = stack()
        expected = copy.deepcopy(model).to(DEVICE)(given())
        with ws.torch.offload(model, device=DEVICE):
            for _ in range(2):
                model(given())
            held = model[0].weight.data
            with pytest.warns(UserWarning, match=r"somebody holds the \.data of '0\.weight'"):
                assert torch.equal(model(given()), expected)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert torch.equal(model(given()), expected)
            del held


def test_a_change_that_needs_more_than_the_budget_leaves_the_handle_alive():
    module = stack()
    handle = ws.torch.offload(module, device=DEVICE, example=(given(),))
    handle.set_budget(handle.stats()["floor_bytes"])
    module[2] = nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, WIDTH))
    reference = copy.deepcopy(stack())
    reference[2] = copy.deepcopy(module[2])
    wanted = reference.to(DEVICE)(given())
    for _ in range(2):
        text = error_of(lambda: module(given()))
        assert "is too small" in text
    needed = int(re.search(r"at least (\d+) bytes", text)[1])
    handle.set_budget(needed)
    for _ in range(3):
        assert torch.equal(module(given()), wanted)
    assert handle.stats()["floor_bytes"] == needed
    handle.remove()


def test_transforms_are_refused():
    module = stack()
    with ws.torch.offload(module, device=DEVICE):
        assert "torch.func" in error_of(lambda: torch.vmap(module)(given()))


def test_an_adapter_is_recorded_at_once():
    module = stack()
    with ws.torch.offload(module, device=DEVICE) as handle:
        for _ in range(2):
            module(given())
        module[1] = nn.Sequential(module[1], nn.Linear(WIDTH, WIDTH))
        for _ in range(2):
            module(given())
        stats = handle.stats()
        assert (stats["recorded"], stats["astray"]) == (2, 0)
