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


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(MUTANTS))


@pytest.mark.parametrize("guilty", ["", "real"])
def test_a_suite_that_fails_anyway_catches_nothing(guilty: str, tmp_path: Path, sources, capsys):
    from mutant import Mutant
    from workspace import Outcome, Workspace

    class Played(Workspace):
        """Cargo, where the suite `broken` always fails, and `guilty` where the mutant is in the tree."""

        def __init__(self):
            self.tree, self.timeout, self.broken, self.seconds = tmp_path, 1, set(), {}

        def cargo(self, what, which, pattern, limit):
            failing = {"broken"} | ({guilty} if "mutated" in (tmp_path / "a.rs").read_text() else set())
            for suite in which[1::2] if which[0] == "--test" else which[2::2]:
                if suite in failing:
                    return Outcome("caught", f"{suite}: a test", suite)
            return Outcome("passed", what)

    (tmp_path / "tests").mkdir()
    for name in ("broken", "fine", "real"):
        (tmp_path / "tests" / f"{name}.rs").touch()
    (tmp_path / "a.rs").write_text("rule")
    workspace = Played()
    outcome = workspace.run_everything(Mutant("m", "a.rs", "rule", "mutated", "b", ("lib",)))
    assert (outcome.word, outcome.suite) == (("caught", "real") if guilty else ("survived", ""))
    assert workspace.broken == {"broken"}
    assert "broken fails without any mutant" in capsys.readouterr().out
    assert (tmp_path / "a.rs").read_text() == "rule"


def test_tests_that_take_long_without_a_mutant_may_take_longer_with_one(sources):
    """Otherwise a busy machine would end them, and that counts as caught."""
    from workspace import Outcome, Workspace

    class Played(Workspace):
        def __init__(self):
            self.timeout, self.seconds = 300, {}

        def cargo(self, what, which, pattern, limit):
            return Outcome("passed", what, seconds=100.0 if which == ["--lib"] else 1.0)

    workspace = Played()
    assert workspace.prepare(["lib:planned", "quick"])
    assert (workspace.limit("lib"), workspace.limit("quick")) == (500.0, 300)


def test_a_pattern_that_is_gone_is_named(tmp_path: Path, sources):
    from mutant import Mutant, problems

    (tmp_path / "a.rs").write_text("one two two")
    mutant = {"name": "m", "file": "a.rs", "replace": "x", "breaks": "b", "tests": ("lib",)}
    assert problems([Mutant(find="one", **mutant)], tmp_path) == []
    for pattern, words in (("gone", "occurs 0 times in a.rs"), ("two", "occurs 2 times"), ("x", "occurs 0 times")):
        assert words in problems([Mutant(find=pattern, **mutant)], tmp_path)[0]
    assert "no test tests/none.rs" in problems([Mutant(find="one", **{**mutant, "tests": ("none",)})], tmp_path)[0]
    assert "is no mutant" in run("--only", "nonsense").stderr
