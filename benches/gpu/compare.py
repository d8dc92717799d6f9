"""Measures WeightStream on one NVIDIA GPU against the link, the non-offloaded baseline and other offloaders, in one run.

Every section runs in a process of its own and writes its figures to `--out` at once, one JSON object per line, so that a run that is
cut short loses one section. Prints Markdown tables of ratios at the end; `--table FILE...` prints them from files of earlier runs.
The *baseline* is the same program exported with `offload=False`, compiled with the same choice of kernels and run by the same
runtime: no probes, all weights loaded up front. Needs torch, ExecuTorch and the runtime library (WEIGHTSTREAM_LIBRARY, or the installed package).

    python benches/gpu/compare.py --tokens 1 --keep /tmp/models --out results.jsonl
    python benches/gpu/compare.py --tokens 512 8192 --keep /tmp/models --out results.jsonl --peers accelerate,diffusers

Estimates for the 7 GB model on an H200, per number of tokens: exports 120 s and 90 s (`--export-jobs 3`: of three numbers of tokens at once), link 2 x 10 s,
eager 15 s, pairs 15 s, six budgets 50 s, accelerate 25 s, diffusers 25 s, comfy-aimdo 40 s: seven minutes. Disk: 14 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

SECTION_LIMIT = 240
ALL = ["exports", "link", "eager", "pairs", "ours", "peers"]
#: Files that sections read, and the section that makes each.
NEEDS = {
    "pairs": {"offload.ptd": "exports", "baseline.ptd": "exports"},
    "ours": {"offload.ptd": "exports", "expected.pt": "eager"},
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1])
    parser.add_argument("--policies", nargs="+", default=["planned", "lru"], help="residency policies")
    parser.add_argument("--budgets", nargs="+", default=["floor", "25", "50", "75", "90", "100"], help="floor, or percent of the weights")
    parser.add_argument("--peers", default="accelerate,diffusers,aimdo", help="comma-separated; '' for none")
    parser.add_argument("--only", default=",".join(ALL), help=f"sections, comma-separated: {', '.join(ALL)}")
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--export-jobs", type=int, default=1, help="exports at a time; several disturb each other's tuning a little")
    parser.add_argument("--keep", type=Path, default=Path("compare-models"), help="folder of the exported models, which are used again")
    parser.add_argument("--out", type=Path, default=Path("compare.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print the tables of these files")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_section(arguments: argparse.Namespace) -> None:
    """Inside the process of one section."""
    import peers
    import sections
    from measure import Results

    (count,) = arguments.tokens
    about = Results(arguments.out, section=arguments.section, tokens=count, layers=arguments.layers)
    job = sections.Job(arguments.layers, count, arguments.keep.resolve(), about, arguments.passes, arguments.budgets, arguments.policies)
    steps = {
        "export offload": lambda: sections.export(job, "offload"),
        "export baseline": lambda: sections.export(job, "baseline"),
        "link": lambda: sections.measure_link(job),
        "eager": lambda: sections.measure_eager(job),
        "pairs": lambda: sections.measure_pairs(job),
        "ours": lambda: sections.measure_ours(job),
    }
    steps.update({f"peer {name}": lambda peer=peer: peer(job) for name, peer in peers.PEERS.items()})
    try:
        steps[arguments.section]()
    except Exception as problem:
        text = (str(problem).splitlines() or [""])[0].replace("|", "/")
        about.write(system=arguments.section, problem=f"{type(problem).__name__}: {text}"[:120])
        raise


def start(arguments: argparse.Namespace, section: str, count: int) -> subprocess.Popen:
    print(f"compare: [{time.monotonic() - STARTED:4.0f} s] {count} tokens: {section}", file=sys.stderr, flush=True)
    plain = ["layers", "passes", "keep", "out"]
    options = [word for key in plain for word in (f"--{key}", str(getattr(arguments, key)))]
    command = [sys.executable, os.path.abspath(__file__), "--section", section, "--tokens", str(count), *options]
    return subprocess.Popen([*command, "--budgets", *arguments.budgets, "--policies", *arguments.policies])


def finish(process: subprocess.Popen, section: str) -> bool:
    try:
        code = process.wait(SECTION_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        code = f"none after {SECTION_LIMIT} s"
    if code != 0:
        print(f"compare: {section} FAILED, exit status {code}", file=sys.stderr, flush=True)
    return code == 0


def run_exports(arguments: argparse.Namespace) -> bool:
    """The baselines behind the others, whose choice of kernels they take over."""
    right = True
    for kind in ("export offload", "export baseline"):
        for at in range(0, len(arguments.tokens), arguments.export_jobs):
            some = [start(arguments, kind, count) for count in arguments.tokens[at : at + arguments.export_jobs]]
            outcomes = [finish(process, kind) for process in some]
            right = all(outcomes) and right
    return right


def lacking(arguments: argparse.Namespace, only: list[str]) -> list[str]:
    """What sections read that is neither there nor made by another one of them."""
    lines = []
    for count in arguments.tokens:
        folder = arguments.keep / f"{arguments.layers}-layers-{count}-tokens"
        for section in only:
            needs = NEEDS.get(section, {}).items()
            missing = {name: maker for name, maker in needs if maker not in only and not (folder / name).exists()}
            if missing:
                makers = ",".join(dict.fromkeys([*missing.values(), *only]))
                lines.append(f"'{section}' lacks {' and '.join(missing)} in {folder}: add what makes them (--only {makers})")
    return lines


def main() -> int:
    arguments = parse()
    if arguments.table:
        show(arguments.table)
        return 0
    if arguments.section:
        run_section(arguments)
        return 0
    only = arguments.only.split(",")
    unknown = set(only) - set(ALL)
    if unknown:
        raise SystemExit(f"compare: unknown sections {sorted(unknown)}; known are {ALL}")
    if lines := lacking(arguments, only):
        raise SystemExit("\n".join(f"compare: {line}" for line in lines))
    arguments.keep.mkdir(parents=True, exist_ok=True)
    right = run_exports(arguments) if "exports" in only else True
    for count in arguments.tokens:
        peers = [f"peer {name}" for name in filter(None, arguments.peers.split(","))] if "peers" in only else []
        order = ["link", "eager", "pairs", "ours", *peers, "link"]
        for section in [name for name in order if name in only or name in peers]:
            right = finish(start(arguments, section, count), section) and right
    if arguments.out.exists():
        show([arguments.out])
    return 0 if right else 1


def show(paths: list[Path]) -> None:
    from table import read, table

    lines = read(paths)
    for count in sorted({line["tokens"] for line in lines}):
        print(table(lines, count), "\n", flush=True)


STARTED = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
