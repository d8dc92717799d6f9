"""Takes the safety rules out of the code, one at a time, and expects a test to fail for each.

A marker in the code, `// rule: its-name`, says where a rule stands (mutant.py). The mutant of the same name says which small edit
takes it out (edits.py), what breaks without it, and which tests are likeliest to notice. The lists are in RULES below.

`python scripts/mutants` works on a copy of the tree in build/mutants, which keeps its build. Nearly all mutants are built at
once and chosen at run time (switched.py). Those that their own tests let pass, and those that need a build of their own, are
then tried one by one, at last with the whole Rust suite. Each is reported with the test that failed; the exit status is 1 if
one survived or could not be tried.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import methods
import planned
from mutant import Mutant, RuleError, markers, problems
from workspace import Outcome, Workspace

import device
import elastic
import memory
import residency
import schedule
import session

ROOT = Path(__file__).resolve().parents[2]
RULES = {module.__name__: module.MUTANTS for module in (session, residency, planned, schedule, methods, device, memory, elastic)}
MUTANTS: list[Mutant] = [mutant for rules in RULES.values() for mutant in rules]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutants and what each breaks, and run nothing")
    parser.add_argument(
        "--check", action="store_true", help="only see whether each rule stands in one place and its edit fits; builds nothing"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        default=[],
        help="try this one, those of this list (session, device, ...), or all that fit NAME*; may be given again",
    )
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="compiler processes at a time (default: cargo's)")
    parser.add_argument("--timeout", type=int, default=300, metavar="S", help="seconds for one run of tests (default %(default)s)")
    return parser.parse_args()


def chosen(only: list[str]) -> list[Mutant]:
    """The mutants to try. An unknown name ends the program."""
    if not only:
        return MUTANTS
    picked = []
    for name in only:
        fits = RULES.get(name) or [m for m in MUTANTS if fnmatch(m.name, name)]
        if not fits:
            sys.exit(f"'{name}' is no mutant; --list prints all")
        picked += [m for m in fits if m not in picked]
    return picked


def print_list(mutants: list[Mutant]) -> None:
    found = markers(ROOT)
    for mutant in mutants:
        places = [f"{place.path.relative_to(ROOT)}:{place.line}" for place in found.get(mutant.name, [])]
        print(f"{mutant.name}: {', '.join(places) or 'nowhere'}\n    {mutant.edit.words}\n    without the rule: {mutant.breaks}")
    print(f"{len(mutants)} mutants")


def attempt(workspace: Workspace, mutant: Mutant) -> Outcome:
    """Runs the tests on one mutant in a build of its own, until one fails."""
    try:
        with workspace.mutated(mutant):
            for test in mutant.tests:
                outcome = workspace.run(test)
                if outcome.decided:
                    return outcome
    except RuleError as problem:
        return Outcome("error", str(problem))
    return workspace.run_everything(mutant)


def switched(workspace: Workspace, mutant: Mutant) -> Outcome | None:
    """The same for a mutant that is in the build of all. None if it is not, or its tests let it pass."""
    number = workspace.numbers.get(mutant.name)
    if number is None:
        return None
    for test in mutant.tests:
        outcome = workspace.run(test, number=number)
        if outcome.decided:
            return outcome
    return None


def main() -> int:
    options = arguments()
    mutants = chosen(options.only)
    if options.list:
        print_list(mutants)
        return 0
    if found := problems(mutants, ROOT, every=mutants is MUTANTS):
        print("\n".join(found))
        return 1
    if options.check:
        print(f"{len(mutants)} mutants, each in one place")
        return 0
    workspace = Workspace(ROOT, options.jobs, options.timeout)
    started = time.monotonic()
    print(f"building {len(mutants)} mutants at once", flush=True)
    if not workspace.switch(mutants):
        return 1
    print(f"{len(workspace.numbers)} of them fit into one build; the tests without any, first", flush=True)
    if not workspace.prepare(sorted({test for mutant in mutants for test in mutant.tests})):
        return 1
    print(f"ready after {time.monotonic() - started:.0f} s", flush=True)
    results: dict[str, Outcome] = {}
    one_by_one(mutants, results, lambda mutant: switched(workspace, mutant))
    workspace.restore()
    one_by_one([mutant for mutant in mutants if mutant.name not in results], results, lambda mutant: attempt(workspace, mutant))
    return summary(results, time.monotonic() - started)


def one_by_one(mutants: list[Mutant], results: dict[str, Outcome], attempt: Callable[[Mutant], Outcome | None]) -> None:
    """Tries each, and prints what became of those that are decided."""
    for mutant in mutants:
        begun = time.monotonic()
        if outcome := attempt(mutant):
            results[mutant.name] = outcome
            took = time.monotonic() - begun
            print(f"[{len(results)}, {took:4.0f} s] {outcome.word:8} {mutant.name:40} {outcome.detail}", flush=True)


def summary(results: dict[str, Outcome], seconds: float) -> int:
    bad = {name: outcome for name, outcome in results.items() if outcome.word not in ("caught", "timeout")}
    timeouts = sum(outcome.word == "timeout" for outcome in results.values())
    for name, outcome in bad.items():
        print(f"{outcome.word}: {name}: {outcome.detail}")
    caught = f"{len(results) - len(bad)} of {len(results)} mutants caught"
    print(f"{caught}{f' ({timeouts} by a timeout)' if timeouts else ''} in {seconds / 60:.1f} minutes")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
