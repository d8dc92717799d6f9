"""`ws.torch.offload` on the models of `pipelines.py`; before that, each of them on the GPU as a whole, and the link."""

from __future__ import annotations

import time

import torch
import weightstream as ws
from measure import GB, Results, back_to_back_ms, distance, link, say
from pipeline_models import DEVICE, STEPS, SUBJECTS, Subject, bytes_of, to_host
from pipeline_table import OURS, compared, limit_ms
from torch._dynamo.utils import counters

PASSES = {"transformer": 6, "decoder": 10}


def passes_of(part: str) -> int:
    return PASSES[part.partition("-")[0]]


#: Of the pipeline.
BUDGET = int(12 * GB)


def peak(handle: ws.torch.Offloaded) -> int:
    """Weights are not PyTorch's memory: both peaks are added."""
    return handle.stats()["peak_bytes"] + torch.cuda.max_memory_allocated()


def link_now() -> float:
    """GB/s. It differs by some percent from one minute to the next: who else uses the host's memory is not known here."""
    return link([1 << 30] * 4, runs=3)["64_mib_median"]


def whole(subject: Subject, results: Results, activations: int, steps: dict[str, dict[str, float]]) -> dict:
    """Writes what everything is compared with, and brings the weights to host memory."""
    for module in subject.modules if subject.is_plain() else ():
        to_host(module)
    speed = link_now()
    line = {"ms": sum(step["ms"] for step in steps.values()), "steps": steps, "activations_gb": activations / GB, "link_gb_s": speed}
    line |= {"repeats": subject.repeats, "compiled_graphs": counters["stats"]["unique_graphs"]}
    results.write(part=subject.name, system="whole", gpu=torch.cuda.get_device_name(), **line)
    return line


def model(part: str, results: Results, percents: list[int], packed: bool) -> bool:
    """Some budgets of one model."""
    subject, good = SUBJECTS[part](), True
    expected, activations = subject.on_gpu()
    # The processor's speed changes, and small kernels wait for it.
    eager = min(back_to_back_ms(subject.step, passes_of(part)) for _ in range(3))
    line = whole(subject, results, activations, {part: {"ms": eager, "gb": subject.whole / GB, "times": 1}})
    began = time.monotonic()
    with ws.torch.offload(subject.modules[0], device=DEVICE, packed=packed) as handle:
        subject.ready()
        subject.step()
        subject.step()
        say(f"{subject.name}: recorded, planned and loaded in {time.monotonic() - began:.1f} s")
        floor = handle.stats()["floor_bytes"]
        for percent in percents:
            budget = max(floor, subject.whole * percent // 100)
            handle.set_budget(budget)
            good = at(subject, handle, expected, line, budget, results, percent, passes_of(part)) and good
    return good


def at(
    subject: Subject,
    handle: ws.torch.Offloaded,
    expected: list[torch.Tensor],
    line: dict,
    budget: int,
    results: Results,
    percent: int,
    passes: int,
) -> bool:
    """One budget."""
    subject.ready()
    found = [subject.step() for _ in expected]
    right = all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    far = max(distance(one.float(), other.float()) for one, other in zip(found, expected, strict=True))
    for _ in range(3):
        subject.step()
    speed = link_now()
    subject.step()
    torch.cuda.reset_peak_memory_stats()
    before = handle.stats()
    ms = back_to_back_ms(subject.step, passes)
    after, memory = handle.stats(), peak(handle)
    line = line | {"link_gb_s": (speed + link_now()) / 2}
    copied = (after["bytes_copied"] - before["bytes_copied"]) / (after["passes"] - before["passes"])
    # The limit is that of the budget, also where less was held.
    figures = compared(line, ms, memory / GB) | {"over_limit": ms / limit_ms(line, budget / GB), "link_gb_s": line["link_gb_s"]}
    about = {"percent": percent, "budget_gb": budget / GB, "copied_gb": copied / GB, "astray": after["astray"], "right": right}
    about |= {"packed_gb": after["packed_stored_bytes"] / GB}
    about |= {"distance": far, "compiled_graphs": counters["stats"]["unique_graphs"]}
    results.write(part=subject.name, system=OURS, **figures, **about)
    return right


def copied_by_part(handle: ws.torch.Offloaded) -> dict[str, int]:
    stats = handle.stats()
    return {"all": stats.get("bytes_copied", 0)} | {part: entry["bytes_copied"] for part, entry in stats["entries"].items()}


def pipeline(results: Results, packed: bool) -> bool:
    """Pictures under one budget for all parts.

    The limit is the sum over the steps, each as if it had the budget for itself; `over_limit_with_switches` adds the copies of what
    another part had to give up: each picture turns from one part to the next.
    """
    subject, good = SUBJECTS["pipeline"](), True
    parts = subject.parts
    (*_, expected), activations = subject.on_gpu()
    parts.waits = True
    parts.picture()
    eager, weights = dict(parts.seconds), {name: bytes_of(module) for name, module in parts.modules().items()}
    parts.waits = False
    times = {"text_encoder": 1, "transformer": STEPS, "vae": 1}
    steps = {name: {"ms": 1e3 * eager[name], "gb": weights[name] / GB, "times": times[name]} for name in weights}
    line = whole(subject, results, activations, steps)
    switches = max(0, sum(min(BUDGET, one) for one in weights.values()) - BUDGET) / GB / line["link_gb_s"] * 1e3
    limit = limit_ms(line, BUDGET / GB)
    with ws.torch.offload(parts, budget=BUDGET, device=DEVICE, packed=packed) as handle:
        for number in range(6):
            before = copied_by_part(handle)
            torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            found = parts.picture()
            ms = 1e3 * (time.perf_counter() - began)
            right = torch.equal(found, expected)
            good = good and right
            figures = compared(line, ms, peak(handle) / GB) | {"over_limit": ms / limit}
            copied = {part: (bytes - before.get(part, 0)) / GB for part, bytes in copied_by_part(handle).items()}
            about = {"picture": number, "copied_gb": copied, "right": right}
            results.write(part=subject.name, system=OURS, **figures, over_limit_with_switches=ms / (limit + switches), **about)
        print(handle, flush=True)
    return good


@torch.inference_mode()
def run(part: str, results: Results, percents: list[int], packed: bool = False) -> bool:
    """Whether all outputs were the bits of the module on the GPU."""
    return pipeline(results, packed) if part == "pipeline" else model(part, results, percents, packed)
