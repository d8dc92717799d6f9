#!/usr/bin/env python3
"""`ws.torch.offload` beside other offloaders at real sizes, with random weights: Flux's transformer, a decoder of Qwen3-8B's sizes, and a
pipeline of Flux's sizes.

    python benches/gpu/pipelines.py --out results.jsonl                  # everything: five minutes on an H200, 80 GB of host memory
    python benches/gpu/pipelines.py --who ours --parts pipeline --out results.jsonl
    python benches/gpu/pipelines.py --parts transformer-int8,decoder-int8-compiled --who ours,diffusers --out results.jsonl
    python benches/gpu/pipelines.py --table results.jsonl                # only print the tables of files

`int8` and `int4` are torchao's weight-only quantization; `compiled` is torch.compile of each block of Flux, and of each block's MLP of the
decoder (its attention would be compiled again for each layer, since that is given its number in the cache).

Needs torch, transformers, diffusers and the runtime library; accelerate and comfy-aimdo where they are peers. Each system has a process for
each part, with a time limit: what fails has a line that says why. Peers compare with lines of `ours`, which come first; with `--who` of
peers only, the file has to have them from an earlier call.

The limit of a pass is the longer of two times: that of the module on the GPU as a whole, and that in which the link carries the bytes that
exceed the memory for weights. That memory is the budget here; of a peer it is the peak of its device memory in the timed passes, without
what a pass of the module on the GPU takes beside weights. Outputs are compared with those of the module on the GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from pipeline_table import NAMES, OURS, read, table

#: Budgets, of all weights; 0 is the least one. Peers have those of PEER_PERCENT.
PERCENT = [0, 25, 50, 75, 90]
PEER_PERCENT = (25, 50, 75)
WHO = ["ours", "aimdo", "accelerate", "diffusers"]
#: Seconds.
OUR_LIMIT, PEER_LIMIT = 240, 150
TITLES = {"ours": OURS, "diffusers": "diffusers group offloading", "accelerate": "accelerate", "aimdo": "comfy-aimdo"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="transformer,decoder,pipeline", help=f"comma-separated, of {', '.join(NAMES)}")
    parser.add_argument("--who", default=",".join(WHO), help="comma-separated (default: all)")
    parser.add_argument("--out", type=Path, default=Path("pipelines.jsonl"), help="a line for each figure, as soon as it is known")
    parser.add_argument("--percent", type=int, nargs="+", default=PERCENT, help="budgets, of all weights (default: 0 25 50 75 90)")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print the tables of these files")
    parser.add_argument("--packed", action="store_true", help="of ours: weights have packed copies")
    parser.add_argument("--section", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_section(args: argparse.Namespace) -> int:
    """Inside the process of one section."""
    who, part = args.section
    from measure import Results

    results = Results(args.out)
    try:
        import pipeline_ours
        import pipeline_peers

        if who == "ours":
            good = pipeline_ours.run(part, results, args.percent, args.packed)
        else:
            some = [percent for percent in args.percent if percent in PEER_PERCENT]
            good = pipeline_peers.run(who, part, results, some, args.out)
    except Exception as problem:
        text = (str(problem).splitlines() or [""])[0]
        results.write(part=NAMES[part], system=TITLES[who], problem=f"{type(problem).__name__}: {text}"[:200])
        raise
    return 0 if good else 1


def start(args: argparse.Namespace, who: str, part: str) -> subprocess.Popen:
    percents = [str(percent) for percent in args.percent]
    command = [sys.executable, str(Path(__file__).resolve()), "--section", who, part, "--out", str(args.out), "--percent", *percents]
    command += ["--packed"] if args.packed else []
    return subprocess.Popen(command)


def finish(process: subprocess.Popen, args: argparse.Namespace, who: str, part: str) -> bool:
    """Waits for it, up to its limit. One that ends without a word of its own has a line here."""
    limit = OUR_LIMIT if who == "ours" else PEER_LIMIT
    try:
        code = process.wait(limit)
        problem = f"ended by signal {-code}" if code < 0 else None
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code, problem = -1, f"not done after {limit} s"
    if problem:
        from measure import Results

        Results(args.out).write(part=NAMES[part], system=TITLES[who], problem=problem)
    return code == 0


def main() -> int:
    args = parse()
    if args.table:
        print(table(read(args.table)), flush=True)
        return 0
    if args.section:
        return run_section(args)
    parts, who = args.parts.split(","), args.who.split(",")
    unknown = {*parts, *who} - {*NAMES, *WHO}
    if unknown:
        raise SystemExit(f"pipelines: unknown {sorted(unknown)}; known are {[*NAMES, *WHO]}")
    # What is ours comes first, all of it: the others are compared with it.
    order = [(one, part) for one in WHO if one in who for part in NAMES if part in parts and (one, part) != ("aimdo", "pipeline")]
    began, failed = time.monotonic(), []
    for section in order:
        print(f"pipelines: [{time.monotonic() - began:4.0f} s] {' '.join(section)}", file=sys.stderr, flush=True)
        if not finish(start(args, *section), args, *section):
            failed.append(" ".join(section))
    print(table(read([args.out])), flush=True)
    print(f"FAILED: {', '.join(failed)}" if failed else "right", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
