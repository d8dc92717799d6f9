"""A copy of the tree in which mutants are built and tested, with a build of its own that is kept between runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutant import Mutant, markers
from switched import VARIABLE, Switched, executables, told

#: What the Rust tests need of the tree.
PARTS = ("src", "tests", "benches", "schema", "cpp", "python", "scripts", "Cargo.toml", "Cargo.lock", "build.rs", "fuzz")
#: A failing test need not look for its smallest case, nor remember it.
ENVIRONMENT = {
    "CARGO_INCREMENTAL": "1",
    "CARGO_TERM_COLOR": "never",
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
}

#: Seconds for a build from nothing.
COMPILE_LIMIT = 3600
#: Tests that take so many times what they take without a mutant hang. On a busy machine they may well take twice that.
HANG = 5


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: `caught`, `timeout` (a test hung, which counts as caught), `passed`, `survived` or `error`."""

    word: str
    detail: str
    #: The file of tests that failed, or `lib`.
    suite: str = ""
    #: How long tests took that passed.
    seconds: float = 0.0

    @property
    def decided(self) -> bool:
        return self.word != "passed"


class Workspace:
    """The copy. Only files that differ are written, so that cargo compiles what changed."""

    def __init__(self, root: Path, jobs: int, timeout: int):
        self.root = root
        self.tree = root / "build" / "mutants" / "tree"
        self.target = root / "build" / "mutants" / "target"
        self.timeout = timeout
        #: Suites that were seen to fail on the code as it is.
        self.broken: set[str] = set()
        #: Seconds that tests take on the code as it is.
        self.seconds: dict[str, float] = {}
        self.jobs = [f"-j{jobs}"] if jobs else []
        #: Of mutants that are all in one build: their numbers, and its test programs.
        self.numbers: dict[str, int] = {}
        self.programs: dict[str, str] = {}
        python = root / ".venv" / "bin" / "python"
        self.environment = {**os.environ, **ENVIRONMENT, "CARGO_TARGET_DIR": str(self.target)}
        if python.exists():
            self.environment.setdefault("WEIGHTSTREAM_PYTHON", str(python))
        self.synchronise()

    def synchronise(self) -> None:
        """Makes the copy what the checkout is, ignored files left out."""
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *PARTS],
            cwd=self.root,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        wanted = {name for name in listed.split("\0") if name and (self.root / name).is_file()}
        for name in wanted:
            source, copy = self.root / name, self.tree / name
            content = source.read_bytes()
            if not copy.is_file() or copy.read_bytes() != content:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
        for old in [path for path in self.tree.rglob("*") if path.is_file()]:
            name = old.relative_to(self.tree)
            # What tests leave elsewhere, such as exported models, is theirs: half of it gone would fail them.
            if name.parts[0] in PARTS and str(name) not in wanted:
                old.unlink()

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The copy with one rule less."""
        place = mutant.place(markers(self.tree))
        path, original = place.path, place.path.read_text()
        path.write_text(mutant.apply(place))
        try:
            yield
        finally:
            path.write_text(original)

    def switch(self, mutants: list[Mutant]) -> bool:
        """Builds as many of the mutants as can stand in one build."""
        switched = Switched(self.tree, mutants)
        wrong = switched.write(lambda: self.call(["cargo", "check", "--lib", "--message-format=json", *self.jobs], COMPILE_LIMIT)[1])
        status, output = (1, wrong) if wrong else self.call(self.build(mutants), COMPILE_LIMIT)
        if status != 0:
            print(f"the mutants do not compile in one build:\n{told(output) or tail(output)}")
            return False
        self.numbers, self.programs = switched.numbers, executables(output)
        return True

    def build(self, mutants: list[Mutant]) -> list[str]:
        """The command that builds all tests of these mutants."""
        targets = sorted({test.split(":")[0] for mutant in mutants for test in mutant.tests})
        which = [word for name in targets for word in (["--lib"] if name == "lib" else ["--test", name])]
        return ["cargo", "test", "--no-run", "--message-format=json", *self.jobs, *which]

    def restore(self) -> None:
        """The sources as they are, for mutants that need a build of their own."""
        self.numbers, self.programs = {}, {}
        self.synchronise()

    def prepare(self, tests: list[str]) -> bool:
        """Builds and runs the tests on the code as it is: one that fails anyway would catch everything."""
        for test in sorted({test.split(":")[0] for test in tests}):
            outcome = self.run(test, limit=4 * self.timeout)
            if outcome.decided:
                print(f"without any mutant, {test}: {outcome.word}: {outcome.detail}")
                return False
            self.seconds[test] = outcome.seconds
        return True

    def run(self, test: str, limit: float = 0, number: int = 0) -> Outcome:
        """Runs the unit tests or some of a test binary, with the mutant of that number where all are in one build."""
        target, _, pattern = test.partition(":")
        if pattern and target != "lib":
            pattern = f"{pattern}::"
        if self.programs:
            command = [self.programs[target], *([pattern] if pattern else [])]
            # Tests of one process share its pools of devices, which those of `elastic` cap.
            alone = {"RUST_TEST_THREADS": "1"} if target == "elastic" else {}
            return self.judged(test, command, limit or self.limit(target), {VARIABLE: str(number), **alone}, target)
        which = ["--lib"] if target == "lib" else ["--test", target]
        return self.cargo(test, which, [pattern] if pattern else [], limit or self.limit(target))

    def limit(self, target: str) -> float:
        """Seconds after which the tests hang: more than `timeout` where they take long without a mutant, too."""
        return max(self.timeout, HANG * self.seconds.get(target, 0))

    def run_everything(self, mutant: Mutant) -> Outcome:
        """Runs all Rust tests on a mutant that its own let pass; passing all of them is surviving. A suite that fails without
        it as well, for want of models perhaps, has not caught it, and is left out from then on."""
        while True:
            with self.mutated(mutant):
                outcome = self.run_others()
            if outcome.word != "caught" or not outcome.suite:
                return outcome
            anyway = self.run(outcome.suite)
            if not anyway.decided:
                return outcome
            print(f"{outcome.suite} fails without any mutant, so it catches none: {anyway.detail}", flush=True)
            self.broken.add(outcome.suite)

    def run_others(self) -> Outcome:
        """All suites but the broken ones."""
        tests = self.tree / "tests"
        names = sorted([path.stem for path in tests.glob("*.rs")] + [path.parent.name for path in tests.glob("*/main.rs")])
        which = [] if "lib" in self.broken else ["--lib"]
        for name in names:
            which += [] if name in self.broken else ["--test", name]
        outcome = self.cargo("all Rust tests", which, [], 4 * self.timeout)
        return outcome if outcome.decided else Outcome("survived", "all Rust tests pass")

    def cargo(self, what: str, which: list[str], pattern: list[str], limit: float) -> Outcome:
        # Apart from the tests: time spent compiling is no hang, and code that does not compile was not caught.
        built, output = self.call(["cargo", "test", "--no-run", *self.jobs, *which], COMPILE_LIMIT)
        if built != 0:
            return Outcome("error", f"it does not compile:\n{tail(output)}")
        return self.judged(what, ["cargo", "test", *self.jobs, *which, *pattern], limit)

    def judged(self, what: str, command: list[str], limit: float, more: dict[str, str] | None = None, program: str = "") -> Outcome:
        """What tests say that are built. `program` is the file of tests, where it is not cargo that runs it."""
        begun = time.monotonic()
        status, output = self.call(command, limit, more)
        if status is None:
            return Outcome("timeout", f"{what}: not done after {limit:.0f} s{running(output)}")
        if status == 0:
            return Outcome("passed", what, seconds=time.monotonic() - begun)
        name = program or suite(output)
        failed = sorted(set(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", output, re.MULTILINE)))
        if failed:
            others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            return Outcome("caught", f"{name or what}: {failed[0]}{others}", name)
        if crash := f"signal: {-status}" if status < 0 else crashed(output):
            return Outcome("caught", f"{name or what}: the tests ended by {crash}", name)
        return Outcome("error", f"{what}: no test is named as failed:\n{tail(output)}")

    def call(self, command: list[str], limit: float, more: dict[str, str] | None = None) -> tuple[int | None, str]:
        """Exit status and output; no status if it took longer than `limit` seconds and was ended, with all it had started."""
        process = subprocess.Popen(
            command,
            cwd=self.tree,
            env={**self.environment, **(more or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]

    def forget(self) -> None:
        """Removes the copy and its build."""
        shutil.rmtree(self.tree.parent, ignore_errors=True)


def tail(output: str) -> str:
    return "\n".join(output.splitlines()[-30:])


def crashed(output: str) -> str:
    """The signal that ended a test program, by cargo's words."""
    found = re.search(r"\((signal: [^)]*)\)", output)
    return found[1] if found else ""


def running(output: str) -> str:
    """The tests that libtest has called slow."""
    slow = re.findall(r"^test (\S+) has been running for over", output, re.MULTILINE)
    return f", in {', '.join(sorted(set(slow)))}" if slow else ""


def suite(output: str) -> str:
    """Which file of tests failed, from cargo's advice."""
    found = re.search(r"to rerun pass `(?:-p \S+ )?--(?:test )?(\S+?)`", output)
    return found[1] if found else ""
