"""Exports a decoder-only transformer and runs it through the C++ runner at five budgets, under both policies.

Every output is compared with eager PyTorch, and with the bits of the other budgets. At the end the runner is asked
for one byte less than the floor. Files go to .demo/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))
MB = 1 << 20
COLUMNS = [
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


class DemoFailed(SystemExit):
    """Something did not come out as promised; the text says what."""

    def __init__(self, what: str):
        super().__init__(f"demo: FAILED: {what}")


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def find_runner() -> Path:
    """The runner that CMake built."""
    runner = ROOT / "build" / "weightstream-run"
    if not runner.is_file():
        raise DemoFailed(f"{runner} is missing: run `make build` first")
    return runner


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


def print_row(cells: list[str]) -> None:
    print("".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS)), flush=True)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="where the files go")
    parser.add_argument("--passes", type=int, default=10, help="passes at each budget")
    parser.add_argument("--reuse", action="store_true", help="use the files of the last run instead of exporting")
    arguments = parser.parse_args()
    runner = find_runner()
    arguments.folder.mkdir(exist_ok=True)
    if not (arguments.reuse and (arguments.folder / "model.pte").exists()):
        export(arguments.folder)
    floor = compare(runner, arguments.folder, arguments.passes)
    show_refusal(runner, arguments.folder, floor - 1)
    say("done")


if __name__ == "__main__":
    main()
