"""The list of `make mutants` is in step with the code: every pattern names exactly one place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "scripts" / "mutants"

pytestmark = [pytest.mark.no_runtime, pytest.mark.no_package, pytest.mark.cpu_only("the list is about the sources")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(MUTANTS), *arguments], capture_output=True, text=True, check=False)


def test_every_mutant_names_one_place():
    done = run("--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 20


def test_a_pattern_that_is_gone_is_named(tmp_path: Path):
    sys.path.insert(0, str(MUTANTS))
    try:
        from mutant import Mutant, problems
    finally:
        sys.path.remove(str(MUTANTS))
    (tmp_path / "a.rs").write_text("one two two")
    mutant = {"name": "m", "file": "a.rs", "replace": "x", "breaks": "b", "tests": ("lib",)}
    assert problems([Mutant(find="one", **mutant)], tmp_path) == []
    for pattern, words in (("gone", "occurs 0 times in a.rs"), ("two", "occurs 2 times"), ("x", "occurs 0 times")):
        assert words in problems([Mutant(find=pattern, **mutant)], tmp_path)[0]
    assert "no test tests/none.rs" in problems([Mutant(find="one", **{**mutant, "tests": ("none",)})], tmp_path)[0]
    assert "is no mutant" in run("--only", "nonsense").stderr
