"""What is measured, each in a process of its own: the link, eager PyTorch, the exports, WeightStream."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import statistics
import time
import unittest.mock
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._inductor.codecache
from llama import build, tokens, weight_sizes
from measure import Results, back_to_back_ms, distance, link, median_ms, say, timed_ms
from torch._inductor.runtime.triton_heuristics import CachingAutotuner


@dataclass
class Job:
    """What one section is to do."""

    layers: int
    count: int
    keep: Path
    results: Results
    passes: int
    budgets: list[str]
    policies: list[str]

    @property
    def folder(self) -> Path:
        return self.keep / f"{self.layers}-layers-{self.count}-tokens"

    def files(self, kind: str) -> tuple[str, str]:
        return str(self.folder / f"{kind}.pte"), str(self.folder / f"{kind}.ptd")

    @property
    def expected(self) -> Path:
        return self.folder / "expected.pt"


def measure_link(job: Job) -> None:
    sizes = weight_sizes(job.layers)
    job.results.write(system="link", name=torch.cuda.get_device_name(), weights=sum(sizes), **link(sizes))


def measure_eager(job: Job) -> None:
    """Everything resident; keeps float32's output, which the others are compared with."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model, given = build(job.layers, "cuda"), tokens(job.count).cuda()
    with torch.no_grad():
        ms = median_ms(lambda: model(given), job.passes)
        ours = model(given).float().cpu()
        exact = model.float()(given).cpu()
    job.folder.mkdir(parents=True, exist_ok=True)
    torch.save(exact, job.expected)
    job.results.write(system="eager", ms=ms, error=distance(ours, exact))


@contextlib.contextmanager
def into(log: Path) -> Iterator[None]:
    """The compiler's autotuning prints hundreds of lines."""
    with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


@contextlib.contextmanager
def tuning_of(job: Job) -> Iterator[None]:
    """Keeps what the compiler measured of its kernels, so that both exports of a job choose the same ones: tuned twice, equal
    products may get kernels that differ by several percent, which is what a comparison of the two would then show."""
    kept = staticmethod(lambda: job.folder / "tuning.json")
    with (
        unittest.mock.patch.object(torch._inductor.codecache.CacheBase, "get_local_cache_path", kept),
        unittest.mock.patch.object(CachingAutotuner, "benchmark_all_configs", measured_once(job.folder / "kernels.json")),
    ):
        yield


def measured_once(file: Path):
    """In the place of what measures a Triton kernel of its own, as attention's: each once for the same arguments. The compiler keeps
    these figures by the kernel's source, in which its number stands, and so does not find them in another program."""
    known = json.loads(file.read_text()) if file.exists() else {}
    measure = CachingAutotuner.benchmark_all_configs

    def timings(tuner: CachingAutotuner, *given, **options):
        sizes = [tuple(one.shape) if isinstance(one, torch.Tensor) else one for one in given]
        key = f"{re.sub('_[0-9]+$', '', tuner.fn.__name__)} {sizes}"
        found = known.get(key, {})
        if any(str(launcher.config) not in found for launcher in tuner.launchers):
            found = {str(launcher.config): ms for launcher, ms in measure(tuner, *given, **options).items()}
            known[key] = found
            file.write_text(json.dumps(known, indent=1))
        return {launcher: found[str(launcher.config)] for launcher in tuner.launchers}

    return timings


def export(job: Job, kind: str) -> None:
    """`offload`: as docs/export.md shows it; `baseline`: the same with `offload=False`, so that nothing is probed or streamed."""
    import weightstream as ws
    from executorch.exir import to_edge_transform_and_lower

    pte, ptd = job.files(kind)
    if os.path.exists(ptd):
        say(f"{ptd} is there already")
        return
    job.folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    model = build(job.layers)
    with into(job.folder / f"{kind}.log"), tuning_of(job):
        program = torch.export.export(model, (tokens(job.count),))
        partitioner = ws.WeightStreamPartitioner(device="cuda", offload=kind == "offload")
        edge = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=ws.edge_compile_config())
        # Under another name until it is complete.
        ws.save(edge, f"{pte}.part", f"{ptd}.part")
    os.replace(f"{pte}.part", pte)
    os.replace(f"{ptd}.part", ptd)
    job.results.write(system=f"export {kind}", seconds=time.monotonic() - begin)


def only(output):
    return output[0] if isinstance(output, (tuple, list)) else output


def measure_pairs(job: Job) -> None:
    """The baseline and a budget that covers everything, both loaded, pass by pass in turn."""
    import weightstream as ws

    given, whole = tokens(job.count), everything(job)
    with ws.Module(*job.files("baseline")) as baseline, ws.Module(*job.files("offload"), weight_offload_budget_bytes=str(whole)) as ours:
        assert ours.stats()["budget_bytes"] == whole
        both = baseline, ours
        for module in both * 3:
            module.forward(given)
        pairs = []
        for number in range(2 * job.passes):
            # Each goes first in turn.
            order = both if number % 2 else both[::-1]
            times = {id(module): timed_ms(lambda m=module: m.forward(given)) for module in order}
            pairs.append((times[id(baseline)], times[id(ours)]))
        first, second = (statistics.median(column) for column in zip(*pairs))
        alone = back_to_back_ms(lambda: baseline.forward(given), job.passes)
        job.results.write(
            system="pairs",
            baseline_ms=first,
            baseline_back_to_back_ms=alone,
            all_resident_ms=second,
            ratio_of_medians=second / first,
            median_of_ratios=statistics.median(b / a for a, b in pairs),
            copied=ours.stats()["bytes_copied_last_pass"],
        )


def everything(job: Job) -> int:
    """Bytes of a budget that covers all weights."""
    return os.path.getsize(job.files("offload")[1]) + (16 << 20)


def steps(job: Job) -> list[tuple[str, str]]:
    """Policies and budgets, the largest first. With everything resident there is one policy."""
    budgets = sorted(job.budgets, key=lambda b: 0 if b == "floor" else int(b), reverse=True)
    return [(policy, name) for name in budgets for policy in (job.policies if name != "100" else job.policies[:1])]


def measure_ours(job: Job) -> None:
    """Each policy and budget by itself; the largest first, as its load also warms the file."""
    import weightstream as ws

    given, expected = tokens(job.count), torch.load(job.expected)
    floor = ws.required_budget(job.files("offload")[0])
    with ws.Module(*job.files("offload")) as module:
        whole = module.stats()["total_weight_bytes"] + module.stats()["direct_bytes"]
    first = None
    for policy, name in steps(job):
        budget = floor if name == "floor" else everything(job) if name == "100" else max(floor, whole * int(name) // 100)
        gc.collect()
        before, begin = torch.cuda.mem_get_info()[0], time.monotonic()
        with ws.Module(*job.files("offload"), weight_offload_budget_bytes=str(budget), weight_offload_policy=policy) as module:
            loaded = time.monotonic() - begin
            output = only(module.forward(given))
            first = output if first is None else first
            outputs = [output]

            def step(m=module, kept=outputs):
                kept.append(only(m.forward(given)))

            ms, idle_ms = back_to_back_ms(step, job.passes), median_ms(step, job.passes)
            same = all(torch.equal(each.view(torch.int16), first.view(torch.int16)) for each in outputs)
            taken, stats = before - torch.cuda.mem_get_info()[0], module.stats()
            job.results.write(
                system=f"weightstream {policy}",
                budget=name,
                ms=ms,
                idle_to_idle_ms=idle_ms,
                load_s=loaded,
                copied=stats["bytes_copied_last_pass"],
                error=distance(output.float(), expected),
                same_bits=same,
                passes_compared=len(outputs),
                device_bytes_taken=taken,
                stats=stats,
            )
