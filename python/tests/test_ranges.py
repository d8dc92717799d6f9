"""Ranges from Python on the CPU: faults, tensors that hold their memory, and the example."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import pytest
import torch
import weightstream as ws
from support import error_of

pytestmark = pytest.mark.no_export
MB = 1 << 20
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))


@pytest.fixture
def budget():
    """`budget(bytes)`: the CPU's memory for ranges."""
    yield lambda bytes: ws.set_device_budget("cpu", bytes)
    gc.collect()
    ws.Range("cpu", 1).close()
    assert ws.device_report("cpu")["range_bytes"] == 0, "a range was left open"
    ws.set_device_budget("cpu", "auto")


def make(allocs: int, name: str = "range") -> ws.Range:
    """A range with allocations of one MB."""
    range_ = ws.Range("cpu", allocs * MB, name)
    assert [range_.alloc(MB) for _ in range(allocs)] == list(range(allocs))
    return range_


def touch(range_: ws.Range, alloc: int) -> str:
    """One layer of a pass: `h`it, `f`ill or `-` refused."""
    fault = range_.fault(alloc)
    if fault.refused:
        return "-"
    tensor = range_.tensor(alloc, torch.float32, (256, 1024))
    if fault.fill:
        tensor.fill_(alloc + 1)
    assert torch.equal(tensor, torch.full_like(tensor, alloc + 1))
    range_.unpin(alloc)
    return "h" if fault.hit else "f"


def sweep(range_: ws.Range, allocs: int) -> str:
    return "".join(touch(range_, alloc) for alloc in range(allocs))


def test_models_take_memory_from_each_other(budget):
    budget(4 * MB)
    with make(6, "a") as a, make(3, "b") as b:
        assert sweep(b, 3) == "fff"
        a.prioritize()
        assert [sweep(a, 6), sweep(a, 6), sweep(b, 3)] == ["ffff--", "hhhh--", "---"]
        assert b.watermark() == (0, "a fault of range 'a', which has a higher priority")
        assert "above the range's watermark" in b.fault(0).why
        assert "nothing of lower priority" in a.fault(5).why
        b.prioritize()
        assert sweep(b, 3) == "fff"
        assert sweep(a, 6) == "h-----"
        found = a.residency()
        assert (found["resident_bytes"], found["place"], found["watermark_bytes"]) == (MB, 1, MB)
        assert (found["hits"], found["fills"], found["evicted_bytes"]["higher_range"]) == (5, 4, 3 * MB)
        assert [unit["resident"] for unit in found["units"]] == [True] + 5 * [False]
        assert ws.device_report("cpu")["range_bytes"] == 4 * MB


@pytest.mark.parametrize("number", [2**32 + 1, 2**32 - 1, -1, None, 1.0, "1"])
def test_numbers_that_are_none_of_an_allocation(budget, number):
    budget(4 * MB)
    with make(3) as range_:
        for call in (range_.fault, range_.unpin, lambda one: range_.batch([one]), lambda one: range_.used_on(one, None)):
            assert "number of an allocation" in error_of(lambda call=call: call([number] if call == range_.unpin else number))
        assert sweep(range_, 3) == "fff"


def test_a_device_is_a_name_or_one_of_torch(budget):
    with ws.Range(torch.device("cpu"), MB) as range_:
        assert range_.device == "cpu"
    assert ws.device_report(torch.device("cpu"))["device"] == "cpu"
    assert "a torch.device, is expected, found None" in error_of(lambda: ws.device_report(None))
    assert "a torch.device, is expected, found 3" in error_of(lambda: ws.Range(3, MB))


def test_a_refusal_says_who_holds_the_memory(budget):
    budget(3 * MB)
    with make(2, "a") as a, make(3, "b") as b:
        assert sweep(b, 2) == "ff"
        assert sweep(a, 1) == "f"
        a.deprioritize()
        a.fault(0)
        batch = b.batch([0, 2])
        faults = batch.fault()
        for refused in (b.fault(2), faults[1]):
            assert refused.refused
            for words in ("is pinned", f"of the {3 * MB} bytes", f"range 'b' holds {2 * MB} bytes", f"range 'a' holds {MB} bytes"):
                assert words in refused.why
        assert faults[0].why == ""
        batch.unpin()
        a.unpin(0)
        held = {one["name"]: one["held_bytes"] for one in ws.device_report("cpu")["ranges"]}
        assert held == {"a": MB, "b": 2 * MB}


def test_a_report_forgets_a_budget_that_was_given_up(budget):
    budget(MB)
    assert ws.device_report("cpu")["cap_bytes"] == MB
    with make(1):
        budget("auto")
        report = ws.device_report("cpu")
        assert report["follows_free_memory"]
        assert report["cap_bytes"] > MB


def test_a_range_costs_nothing_before_its_first_fault(budget):
    budget(MB)
    with make(1000) as range_:
        assert range_.residency()["resident_bytes"] == 0
        assert range_.residency()["bytes"] == 1000 * MB


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint8]
)
def test_tensors_of_any_dtype(dtype, budget):
    budget(4 * MB)
    with make(1) as range_:
        fault = range_.fault(0)
        values = torch.arange(48).reshape(6, 8).to(dtype)
        tensor = range_.tensor(0, dtype, (6, 8))
        tensor.copy_(values)
        assert tensor.data_ptr() == fault.data
        assert (tensor.dtype, tensor.is_contiguous()) == (dtype, True)
        assert torch.equal(tensor.view(torch.uint8), values.view(torch.uint8))
        range_.unpin(0)
        del tensor
        assert range_.fault(0).hit
        range_.unpin(0)


def test_memory_stays_as_long_as_a_tensor_lives(budget):
    budget(MB)
    a, b = make(1, "a"), make(1, "b")
    a.fault(0)
    tensor = a.tensor(0, torch.float32, (4,))
    tensor.fill_(7)
    part = tensor[1:3].t()
    a.unpin(0)
    del tensor
    assert "pinned" in b.fault(0).why
    assert a.free_bytes(MB) == {"freed": 0, "pinned": MB, "pending": 0}
    assert "'a' cannot end" in error_of(a.close)
    assert part.tolist() == [7, 7]
    # On another thread, and after the range was dropped.
    del a
    gc.collect()
    assert part.tolist() == [7, 7]
    holder = [part]
    del part
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()
    with make(1, "c") as c:
        assert sweep(c, 1) == "f"
    b.close()


def test_contents_that_change_are_written_again(budget):
    budget(4 * MB)
    with make(2) as range_:
        assert sweep(range_, 2) == "ff"
        range_.invalidate(1)
        assert sweep(range_, 2) == "hf"
        first = range_.fault(0).generation
        range_.unpin(0)
        range_.invalidate()
        # A fill that failed.
        fault = range_.fault(0)
        assert fault.fill
        assert fault.generation > first
        range_.invalidate(0)
        range_.unpin(0)
        assert sweep(range_, 2) == "ff"
        range_.set_limit(MB)
        assert sweep(range_, 2) == "h-"
        range_.set_limit(None)
        assert sweep(range_, 2) == "hf"


def test_a_batch_is_one_call(budget):
    budget(3 * MB)
    with make(4) as range_:
        batch = range_.batch(range(4))
        assert [fault.outcome for fault in batch.fault()] == [1, 1, 1, 2]
        batch.unpin()
        assert [fault.hit for fault in batch.fault()] == [True, True, True, False]
        batch.unpin()
        assert "more often" in error_of(lambda: range_.unpin([0]))


def test_mistakes_are_named(budget):
    budget(MB)
    assert "no device 'gpu'" in error_of(lambda: ws.Range("gpu", MB))
    assert "a number of bytes" in error_of(lambda: ws.Range("cpu", -1))
    range_ = make(1, "x")
    assert "0 are left" in error_of(lambda: range_.alloc(1))
    assert "there is none of number 1" in error_of(lambda: range_.fault(1))
    assert "fault it first" in error_of(lambda: range_.tensor(0, torch.float32, (1,)))
    range_.fault(0)
    assert "does not fit" in error_of(lambda: range_.tensor(0, torch.float32, (MB,)))
    range_.unpin(0)
    range_.close()
    range_.close()
    assert "range 'x' is closed" in error_of(lambda: range_.fault(0))
    with make(1) as other:
        assert "no open lease" in error_of(lambda: other.used_on(0, 0))


def test_threads_share_the_memory(budget):
    """Each with its own range, under a cap for half of them."""
    budget(6 * MB)
    failures = []

    def run(number: int) -> None:
        try:
            with make(4, f"r{number}") as range_:
                for turn in range(30):
                    if turn % 5 == number:
                        range_.prioritize()
                    sweep(range_, 4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_example_computes_what_eager_does(budget):
    import ranges

    text, worst = ranges.run()
    assert worst == 0
    assert "refused" in text


def test_refused_faults_go_through_the_ring(budget):
    """Two tensors are alive at a time: that of a layer, and the one before it."""
    budget(4 * MB)
    with ws.Range("cpu", 6 * MB, "a", ring=2 * MB) as range_:
        allocs = [range_.alloc(MB) for _ in range(6)]
        for _ in range(3):
            answers = ""
            for alloc in allocs:
                fault = range_.fault(alloc)
                number = alloc
                if fault.refused:
                    answers += "-"
                    number, fault = range_.slot(alloc)
                    assert (fault.fill, fault.nbytes) == (True, MB)
                tensor = range_.tensor(number, torch.float32, (256, 1024))
                if fault.fill:
                    tensor.fill_(alloc)
                assert torch.equal(tensor, torch.full_like(tensor, alloc))
                range_.unpin(number)
            assert answers == "----"
        found = range_.residency()
        assert (found["ring_bytes"], found["slots"], found["resident_bytes"]) == (2 * MB, 12, 2 * MB)
        assert ws.device_report("cpu")["range_bytes"] == 4 * MB
        # The last tensor and two more.
        assert "allocation 5: 1048576 bytes" in error_of(lambda: [range_.slot(alloc) for alloc in (0, 1)])
        assert found["ring_leased_bytes"] == MB
        del tensor
        number, _ = range_.slot(0)
        assert "the slot of allocation" in error_of(range_.close)
        assert "is leased" in error_of(lambda: range_.unpin(number + 1))
        range_.unpin(number)
        range_.unpin(number - 1)
    assert "has no ring" in error_of(lambda: make(1).slot(0))
    with ws.Range("cpu", 3 * MB, "b", ring=1) as range_:
        alloc = range_.alloc(2 * MB)
        assert "has 2097152 bytes (2.0 MB), and the range's ring 1048576 bytes" in error_of(lambda: range_.slot(alloc))
    assert "5242880 bytes (5.0 MB) for the ring of range 'c'" in error_of(lambda: ws.Range("cpu", MB, "c", ring=5 * MB))
