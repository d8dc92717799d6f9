#!/usr/bin/env python3
"""Programs that were exported without a GPU, run on one: each at its floor and with everything resident, compared with eager PyTorch.

`export` needs no GPU and writes each program with its inputs and eager outputs; `run` needs the GPU that they were exported for,
and the release of torch that exported them.

    python benches/gpu/untuned.py export gpu-programs --sm 90
    python benches/gpu/untuned.py run gpu-programs
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

#: The largest difference, relative to the largest output.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
#: More than any of these programs weighs, in MiB.
RESIDENT_MB = 256


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (96, 256, 256, 64)
        self.layers = nn.ModuleList(nn.Linear(one, other) for one, other in itertools.pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.grouped, self.last = nn.Conv2d(32, 64, 3, stride=2, groups=4), nn.Conv2d(64, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.grouped(x))).mean((2, 3))


class Chosen(nn.Module):
    """Kernels with int64 indices: sorting, the best experts of each row, rows by number."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.table = nn.Linear(64, 16), nn.Embedding(100, 64)

    def forward(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.table(numbers)
        scores, experts = torch.topk(torch.softmax(self.router(x), -1), 2)
        order = torch.argsort(numbers, stable=True)
        return scores, experts, x[order].cumsum(0)


@dataclasses.dataclass
class Program:
    model: Callable[[], nn.Module]
    passes: list[tuple[torch.Tensor, ...]]
    dtype: torch.dtype = torch.float32
    attention: str = "math"
    dynamic: Any = None


def decoder() -> nn.Module:
    """The tests' decoder with a cache, one token at a time."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "tests"))
    from models import CachedDecoder

    return CachedDecoder(vocabulary=256, dim=128, heads=4, layers=1, length=32)


def llama() -> nn.Module:
    import llama as measured

    measured.VOCABULARY = 512
    return measured.Llama(2, 256, 4, 688)


def tokens(*counts: int) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randint(0, 512, (1, count)),) for count in counts]


def programs() -> dict[str, Program]:
    torch.manual_seed(0)
    rows = [(torch.randn(8, 96),) for _ in range(2)]
    lengths = {"tokens": {1: torch.export.Dim("length", min=2, max=256)}}
    return {
        "mlp": Program(Mlp, rows),
        "mlp_bf16": Program(Mlp, [(x.bfloat16(),) for (x,) in rows], torch.bfloat16),
        "llama_math": Program(llama, tokens(64, 64), torch.bfloat16),
        "llama_fused": Program(llama, tokens(64, 2, 17, 200, 256), torch.bfloat16, "auto", lengths),
        "decode": Program(decoder, [(torch.tensor([[7 * at % 256]]), torch.tensor([at])) for at in range(6)]),
        "conv": Program(Convolutions, [(torch.randn(2, 3, 24, 24),) for _ in range(2)]),
        "chosen": Program(Chosen, [(torch.randint(0, 100, (20,)),) for _ in range(2)]),
    }


def export(folder: Path, sm: str, only: list[str]) -> None:
    import weightstream as ws
    from executorch.exir import to_edge_transform_and_lower

    folder.mkdir(parents=True, exist_ok=True)
    for name, program in programs().items():
        if only and name not in only:
            continue
        begin = time.monotonic()
        torch.manual_seed(1)
        model = program.model().to(program.dtype).eval().requires_grad_(False)
        marked = ws.apply_weight_offload(torch.export.export(model, program.passes[0], dynamic_shapes=program.dynamic))
        partitioner = ws.WeightStreamPartitioner(device="cuda", sm=sm, attention=program.attention)
        edge = to_edge_transform_and_lower(marked, partitioner=[partitioner], compile_config=ws.edge_compile_config())
        ws.save(edge, folder / f"{name}.pte", folder / f"{name}.ptd")
        expected = [as_list(model(*inputs)) for inputs in program.passes]
        torch.save({"passes": program.passes, "expected": expected}, folder / f"{name}.pt")
        print(f"{name}: exported for SM {sm} with torch {torch.__version__} in {time.monotonic() - begin:.0f} s", flush=True)


def as_list(outputs: Any) -> list[torch.Tensor]:
    return [outputs.clone()] if isinstance(outputs, torch.Tensor) else [one.clone() for one in outputs]


def run(folder: Path, only: list[str]) -> bool:
    """Whether all programs were right, and gave the same bits at both budgets."""
    import weightstream as ws

    right = True
    for saved in sorted(folder.glob("*.pt")):
        if only and saved.stem not in only:
            continue
        about = torch.load(saved)
        found = {}
        for budget, specs in {"floor": {}, "resident": {"weight_offload_budget_mb": RESIDENT_MB}}.items():
            module = ws.Module(str(saved.with_suffix(".pte")), str(saved.with_suffix(".ptd")), **specs)
            found[budget] = [as_list(module.forward(*inputs)) for inputs in about["passes"]]
            error = max(distance(one, other) for one, other in zip(flat(found[budget]), flat(about["expected"])))
            good = error <= 1
            print(f"{saved.stem} {budget}: {'right' if good else 'WRONG'}, {error:.3f} of what is allowed", flush=True)
            right &= good
            module.close()
        same = all(torch.equal(one, other) for one, other in zip(*map(flat, found.values())))
        print(f"{saved.stem}: {'the same bits' if same else 'OTHER BITS'} at both budgets")
        right &= same
    return right


def flat(passes: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [one for outputs in passes for one in outputs]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a share of what is allowed. Integers must be the same."""
    if found.shape != expected.shape or found.dtype != expected.dtype or not found.isfinite().all():
        return float("inf")
    if not found.is_floating_point():
        return 0.0 if torch.equal(found, expected) else float("inf")
    scale = expected.abs().max().clamp(min=1e-6) * TOLERANCES[found.dtype]
    return float((found.double() - expected.double()).abs().max() / scale)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("export", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sm", default="90")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    args = parser.parse_args()
    with torch.no_grad():
        if args.step == "run":
            return 0 if run(args.folder, args.only) else 1
        export(args.folder, args.sm, args.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
