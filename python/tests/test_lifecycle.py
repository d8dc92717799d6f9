"""Loading, destroying, sharing a process: no growth, no mix-up, no quarrel with torch's own libraries."""

from __future__ import annotations

import gc
import shutil
import threading

import pytest
import weightstream as ws
from children import MARGIN_KIB
from device_under_test import ON_GPU
from exports import TORCH_PACKAGE
from models import ZOO
from support import budget_of, error_of, open_module, run_child, run_passes
from zoo import bits, largest_error


def assert_right(name, found, expected):
    for a, b in zip(found, expected, strict=True):
        assert largest_error(a, b) <= ZOO[name].tolerance


@pytest.mark.models("mlp", "experts", "encoder")
def test_different_models_in_turn(exported):
    """Loaded, destroyed and loaded again in turn, each gives its own outputs."""
    names = ["mlp", "experts", "mlp", "encoder", "experts", "mlp"]
    expected = {name: ZOO[name].eager(ZOO[name].passes(2)) for name in set(names)}
    for name in names:
        module = open_module(exported(name), budget_of(exported(name), "floor"))
        assert_right(name, run_passes(module, ZOO[name].passes(2)), expected[name])
        del module
        gc.collect()


@pytest.mark.models("mlp", "experts")
def test_two_models_alive_at_once(exported):
    names = ["mlp", "experts"]
    passes = {name: ZOO[name].passes(4) for name in names}
    expected = {name: ZOO[name].eager(passes[name]) for name in names}
    modules = {name: open_module(exported(name)) for name in names}
    for number in range(4):
        for name in names:
            found = run_passes(modules[name], [passes[name][number]])
            assert_right(name, found, [expected[name][number]])


@pytest.mark.models("mlp")
def test_one_model_on_two_threads_with_a_handle_each(exported, reference):
    files, spec = exported("mlp"), ZOO["mlp"]
    found: dict[int, list] = {}
    # Made before the threads start: both would draw from torch's one generator, each some of the other's numbers.
    passes = spec.passes(20)

    def work(number):
        found[number] = run_passes(open_module(files), passes)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        assert_right("mlp", found[number], reference("mlp")[:20])
    assert [bits(out) for out in found[0]] == [bits(out) for out in found[1]]


@pytest.mark.models("mlp")
def test_a_hundred_loads_leave_nothing_behind(exported):
    files = exported("mlp")
    seen = run_child("load_a_hundred_times", files.pte, files.ptd)
    early, late = seen["early"], seen["late"]
    assert late["files"] == early["files"]
    assert late["threads"] == early["threads"]
    assert late["maps"] <= early["maps"] + 8  # the allocator's own mappings come and go
    assert late["held_kib"] <= early["held_kib"] + 8 * 1024


@pytest.mark.models("demo")
@pytest.mark.parametrize("budget", ["floor", 50])
def test_anonymous_memory_stays_near_the_budget(budget, exported):
    """The .ptd is never read into the heap: its 108 MiB would not fit between the floor and the bound.

    On a GPU the budget is device memory, and the reference has made the context before the measurement begins."""
    files = exported("demo")
    limit = budget_of(files, budget)
    activations_kib = 4 * 1024  # 16 tokens of 1536 floats and their like
    seen = run_child("memory_growth", files.pte, files.ptd, "demo", limit)
    if ON_GPU:
        assert seen["grown_kib"] <= activations_kib + MARGIN_KIB
    assert seen["error"] <= 1e-4
    assert seen["peak_bytes"] <= limit
    assert seen["grown_kib"] <= limit / 1024 + activations_kib + MARGIN_KIB


@pytest.mark.models("mlp")
@pytest.mark.parametrize("order", ["before", "after", "global"])
def test_torch_imported(order, exported):
    files = exported("mlp")
    assert run_child("with_torch", order, files.pte, files.ptd)["error"] <= 1e-4


@pytest.fixture(scope="module")
def package_that_loads(torch_package):
    """Packages of torch 2.11 for CUDA were seen to crash while they are loaded, alone in their process, where the compiler links
    libstdc++ statically (ours hide theirs: see docs/architecture.md)."""
    try:
        run_child("torch_package_alone", torch_package)
    except AssertionError as problem:
        pytest.skip(f"torch's own package cannot be loaded here, alone in a process: {str(problem).splitlines()[0]}")
    return torch_package


@pytest.mark.models("mlp", TORCH_PACKAGE)
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_beside_a_package_of_torch(first, exported, package_that_loads):
    files = exported("mlp")
    worst = run_child("beside_torch_package", package_that_loads, files.pte, files.ptd, first)
    assert worst["ours"] <= 1e-4
    assert worst["theirs"] <= 1e-4


@pytest.mark.models("mlp")
def test_a_failed_load_leaves_nothing_that_hinders_the_next(exported, reference):
    files = exported("mlp")
    floor = ws.required_budget(str(files.pte), method="forward")
    for _ in range(5):
        error_of(lambda: open_module(files, floor - 1))
    assert_right("mlp", run_passes(open_module(files), ZOO["mlp"].passes(20)), reference("mlp")[:20])


@pytest.mark.models("mlp", "experts")
def test_the_weights_beside_a_program_are_found(exported, tmp_path):
    mlp, experts = exported("mlp"), exported("experts")
    pte = shutil.copy(mlp.pte, tmp_path / "model.pte")
    assert "there is no" in (message := error_of(lambda: ws.Module(pte)))
    assert str(tmp_path / "model.ptd") in message
    shutil.copy(experts.ptd, tmp_path / "experts.ptd")
    assert "(experts.ptd) none belongs to it" in error_of(lambda: ws.Module(pte))
    shutil.copy(mlp.ptd, tmp_path / "weights.ptd")
    expected = ZOO["mlp"].passes(1)
    with ws.Module(pte) as module:
        assert_right("mlp", run_passes(module, expected), ZOO["mlp"].eager(expected))
    shutil.copy(mlp.ptd, tmp_path / "again.ptd")
    assert "(again.ptd, weights.ptd) several belong to it" in error_of(lambda: ws.Module(pte))
    # The program's own name comes first.
    shutil.copy(mlp.ptd, tmp_path / "model.ptd")
    ws.Module(pte).close()
