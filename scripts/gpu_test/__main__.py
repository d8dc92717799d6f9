"""Runs the GPU tests of this bundle and ends with `N passed, N failed`.

Suites: `rust` (the device and the sessions, without a model), `cpp` (C++ and C interfaces), `faults` (every device call of
loads and passes of exported models fails once; flipped copies), `python` (every test model on the GPU, at every budget; refusals and
failures), `sanitizer` (compute-sanitizer memcheck; needs the CUDA toolkit). Models that were not carried along are exported first,
once per work folder, in parallel. A suite that fails does not stop the others; the exit status is 0 only if nothing failed, and 2
if the machine cannot run them at all.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

import environment
import suites
from counts import Counts
from sanitizer import sanitizer

SUITES = {"rust": suites.rust, "exports": suites.exports, "cpp": suites.cpp, "faults": suites.rust_models}
SUITES |= {"python": suites.python, "sanitizer": sanitizer}
NEED_EXPORTS = {"cpp", "faults", "python", "sanitizer"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./gpu-test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="SUITES", help=f"comma-separated: {', '.join(SUITES)} (default: all)")
    parser.add_argument(
        "-k", dest="filter", default="", metavar="TEXT", help="only tests whose names contain TEXT (pytest takes an expression)"
    )
    parser.add_argument("--jobs", type=int, default=10, metavar="N", help="models exported at a time (default 10)")
    parser.add_argument("--quick", action="store_true", help="seven models instead of all, and no tests that need the others: a first look")
    parser.add_argument("--no-exports", action="store_true", help="do not export first; tests export what they lack")
    parser.add_argument(
        "--work", type=Path, default=environment.BUNDLE / ".work", metavar="DIR", help="exported models, logs and unpacked wheels (.work)"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: try the bundle itself where there is no GPU")
    parser.add_argument("--dry-run", action="store_true", help="list what would run, and what the machine lacks")
    parser.add_argument("--env", action="store_true", help='print the environment for programs of the bundle: eval "$(./gpu-test --env)"')
    return parser.parse_args()


def chosen(only: str | None, with_exports: bool, device: str) -> list[str]:
    names = only.split(",") if only else [name for name in SUITES if name != "sanitizer" or device == "cuda"]
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise SystemExit(f"gpu-test: unknown suites: {', '.join(unknown)}; known are {', '.join(SUITES)}")
    if NEED_EXPORTS & set(names) and with_exports:
        names.append("exports")
    return [name for name in SUITES if name in names and (name != "exports" or with_exports)]


def not_ready(problem: environment.NotReady) -> None:
    print(f"gpu-test: {problem}", file=sys.stderr)
    raise SystemExit(2)


def print_environment(settings: environment.Settings) -> None:
    path = environment.python_path(environment.install_wheels(settings.work))
    executorch = environment.check_packages(environment.look_at_packages(path))
    for key, value in environment.variables(settings, path, executorch).items():
        if key != "CI":
            print(f"export {key}={shlex.quote(value)}")


def main() -> int:
    arguments = parse()
    keys = ("device", "jobs", "filter", "quick", "dry_run")
    settings = environment.Settings(work=arguments.work.resolve(), **{key: getattr(arguments, key) for key in keys})
    names = chosen(arguments.only, not arguments.no_exports, settings.device)
    try:
        environment.unpack()
    except environment.NotReady as problem:
        not_ready(problem)
    try:
        if arguments.env:
            print_environment(settings)
            return 0
        around = environment.prepare(settings)
    except environment.NotReady as problem:
        if not settings.dry_run:
            not_ready(problem)
        print(f"gpu-test: this machine cannot run it: {problem}")
        around = dict(os.environ)
    runner, results = suites.Runner(settings, around), {}
    for name in names:
        suites.say(f"===== {name}")
        started = time.monotonic()
        results[name] = SUITES[name](runner), time.monotonic() - started
    if settings.dry_run:
        return 0
    print("\nsuite          passed   failed  skipped   seconds")
    for name, (counts, seconds) in results.items():
        print(f"{name:12}{counts.passed:9}{counts.failed:9}{counts.skipped:9}{seconds:10.0f}")
    total = sum((counts for counts, _ in results.values()), Counts())
    print(total, flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
