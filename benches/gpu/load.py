"""What loading the 7 GB model costs: seconds per GiB, and anonymous host memory, for each way to hold the weights on the host.

Each way is measured in a process of its own, on files that `compare.py --only exports` has exported and that are read once before, so
that they are cached. Memory is measured from after the CUDA context exists, over the first load and one pass. The time per GiB is
that of a second load in the same process, which finds the compiled library open: what is left is the weights' own. `staged-half` runs
in a control group limited to half of the file's size, from a file that is not cached.

    python benches/gpu/load.py --keep /tmp/models --tokens 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from llama import tokens
from measure import Results, distance, say

WAYS = ["mapped", "pinned", "staged", "staged-half"]
GIB = 1 << 30
CGROUP = Path("/sys/fs/cgroup")


def anonymous_bytes() -> int:
    """Anonymous memory of this process, of all mappings."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup has no line 'Anonymous:'")


def read_once(path: str) -> None:
    """Brings the file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(64 << 20)
        while file.readinto(buffer):
            pass


def forget(path: Path) -> None:
    """Takes the file out of the page cache, so that whoever reads it next is charged for its pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(files: tuple[str, str], way: str, budget: int):
    import weightstream as ws

    begin = time.perf_counter()
    module = ws.Module(*files, weight_offload_budget_bytes=str(budget), weight_offload_host=way)
    return module, time.perf_counter() - begin


def measure(folder: Path, way: str, count: int, results: Results) -> None:
    """Inside the process of one way."""
    import weightstream as ws

    files, host = (str(folder / "offload.pte"), str(folder / "offload.ptd")), way.partition("-")[0]
    if way != "staged-half":
        read_once(files[1])
    size, floor, given = os.path.getsize(files[1]), ws.required_budget(files[0]), tokens(count)
    torch.zeros(1, device="cuda")
    before = anonymous_bytes()
    module, first = load(files, host, floor)
    after = anonymous_bytes()
    found = module.forward(given)
    found = found[0] if isinstance(found, (tuple, list)) else found
    ran, stats = anonymous_bytes(), module.stats()
    module.close()
    module, second = load(files, host, floor)
    module.close()
    error = distance(found.float(), torch.load(folder / "expected.pt")) if (folder / "expected.pt").exists() else None
    results.write(
        way=way,
        first_load_s=first,
        second_load_s=second,
        second_load_s_per_gib=second / (size / GIB),
        anonymous_growth_mib=(after - before) / (1 << 20),
        anonymous_growth_after_a_pass_mib=(ran - before) / (1 << 20),
        host_pinned_bytes=stats["host_pinned_bytes"],
        host_mapped_bytes=stats["host_mapped_bytes"],
        error=error,
        size=size,
    )


@contextlib.contextmanager
def limited(limit: int):
    """A control group with this much memory for everything in it, page cache too; its `cgroup.procs`. An error says why there is none."""
    v2, group = CGROUP / "cgroup.controllers", CGROUP / f"weightstream-{os.getpid()}"
    if v2.exists():
        # Where the controller is not handed down yet, the root group can be told to; only root may, and not in every container.
        if "memory" not in (CGROUP / "cgroup.subtree_control").read_text().split():
            (CGROUP / "cgroup.subtree_control").write_text("+memory")
        limit_file = "memory.max"
    else:
        group, limit_file = CGROUP / "memory" / group.name, "memory.limit_in_bytes"
    group.mkdir()
    try:
        (group / limit_file).write_text(str(limit))
        yield group / "cgroup.procs"
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def run_way(arguments: argparse.Namespace, way: str, folder: Path) -> None:
    command = [sys.executable, os.path.abspath(__file__), "--way", way, "--keep", str(arguments.keep), "--tokens", str(arguments.tokens)]
    command += ["--layers", str(arguments.layers), "--out", str(arguments.out)]
    with contextlib.ExitStack() as stack:
        join = None
        if way == "staged-half":
            try:
                procs = stack.enter_context(limited(os.path.getsize(folder / "offload.ptd") // 2))
                forget(folder / "offload.ptd")
            except OSError as problem:
                Results(arguments.out).write(way=way, problem=f"no control group with a limit can be made here: {problem}")
                return

            def join(procs=procs):
                procs.write_text(str(os.getpid()))

        done = subprocess.run(command, check=False, timeout=240, preexec_fn=join)
    if done.returncode != 0:
        Results(arguments.out).write(way=way, problem=f"exit status {done.returncode}")


def show(path: Path) -> None:
    lines = {line["way"]: line for line in map(json.loads, path.read_text().splitlines()) if "way" in line}
    print(
        "| host memory | load, s/GiB | first load, s | anonymous memory grows by, MiB | pinned, MiB | registered, MiB | away from float32 |"
    )
    print("|---|---|---|---|---|---|---|")
    for way, line in lines.items():
        if "problem" in line:
            print(f"| {way} | {line['problem']} | | | | | |")
            continue
        pinned, mapped = (line[key] / (1 << 20) for key in ("host_pinned_bytes", "host_mapped_bytes"))
        error = "not compared" if line["error"] is None else f"{line['error']:.1e}"
        print(
            f"| {way} | {line['second_load_s_per_gib']:.3f} | {line['first_load_s']:.2f} | {line['anonymous_growth_after_a_pass_mib']:.0f} "
            f"| {pinned:.0f} | {mapped:.0f} | {error} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=Path("compare-models"), help="folder of the models that compare.py exported")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--out", type=Path, default=Path("load.jsonl"))
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.keep.resolve() / f"{arguments.layers}-layers-{arguments.tokens}-tokens"
    if not (folder / "offload.ptd").exists():
        raise SystemExit(f"load: {folder} holds no exported model: run compare.py --only exports --tokens {arguments.tokens} --keep first")
    if arguments.way:
        measure(folder, arguments.way, arguments.tokens, Results(arguments.out))
        return
    for way in arguments.ways:
        say(f"load: {way}")
        run_way(arguments, way, folder)
    show(arguments.out)


if __name__ == "__main__":
    main()
