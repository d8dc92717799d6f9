"""Weights give way to what a pass needs beside them: the pass goes on with the right bits, and they come back.

On a GPU PyTorch's activations need the memory. On the CPU, where PyTorch takes no memory of ours, a layer takes segments itself.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import threading

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from support import error_of
from test_offload import DEVICE, PAGE, _inference, expected, given, stack  # noqa: F401 - the fixture is used
from torch import nn
from weightstream._eager.activations import Activations
from weightstream._native.bindings import OffloadNeeds, library

pytestmark = pytest.mark.no_export
#: Passes of more rows are those that need memory.
FEW, MANY = 2, 64


class Hungry(nn.Module):
    """Needs memory in passes of many rows."""

    def __init__(self, bytes: int = 0):
        super().__init__()
        self.bytes, self.live = bytes, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < MANY or not self.bytes:
            return x
        if ON_GPU:
            taken = torch.full((self.bytes,), 7, dtype=torch.uint8, device=DEVICE)
            return x + (taken[::PAGE] - 7).sum()
        native = library()
        native.ws_segment_alloc.restype = ctypes.c_void_p
        native.ws_segment_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        at = native.ws_segment_alloc(self.bytes, -1, None)
        if not at:
            raise torch.OutOfMemoryError("no segment")
        ctypes.memset(at, 7, self.bytes)
        self.live.append(at)
        return x

    def give_back(self) -> None:
        """As PyTorch does when nothing uses the memory."""
        native = library()
        native.ws_segment_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        native.ws_segment_free.restype = None
        for at in self.live:
            native.ws_segment_free(at, self.bytes, -1, None)
        self.live.clear()


class GivesWay:
    """In the place of `Activations` on the CPU: each pass may give way."""

    def __init__(self):
        self.pool = self

    def drop(self) -> None:
        pass

    def use(self):
        return contextlib.nullcontext()

    def needs(self, key: object, resident: bool) -> OffloadNeeds:
        return OffloadNeeds(0, 1, int(key[1][0] >= MANY))

    def learn(self, key: object) -> None:
        pass


@pytest.fixture
def shared():
    """`shared(module, …)`: offloaded, and gives way. A GPU has the device's memory for a budget that a test fills."""
    handles = []

    def make(module: nn.Module, **options):
        handle = ws.torch.offload(module, shared=True, device=DEVICE, **options)
        if not ON_GPU:
            handle._passes.activations = GivesWay()
        handles.append(handle)
        return handle

    yield make
    for handle in handles:
        handle.remove()
    gc.collect()
    if ON_GPU:
        from weightstream._eager.activations import _pools

        for pool in _pools.values():
            pool.drop()
    ws.set_device_budget(DEVICE, "auto")


def hungry_stack(bytes: int = 0) -> nn.Sequential:
    return nn.Sequential(stack(4), Hungry(bytes), stack(4))


def total(handle) -> int:
    tenants = ws.device_report(DEVICE)["tenants"]
    return next(one["total_bytes"] for one in tenants if one["name"] == handle._passes.name)


def resident(module: nn.Module, handle, x: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether everything stays after some passes, all of them right."""
    for _ in range(8):
        assert torch.equal(module(x), wanted)
        report = ws.device_report(DEVICE)
        assert report["held_bytes"] + report["range_bytes"] <= report["cap_bytes"]
        if handle.stats()["resident"]:
            return True
    return False


def free() -> int:
    """Bytes of the device's budget that nobody holds."""
    report = ws.device_report(DEVICE)
    return report["cap_bytes"] - report["held_bytes"] - report["range_bytes"]


#: What PyTorch takes at least, in whole segments.
SLACK = 128 << 20 if ON_GPU else 0


def test_the_weights_of_a_pass_give_way_and_come_back(shared):
    module, few, many = hungry_stack(), given(rows=FEW), given(rows=MANY)
    wanted, more = expected(module, few), expected(module, many)
    handle = shared(module)
    ws.set_device_budget(DEVICE, 1 << 30)
    module(few)
    weights = total(handle)
    ws.set_device_budget(DEVICE, weights + SLACK)
    assert resident(module, handle, few, wanted)
    # All that is free, and half of the weights.
    module[1].bytes = free() + weights // 2
    assert torch.equal(module(many), more)
    stats = handle.stats()
    assert (stats["gave_way"], stats["astray"], stats["recorded"]) == (1, 0, 1)
    report = ws.device_report(DEVICE)
    assert report["held_bytes"] + report["range_bytes"] <= report["cap_bytes"]
    # Their memory is still taken: what is left holds the weights.
    assert torch.equal(module(few), wanted)
    module[1].give_back()
    assert resident(module, handle, few, wanted), ws.device_report(DEVICE)


def test_memory_that_is_needed_after_the_last_read(shared):
    module, few, many = nn.Sequential(stack(8), Hungry()), given(rows=FEW), given(rows=MANY)
    wanted, more = expected(module, few), expected(module, many)
    handle = shared(module)
    ws.set_device_budget(DEVICE, 1 << 30)
    module(few)
    weights = total(handle)
    ws.set_device_budget(DEVICE, weights + SLACK)
    assert resident(module, handle, few, wanted)
    module[1].bytes = free() + weights // 2
    assert torch.equal(module(many), more)
    assert handle.stats()["gave_way"] == 1
    assert torch.equal(module(few), wanted)
    module[1].give_back()
    assert resident(module, handle, few, wanted)


def test_a_floor_takes_what_idle_models_hold(shared):
    """A range, or activations, fill the rest of the budget."""
    first, second = stack(8), stack(3)
    wanted, other = expected(first, given()), expected(second, given())
    handle = shared(first, name="first")
    ws.set_device_budget(DEVICE, 1 << 30)
    first(given())
    weights, unit = total(handle), 64 * PAGE
    ws.set_device_budget(DEVICE, weights + SLACK)
    assert resident(first, handle, given(), wanted)
    with ws.Range(DEVICE, free() + unit, "range") as range_:
        pinned = [alloc for alloc in [range_.alloc(PAGE) for _ in range(free() // PAGE)] if not range_.fault(alloc).refused]
        shared(second, name="second")
        assert torch.equal(second(given()), other)
        assert torch.equal(first(given()), wanted)
        range_.unpin(pinned)


def test_idle_models_give_way_first_by_priority(shared):
    models = [hungry_stack(), stack(8), stack(8)]
    few, many = given(rows=FEW), given(rows=MANY)
    wanted, more = [expected(one, few) for one in models], expected(models[0], many)
    handles = [shared(one, name=f"model {n}") for n, one in enumerate(models)]
    ws.set_device_budget(DEVICE, 1 << 30)
    for one in models:
        one(few)
    weights = total(handles[0])
    ws.set_device_budget(DEVICE, 3 * weights + SLACK)
    assert all(resident(*each) for each in zip(models, handles, [few] * 3, wanted))
    handles[1].set_priority(1)
    held = {one["name"]: one["held_bytes"] for one in ws.device_report(DEVICE)["tenants"]}
    models[0][1].bytes = free() + weights // 4
    assert torch.equal(models[0](many), more)
    assert handles[0].stats()["gave_way"] == 0
    after = {one["name"]: one["held_bytes"] for one in ws.device_report(DEVICE)["tenants"]}
    assert after["model 2"] < held["model 2"]
    assert after["model 1"] == held["model 1"]
    models[0][1].give_back()
    for model, one in zip(models, wanted, strict=True):
        assert torch.equal(model(few), one)


def test_a_need_that_grows_ends_with_an_error_at_the_floor(shared):
    module, few, many = hungry_stack(), given(rows=FEW), given(rows=MANY)
    wanted, more = expected(module, few), expected(module, many)
    handle = shared(module, name="grows")
    ws.set_device_budget(DEVICE, 1 << 30)
    module(few)
    weights = total(handle)
    ws.set_device_budget(DEVICE, weights + SLACK)
    module[1].bytes = max(PAGE, SLACK // 4)
    failed = None
    while failed is None:
        assert module[1].bytes < 4 * (weights + SLACK), "nothing stops it"
        try:
            assert torch.equal(module(many), more)
        except torch.OutOfMemoryError as error:
            failed = str(error)
        module[1].give_back()
        module[1].bytes *= 2
    assert module[1].bytes // 2 > (weights + SLACK) // 4, failed
    if ON_GPU:
        assert "'grows'" in failed or "grows ran out of memory" in failed
        assert "device_report" in failed
    module[1].bytes = 0
    for _ in range(3):
        assert torch.equal(module(few), wanted)


def test_a_handle_goes_after_its_weights_gave_way(shared):
    module, few, many = hungry_stack(), given(rows=FEW), given(rows=MANY)
    wanted, more, other = expected(module, few), expected(module, many), copy.deepcopy(module[0])
    other[0].weight.mul_(2)
    changed = expected(other, few)
    handle = shared(module)
    ws.set_device_budget(DEVICE, 1 << 30)
    module(few)
    weights = total(handle)
    ws.set_device_budget(DEVICE, weights + SLACK)
    assert resident(module, handle, few, wanted)
    module[1].bytes = free() + weights // 2
    kept = module(many)
    # Bytes change while the weights are away.
    module[0][0].weight.mul_(2)
    module[1].give_back()
    assert torch.equal(module[0](few), changed)
    handle.remove()
    assert torch.equal(kept, more)
    assert ws.device_report(DEVICE)["tenants"] == []


class Segments:
    """In the place of `DevicePool`: what a pass needs is kept until the pool is dropped, but for what lives on."""

    def __init__(self):
        self.bytes = self.live = self.drops = 0

    def held(self) -> int:
        return self.bytes

    def drop(self) -> None:
        self.bytes, self.drops = self.live, self.drops + 1


def test_what_passes_take_is_learned():
    segments, activations = Segments(), Activations("model", 0)
    activations.pool = segments

    def run(key: str, bytes: int, resident: bool = False) -> OffloadNeeds:
        needs = activations.needs(key, resident)
        segments.bytes = max(segments.bytes, segments.live + bytes)
        activations.learn(key)
        return needs

    few, many = 64 << 20, 1 << 30
    assert (run("few", few).by_reads, run("few", few).by_reads) == (1, 0)
    # Room for a little more than is known.
    assert few // 8 < run("few", few).room < few
    assert run("many", many).by_reads == 1
    # Where weights lack memory it goes back; where everything stays nobody needs it.
    assert run("few", few, resident=True).room < few
    assert segments.bytes == many
    run("few", few)
    assert segments.bytes == few
    # What is known to be needed is left free before it is taken.
    assert run("many", many).room > many - few
    # A cache that grows: it is not dropped in each pass for nothing.
    run("few", few)
    drops = segments.drops
    for _ in range(100):
        segments.live += 8 << 20
        run("few", few)
    assert segments.drops - drops < 15
    assert run("few", few).room < 3 * few


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_error_of_memory_says_what_helps(is_shared):
    """With activations beside the budget."""

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    module = nn.Sequential(stack(2), Fails())
    options = {"shared": True, "activations": "pytorch"} if is_shared else {"budget": 1 << 30}
    with ws.torch.offload(module, device=DEVICE, name="model", **options):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            module(given())
        said = str(caught.value)
    assert said.startswith("CUDA out of memory.")
    assert "model ran out of memory" in said
    assert ("activations='pool'" in said) == is_shared
    assert ("a smaller budget" in said) != is_shared


def test_arguments_that_are_wrong():
    module = stack(2)
    assert "'pool' or 'pytorch'" in error_of(lambda: ws.torch.offload(module, shared=True, device=DEVICE, activations="mine"))
    assert "shared=True" in error_of(lambda: ws.torch.offload(module, budget=1 << 30, device=DEVICE, activations="pool"))
    if not ON_GPU:
        assert "memory of 'cpu'" in error_of(lambda: ws.torch.offload(module, shared=True, device=DEVICE, activations="pool"))
    with ws.torch.offload(module, budget=1 << 30, device=DEVICE) as handle:
        assert "shared=True" in error_of(handle.prioritize)
        assert "shared=True" in error_of(lambda: handle.set_priority(1))
    with ws.torch.offload(module, shared=True, device=DEVICE) as handle:
        assert "whole number" in error_of(lambda: handle.set_priority("high"))


def test_places_in_the_order_are_kept_from_the_first_pass_on(shared):
    one, other = stack(2), stack(2)
    handles = [shared(one, name="one"), shared(other, name="other")]
    handles[0].set_priority(-1)
    handles[1].deprioritize()
    for module in (one, other):
        module(given())
    order = [place for place in ws.device_report(DEVICE)["order"] if place["kind"] != "held"]
    assert [(place["name"], place["kind"], place["priority"]) for place in order] == [("other", "model", 0), ("one", "model", -1)]
    handles[0].set_priority(0)
    handles[0].prioritize()

    def names() -> list[str]:
        return [place["name"] for place in ws.device_report(DEVICE)["order"] if place["kind"] != "held"]

    with ws.Range(DEVICE, PAGE, "range") as range_:
        range_.set_priority(7)
        assert names() == ["range", "one", "other"]
    # A plan that is made anew has the place of before.
    handles[1].set_priority(0)
    handles[1].prioritize()
    one[0].weight.data = one[0].weight.data.clone()
    one(given())
    assert names() == ["other", "one"]


def test_passes_that_overlap_have_pools_of_their_own(monkeypatch):
    """PyTorch refuses a pool that another thread uses."""
    from weightstream._eager import activations

    made, used = [], []

    @contextlib.contextmanager
    def use(pool: object, index: int):
        assert pool not in used, "two threads use it"
        used.append(pool)
        yield
        used.remove(pool)

    monkeypatch.setattr(activations, "pool", lambda: made.append(object()) or made[-1])
    monkeypatch.setattr(activations.torch.cuda, "use_mem_pool", use)
    monkeypatch.setattr(activations.torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(activations.torch.cuda, "empty_cache", lambda: None)
    shared, both = activations.DevicePool(0), threading.Barrier(2, timeout=60)

    def run() -> None:
        with shared.use(), shared.use():
            both.wait()
            shared.drop()
            both.wait()

    threads = [threading.Thread(target=run) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(made) == 2
    for _ in range(3):
        with shared.use():
            pass
    assert len(made) == 2
    shared.drop()
    with shared.use():
        assert len(made) == 3


@pytest.mark.skipif(not ON_GPU, reason="PyTorch's activations are memory of a GPU")
@pytest.mark.parametrize("way", ["two threads", "a side stream", "a cache that stays"])
def test_activations_as_people_have_them(shared, way):
    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.append(torch.full((SLACK // 64,), 3, dtype=torch.uint8, device=DEVICE))
            return x

    class Beside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x + 1
                y.record_stream(torch.cuda.current_stream())
            torch.cuda.current_stream().wait_stream(side)
            return y - 1

    middle = {"a side stream": Beside, "a cache that stays": Caches}.get(way, nn.Identity)
    models = [nn.Sequential(stack(4), middle(), Hungry(), stack(4)) for _ in range(2)]
    few, many = given(rows=FEW), given(rows=MANY)
    wanted, more = expected(models[0], few), expected(models[0], many)
    handles = [shared(one, name=f"model {n}") for n, one in enumerate(models)]
    ws.set_device_budget(DEVICE, 2 << 30)
    for one in models:
        one(few)
    weights = total(handles[0])
    # A tensor that stays splits a segment: the next one does not fit there.
    ws.set_device_budget(DEVICE, 2 * weights + (3 if way == "a cache that stays" else 2) * SLACK)
    wrong = []

    def run(module: nn.Module) -> None:
        with torch.no_grad():
            for _ in range(4):
                wrong.extend(not torch.equal(module(x), one) for x, one in ((few, wanted), (many, more)))

    for one in models:
        one[2].bytes = SLACK // 2 if way == "two threads" else SLACK + weights // 4
    if way == "two threads":
        threads = [threading.Thread(target=run, args=(one,)) for one in models]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    else:
        [run(one) for one in models]
    assert len(wrong) == 16
    assert not any(wrong)
    kept = [one for module in models for one in getattr(module[1], "kept", [])]
    assert len(kept) == (18 if way == "a cache that stays" else 0)
    assert all((one == 3).all() for one in kept)


class Square(nn.Module):
    """Its activations are the square of its rows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.t() @ self.weight(x)


@pytest.mark.skipif(not ON_GPU, reason="needs a device whose memory can be filled")
def test_activations_of_a_compiled_program_press_idle_models(shared, tmp_path):
    """It is no tenant, and it was not known when the weights came."""
    rows, need = 16384, 16384**2 * 4
    square, x = Square().eval(), torch.randn(16384, 64) / 64
    pte, ptd = tmp_path / "square.pte", tmp_path / "square.ptd"
    ws.export(square, (x,), pte, ptd, device="cuda", dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=rows)},))
    with ws.Module(str(pte), str(ptd), weight_offload_budget_bytes=ws.required_budget(pte)) as program:
        few = program.forward(x[:8])
        # What tuning left.
        torch.cuda.empty_cache()
        hog = torch.empty(torch.cuda.mem_get_info()[0] - (3 << 30), dtype=torch.uint8, device=DEVICE)
        model = nn.Sequential(
            *[nn.Linear(4096, 8192, bias=False) if n % 2 else nn.Linear(8192, 4096, bias=False) for n in range(20)]
        ).eval()
        given = torch.randn(1, 8192, device=DEVICE)
        handle = shared(model, name="model")
        with torch.no_grad():
            wanted = model(given)
            assert resident(model, handle, given, wanted)
            assert torch.cuda.mem_get_info()[0] < need
            much = program.forward(x)
            held = ws.device_report(DEVICE)["held_bytes"]
            assert torch.equal(model(given), wanted)
        assert held < total(handle)
        assert torch.equal(program.forward(x[:8]), few)
        with torch.no_grad():
            assert torch.allclose(much.cpu(), square(x), atol=1e-4)
        del hog
