#!/usr/bin/env python3
"""Memory of `torch.cuda.graph` captures over many batch sizes: PyTorch's private pools, its shared pool, and a GraphPool.

A decoder of 16 layers is captured for 30 batch sizes, small ones first and large ones first. Memory is what the driver says
(cuMemGetInfo), less what it said before, and what the GraphPool reports. Each kind also captures the largest size alone. With the
GraphPool, replays in random order are compared with eager code, bit by bit. Prints a Markdown table, and with `--out` the figures, one
JSON object per line.

    python benches/gpu/graph_pool.py --out graph_pool.jsonl
    python benches/gpu/graph_pool.py --small
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import Results

MB = 1 << 20


class Layer(torch.nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        linear = lambda of, to: torch.nn.Linear(of, to, bias=False)  # noqa: E731
        self.norm, self.qkv, self.out = torch.nn.RMSNorm(width), linear(width, 3 * width), linear(width, width)
        self.norm2, self.up, self.down = torch.nn.RMSNorm(width), linear(width, 2 * hidden), linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, tokens, 3, width // 128, 128).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, tokens, width))
        gate, value = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Decoder(torch.nn.Module):
    def __init__(self, layers: int, width: int, hidden: int, vocabulary: int):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.layers = torch.nn.ModuleList(Layer(width, hidden) for _ in range(layers))
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def used() -> int:
    """Bytes of the device that are taken, after everything that can go has gone."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


class Captures:
    """Graphs of one kind of pool: `private`, `shared` or `ours`."""

    def __init__(self, kind: str, model: torch.nn.Module, tokens: int):
        import weightstream as ws

        self.kind, self.model, self.tokens = kind, model, tokens
        self.pool = {"private": lambda: None, "shared": torch.cuda.graph_pool_handle, "ours": lambda: ws.torch.GraphPool("cuda:0")}[kind]()
        self.graphs: dict[int, tuple] = {}

    def capture(self, batch: int) -> None:
        x = torch.zeros(batch, self.tokens, dtype=torch.int64, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = self.pool.graph() if self.kind == "ours" else torch.cuda.CUDAGraph()
        with self.pool.capture(graph) if self.kind == "ours" else torch.cuda.graph(graph, pool=self.pool):
            y = self.model(x)
        self.graphs[batch] = graph, x, y

    def differences(self, replays: int, vocabulary: int) -> int:
        """Replays in random order whose output is not, bit by bit, that of eager code."""
        draw, wrong = random.Random(0), 0
        for _ in range(replays):
            graph, x, y = self.graphs[draw.choice(list(self.graphs))]
            x.random_(vocabulary)
            graph.replay()
            wrong += not torch.equal(y, self.model(x))
        return wrong

    def close(self) -> None:
        self.graphs.clear()
        gc.collect()
        if self.kind == "ours":
            self.pool.close()
        self.pool = None


def measured(kind: str, order: list[int], model: torch.nn.Module, args: argparse.Namespace) -> dict:
    before, began = used(), time.perf_counter()
    captures = Captures(kind, model, args.tokens)
    for batch in order:
        captures.capture(batch)
    seconds = time.perf_counter() - began
    row = {"kind": kind, "order": "small first" if order[0] < order[-1] else "large first", "graphs": len(order)}
    row |= {"driver_bytes": used() - before, "capture_seconds": round(seconds, 2)}
    if kind == "ours":
        report = captures.pool.report()
        row["report_bytes"] = report["bytes"]
        row["given_bytes"] = sum(one["bytes"] for one in report["captures"])
        row["largest_bytes"] = max(one["bytes"] for one in report["captures"])
    row["wrong_replays"] = captures.differences(args.replays, args.vocabulary)
    captures.close()
    row["left_bytes"] = used() - before
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="2 layers and 6 batch sizes, to see that it runs")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--replays", type=int, default=60)
    parser.add_argument("--kinds", nargs="+", default=["private", "shared", "ours"])
    parser.add_argument("--out", type=Path, default=Path("graph_pool.jsonl"))
    args = parser.parse_args()
    layers, width, hidden, args.vocabulary = (2, 512, 1024, 1000) if args.small else (16, 2048, 5632, 32000)
    sizes = [1, 2, 4, 8, 16, 64] if args.small else [1, 2, 4] + [8 * n for n in range(1, 28)]
    results = Results(args.out, layers=layers, width=width, tokens=args.tokens)
    torch.manual_seed(0)
    with torch.no_grad(), torch.device("cuda"):
        model = Decoder(layers, width, hidden, args.vocabulary).to(torch.bfloat16).eval()
        # Kernels and workspaces of all sizes are there before anything is measured.
        for batch in sizes:
            model(torch.zeros(batch, args.tokens, dtype=torch.int64))
        print("| pool | order | graphs | driver, MiB | report, MiB | over the largest alone | captures, s | wrong replays |", flush=True)
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for kind in args.kinds:
            alone = 0
            for order in [sizes[-1:], sizes, sizes[::-1]]:
                row = measured(kind, order, model, args)
                if len(order) == 1:
                    alone, row["order"] = row.get("report_bytes", row["driver_bytes"]), "the largest alone"
                row["over_alone"] = round(row.get("report_bytes", row["driver_bytes"]) / max(alone, 1), 3)
                results.write(**row)
                report = f"{row['report_bytes'] / MB:.0f}" if "report_bytes" in row else ""
                print(
                    f"| {kind} | {row['order']} | {row['graphs']} | {row['driver_bytes'] / MB:.0f} | {report} | {row['over_alone']} "
                    f"| {row['capture_seconds']} | {row['wrong_replays']} of {args.replays} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
