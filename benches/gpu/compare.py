"""Measures WeightStream on one NVIDIA GPU against the link, the non-offloaded baseline and other offloaders, in one run.

The model is a stack of Llama-like layers in bf16 with random weights (16 layers and 7.0 GB by default). Prints one Markdown table of
ratios: absolute times belong to one machine, ratios travel. Run it from the repository root, with torch and ExecuTorch installed and
the runtime library built (WEIGHTSTREAM_LIBRARY, or the installed package):

    python benches/gpu/compare.py --layers 16 --tokens 1 --budgets floor 25 50 75 90 100

accelerate and diffusers are measured where they are installed, and named as missing where they are not.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

GB = 1e9


class Layer(nn.Module):
    """Attention without positions and a gated MLP: what counts is the bytes of its weights."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Token numbers in, logits of the last token out."""

    def __init__(self, layers: int, dim: int = 4096, heads: int = 32, hidden: int = 11008, vocabulary: int = 32000):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, -1:]))


def build(layers: int) -> nn.Module:
    """The model on the CPU; every weight is drawn on the GPU, which takes seconds instead of minutes."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Llama(layers)
    model = model.to(torch.bfloat16).to_empty(device="cpu").eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.fill_(1)
        else:
            weight.copy_(torch.randn(weight.shape, device="cuda", dtype=torch.bfloat16) * weight.shape[-1] ** -0.5)
    return model


def median_ms(step: Callable[[], object], passes: int, warm_up: int = 2) -> float:
    """Median time of a synchronised step in milliseconds."""
    times = []
    for number in range(passes + warm_up):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if number >= warm_up:
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def link_ms(weights: list[int]) -> float:
    """Copies of the weights' sizes from pinned memory, one after the other: the link's time for all bytes."""
    largest = max(weights)
    source, target = torch.empty(largest, dtype=torch.uint8).pin_memory(), torch.empty(largest, dtype=torch.uint8, device="cuda")
    return median_ms(lambda: [target[:size].copy_(source[:size], non_blocking=True) for size in weights], 3, 1)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest `|found - expected| / (1 + |expected|)`."""
    return ((found - expected).abs() / (1 + expected.abs())).max().item()


def say(text: str) -> None:
    print(f"compare: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The compiler's autotuning prints hundreds of lines."""
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        yield


def export(model: nn.Module, tokens: torch.Tensor, folder: Path) -> tuple[str, str]:
    import weightstream as ws
    from executorch.exir import to_edge_transform_and_lower

    pte, ptd = str(folder / "model.pte"), str(folder / "model.ptd")
    begin = time.monotonic()
    with quiet():
        program = ws.apply_weight_offload(torch.export.export(model, (tokens,)))
        edge = to_edge_transform_and_lower(
            program, partitioner=[ws.WeightStreamPartitioner(device="cuda")], compile_config=ws.edge_compile_config()
        )
        ws.save(edge, pte, ptd)
    say(f"exported in {time.monotonic() - begin:.0f} s")
    return pte, ptd


def weightstream_rows(files: tuple[str, str], tokens: torch.Tensor, expected: torch.Tensor, budgets: list[str], passes: int) -> list[dict]:
    """One row per budget; says how far its output is from eager float32 on the same GPU."""
    import weightstream as ws

    floor, rows = ws.required_budget(files[0]), []
    whole = None
    for name in reversed(budgets):
        budget = floor if name == "floor" else max(floor, int((whole or os.path.getsize(files[1])) * int(name) / 100))
        begin = time.monotonic()
        module = ws.Module(*files, weight_offload_budget_bytes=str(budget if name != "100" else os.path.getsize(files[1]) + 2**24))
        module.forward(tokens)
        loaded = time.monotonic() - begin
        output = module.forward(tokens)
        output = output[0] if isinstance(output, (tuple, list)) else output
        error = distance(output.float(), expected)
        ms = median_ms(lambda m=module: m.forward(tokens), passes)
        stats = module.stats()
        whole = stats["total_weight_bytes"]
        rows.append({"budget": name, "ms": ms, "error": error, "copied": stats["bytes_copied_last_pass"], "stats": stats})
        say(
            f"budget {name}: {ms:.2f} ms per pass, {stats['bytes_copied_last_pass'] / GB:.3f} GB copied, {error:.1e} away from float32, load {loaded:.1f} s"
        )
        module.close()
    return rows[::-1]


def peers(model: nn.Module, tokens: torch.Tensor, passes: int) -> dict[str, float | str]:
    """Other offloaders on the same model, milliseconds per pass; a text where one is missing or fails."""
    found: dict[str, float | str] = {}
    on_gpu = tokens.cuda()

    def measure(name: str, prepare: Callable[[], nn.Module]) -> None:
        try:
            with torch.no_grad():
                ready = prepare()
                found[name] = median_ms(lambda: ready(on_gpu), passes, 1)
        except Exception as problem:
            found[name] = f"{type(problem).__name__}: {problem}".splitlines()[0][:80]
        say(f"{name}: {found[name]}")

    def accelerate_offload() -> nn.Module:
        from accelerate import cpu_offload

        return cpu_offload(model, execution_device=torch.device("cuda"))

    def diffusers_groups() -> nn.Module:
        from diffusers.hooks import apply_group_offloading

        apply_group_offloading(
            model, onload_device=torch.device("cuda"), offload_device=torch.device("cpu"), offload_type="leaf_level", use_stream=True
        )
        return model

    measure("diffusers group offloading (leaf level, streams)", diffusers_groups)
    measure("accelerate cpu_offload", accelerate_offload)
    return found


def table(link: float, resident: float, rows: list[dict], others: dict[str, float | str], title: str) -> str:
    """Ratios to the link's time for all weights, to that for the bytes copied, and to the limit at the budget."""
    baseline = next((row["ms"] for row in rows if row["budget"] == "100"), None)
    lines = [
        f"**{title}**",
        "",
        "| system | time / link time of all weights | time / link time of the bytes copied | time / limit |",
        "|---|---|---|---|",
    ]
    lines.append(f"| PyTorch eager, everything resident | {resident / link:.3f} | | |")
    for row in rows:
        whole = row["stats"]["total_weight_bytes"]
        missing = max(0.0, (whole - row["stats"]["budget_bytes"]) / whole) * link
        limit = max(missing, baseline or 0.0)
        copied = row["copied"] / whole * link
        over = f"{row['ms'] / copied:.3f}" if copied > 0.01 * link else "nothing copied"
        lines.append(
            f"| WeightStream lru, {row['budget']}{' %' if row['budget'] != 'floor' else ''} | {row['ms'] / link:.3f} | {over} | {row['ms'] / limit:.3f} |"
        )
    for name, ms in others.items():
        lines.append(f"| {name} | {ms / link:.3f} | | |" if isinstance(ms, float) else f"| {name} | {ms} | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1])
    parser.add_argument("--budgets", nargs="+", default=["floor", "25", "50", "75", "90", "100"])
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--no-peers", action="store_true")
    arguments = parser.parse_args()
    model = build(arguments.layers)
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    link = link_ms(sizes)
    say(f"{sum(sizes) / GB:.2f} GB of weights; link {sum(sizes) / link / 1e6:.1f} GB/s on {torch.cuda.get_device_name()}")
    for count in arguments.tokens:
        tokens = torch.randint(0, 32000, (1, count))
        model.cuda()
        with torch.no_grad():
            on_gpu = tokens.cuda()
            expected = model(on_gpu).float().cpu()
            resident = median_ms(lambda: model(on_gpu), arguments.passes)  # noqa: B023  (used within the iteration)
            exact = model.float()(on_gpu).cpu()
            say(f"eager bf16 is {distance(expected, exact):.1e} away from float32")
            model.bfloat16()
        model.cpu()
        gc.collect()
        torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory() as folder:
            files = export(model, tokens, Path(folder))
            gc.collect()
            torch.cuda.empty_cache()
            rows = weightstream_rows(files, tokens, exact, arguments.budgets, arguments.passes)
        others = {} if arguments.no_peers else peers(model, tokens, 3)
        title = f"{torch.cuda.get_device_name()}, {sum(sizes) / GB:.1f} GB bf16, {arguments.layers} layers, {count} token(s)"
        print(table(link, resident, rows, others, title), "\n", flush=True)


if __name__ == "__main__":
    main()
