"""The small models under compute-sanitizer's memcheck, through the runner: no torch in the process, so it takes seconds."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from counts import Counts
from environment import BUNDLE
from suites import Runner, say, show_end

#: A model whose weights take longer to load than the tool is worth.
LARGE = {"demo"}
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) errors?")
PLACES = ["/usr/local/cuda/bin"]


def find_tool() -> str | None:
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))


def models(folder: Path) -> list[Path]:
    """Programs of the export cache, one per model, without the large ones."""
    found = sorted(path for path in folder.glob("*/model.pte") if "." not in path.parent.name)
    return [path for path in found if path.parent.name.rsplit("-", 1)[0] not in LARGE]


def sanitizer(runner: Runner) -> Counts:
    tool = find_tool()
    if tool is None:
        say("sanitizer: compute-sanitizer is not on the PATH (it comes with the CUDA toolkit): counted as one failure")
        return Counts(failed=int(not runner.settings.dry_run))
    cache = Path(runner.environment.get("WEIGHTSTREAM_TEST_CACHE", runner.settings.work / "models"))
    cache = cache / "cuda" if runner.settings.device == "cuda" else cache
    programs = [path for path in models(cache) if runner.settings.filter in path.parent.name]
    if runner.settings.dry_run:
        print(f"  sanitizer: {tool} --tool memcheck bin/weightstream-run, each small model at the floor and at 50 %")
        return Counts()
    if not programs:
        say(f"sanitizer: {cache} holds no exported models: run the exports first (any --only with python or cpp)")
        return Counts(failed=1)
    if runner.settings.quick:
        programs = programs[:3]
    return sum(runner.at_once(runner.settings.jobs, [lambda path=path: both_budgets(runner, tool, path) for path in programs]), Counts())


def both_budgets(runner: Runner, tool: str, program: Path) -> Counts:
    """One model at the floor, which is the runner's default, and at half of what its run reports as all weights."""
    name = program.parent.name.rsplit("-", 1)[0]
    counts, stats = checked(runner, tool, program, f"sanitizer {name} floor", [])
    if stats is None or stats["floor_bytes"] == stats["direct_bytes"] + stats["total_weight_bytes"]:
        return counts
    half = max(stats["floor_bytes"], (stats["direct_bytes"] + stats["total_weight_bytes"]) // 2)
    return counts + checked(runner, tool, program, f"sanitizer {name} half", ["--budget-bytes", str(half)])[0]


def checked(runner: Runner, tool: str, program: Path, title: str, options: list[str]) -> tuple[Counts, dict | None]:
    """One run under the tool; it passes if the program ends well and the tool saw nothing."""
    command = [tool, "--tool", "memcheck", str(BUNDLE / "bin" / "weightstream-run"), str(program), str(program.with_suffix(".ptd"))]
    inputs = [word for path in sorted(program.parent.glob("input*.bin")) for word in ("--input", str(path))]
    status, text = runner.run(title, [*command, "--passes", "3", "--json", *inputs, *options])
    found, stats = SUMMARY.findall(text), [line for line in text.splitlines() if line.startswith("{")]
    if status == 0 and found == ["0"] and stats:
        return Counts(passed=1), json.loads(stats[-1])
    show_end(title, text)
    print(f"{title}: {found or 'no'} errors in the tool's summary", file=sys.stderr)
    return Counts(failed=1), None
