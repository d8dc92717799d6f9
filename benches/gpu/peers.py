"""Other offloaders on the same model, as their documentation shows them; each in a process of its own, on a fresh model."""

from __future__ import annotations

import torch
from llama import build, tokens
from measure import GB, median_ms
from sections import Job
from torch import nn


def accelerate(job: Job) -> None:
    """`cpu_offload`: each module's weights are copied in before it runs, and dropped afterwards."""
    from accelerate import cpu_offload

    model, given = build(job.layers), tokens(job.count).cuda()
    model = cpu_offload(model, execution_device=torch.device("cuda"))
    with torch.no_grad():
        ms = median_ms(lambda: model(given), 3, 1)
    job.results.write(system="accelerate cpu_offload", ms=ms)


def diffusers(job: Job) -> None:
    """Group offloading, one group per leaf, the next one prefetched on a stream of its own; pinned."""
    from diffusers.hooks import apply_group_offloading

    model, given = build(job.layers), tokens(job.count).cuda()
    apply_group_offloading(
        model, onload_device=torch.device("cuda"), offload_device=torch.device("cpu"), offload_type="leaf_level", use_stream=True
    )
    with torch.no_grad():
        # Prefetching starts with the second pass: the order is learned in the first.
        ms = median_ms(lambda: model(given), 8, 2)
    job.results.write(system="diffusers group offloading, leaf level, streams", ms=ms, device_gb=torch.cuda.max_memory_allocated() / GB)


class Paged:
    """One weight in a virtual range of comfy-aimdo, used as its page on PyPI says: fault; where that is granted, fill if the signature
    is new, and unpin after use; where it is refused, a temporary that is filled for this use."""

    def __init__(self, vbar, weight: torch.Tensor):
        from comfy_aimdo.torch import aimdo_to_tensor

        self.host = weight.detach().pin_memory()
        self.alloc = vbar.alloc(self.host.numel() * self.host.element_size())
        raw = aimdo_to_tensor(self.alloc, torch.device("cuda", 0))
        self.device = raw.view(self.host.dtype)[: self.host.numel()].view(self.host.shape)
        self.signature = None

    def get(self) -> tuple[torch.Tensor, bool]:
        from comfy_aimdo.model_vbar import vbar_fault, vbar_signature_compare

        signature = vbar_fault(self.alloc)
        if signature is None:
            return self.host.to("cuda", non_blocking=True), False
        if self.signature is None or not vbar_signature_compare(signature, self.signature):
            self.device.copy_(self.host, non_blocking=True)
            self.signature = signature
        return self.device, True

    def done(self) -> None:
        from comfy_aimdo.model_vbar import vbar_unpin

        vbar_unpin(self.alloc)


def page(module: nn.Module, paged: Paged) -> None:
    """The module's weight comes from its range while it runs, and only then."""
    plain = module.forward

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        weight, resident = paged.get()
        module._parameters["weight"] = nn.Parameter(weight, requires_grad=False)
        try:
            return plain(*inputs)
        finally:
            module._parameters["weight"] = None
            if resident:
                paged.done()

    module.forward = forward


def aimdo(job: Job) -> None:
    """The demand offloader without ComfyUI, at four shares of the weights; copies go through the compute stream, as in its text."""
    from comfy_aimdo import control

    control.init()
    control.init_device(0)
    from comfy_aimdo.model_vbar import ModelVBAR

    model, given = build(job.layers), tokens(job.count).cuda()
    leaves = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Embedding, nn.RMSNorm))]
    whole = sum(module.weight.numel() * module.weight.element_size() for module in leaves)
    vbar = ModelVBAR(2 * whole, 0)
    for module in leaves:
        page(module, Paged(vbar, module.weight))
    with torch.no_grad():
        for share in (100, 75, 50, 25):
            if share < 100:
                vbar.set_watermark_limit(whole * share // 100)
                vbar.free_memory(whole - whole * share // 100)
            ms = median_ms(lambda: model(given), 8, 2, seconds=5)
            job.results.write(system=f"comfy-aimdo, {share} % resident", share=share, ms=ms, resident_bytes=vbar.loaded_size())


PEERS = {"accelerate": accelerate, "diffusers": diffusers, "aimdo": aimdo}
