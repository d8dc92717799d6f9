#!/usr/bin/env python3
"""How much memory an export of several methods takes, as a multiple of their weights.

`export_memory.py [--mib 1024] [--methods 2] [--stock] [--most 2.2]` builds a model of so many MiB, exports it as several methods over
the same weights, and compares the most memory that this process ever had, less what it had before the model was built, with the
weights. It ends with status 1 if that is more than `--most` times the weights. With `--stock`, ExecuTorch's own writers write the files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

WIDTH = 2048
MIB = 1 << 20


def status(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) << 10


def export(mib: int, methods: int, stock: bool, folder: Path) -> tuple[int, int]:
    """Bytes of the weights, and the most that were held beside what was there before."""
    import torch
    import weightstream as ws
    import weightstream._export.compile.backend
    from executorch.exir import to_edge_transform_and_lower
    from torch import nn

    before = status("VmRSS")
    layers = max(1, mib * MIB // (WIDTH * WIDTH * 4))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).requires_grad_(False)
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    programs = {f"method{rows}": torch.export.export(model, (torch.zeros(rows, WIDTH),)) for rows in range(2, methods + 2)}
    edge = to_edge_transform_and_lower(programs, partitioner=[ws.WeightStreamPartitioner()], compile_config=ws.edge_compile_config())
    if stock:
        program = edge.to_executorch()
        with (folder / "model.pte").open("wb") as file:
            program.write_to_file(file)
        program.write_tensor_data_to_file(str(folder))
    else:
        ws.save(edge, folder / "model.pte", folder / "model.ptd", check=False)
    return weights, status("VmHWM") - before


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--methods", type=int, default=2)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--most", type=float, default=2.2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        weights, most = export(given.mib, given.methods, given.stock, Path(folder))
        written = sum(path.stat().st_size for path in Path(folder).glob("*.ptd"))
    print(
        f"{given.methods} methods, weights {weights // MIB} MiB, .ptd {written // MIB} MiB: at most {most // MIB} MiB, "
        f"{most / weights:.2f} x the weights"
    )
    return int(most > given.most * weights)


if __name__ == "__main__":
    sys.exit(main())
