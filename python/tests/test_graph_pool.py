"""Graph pools: on the CPU what the allocator's callbacks do, on a GPU captures and replays of PyTorch's own graphs."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import fake_driver
import pytest
import torch
import weightstream as ws
from graph_pool_calls import MB, alloc, capture, free
from support import HERE, error_of
from weightstream._run.graph_pool import GraphPool

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

ON_GPU = torch.cuda.is_available()
gpu = pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")


@pytest.fixture
def budget():
    """`budget(bytes)`: the CPU's memory."""
    yield lambda bytes: ws.set_device_budget("cpu", bytes)
    gc.collect()
    ws.Range("cpu", 1).close()
    assert ws.device_report("cpu")["range_bytes"] == 0, "memory was not given back"
    ws.set_device_budget("cpu", "auto")


def held() -> int:
    return ws.device_report("cpu")["range_bytes"]


def test_captures_share_bytes_at_their_own_addresses(budget):
    budget(8 * MB)
    with GraphPool("cpu", 4 * MB) as pool:
        captures = [capture(pool, *sizes) for sizes in ([MB], [MB // 2, MB, MB], [2 * MB])]
        assert held() == pool.report()["bytes"] == 3 * MB
        firsts = [pieces[0] for _, pieces in captures]
        assert len(set(firsts)) == 3
        for value, at in enumerate(firsts, 1):
            ctypes.memset(at, value, MB // 2)
            assert [ctypes.string_at(other, 3) for other in firsts] == [bytes([value] * 3)] * 3
        # The second piece of the second capture is the rest of the first piece of the first.
        ctypes.memset(captures[1][1][1], 9, 1)
        assert ctypes.string_at(firsts[0] + MB // 2, 1) == b"\x09"
        for number, pieces in captures:
            pool._call("release", number)
            for at in pieces:
                free("graph_pool", at)


def test_a_cap_and_a_budget_are_refused_with_both_numbers(budget):
    budget(2 * MB)
    with GraphPool("cpu", 4 * MB, "small") as pool:
        pool._begin()
        assert alloc("graph_pool", 5 * MB) is None
        assert (
            "5242880 bytes (5.0 MB) for a capture of graph pool 'small', which has 0 bytes of a cap of 4194304 bytes (4.0 MB)"
            in pool.report()["refused"]
        )
        assert alloc("graph_pool", 3 * MB) is None
        refused = pool.report()["refused"]
        assert "'small', which holds 0 bytes: the device's budget is taken" in refused
        # It failed, and leaves nothing.
        pool._call("end", 0)
        assert (held(), pool.report()["captures"]) == (0, [])
        number, pieces = capture(pool, 2 * MB)
        assert pool.report()["refused"] is None
        pool._call("release", number)
        assert held() == 2 * MB, "its piece lives"
        assert "captures that were not released, or whose tensors live: 1" in error_of(pool.close)
        free("graph_pool", pieces[0])


def test_mistakes_are_named(budget):
    budget(4 * MB)
    assert alloc("graph_pool", MB) is None, "no capture runs"
    assert "no device 'gpu'" in error_of(lambda: GraphPool("gpu"))
    with GraphPool("cpu", MB, "a") as a, GraphPool("cpu", MB, "b") as b:
        number = a._begin()
        assert "runs on cpu already" in error_of(b._begin)
        assert alloc("graph_pool", MB, 0) is None, "none runs on cuda:0"
        assert "capture 1 has not ended" in error_of(lambda: a._call("enter", number, None))
        a._call("end", 1)
        a._call("enter", number, None)
        assert "capture 7 is unknown" in error_of(lambda: a._call("enter", 7, None))
        assert "takes a graph of this pool's graph()" in error_of(lambda: a.capture(object()).__enter__())
        assert "takes a graph of this pool" in error_of(lambda: a.release(object()))
        a._call("release", number)
        assert "was released" in error_of(lambda: a._call("enter", number, None))
    assert "is closed" in error_of(a.report)


def test_segments_press_weights_out(budget):
    budget(4 * MB)
    with ws.Range("cpu", 4 * MB, "weights") as weights:
        for at in range(4):
            weights.fault(weights.alloc(MB))
            weights.unpin(at)
        assert held() == 4 * MB
        segment = alloc("segment", 3 * MB)
        assert segment
        ctypes.memset(segment, 1, 3 * MB)
        assert (held(), weights.residency()["resident_bytes"]) == (4 * MB, MB)
        assert alloc("segment", 5 * MB) is None
        free("segment", segment)
        assert held() == MB
        assert weights.fault(3).refused, "it stays out"
        weights.prioritize()
        assert weights.fault(3).fill
        weights.unpin(3)


#: A driver that maps memory files, refuses memory to a thread that may not break a capture, and counts.
DRIVER = (
    fake_driver.VERSION.format(13000)
    + """
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int memfd_create(const char *, unsigned);
typedef unsigned long long u64;
static __thread int mode;
static int live, mappings, unrelaxed;
int fake_live(void) { return live; }
int fake_mappings(void) { return mappings; }
int fake_unrelaxed(void) { return unrelaxed; }
static int seen(void) { if (mode != 2) ++unrelaxed; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGetName(char *name, int n, int d) { strcpy(name, "made for a test"); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)8; return 0; }
int cuCtxGetCurrent(void **c) { *c = (void *)8; return 0; }
int cuStreamGetCtx(void *s, void **c) { *c = (void *)8; return 0; }
int cuMemGetAllocationGranularity(size_t *n, const void *p, int o) { *n = 2 << 20; return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = *t = 8ull << 30; return 0; }
int cuThreadExchangeStreamCaptureMode(int *m) { int before = mode; mode = *m; *m = before; return 0; }
int cuMemAddressReserve(u64 *p, size_t n, size_t a, u64 b, u64 c) {
  *p = (u64)mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return 0;
}
int cuMemAddressFree(u64 p, size_t n) { munmap((void *)p, n); return 0; }
int cuMemCreate(u64 *h, size_t n, const void *p, u64 f) {
  *h = memfd_create("unit", 0);
  ++live;
  ftruncate(*h, n);
  return seen();
}
int cuMemRelease(u64 h) { --live; return close(h); }
int cuMemMap(u64 p, size_t n, size_t o, u64 h, u64 f) {
  ++mappings;
  mmap((void *)p, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h, 0);
  return seen();
}
int cuMemUnmap(u64 p, size_t n) {
  --mappings;
  mmap((void *)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return seen();
}
"""
)
ON_DRIVER = """
import ctypes
import weightstream as ws
from graph_pool_calls import MB, alloc, capture, free

driver = ctypes.CDLL("libcuda.so.1")
ws.set_device_budget("cuda:0", 256 * MB)
pool = ws.torch.GraphPool("cuda:0", 70 * MB)
captures = [capture(pool, *sizes, device=0) for sizes in ([20 * MB], [20 * MB, 50 * MB], [2 * MB, 40 * MB])]
# Units of 32 MB, the third one short: 1 + 3 + 2 of them show elsewhere as well.
print(pool.report()["bytes"] // MB, driver.fake_live(), driver.fake_mappings())
first, second = captures[0][1][0], captures[1][1][0]
ctypes.memset(first + 5, 7, 1)
print(ctypes.string_at(second + 5, 1))
ctypes.memset(captures[2][1][1] + 30 * MB, 8, 1)
print(ctypes.string_at(captures[1][1][1] + 12 * MB, 1))
number, pieces = captures[1]
pool._call("release", number)
for at in pieces:
    free("graph_pool", at, device=0)
pool._call("enter", captures[0][0], None)
pool._call("enter", captures[2][0], 4096)
# Looks at what was released, and leaves nothing.
pool._begin()
pool._call("end", 0)
print(pool.report()["bytes"] // MB, driver.fake_live(), driver.fake_mappings())
segment = alloc("segment", 34 * MB, device=0)
print(driver.fake_live())
free("segment", segment, device=0)
for number, pieces in (captures[0], captures[2]):
    for at in pieces:
        free("graph_pool", at, device=0)
    pool._call("release", number)
pool._call("destroy")
pool._handle = None
print(driver.fake_live(), driver.fake_mappings(), driver.fake_unrelaxed())
"""


@pytest.mark.cpu_only("PyTorch with CUDA calls functions that this driver lacks")
def test_the_gpu_code_on_a_driver_made_for_it(tmp_path):
    """One handle shows at many addresses, and threads may map while others capture."""
    environment = os.environ | fake_driver.build(tmp_path / "driver", DRIVER)
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
    run = subprocess.run([sys.executable, "-c", ON_DRIVER], capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["70 3 9", r"b'\x07'", r"b'\x08'", "64 2 5", "4", "0 0 0"], run.stdout + run.stderr


@pytest.mark.skipif(ON_GPU, reason="says what is missing without a GPU")
def test_without_a_gpu_it_is_said():
    assert "none that PyTorch can use" in error_of(ws.torch.pool)
    assert ws.torch.GraphPool is GraphPool


# --- on a GPU


def model(width: int = 512, layers: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    parts = [
        part for _ in range(layers) for part in (torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))
    ]
    return torch.nn.Sequential(*parts).cuda().eval()


def captured(pool: GraphPool, net: torch.nn.Module, x: torch.Tensor):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        net(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = pool.graph()
    with pool.capture(graph):
        y = net(x)
    return graph, x, y


@gpu
@torch.no_grad()
def test_replays_in_any_order_equal_eager():
    net = model()
    sizes = [1, 4096, 64, 8192, 512]
    with ws.torch.GraphPool("cuda:0") as pool:
        most, graphs = 0, []
        for n in sizes:
            graphs.append(captured(pool, net, torch.randn(n, 512, device="cuda")))
            most = max(most, pool.report()["captures"][-1]["bytes"])
        assert pool.report()["bytes"] < most + 32 * MB
        draw = random.Random(1)
        for _ in range(20):
            graph, x, y = draw.choice(graphs)
            x.normal_()
            graph.replay()
            assert torch.equal(y, net(x))
        del graph, x, y, graphs
        gc.collect()


@gpu
@torch.no_grad()
def test_pieces_of_a_group_keep_each_others_memory():
    """Prefill in pieces: what is not captured runs between them, and reads what the piece before has written."""
    before, after = model(512, 2), model(512, 2)
    inputs = ws.torch.GraphInputs(x=torch.empty(4096, 512, device="cuda"))

    def attention(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x[-64:] @ x.t(), -1) @ x

    with ws.torch.GraphPool("cuda:0") as pool:
        graphs, alone = {}, 0
        for n in (64, 4096, 512, 1024, 256):
            x = inputs.views(x=(n, 512))["x"]
            rows = torch.zeros(64, 512, device="cuda")
            after(attention(before(x)))
            first, second = pool.graph(), pool.graph()
            with pool.capture(first, group=n):
                middle = before(x)
            with pool.capture(second, group=n):
                y = after(rows)
            graphs[n] = first, second, middle, rows, y
            alone = max(alone, pool.report()["captures"][-1]["bytes"])
        report = pool.report()
        assert len(report["captures"]) == len(graphs)
        assert report["bytes"] < alone + 32 * MB
        draw = random.Random(2)
        for _ in range(20):
            n = draw.choice(list(graphs))
            first, second, middle, rows, y = graphs[n]
            x = inputs.write({"x": (n, 512)}, x=torch.randn(n - 5, 512, device="cuda"))["x"]
            first.replay()
            rows.copy_(attention(middle))
            second.replay()
            expected = before(x)
            assert torch.equal(middle, expected)
            assert torch.equal(y, after(attention(expected)))
        graphs[64][0].replay()
        assert "from its first piece on" in error_of(graphs[512][1].replay)
        # The last of a group gives its memory back.
        pool.release(graphs[4096][0])
        held = pool.report()["bytes"]
        pool.release(graphs[4096][1])
        del first, second, middle, rows, y, expected, graphs[4096]
        gc.collect()
        torch.cuda.empty_cache()
        pool.release(graphs[64][0])
        pool.release(graphs[64][1])
        assert pool.report()["bytes"] < held
        graphs.clear()
        gc.collect()


@gpu
def test_prompts_of_many_lengths(capsys):
    """The example: attention of a decoder between the graphs of what is around it."""
    import prefill_graphs

    prefill_graphs.main(["cuda:0"])
    found = capsys.readouterr().out
    assert "8 lengths in 72 graphs; 20 prompts: the same as eager code" in found
    held, _, longest = (int(one) for one in re.findall(r"(\d+) MB", found))
    assert held <= longest + 32


@gpu
@torch.no_grad()
def test_two_gemms_in_turn():
    """Their workspaces are not at each other's addresses."""
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    with ws.torch.GraphPool("cuda:0") as pool:
        first = captured(pool, lambda x: x @ weight, torch.randn(3, 4096, device="cuda", dtype=torch.bfloat16))
        second = captured(pool, lambda x: x @ weight.t(), torch.randn(7, 4096, device="cuda", dtype=torch.bfloat16))
        expected = [first[1] @ weight, second[1] @ weight.t()]
        for _ in range(10):
            for (graph, _, y), result in zip((first, second), expected, strict=True):
                graph.replay()
                assert torch.equal(y, result)
        pool.release(first[0])
        second[0].replay()
        assert torch.equal(second[2], expected[1])
        assert "was released" in error_of(first[0].replay)
        del first, second, graph, y


@gpu
@torch.no_grad()
def test_replays_on_two_streams_do_not_overlap():
    net = model(1024, 6)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with ws.torch.GraphPool("cuda:0") as pool:
        graphs = [captured(pool, net, torch.randn(n, 1024, device="cuda")) for n in (2048, 4096)]
        expected = [net(x) for _, x, _ in graphs]
        torch.cuda.synchronize()
        for turn in range(20):
            graph, _, y = graphs[turn % 2]
            with torch.cuda.stream(streams[turn % 2]):
                graph.replay()
                copy = y.clone()
            if turn == 19 or turn == 18:
                torch.cuda.synchronize()
                assert torch.equal(copy, expected[turn % 2])
        del graph, graphs, y


@gpu
@torch.no_grad()
def test_a_capture_that_fails_leaves_everything_as_it_was():
    net = model()
    x = torch.randn(64, 512, device="cuda")
    with ws.torch.GraphPool("cuda:0", 256 * MB, "g") as pool:
        kept = captured(pool, net, x)
        before, stream = pool.report(), torch.cuda.current_stream()

        def broken(fails) -> str:
            graph = pool.graph()
            text = ""
            try:
                with pool.capture(graph):
                    net(x)
                    fails()
            except Exception as error:
                text = str(error)
            assert text, "it did not fail"
            gc.collect()
            assert torch.cuda.current_stream() == stream
            # A graph that failed is captured again.
            with pool.capture(graph):
                net(x)
            pool.release(graph)
            assert pool.report()["bytes"] == before["bytes"]
            assert len(pool.report()["captures"]) == len(before["captures"])
            return text

        def mine():
            raise ValueError("mine")

        assert broken(mine) == "mine"
        broken(torch.cuda.synchronize)
        assert "'g', which has" in broken(lambda: torch.empty(257 * MB, dtype=torch.uint8, device="cuda"))
        kept[0].replay()
        assert torch.equal(kept[2], net(x))
        assert torch.equal(net(x), net(x.clone()))
        del kept


@gpu
@torch.no_grad()
def test_what_is_captured_lasts_as_long_as_its_tensors():
    with ws.torch.GraphPool("cuda:0") as pool:
        graph, _, y = captured(pool, lambda x: x * 2, torch.ones(1 << 20, device="cuda"))
        graph.replay()
        pool.release(graph)
        assert pool.report()["captures"][0]["ended"]
        assert torch.equal(y, torch.full_like(y, 2))
        assert "whose tensors live: 1" in error_of(pool.close)
        del graph, y
        gc.collect()


@gpu
@torch.no_grad()
def test_activations_press_weights_out():
    device = "cuda:0"
    ws.set_device_budget(device, 256 * MB)
    try:
        with ws.Range(device, 256 * MB, "weights") as weights:
            for at in range(8):
                fault = weights.fault(weights.alloc(32 * MB))
                assert fault.fill
                weights.tensor(at, torch.uint8, (32 * MB,)).fill_(at)
                weights.unpin(at)
            activations = ws.torch.pool()
            with torch.cuda.use_mem_pool(activations):
                x = torch.ones(100 * MB, dtype=torch.uint8, device=device)
            assert weights.residency()["resident_bytes"] <= 160 * MB
            assert int(x.sum(dtype=torch.int64)) == 100 * MB
            assert weights.fault(0).hit
            assert torch.equal(weights.tensor(0, torch.uint8, (32 * MB,)), torch.zeros(32 * MB, dtype=torch.uint8, device=device))
            weights.unpin(0)
            del x, activations
            torch.cuda.empty_cache()
            weights.prioritize()
            assert weights.fault(7).fill
            weights.unpin(7)
        assert ws.device_report(device)["range_bytes"] == 0
    finally:
        ws.set_device_budget(device, "auto")
