"""Exports a decoder-only transformer and runs it through the C++ runner at five budgets, under both policies.

Every output is compared with eager PyTorch, and with the bits of the other budgets. Then the runner is asked for one byte less
than the floor. At the end an LLM of two methods generates text at three budgets, through Python and through C++: it has to be
what transformers generates. Then two models share one budget. Files go to .demo/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: With $TORCH another release of torch, in an environment and a build folder of its own.
BUILD = ROOT / (f"build-{release}" if (release := os.environ.get("TORCH")) else "build")
sys.path[:0] = [str(ROOT / "python" / "tests"), str(ROOT / "python" / "examples")]
MB = 1 << 20
Columns = list[tuple[str, int]]
COLUMNS: Columns = [
    ("budget", 22),
    ("policy", 9),
    ("peak pool bytes", 16),
    ("copied per pass", 16),
    ("hits", 7),
    ("misses", 7),
    ("evictions", 10),
    ("ms per pass", 12),
    ("largest error", 14),
]
#: Tokens that the LLM generates.
COUNT = 32
LLM_COLUMNS: Columns = [
    ("budget", 22),
    ("through", 9),
    ("peak pool bytes", 16),
    ("bytes per token", 16),
    ("prefill ms", 11),
    ("tokens/s", 9),
    ("tokens", 25),
]


class DemoFailed(SystemExit):
    """Something did not come out as promised; the text says what."""

    def __init__(self, what: str):
        super().__init__(f"demo: FAILED: {what}")


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def find(tool: str) -> Path:
    """A program that CMake built."""
    program = BUILD / tool
    if not program.is_file():
        raise DemoFailed(f"{program} is missing: run `make build` first")
    return program


def export(folder: Path) -> None:
    """Writes model.pte and model.ptd, saying what it does."""
    import weightstream as ws
    from executorch.exir import to_edge_transform_and_lower
    from models import ZOO

    started = time.monotonic()
    say("torch.export.export")
    program = ws.apply_weight_offload(ZOO["demo"].export())
    say("lowering and compiling, a minute or two")
    edge = to_edge_transform_and_lower(
        program, partitioner=[ws.WeightStreamPartitioner(device="cpu")], compile_config=ws.edge_compile_config()
    )
    ws.save(edge, str(folder / "model.pte"), str(folder / "model.ptd"))
    sizes = " and ".join(f"{name} ({(folder / name).stat().st_size / MB:.1f} MB)" for name in ("model.pte", "model.ptd"))
    say(f"wrote {sizes} to {folder} in {time.monotonic() - started:.0f} s")


def run_at(runner: Path, folder: Path, budget: int, passes: int, policy: str = "lru") -> subprocess.CompletedProcess[str]:
    """One run of the C++ program on input.bin; it writes the last pass's output to output0.bin."""
    (folder / "output0.bin").unlink(missing_ok=True)
    files = [str(folder / name) for name in ("model.pte", "model.ptd")]
    options = ["--method", "forward", "--policy", policy, "--passes", str(passes), "--budget-bytes", str(budget), "--json"]
    data = ["--input", str(folder / "input.bin"), "--output", str(folder / "output")]
    return subprocess.run([str(runner), *files, *options, *data], capture_output=True, text=True, check=False)


def stats_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object on the runner's standard output."""
    if done.returncode != 0:
        raise DemoFailed(f"the runner ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def table_row(label: str, policy: str, stats: dict[str, Any], error: float) -> list[str]:
    return [
        label,
        policy,
        f"{stats['peak_bytes']:,}",
        f"{stats['bytes_copied_last_pass']:,}",
        *(f"{stats[key]:,}" for key in ("hits", "misses", "evictions")),
        f"{stats['ms_per_pass']:.2f}",
        f"{error:.1e}",
    ]


def print_row(cells: list[str], columns: Columns = COLUMNS) -> None:
    print("".join(cell.rjust(width) for cell, (_, width) in zip(cells, columns)), flush=True)


def budgets(folder: Path) -> list[tuple[str, int]]:
    """Floor, 25, 50, 75 and 100 % of the weights."""
    import weightstream as ws
    from doctor import Pte, counted_bytes

    record = Pte(folder / "model.pte").payload
    whole, floor = counted_bytes(record), ws.required_budget(str(folder / "model.pte"), method="forward")
    weights = sum(record["nbytes"])
    say(
        f"{len(record['fqns'])} constants, {weights / 1e6:.1f} million bytes; floor {floor:,} bytes = {100 * floor / weights:.1f} % of them"
    )
    if weights < 100e6 or floor > 0.15 * weights:
        raise DemoFailed("the model should have at least 100 MB of weights and a floor of at most 15 % of them")
    return [(f"floor {floor / MB:.1f} MB", floor)] + [
        (f"{percent} % {whole * percent // 100 / MB:.1f} MB", whole * percent // 100) for percent in (25, 50, 75, 100)
    ]


def compare(runner: Path, folder: Path, passes: int) -> int:
    """Runs every budget, prints the table, returns the floor."""
    import torch
    from models import ZOO
    from zoo import largest_error

    spec = ZOO["demo"]
    (inputs,) = spec.passes(1)
    (expected,) = spec.eager([inputs])
    (folder / "input.bin").write_bytes(inputs[0].numpy().tobytes())
    steps, first = budgets(folder), None
    say(f"{passes} passes at each budget, outputs against eager PyTorch\n")
    print_row([title for title, _ in COLUMNS])
    for policy in ("lru", "planned"):
        before = None
        for label, budget in steps:
            stats = stats_of(run_at(runner, folder, budget, passes, policy))
            data = bytearray((folder / "output0.bin").read_bytes())
            found = torch.frombuffer(data, dtype=torch.float32).reshape(expected[0].shape)
            error = largest_error([found], expected)
            print_row(table_row(label, policy, stats, error))
            if error > spec.tolerance:
                raise DemoFailed(f"at {budget} bytes the output is off by {error}")
            if stats["peak_bytes"] > budget:
                raise DemoFailed(f"at {budget} bytes the peak was {stats['peak_bytes']}")
            first = first or data
            if data != first:
                raise DemoFailed(f"'{policy}' at {budget} bytes gave other bits than '{label}' under 'lru'")
            # Only a plan promises that; the LRU copies nearly everything, a little more or less.
            if policy == "planned" and before is not None and stats["bytes_copied_last_pass"] > before:
                raise DemoFailed(f"'{policy}' copied more at {budget} bytes than with less")
            before = stats["bytes_copied_last_pass"]
    print()
    say("every output equals eager PyTorch's within 1e-4, and all budgets gave the same bits under both policies")
    return steps[0][1]


def show_refusal(runner: Path, folder: Path, budget: int) -> None:
    done = run_at(runner, folder, budget, 1)
    if done.returncode == 0:
        raise DemoFailed(f"a budget of {budget} bytes, one under the floor, was accepted")
    say(f"one byte below the floor the runner refuses, exit status {done.returncode}:")
    print("    " + done.stderr.strip().replace("\n", "\n    "))


def export_llm(folder: Path) -> None:
    import llm

    started = time.monotonic()
    say("an LLM with the methods prefill and decode: export and compilation, some minutes")
    llm.export(llm.build(), folder)
    say(f"wrote {folder / 'model.pte'} and its weights in {time.monotonic() - started:.0f} s")


def llm_in_python(folder: Path, budget: int) -> dict[str, Any]:
    """The tokens and figures of a generation, as weightstream-generate prints them."""
    import llm
    import weightstream as ws

    class Timed:
        """The module's methods, with a clock."""

        def prefill(self, *inputs: Any) -> Any:
            started = time.monotonic()
            logits = module.prefill(*inputs)
            self.prefilled, self.copied = time.monotonic(), module.stats()["bytes_copied"]
            self.prefill_ms = 1000 * (self.prefilled - started)
            return logits

        def decode(self, *inputs: Any) -> Any:
            return module.decode(*inputs)

    with ws.Module(folder / "model.pte", folder / "model.ptd", weight_offload_budget_bytes=budget) as module:
        timed = Timed()
        tokens = llm.generate(timed, llm.PROMPT, COUNT)
        seconds, stats = time.monotonic() - timed.prefilled, module.stats()
    return {
        "tokens": tokens,
        "prefill_ms": timed.prefill_ms,
        "tokens_per_second": (COUNT - 1) / seconds,
        "bytes_per_token": (stats["bytes_copied"] - timed.copied) / (COUNT - 1),
        "stats": stats,
    }


def llm_in_cpp(program: Path, folder: Path, budget: int) -> dict[str, Any]:
    import llm

    files = [str(folder / name) for name in ("model.pte", "model.ptd")]
    options = ["--tokens", ",".join(map(str, llm.PROMPT)), "--count", str(COUNT), "--budget-bytes", str(budget), "--json"]
    done = subprocess.run([str(program), *files, *options, "--ignore-eos"], capture_output=True, text=True, check=False)
    return stats_of(done)


def generate(program: Path, folder: Path) -> None:
    """Generates at three budgets in both ways, and compares with transformers."""
    import llm
    import weightstream as ws

    expected, gap = llm.reference(llm.build(), llm.PROMPT, COUNT)
    if gap <= 1e-3:
        raise DemoFailed(f"the two largest logits of a step are only {gap} apart: rounding could choose another token")
    with ws.Module(folder / "model.pte", folder / "model.ptd") as module:
        stats = module.stats()
    floor, whole = stats["floor_bytes"], stats["total_weight_bytes"] + stats["direct_bytes"]
    say(f"{whole / 1e6:.1f} million bytes; floor {floor:,} bytes = {100 * floor / whole:.1f} % of them")
    say(f"a prompt of {len(llm.PROMPT)} tokens and {COUNT} more, against transformers' generate\n")
    print_row([title for title, _ in LLM_COLUMNS], LLM_COLUMNS)
    before: dict[str, float] = {}
    for label, budget in (("floor", floor), ("50 %", max(floor, whole // 2)), ("100 %", whole)):
        for through, found in (("Python", llm_in_python(folder, budget)), ("C++", llm_in_cpp(program, folder, budget))):
            copied, peak = found["bytes_per_token"], found["stats"]["peak_bytes"]
            figures = [f"{peak:,}", f"{copied:,.0f}", f"{found['prefill_ms']:.1f}", f"{found['tokens_per_second']:.1f}"]
            tokens = " ".join(map(str, found["tokens"][:4])) + " ..."
            print_row([f"{label} {budget / MB:.1f} MB", through, *figures, tokens], LLM_COLUMNS)
            if found["tokens"] != expected:
                raise DemoFailed(f"at {budget} bytes {through} generated {found['tokens']}, transformers {expected}")
            if peak > budget:
                raise DemoFailed(f"at {budget} bytes the peak was {peak}")
            if copied > before.setdefault(through, copied):
                raise DemoFailed(f"{through} copied more per token at {budget} bytes than with less")
            before[through] = copied
    print()
    say(f"every text is what transformers generates; in it the two largest logits of a step are {gap:.4f} apart or more")


def share(folder: Path, reuse: bool) -> None:
    """Two models under one budget."""
    import two_models

    say(f"two models share {two_models.CAP // MB} MB: a draft of 31 MB and a check of 59 MB; MB in the table")
    text, error = two_models.run(folder, reuse=reuse)
    print(f"\n{text}\n", flush=True)
    if error > 1e-4:
        raise DemoFailed(f"an output is off by {error:.1e}")
    say(f"every output is that of eager PyTorch (largest difference {error:.1e})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="where the files go")
    parser.add_argument("--passes", type=int, default=10, help="passes at each budget")
    parser.add_argument("--reuse", action="store_true", help="use the files of the last run instead of exporting")
    arguments = parser.parse_args()
    runner, generator = find("weightstream-run"), find("weightstream-generate")
    arguments.folder.mkdir(exist_ok=True)
    if not (arguments.reuse and (arguments.folder / "model.pte").exists()):
        export(arguments.folder)
    floor = compare(runner, arguments.folder, arguments.passes)
    show_refusal(runner, arguments.folder, floor - 1)
    folder = arguments.folder / "llm"
    folder.mkdir(exist_ok=True)
    if not (arguments.reuse and (folder / "model.pte").exists()):
        export_llm(folder)
    generate(generator, folder)
    share(arguments.folder / "two", arguments.reuse)
    say("done")


if __name__ == "__main__":
    main()
