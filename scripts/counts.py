"""What the test runners report: cargo's, nextest's and JUnit's summaries as numbers, and how long each test took."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Counts:
    """What a runner reported."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")


def nextest_counts(lines: list[str]) -> Counts | None:
    """From `Summary [ 0.1s] 5 tests run: 3 passed, 1 failed, 1 timed out, 2 skipped`."""
    total = None
    for line in lines:
        summary = re.search(r"Summary \[.*\] +(?:(\d+)/)?(\d+) tests? run: (.*)", line)
        if summary:
            passed, skipped = (number_before(word, summary[3]) for word in ("passed", "skipped"))
            total = Counts(passed, int(summary[2]) - passed, skipped)
    return total


def number_before(word: str, text: str) -> int:
    found = re.search(rf"(\d+) {word}", text)
    return int(found[1]) if found else 0


def cargo_counts(lines: list[str]) -> Counts | None:
    """From the `test result:` line of each test binary of plain `cargo test`."""
    results = [
        Counts(*map(int, found)) for line in lines for found in re.findall(r"test result: \S+ (\d+) passed; (\d+) failed; (\d+)", line)
    ]
    return sum(results, Counts()) if results else None


def junit_counts(path: Path) -> Counts | None:
    """From a JUnit file, as ctest and pytest write it."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    total = Counts()
    for suite in root.iter("testsuite"):
        tests, failures, errors, skipped, disabled = (
            int(suite.get(key) or 0) for key in ("tests", "failures", "errors", "skipped", "disabled")
        )
        bad, skipped = failures + errors, skipped + disabled
        total += Counts(tests - bad - skipped, bad, skipped)
    return total


@dataclass(frozen=True)
class Timed:
    """How long one test took."""

    seconds: float
    suite: str
    name: str

    def __str__(self) -> str:
        return f"{self.seconds:8.1f} s  {self.suite:7} {self.name}"


def nextest_times(lines: list[str]) -> list[Timed]:
    """From `PASS [   0.012s] (  1/679) weightstream::format_wiring a_test`, whatever the verdict. What is named twice took the longer
    time: nextest says of a slow test more than once that it runs, and repeats failures at its end."""
    seconds: dict[str, float] = {}
    for line in lines:
        found = re.search(r"^ *[A-Z][A-Z0-9 ,+-]* \[ *>? *([0-9.]+)s\] (?:\( *\d+/\d+\) )?(\S+ \S+)$", line.rstrip())
        if found:
            seconds[found[2]] = max(seconds.get(found[2], 0.0), float(found[1]))
    return [Timed(taken, "Rust", name) for name, taken in seconds.items()]


def junit_times(path: Path, suite: str) -> list[Timed]:
    """From the test cases of a JUnit file; none if there is no such file."""
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []
    names = (("::".join(dict.fromkeys(case.get(key) or "" for key in ("classname", "name"))), case) for case in cases)
    return [Timed(float(case.get("time") or 0), suite, name) for name, case in names]


def slowest(tests: list[Timed], count: int = 20) -> list[Timed]:
    """The slowest of all suites, slowest first."""
    return sorted(tests, key=lambda test: -test.seconds)[:count]


def settled(status: int, counts: Counts | None) -> Counts:
    """A runner that said nothing, found no test, or failed without naming a test, counts as one failure."""
    counts = counts or Counts()
    if counts.failed == 0 and (status != 0 or counts.passed + counts.skipped == 0):
        counts += Counts(failed=1)
    return counts
