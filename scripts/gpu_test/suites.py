"""The suites: what each runs, and how its report is read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from counts import Counts, cargo_counts, junit_counts, settled
from environment import BUNDLE, Settings

#: No command of a suite may hang for longer, in seconds.
TIME_LIMIT = 540
STARTED = time.monotonic()
#: Models of the C++ tests, and of the Rust tests that load models.
CPP_MODELS = ["mlp", "demo", "methods_decoder"]
RUST_MODELS = ["mlp", "kv_decoder", "fact_returned", "methods_decoder"]
#: With --quick: those of the C++ tests, and of the tests that are left.
QUICK_MODELS = ["demo", "mlp", "mlp_baseline", "encoder", "kv_decoder", "experts", "dynamic"]
#: Test files that take longest, started first.
SLOW_FIRST = ["test_models.py", "test_cures.py", "test_refusals.py", "test_driver.py", "test_facts.py"]


def say(text: str) -> None:
    # In one piece: several threads say things.
    sys.stdout.write(f"[{time.monotonic() - STARTED:5.0f} s] {text}\n")
    sys.stdout.flush()


class Runner:
    """Runs the commands of the suites, or only says them."""

    def __init__(self, settings: Settings, environment: dict[str, str]):
        self.settings, self.environment = settings, environment

    def run(self, title: str, command: list[str], **more: str) -> tuple[int, str]:
        """Runs one command; returns its exit status and everything that it printed. `more` goes into its environment."""
        if self.settings.dry_run:
            shown = " ".join([*(f"{key}={value}" for key, value in more.items()), *command])
            print(f"  {title}: {shown}".replace(str(BUNDLE) + "/", ""), flush=True)
            return 0, ""
        started, log = time.monotonic(), self.settings.work / "logs" / f"{title.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as to:
            try:
                status = subprocess.run(
                    command,
                    stdout=to,
                    stderr=subprocess.STDOUT,
                    env={**self.environment, **more},
                    cwd=BUNDLE,
                    timeout=TIME_LIMIT,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                status = 124
            except OSError as problem:
                status = 127
                to.write(f"{command[0]} cannot be run: {problem}\n".encode())
        text = log.read_text(errors="replace")
        took = f"{time.monotonic() - started:.0f} s"
        if status == 124:
            text += f"\nended after {TIME_LIMIT} s\n"
        say(f"{title}: {took}" + (f", exit status {status}" if status else ""))
        return status, text

    def at_once(self, jobs: int, work: Iterable) -> list:
        """Calls what is in `work` on so many threads."""
        with ThreadPoolExecutor(1 if self.settings.dry_run else max(1, jobs)) as pool:
            return [future.result() for future in [pool.submit(one) for one in work]]


def show_end(title: str, text: str, lines: int = 60) -> None:
    """The end of the output of something that failed."""
    kept = text.rstrip().splitlines()[-lines:]
    print(f"--- {title}, the last {len(kept)} lines\n" + "\n".join(kept) + "\n---", flush=True)


def gtest_failures(text: str) -> str:
    """What the failed tests of a gtest program printed, without the others."""
    blocks = re.findall(r"^\[ RUN      \] (\S+)\n(.*?)^\[  FAILED  \] \1", text, re.MULTILINE | re.DOTALL)
    return "\n".join(f"{name}\n{said}" for name, said in blocks) or text


def report(title: str, status: int, counts: Counts | None, text: str) -> Counts:
    counts = settled(status, counts)
    say(f"{title}: {counts}")
    if counts.failed:
        show_end(title, text)
    return counts


def rust(runner: Runner) -> Counts:
    """The Rust tests, one program after the other: they hold streams and measure how long things take."""
    total = Counts()
    for program in sorted((BUNDLE / "bin" / "rust").iterdir()):
        filters = [runner.settings.filter] if runner.settings.filter else []
        status, text = runner.run(f"rust {program.name}", [str(program), "--test-threads=1", *filters])
        if runner.settings.dry_run:
            continue
        counts = cargo_counts(text.splitlines())
        if status == 0 and runner.settings.filter and counts == Counts(skipped=0):
            continue
        total += report(f"rust {program.name}", status, counts, text)
    return total + probe_cost(runner)


def probe_cost(runner: Runner) -> Counts:
    """What a probe that hits costs on the GPU: printed, since timings decide no test."""
    program = BUNDLE / "bin" / "gpu_probe"
    if runner.settings.device != "cuda" or not program.exists() or runner.settings.filter not in "gpu_probe":
        return Counts()
    status, text = runner.run("rust gpu_probe", [str(program)])
    if runner.settings.dry_run:
        return Counts()
    print(text.rstrip(), flush=True)
    return report("rust gpu_probe", status, Counts(passed=1) if status == 0 else None, text)


def exports(runner: Runner) -> Counts:
    """Exports every model of the tests once, so that the suites find them; one failed export fails here and where it is used."""
    names = QUICK_MODELS if runner.settings.quick else []
    carried = BUNDLE / "programs"
    if carried.is_dir() and not runner.settings.dry_run:
        say(f"{len(list(carried.rglob('*.pte')))} programs were carried along")
        shutil.copytree(carried, runner.settings.work / "models", dirs_exist_ok=True)
    command = [sys.executable, "python/tests/exports.py", "--all", *names]
    if runner.settings.dry_run:
        runner.run("exports", command)
        return Counts()
    say(f"exporting models, {runner.settings.jobs} at a time")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=runner.environment, cwd=BUNDLE, text=True, errors="replace"
    )
    failed = 0
    for line in process.stdout:
        say(line.rstrip()) if line.startswith("exported ") else print(line, end="", flush=True)
        failed += line.startswith("exported ") and ": FAILED" in line
    status = process.wait()
    return Counts(failed=max(failed, int(status != 0)))


def rust_models(runner: Runner) -> Counts:
    """The Rust tests that load exported models (faults in every device call, flipped copies), each in a process of its own, several
    at once: they count what a process has open."""
    folder = runner.environment.get("WEIGHTSTREAM_TEST_MODELS", "MODELS")
    status, text = runner.run("rust models", [sys.executable, "python/tests/exports.py", "--into", folder, *RUST_MODELS])
    if status != 0:
        return report("rust models", status, None, text)

    def one(program: Path, test: str) -> Counts:
        status, text = runner.run(f"{program.name} {test}", [str(program), "--exact", test, "--nocapture"])
        if runner.settings.dry_run:
            return Counts()
        return report(f"{program.name} {test}", status, cargo_counts(text.splitlines()), text)

    tests = []
    for program in sorted((BUNDLE / "bin" / "rust-models").iterdir()):
        listed = subprocess.run([program, "--list", "--format", "terse"], capture_output=True, text=True, check=True)
        names = re.findall(r"^(\S+): test$", listed.stdout, re.MULTILINE)
        tests += [(program, name) for name in names if runner.settings.filter in name]
    jobs = min(runner.settings.jobs, os.cpu_count() or 2)
    return sum(runner.at_once(jobs, [lambda program=program, name=name: one(program, name) for program, name in tests]), Counts())


def cpp(runner: Runner) -> Counts:
    folder = runner.environment.get("WEIGHTSTREAM_TEST_MODELS", "MODELS")
    status, text = runner.run("cpp models", [sys.executable, "python/tests/exports.py", "--into", folder, *CPP_MODELS])
    if status != 0:
        return report("cpp models", status, None, text)
    outcome = runner.settings.work / "cpp.xml"
    outcome.unlink(missing_ok=True)
    total, filters = Counts(), [f"--gtest_filter=*{runner.settings.filter}*"] if runner.settings.filter else []
    status, text = runner.run("cpp", ["bin/weightstream_tests", f"--gtest_output=xml:{outcome}", *filters])
    if runner.settings.dry_run:
        return total
    counts = junit_counts(outcome)
    if status == 0 and runner.settings.filter and counts == Counts():
        return total
    return total + report("cpp", status, counts, gtest_failures(text))


def pytest_files(settings: Settings) -> list[Path]:
    files = sorted((BUNDLE / "python" / "tests").glob("test_*.py"))
    if settings.quick:
        files = [file for file in files if file.name not in ("test_cures.py", "test_models.py", "test_facts.py")]
    return sorted(files, key=lambda file: SLOW_FIRST.index(file.name) if file.name in SLOW_FIRST else len(SLOW_FIRST))


def python(runner: Runner) -> Counts:
    """Each test file in a process of its own, several at once."""
    reports = runner.settings.work / "reports"
    reports.mkdir(parents=True, exist_ok=True)

    def one(file: Path) -> Counts:
        outcome = reports / f"{file.stem}.xml"
        outcome.unlink(missing_ok=True)
        filters = ["-k", runner.settings.filter] if runner.settings.filter else []
        plain = ["-p", "no:cacheprovider", f"--junitxml={outcome}"]
        status, text = runner.run(file.stem, [sys.executable, "-m", "pytest", f"python/tests/{file.name}", *plain, *filters])
        if runner.settings.dry_run or status == 5:  # 5: no test was selected
            return Counts()
        return report(file.stem, status, junit_counts(outcome), text)

    jobs = min(runner.settings.jobs, max(1, (os.cpu_count() or 2) // 3))
    return sum(runner.at_once(jobs, [lambda file=file: one(file) for file in pytest_files(runner.settings)]), Counts())
