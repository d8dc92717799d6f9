#!/usr/bin/env python3
"""`ws.torch.offload(model, weights=folder)` on a GPU: a decoder whose weights stay in safetensors files, `mapped` and `staged`.

    python benches/gpu/checkpoint.py                            # 7 GB of shards are written, then read in each way
    python benches/gpu/checkpoint.py --gb 16 --limit-gb 8       # and once more staged, with less memory than the checkpoint has

Each way runs in a process of its own, which makes the model on `meta`. A line of JSON says how long `offload` and the first pass took,
how far anonymous memory grew, and at each budget the time of a pass and a hash of its output. `plain` is the same model on the GPU,
without offloading. The status is 1 if hashes differ.

With `--limit-gb` the process gets a control group with that much memory, page cache too, or a scope of systemd-run. Where neither
is allowed, `prlimit` limits its anonymous memory alone; the line says which one it was.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import weightstream as ws
from llama import SMALL, Llama, tokens
from load import forget, limited
from measure import say

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
GB, PAGE = 10**9, 2 << 20


def model_of(arguments: argparse.Namespace) -> Llama:
    """On meta, about as large as was asked for."""
    sizes = SMALL if arguments.small else {}

    def made(layers: int) -> Llama:
        with torch.device("meta"):
            return Llama(layers, **sizes).to(torch.bfloat16).eval().requires_grad_(False)

    none, one = (sum(p.nbytes for p in made(layers).parameters()) for layers in (0, 1))
    return made(max(1, round((arguments.gb * GB - none) / (one - none))))


def write(folder: Path, model: Llama, shards: int) -> None:
    """Random weights, one tensor at a time."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    named, index = list(model.state_dict().items()), {}
    share = -(-len(named) // shards)
    for at in range(0, len(named), share):
        mine, header, begin = named[at : at + share], {}, 0
        for name, tensor in mine:
            header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, begin + tensor.nbytes]}
            begin += tensor.nbytes
            index[name] = f"model-{at // share:05}.safetensors"
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / index[mine[0][0]]).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, tensor in mine:
                drawn = torch.empty(tensor.shape, device=DEVICE).uniform_(-1, 1) / math.sqrt(tensor.shape[-1])
                drawn = drawn + 1 if tensor.dim() == 1 else drawn
                file.write(drawn.bfloat16().cpu().view(torch.uint8).numpy().tobytes())
            os.fsync(file.fileno())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def anonymous() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def hashed(found: torch.Tensor) -> str:
    return hashlib.sha256(found.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def seconds_of(model: Llama, given: torch.Tensor) -> tuple[float, torch.Tensor]:
    begin = time.perf_counter()
    found = model(given).cpu()
    return time.perf_counter() - begin, found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Inside the process of one way."""
    torch.zeros(1, device=DEVICE)
    model = model_of(arguments)
    before = anonymous()
    given = tokens(1, model.embed.num_embeddings).to(DEVICE)
    paged = sum(-(-p.nbytes // PAGE) * PAGE for p in model.parameters())
    host = "auto" if arguments.way == "plain" else arguments.way
    with torch.inference_mode():
        begin = time.perf_counter()
        handle = ws.torch.offload(model, weights=arguments.folder, host=host, device=DEVICE)
        line: dict[str, Any] = {"load_s": time.perf_counter() - begin, "anonymous_after_load_mb": (anonymous() - before) / 1e6}
        if arguments.way == "plain":
            handle.remove()
            model.to(DEVICE)
            seconds_of(model, given)
            times = [seconds_of(model, given) for _ in range(arguments.passes)]
            return line | {
                "budgets": {"plain": {"pass_ms": statistics.median(one for one, _ in times) * 1e3, "hash": hashed(times[-1][1])}}
            }
        line["first_pass_s"], found = seconds_of(model, given)
        line |= {"recorded_hash": hashed(found), "anonymous_after_first_pass_mb": (anonymous() - before) / 1e6, "budgets": {}}
        floor = handle.stats()["floor_bytes"]
        budgets = {"floor": floor} | {f"{percent} %": max(floor, paged * percent // 100) for percent in arguments.percent}
        for name, budget in budgets.items():
            handle.set_budget(budget)
            for _ in range(2):
                model(given)
            copied, times = handle.stats()["bytes_copied"], [seconds_of(model, given) for _ in range(arguments.passes)]
            now = handle.stats()
            line["budgets"][name] = {
                "pass_ms": statistics.median(one for one, _ in times) * 1e3,
                "copied_gb": (now["bytes_copied"] - copied) / arguments.passes / GB,
                "peak_gb": now["peak_bytes"] / GB,
                "budget_gb": budget / GB,
                "hash": hashed(times[-1][1]),
                "one_hash": len({hashed(found) for _, found in times}) == 1,
                "astray": now["astray"],
            }
        line |= {"anonymous_at_the_end_mb": (anonymous() - before) / 1e6, "plans": now["plans"]}
        line |= {key: now[key] for key in ("host_mapped_bytes", "host_pinned_bytes")}
        handle.remove()
    return line


@contextlib.contextmanager
def under(limit: float | None) -> Iterator[tuple[str, list[str], Any]]:
    """What limits the memory of a process: its name, words before the command, and what the child does first."""
    if limit is None:
        yield "none", [], None
        return
    count = int(limit * GB)
    with contextlib.ExitStack() as stack:
        try:
            procs = stack.enter_context(limited(count))
        except OSError as problem:
            say(f"checkpoint: no control group: {problem}")
            procs = None
        if procs is not None:
            yield "control group", [], lambda: procs.write_text(str(os.getpid()))
            return
        scope = ["systemd-run", "--scope", "--quiet", "-p", f"MemoryMax={count}", "-p", "MemorySwapMax=0"]
        if shutil.which(scope[0]) and subprocess.run([*scope, "true"], check=False, capture_output=True).returncode == 0:
            yield "systemd-run", scope, None
        elif shutil.which("prlimit"):
            yield "prlimit of anonymous memory alone; the page cache is not limited", ["prlimit", f"--data={count}"], None
        else:
            raise OSError("neither a control group, nor systemd-run, nor prlimit can be used here")


def run(arguments: argparse.Namespace, way: str, limit: float | None = None) -> dict[str, Any]:
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--way", way]
    line = {"way": way, "gb": sum(path.stat().st_size for path in arguments.folder.iterdir()) / GB, "device": DEVICE}
    try:
        with under(limit) as (how, words, join):
            if limit is not None:
                line |= {"limit_gb": limit, "limited_by": how}
                # So that whoever reads them next is charged for their pages.
                for path in arguments.folder.glob("*.safetensors"):
                    forget(path)
            done = subprocess.run([*words, *command], check=False, stdout=subprocess.PIPE, text=True, timeout=540, preexec_fn=join)
    except (OSError, subprocess.SubprocessError) as problem:
        return line | {"problem": str(problem)}
    if done.returncode != 0:
        return line | {"problem": f"exit status {done.returncode}"}
    return line | json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=7, help="of weights (default 7)")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="layers of 33 MB instead of 0.4 GB")
    parser.add_argument("--passes", type=int, default=5, help="at each budget")
    parser.add_argument("--percent", type=int, nargs="*", default=[25, 50, 75, 100], help="budgets, of all weights, beside the least one")
    parser.add_argument("--ways", nargs="+", default=["plain", "mapped", "staged"], choices=["plain", "mapped", "pinned", "staged"])
    parser.add_argument("--folder", type=Path, default=Path("checkpoint-model"), help="where shards are written, unless some are there")
    parser.add_argument("--limit-gb", type=float, help="one more run, staged, with so much memory")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments)))
        return 0
    if not (arguments.folder / "model.safetensors.index.json").exists():
        begin = time.perf_counter()
        write(arguments.folder, model_of(arguments), arguments.shards)
        say(f"checkpoint: wrote {arguments.folder} in {time.perf_counter() - begin:.1f} s")
    runs = [(way, None) for way in arguments.ways] + ([("staged", arguments.limit_gb)] if arguments.limit_gb else [])
    lines = []
    for way, limit in runs:
        lines.append(run(arguments, way, limit))
        print(json.dumps(lines[-1]), flush=True)
    hashes = {one["hash"] for line in lines for one in line.get("budgets", {}).values()}
    good = len(hashes) == 1 and all("problem" not in line for line in lines)
    good = good and all(one.get("one_hash", True) for line in lines for one in line["budgets"].values())
    print(json.dumps({"bits_are_equal": len(hashes) == 1, "good": good}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
