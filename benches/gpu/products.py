#!/usr/bin/env python3
"""Products with quantized weights on a GPU, each alone: against bf16's and against a copy of the bytes.

    python benches/gpu/products.py --out products.jsonl

The shapes are those of an 8B decoder and a piece of its head. For one row `read` is the speed at which the weight is read, as a share of
the bytes that a copy reads and writes in a second; for 512 rows the time over bf16's counts. Milliseconds are medians of graphs; between two runs
others are read, more than the cache has.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import triton.testing
from measure import Results

#: Rows and columns of a weight, and elements that have a scale.
SHAPES = [(14336, 4096, 32), (14336, 4096, 128), (4096, 14336, 32), (4096, 4096, 32), (16384, 4096, 32)]


#: Bytes that a run reads, so that the cache has none of them in the next one.
READ = 1 << 28


def weights(kind: str, n: int, k: int, group: int) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], int]:
    """Several of them."""
    generator = torch.Generator("cuda").manual_seed(n)
    group, width = (group, k // 2) if kind == "int4" else (k, k)
    found = []
    while sum(packed.nbytes for packed, _ in found) < READ:
        packed = torch.randint(-128, 128, (n, width), generator=generator, device="cuda").to(torch.int8)
        packed = (packed / 16).to(torch.float8_e4m3fn) if kind == "fp8" else packed
        found.append((packed, torch.full((n, k // group), 1 / 64, device="cuda", dtype=torch.bfloat16)))
    return found, group


def each_ms(runs: list[Callable]) -> float:
    """Of a run, in a graph of all of them: nothing waits for the processor."""
    return triton.testing.do_bench_cudagraph(lambda: [run() for run in runs], rep=60, return_mode="median") / len(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["int4", "int8", "fp8"])
    parser.add_argument("--out", type=Path, default=Path("products.jsonl"))
    args = parser.parse_args()
    import weightstream._export.passes.quantized_triton  # noqa: F401 - its operators
    from weightstream._export.passes import quantized

    operators = torch.ops.weightstream
    results = Results(args.out, gpu=torch.cuda.get_device_name())
    for n, k, group in SHAPES:
        dense = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(max(READ // (2 * n * k), 1))]
        for rows in (1, 16, 512):
            x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
            plain = each_ms([partial(torch.matmul, x, one.t()) for one in dense])
            for kind in args.kinds:
                if kind != "int4" and group != 32:
                    continue
                packed, of = weights(kind, n, k, group)
                few, many = operators.quantized_few_rows, operators.quantized_many_rows
                how, more = (few, ()) if rows <= 4 else (many, (quantized._tile(rows), False))
                ms = each_ms([partial(how, x, *one, of, *more) for one in packed])
                copy = each_ms([partial(torch.empty_like(one).copy_, one) for one, _ in packed])
                results.write(kind=kind, n=n, k=k, group=of, rows=rows, ms=ms, bf16_ms=plain, over_bf16=ms / plain, read=copy / (2 * ms))


if __name__ == "__main__":
    main()
