"""Other offloaders on the models of `pipelines.py`, each in a process of its own.

All take the peak of PyTorch's memory in the timed passes; comfy-aimdo's range is added, and other memory taken away. Its share of
weights is that peak without what a pass of the module on the GPU takes beside weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import GB, Results, back_to_back_ms
from pipeline_models import DEVICE, SUBJECTS, Subject, bytes_of, to_host
from pipeline_table import NAMES, Line, compared, read, whole_of
from torch import nn

#: Arguments that are changed in place: nothing may copy them.
CACHES = ["past_key_values", "cache"]


@dataclass
class Job:
    """What one peer is to do."""

    subject: Subject
    results: Results
    #: What the module takes on the GPU as a whole.
    whole: Line
    expected: list[torch.Tensor]
    activations: int
    percents: list[int]

    def timed(self, system: str, passes: int, checked: int, beside: Callable[[], int] = lambda: 0, **about: Any) -> None:
        """The first `checked` passes are compared, and warm up. `beside` is device memory that is not PyTorch's."""
        subject = self.subject
        subject.ready()
        same = [torch.equal(subject.step(), one) for one in self.expected[:checked]]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        ms = back_to_back_ms(subject.step, passes, warm_up=0, seconds=20)
        peak = torch.cuda.max_memory_allocated() + beside()
        self.results.write(part=subject.name, system=system, **about, **compared(self.whole, ms, peak / GB), right=all(same))

    @contextmanager
    def attempt(self, system: str, **about: Any) -> Iterator[None]:
        """What fails has a row that says why, and the next attempt follows."""
        try:
            yield
        except Exception as problem:
            self.results.write(part=self.subject.name, system=system, problem=said(problem), **about)


def said(problem: BaseException) -> str:
    text = (str(problem).splitlines() or [""])[0].replace("|", "/")
    return f"{type(problem).__name__}: {text}"[:200]


class OnHost:
    """Modules with quantized weights in host memory, and back there after anything that was done to them."""

    def __init__(self, modules: list[nn.Module]):
        self.modules = modules
        self.back()

    def back(self) -> None:
        for module in self.modules:
            to_host(module)


class Pinned:
    """Parameters in pinned memory, and back there after anything that was done to them. Buffers stay on the GPU."""

    def __init__(self, modules: list[nn.Module]):
        self.modules = modules
        self.host: dict[nn.Parameter, torch.Tensor] = {}
        for module in modules:
            for parameter in module.parameters():
                if parameter not in self.host:
                    host = torch.empty_like(parameter.data, device="cpu", pin_memory=True)
                    self.host[parameter] = host.copy_(parameter.data)
                    parameter.data = host
        torch.cuda.empty_cache()

    def back(self) -> None:
        for parameter, host in self.host.items():
            parameter.data = host
        for module in self.modules:
            for buffer in module.buffers():
                buffer.data = buffer.data.to(DEVICE)
        torch.cuda.empty_cache()


# -- diffusers --


def grouped(module: nn.Module, level: str) -> None:
    from diffusers.hooks import apply_group_offloading

    devices = {"onload_device": torch.device(DEVICE), "offload_device": torch.device("cpu")}
    size = {"num_blocks_per_group": 1} if level == "block_level" else {}
    streams = {"use_stream": True, "record_stream": True}
    apply_group_offloading(module, offload_type=level, exclude_kwargs=CACHES, **devices, **streams, **size)


def ungrouped(modules: list[nn.Module]) -> None:
    """Without any hooks of diffusers."""
    torch.cuda.synchronize()
    for root in modules:
        for module in root.modules():
            registry = getattr(module, "_diffusers_hook", None)
            if registry is not None:
                for name in reversed(list(registry.hooks)):
                    registry.remove_hook(name, recurse=False)


def on_device(module: nn.Module, but: list[nn.Module]) -> None:
    """All parameters but those of some modules."""
    away = {parameter for one in but for parameter in one.parameters()}
    for parameter in module.parameters():
        if parameter not in away:
            parameter.data = parameter.data.to(DEVICE)


def lists_of(stack: nn.Module) -> list[nn.Module]:
    return [block for child in stack.children() if isinstance(child, nn.ModuleList) for block in child]


def offloaded_blocks(subject: Subject, budget: float) -> list[nn.Module]:
    """Blocks that are not to stay, evenly spread, so that the others, what is in no block, and two leaves fit into the budget."""
    blocks = lists_of(subject.stack)
    total = sum(map(bytes_of, blocks))
    leaf = max(bytes_of(module) for block in blocks for module in block.modules() if not list(module.children()))
    share = (budget - (subject.whole - total) - 2 * leaf) / total
    seen = held = 0
    away = []
    for block in blocks:
        size = bytes_of(block)
        seen += size
        if held + size <= share * seen:
            held += size
        else:
            away.append(block)
    return away


def apply_leaf(subject: Subject) -> None:
    for module in subject.modules:
        grouped(module, "leaf_level")


def apply_block(subject: Subject) -> None:
    """The module that has the blocks; what a decoder has beside it stays, since a group of all of it would hold the blocks too."""
    on_device(subject.modules[0], [subject.stack])
    grouped(subject.stack, "block_level")


@torch.no_grad()
def diffusers(job: Job) -> None:
    """Group offloading with streams and `record_stream`, which is the faster way: leaf by leaf, block by block; and of some blocks only,
    leaf by leaf, so that the others fill a budget: its one setting of memory is how many blocks make a group, and with streams that is
    one."""
    subject = job.subject
    pinned = Pinned(subject.modules) if subject.is_plain() else OnHost(subject.modules)
    several = subject.parts is not None
    passes, checked = (1, 1) if several else (4, 3)

    def tried(system: str, apply: Callable[[], None], **about: Any) -> None:
        pinned.back()
        with job.attempt(system, **about):
            apply()
            job.timed(system, passes, checked, **about)
        ungrouped(subject.modules)

    for level, apply in {"leaf": apply_leaf, **({} if several else {"block": apply_block})}.items():
        tried(f"diffusers group offloading, {level} level", partial(apply, subject))
    if several:
        return
    for percent in job.percents:

        def some(percent: int = percent) -> None:
            away = offloaded_blocks(subject, subject.whole * percent / 100)
            on_device(subject.modules[0], away)
            for block in away:
                grouped(block, "leaf_level")

        tried("diffusers group offloading of some blocks", some, percent=percent)


# -- accelerate --


@torch.no_grad()
def accelerate(job: Job) -> None:
    """`dispatch_model` with a map for so much memory of the GPU; of the pipeline, `cpu_offload` of each part."""
    from accelerate import cpu_offload, dispatch_model, infer_auto_device_map
    from accelerate.hooks import remove_hook_from_module

    subject = job.subject
    for module in subject.modules:
        to_host(module)
    if subject.parts is not None:
        for module in subject.modules:
            cpu_offload(module, execution_device=torch.device(DEVICE))
        job.timed("accelerate `cpu_offload`", 1, 1)
        return
    (model,) = subject.modules
    for percent in job.percents:
        system = "accelerate `dispatch_model`"
        with job.attempt(system, percent=percent):
            room = {0: subject.whole * percent // 100, "cpu": 2 * subject.whole}
            places = infer_auto_device_map(model, max_memory=room, offload_buffers=True)
            dispatch_model(model, device_map=places, offload_buffers=True, skip_keys=CACHES)
            job.timed(system, 2, 1, percent=percent)
        remove_hook_from_module(model, recurse=True)
        to_host(model)


# -- comfy-aimdo --


def beside(held: Any, other: int) -> int:
    """Device memory that PyTorch does not count, without what only takes room."""
    return held.loaded_size() - other


@torch.inference_mode()
def comfy(job: Job) -> None:
    """As `aimdo.py` runs it: other memory is taken until the budget, what a pass takes beside weights, and half a GB more are free."""
    import aimdo

    (model,) = job.subject.modules
    Pinned(job.subject.modules)
    for percent in job.percents:
        with job.attempt("comfy-aimdo", percent=percent):
            taken = [aimdo.ballast(job.subject.whole * percent // 100 + job.activations)]
            other, offloaded = taken[0].nbytes, None
            try:
                offloaded = aimdo.Offloaded(model)
                job.timed("comfy-aimdo", 4, 3, partial(beside, offloaded.range, other), percent=percent)
            finally:
                if offloaded is not None:
                    offloaded.close()
                taken.clear()
                torch.cuda.empty_cache()


PEERS = {"diffusers": diffusers, "accelerate": accelerate, "aimdo": comfy}


def run(peer: str, part: str, results: Results, percents: list[int], file: Path) -> bool:
    """Inside the process of one peer. `file` has what the part takes on the GPU as a whole."""
    modes = torch.inference_mode if peer == "aimdo" else torch.no_grad
    whole = whole_of(read([file]), NAMES[part])
    if peer == "aimdo":
        import aimdo

        aimdo.start()
    with modes():
        subject = SUBJECTS[part]()
        expected, activations = subject.on_gpu()
        if subject.parts is not None:
            expected = expected[-1:]
        PEERS[peer](Job(subject, results, whole, expected, activations, percents))
    return True
