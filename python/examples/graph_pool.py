"""CUDA graphs for many batch sizes in the memory of the largest. An output is valid until the next replay of any graph of the pool.

    python python/examples/graph_pool.py [DEVICE]    # cuda:0

A small model is captured for twelve batch sizes, small ones first. The sizes are replayed in random order, and each output is compared
with that of eager code before the next replay. Then the example prints what the pool holds, and what the captures were given.
"""

from __future__ import annotations

import random
import sys

import torch
import weightstream as ws

WIDTH, LAYERS = 1024, 8
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def model(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layer = [torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)]
    return torch.nn.Sequential(*layer * LAYERS).to(device, torch.bfloat16).eval()


@torch.no_grad()
def run(device: str = "cuda:0") -> str:
    torch.cuda.set_device(device)
    net = model(device)
    with ws.torch.GraphPool(device) as pool:
        graphs = {}
        # What lasts is made before the captures: inputs, in one buffer for all sizes, and what the first pass makes.
        inputs = ws.torch.GraphInputs(x=torch.empty(max(SIZES), WIDTH, device=device, dtype=torch.bfloat16))
        for n in SIZES:
            x = inputs.views(x=(n, WIDTH))["x"]
            net(x)
            graph = pool.graph()
            with pool.capture(graph):
                y = net(x)
            graphs[n] = graph, y
        report = pool.report()
        draw = random.Random(0)
        for _ in range(100):
            n = draw.choice(SIZES)
            graph, y = graphs[n]
            # A batch that is smaller than what was captured: the rest is zeros.
            batch = torch.randn(draw.randint(n // 2 + 1, n), WIDTH, device=device, dtype=torch.bfloat16)
            x = inputs.write({"x": (n, WIDTH)}, x=batch)["x"]
            graph.replay()
            if not torch.equal(y, net(x)):
                raise SystemExit(f"batch {n}: the replay differs from eager code")
        del graph, x, y
        graphs.clear()
    given = sum(one["bytes"] for one in report["captures"])
    largest = max(one["bytes"] for one in report["captures"])
    return (
        f"{len(SIZES)} graphs, 100 replays in random order: all equal eager code\n"
        f"the pool holds {report['bytes'] >> 20} MB; its captures were given {given >> 20} MB, the largest {largest >> 20} MB"
    )


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("graphs are of a GPU, and there is none that PyTorch can use")
    print(run(*sys.argv[1:2]))
