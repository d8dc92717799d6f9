"""The end of a range's tensors: on any thread, at the interpreter's exit, during a capture, and while a kernel still reads them."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from support import error_of

pytestmark = pytest.mark.no_export
MB = 1 << 20
DEVICE = "cuda:0" if ON_GPU else "cpu"
#: A page of a range on the device under test.
PAGE = 2 * MB if ON_GPU else MB


@pytest.fixture
def budget():
    """The device has two pages for ranges."""
    ws.set_device_budget(DEVICE, 2 * PAGE)
    yield
    with ws.Range(DEVICE, 1):
        pass
    assert ws.device_report(DEVICE)["range_bytes"] == 0, "a range was left open"
    ws.set_device_budget(DEVICE, "auto")


def filled(name: str, value: float) -> tuple[ws.Range, torch.Tensor]:
    """A range of two pages whose contents are there, unpinned, and the tensor that holds them."""
    range_ = ws.Range(DEVICE, 2 * PAGE, name)
    assert range_.fault(range_.alloc(2 * PAGE)).fill
    tensor = range_.tensor(0, torch.float32, (PAGE // 2,)).fill_(value)
    range_.unpin(0)
    return range_, tensor


def test_a_tensor_may_end_on_another_thread_while_ranges_are_used(budget):
    a, tensor = filled("a", 1)
    holder = [tensor.view(-1, 1024)[row] for row in range(64)]
    del tensor
    with ws.Range(DEVICE, 2 * PAGE, "b") as b:
        assert b.alloc(2 * PAGE) == 0

        def end_them() -> None:
            while holder:
                holder.pop()

        thread = threading.Thread(target=end_them)
        thread.start()
        while b.fault(0).refused:
            assert thread.is_alive() or not holder
        thread.join()
        b.unpin(0)
    a.close()


def test_tensors_that_live_at_exit_do_no_harm():
    """Their ranges were dropped, or the tensors were and the ranges live, or both live."""
    program = f"""
import torch, weightstream as ws
made = []
for name in "abc":
    r = ws.Range({DEVICE!r}, {PAGE}, name)
    assert r.fault(r.alloc({PAGE})).fill
    t = r.tensor(0, torch.float32, (16,))
    t.fill_(1)
    r.unpin(0)
    made.append([r, t])
del made[0][0], made[1][1], r, t
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.gpu
def test_a_tensor_that_ends_while_a_kernel_reads_it_keeps_its_memory(budget):
    a, tensor = filled("a", 1)
    tensor.double().sum()  # loads these kernels: that waits for all that run
    torch.cuda.synchronize()
    torch.cuda._sleep(1 << 30)  # about half a second
    sums = tensor.double().sum()
    del tensor
    with ws.Range(DEVICE, 2 * PAGE, "b") as b:
        refused = b.fault(b.alloc(2 * PAGE))
        assert refused.refused
        assert "kernels still use it" in refused.why
        assert sums.item() == PAGE // 2
        assert b.fault(0).fill
        b.unpin(0)
    a.close()


@pytest.mark.gpu
def test_a_tensor_may_end_during_a_capture(budget):
    """The deletion calls no driver, so the capture goes on; its own tensor stays until after the replay."""
    a, tensor = filled("a", 3)
    other = a.tensor(0, torch.float32, (16,))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        out = tensor * 2
        del other
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == 6).all())
    assert "'a' cannot end" in error_of(a.close)
    del tensor
    a.close()
