"""A program whose first kernel stores into a weight: doctored behind the checks of the export, and run.

`python storing_child.py FOLDER '{"weight_offload_sync": 1}'` prints the error of the pass as JSON, last line. Where a store into a weight ends
the process, it prints nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import weightstream as ws
from device_under_test import DEVICE
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch._inductor.codegen import wrapper as lines
from weightstream._export.compile.trace import CompiledTrace, _Reader

READ = _Reader.read

SIDE = 1024  # 4 MiB of float32: some pages of a GPU


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("first", "second", "third", "fourth"):
            self.register_parameter(name, nn.Parameter(torch.randn(SIDE, SIDE)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) + self.first) @ self.second @ self.third @ self.fourth


def read_and_doctor(self: _Reader) -> CompiledTrace:
    """Behind all checks: the first kernel that reads a weight gets it as its output too."""
    trace = READ(self)
    for line in self.wrapper.lines:
        if isinstance(line, lines.KernelCallLine):
            buffers = [at for at, name in enumerate(line.call_args) if str(name) in self.graph.name_to_buffer]
            weights = [at for at in buffers if str(line.call_args[at]) in self.buffers]
            if weights:
                line.call_args[buffers[-1]] = line.call_args[weights[0]]
                return trace
    raise AssertionError("no kernel reads a weight")


def export(pte: Path, ptd: Path) -> None:
    _Reader.read = read_and_doctor
    program = torch.export.export(Chain().eval(), (torch.randn(SIDE, SIDE),))
    edge = to_edge_transform_and_lower(
        ws.apply_weight_offload(program),
        partitioner=[ws.WeightStreamPartitioner(device=DEVICE)],
        compile_config=ws.edge_compile_config(),
    )
    ws.save(edge, str(pte), str(ptd))


def error_of_a_pass(module: ws.Module) -> str:
    try:
        module(torch.randn(SIDE, SIDE))
    except ws.Error as error:
        return str(error)
    return ""


def main(folder: Path, specs: dict) -> None:
    pte, ptd = folder / "storing.pte", folder / "storing.ptd"
    if not ptd.exists():
        export(pte, ptd)
    with ws.Module(pte, ptd, **specs) as module:
        print(json.dumps({"told": error_of_a_pass(module), "again": error_of_a_pass(module)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
