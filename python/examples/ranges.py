"""Three eager models under one budget, by faults: what fits stays, the rest is copied as it is needed.

    python python/examples/ranges.py [DEVICE]    # cpu, or cuda:0

Each weight is faulted before its layer and unpinned after it. Where the fault is refused, the layer uses a temporary. No code here
counts memory. Every output is compared with that of the same model whose weights are all in place.
"""

from __future__ import annotations

import sys

import torch
import weightstream as ws

MB = 1 << 20
WIDTH, LAYERS = 1024, 12
#: Weights of a layer take 4 MB: one and a half of the three models fit.
BUDGET = 72 * MB


class Offloaded:
    """Linear layers in host memory, with a range for those that fit on the device."""

    def __init__(self, name: str, device: str):
        self.device = device
        self.host = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(LAYERS)]
        bytes = self.host[0].nbytes
        self.range = ws.Range(device, LAYERS * bytes, name)
        self.allocs = [self.range.alloc(bytes) for _ in self.host]
        self.copied = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for alloc, host in zip(self.allocs, self.host, strict=True):
            fault = self.range.fault(alloc)
            if fault.refused:
                weight = host.to(self.device, copy=True)
            else:
                weight = self.range.tensor(alloc, host.dtype, host.shape)
                if fault.fill:
                    weight.copy_(host)
            self.copied += 0 if fault.hit else host.nbytes
            x = torch.relu(x @ weight)
            if not fault.refused:
                self.range.unpin(alloc)
        return x

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        for host in self.host:
            x = torch.relu(x @ host.to(self.device))
        return x


def row(phase: str, models: list[Offloaded]) -> str:
    cells = []
    for model in models:
        found = model.range.residency()
        cells.append(f"{found['resident_bytes'] / MB:8.0f} {model.copied / MB:8.0f} {sum(found['refused'].values()):8}")
        model.copied = 0
    return f"{phase:<28}" + "  |".join(cells)


@torch.no_grad()
def run(device: str = "cpu") -> tuple[str, float]:
    """Plays all phases: a table, and the largest error."""
    torch.manual_seed(1)
    ws.set_device_budget(device, BUDGET)
    models = [Offloaded(name, device) for name in ("a", "b", "c")]
    x = torch.randn(4, WIDTH, device=device)
    worst = 0.0
    lines = ["MB: held, copied; faults refused so far", " " * 28 + "  |".join(f"{name:^26}" for name in "abc")]
    phases = [
        ("in turn, 4 rounds", [0, 1, 2] * 4, None),
        ("a is used again, 4 passes", [0] * 4, 0),
        ("in turn, 4 rounds", [0, 1, 2] * 4, None),
    ]
    for phase, turns, first in phases:
        if first is not None:
            models[first].range.prioritize()
        for at in turns:
            error = (models[at](x) - models[at].expected(x)).abs().max()
            worst = max(worst, float(error))
        lines.append(row(phase, models))
    for model in models:
        model.range.close()
    ws.set_device_budget(device, "auto")
    return "\n".join(lines), worst


def main() -> None:
    text, worst = run(*sys.argv[1:2])
    print(text)
    print(f"largest error: {worst}")


if __name__ == "__main__":
    main()
