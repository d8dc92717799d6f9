"""What is on one GPU touches nothing of another: memory of the other GPU is what it was, and so is what its arbiter says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import weightstream as ws
from support import HERE

pytestmark = pytest.mark.no_export
#: A context of CUDA takes hundreds of MB.
LITTLE_MIB = 16

CHILD = """
import json, sys
import torch
import weightstream as ws

device = "cuda:1"
ws.set_device_budget(device, 512 << 20)
layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
module = torch.nn.Sequential(*layers).requires_grad_(False)
x = torch.randn(64, 1024)
wanted = module.to(device)(x.to(device))
module.to("cpu")
handle = ws.torch.offload(module, shared=True, device=device, name="module")
right = all(torch.equal(module(x.to(device)), wanted) for _ in range(3))

weights = ws.Range(device, 64 << 20, "range")
answer = weights.fault(weights.alloc(32 << 20))
with torch.cuda.device(device):
    segments = ws.torch.pool()
with torch.cuda.use_mem_pool(segments, torch.device(device)):
    activations = torch.ones(64 << 20, dtype=torch.uint8, device=device)

pool = ws.torch.GraphPool(device)
still = torch.nn.Linear(1024, 1024).to(device).requires_grad_(False)
given = torch.randn(64, 1024, device=device)
expected = still(given)
graph = pool.graph()
with pool.capture(graph):
    y = still(given)
graph.replay()
right = right and torch.equal(y, expected) and bool((activations == 1).all())
report = ws.device_report(device)
print(json.dumps({"right": right, "held": report["held_bytes"], "range": report["range_bytes"], "refused": answer.refused}), flush=True)
sys.stdin.readline()
"""


def used_mib() -> list[int]:
    """What is taken of each GPU, by the driver."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_nothing_of_the_first_gpu_is_touched():
    before = used_mib()
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE)
    try:
        line = child.stdout.readline()
        during = used_mib()
    finally:
        child.communicate("\n", timeout=120)
    assert child.returncode == 0
    found = json.loads(line)
    assert found["right"]
    assert found["held"] > 0
    assert found["range"] >= 96 << 20
    assert not found["refused"]
    assert during[0] - before[0] < LITTLE_MIB, (before, during)
    assert during[1] - before[1] > 128, (before, during)


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_one_gpu_that_is_full_presses_nothing_of_the_other():
    for index in range(2):
        ws.set_device_budget(f"cuda:{index}", 64 << 20)
    try:
        with ws.Range("cuda:0", 64 << 20, "first") as first, ws.Range("cuda:1", 64 << 20, "second") as second:
            for one in (first, second):
                alloc = one.alloc(32 << 20)
                assert one.fault(alloc).fill
                one.unpin(alloc)
            before = ws.device_report("cuda:0")
            # More than there is: what it holds goes, and nothing of the first.
            allocs = [second.alloc(16 << 20) for _ in range(2)]
            for alloc in allocs:
                second.fault(alloc)
            second.unpin(allocs)
            assert ws.device_report("cuda:0") == before
            assert first.residency()["resident_bytes"] == 32 << 20
    finally:
        for index in range(2):
            ws.set_device_budget(f"cuda:{index}", "auto")
