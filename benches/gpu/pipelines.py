#!/usr/bin/env python3
"""`ws.torch.offload` at real sizes: Flux's transformer, a decoder of Qwen3-8B's sizes, and a pipeline of Flux's sizes, with random weights.

    python benches/gpu/pipelines.py --out results.jsonl                       # all three: five minutes on an H200, 80 GB of host memory
    python benches/gpu/pipelines.py --parts pipeline --out results.jsonl

The limit of a pass is the longer of two times: that of the module on the GPU as a whole, and that in which the link carries the bytes that
exceed the budget. Both are measured in this run. A pipeline's limit is the sum over its steps, each as if it had the budget for itself;
`with_switches` adds the copies of what another part had to give up. Outputs are compared with those of the module on the GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import weightstream as ws
from measure import GB, Results, back_to_back_ms, link, say
from torch import nn

DEVICE = "cuda:0"
#: Budgets, of all weights; 0 is the least one.
PERCENT = [0, 25, 50, 75, 90]
STEPS = 4
#: Of pictures of 1024 by 1024, and of the longest prompt.
PIXELS, WORDS = 4096, 512


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    """A module of random weights, drawn on the GPU in seconds."""
    with torch.device(DEVICE):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        torch.manual_seed(0)
        try:
            return make().eval().requires_grad_(False)
        finally:
            torch.set_default_dtype(default)


def to_host(module: nn.Module) -> None:
    module.cpu()
    torch.cuda.empty_cache()


def bytes_of(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def flux() -> nn.Module:
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(guidance_embeds=True)


def flux_inputs() -> dict[str, torch.Tensor]:
    at = {"dtype": torch.bfloat16, "device": DEVICE}
    draw = torch.Generator(DEVICE).manual_seed(1)
    return {
        "hidden_states": torch.randn(1, PIXELS, 64, generator=draw, **at),
        "encoder_hidden_states": torch.randn(1, WORDS, 4096, generator=draw, **at),
        "pooled_projections": torch.randn(1, 768, generator=draw, **at),
        "timestep": torch.full((1,), 0.5, **at),
        "guidance": torch.full((1,), 3.5, device=DEVICE),
        "img_ids": torch.zeros(PIXELS, 3, **at),
        "txt_ids": torch.zeros(WORDS, 3, **at),
    }


def qwen() -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=151936, hidden_size=4096, intermediate_size=12288, **sizes))


class Speech:
    """Tokens one by one, behind a prompt that a cache holds."""

    def __init__(self, model: nn.Module):
        self.model, self.cache = model, None

    def begin(self) -> torch.Tensor:
        found = self.model(torch.arange(1, 129, device=DEVICE)[None], use_cache=True)
        self.cache = found.past_key_values
        return found.logits[:, -1].cpu()

    def token(self) -> torch.Tensor:
        return self.model(torch.full((1, 1), 7, device=DEVICE), past_key_values=self.cache, use_cache=True).logits[:, -1].cpu()


def budgets(results: Results, name: str, model: nn.Module, ready: Callable[[], Any], step: Callable[[], torch.Tensor], passes: int) -> bool:
    """Some budgets of one model, which is on the GPU. `ready` comes before each of them."""
    whole, good = bytes_of(model), True
    ready()
    expected = [step() for _ in range(3)]
    eager = back_to_back_ms(step, passes)
    to_host(model)
    speed = link([1 << 30] * 4, runs=5)["64_mib_median"]
    results.write(part=name, system="whole", ms=eager, gb=whole / GB, link_gb_s=speed, gpu=torch.cuda.get_device_name())
    began = time.monotonic()
    with ws.torch.offload(model, device=DEVICE) as handle:
        ready()
        step()
        step()
        say(f"{name}: recorded, planned and loaded in {time.monotonic() - began:.1f} s")
        floor = handle.stats()["floor_bytes"]
        for percent in PERCENT:
            budget = max(floor, whole * percent // 100)
            handle.set_budget(budget)
            ready()
            right = all(torch.equal(step(), one) for one in expected)
            for _ in range(3):
                step()
            before = handle.stats()
            ms = back_to_back_ms(step, passes)
            after = handle.stats()
            limit = max(eager, (whole - budget) / speed / 1e6)
            copied = (after["bytes_copied"] - before["bytes_copied"]) / (after["passes"] - before["passes"])
            figures = {"ms": ms, "over_limit": ms / limit, "over_eager": ms / eager, "copied_gb": copied / GB, "right": right}
            results.write(part=name, system="offload", percent=percent, budget_gb=budget / GB, astray=after["astray"], **figures)
            good = good and right
    return good


def peer(results: Results, name: str, model: nn.Module, level: str, step: Callable[[], torch.Tensor]) -> None:
    """diffusers' group offloading of the same model, with streams."""
    from diffusers.hooks import apply_group_offloading

    size = {"num_blocks_per_group": 1} if level == "block_level" else {}
    devices = {"onload_device": torch.device(DEVICE), "offload_device": torch.device("cpu")}
    apply_group_offloading(model, offload_type=level, use_stream=True, **devices, **size)
    torch.cuda.reset_peak_memory_stats()
    ms = back_to_back_ms(step, 6)
    results.write(part=name, system=f"diffusers group offloading, {level}, streams", ms=ms, peak_gb=torch.cuda.max_memory_allocated() / GB)


def transformer(results: Results, peers: bool) -> bool:
    model, given = drawn(flux), flux_inputs()

    def step() -> torch.Tensor:
        return model(**given, return_dict=False)[0].cpu()

    good = budgets(results, "flux transformer", model, lambda: None, step, 6)
    if peers:
        peer(results, "flux transformer", model, "leaf_level", step)
    return good


def decoder(results: Results, _peers: bool) -> bool:
    model = drawn(qwen)
    speech = Speech(model)
    return budgets(results, "qwen3-8b token", model, speech.begin, speech.token, 10)


class Parts:
    """What a pipeline of Flux consists of, at its sizes."""

    def __init__(self) -> None:
        from diffusers import AutoencoderKL
        from transformers import T5Config, T5EncoderModel

        text = T5Config(vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu")
        blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
        wide = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 16, "use_quant_conv": False}
        self.text_encoder = drawn(lambda: T5EncoderModel(text))
        self.transformer = drawn(flux)
        self.vae = drawn(lambda: AutoencoderKL(use_post_quant_conv=False, **blocks, **wide))
        self.given = flux_inputs()
        self.tokens = torch.arange(1, WORDS + 1, device=DEVICE)[None]
        #: Of each part, where each step is waited for; the steps of a pipeline are not.
        self.seconds = dict.fromkeys(("text_encoder", "transformer", "vae"), 0.0)
        self.waits = True

    def modules(self) -> dict[str, nn.Module]:
        return {"text_encoder": self.text_encoder, "transformer": self.transformer, "vae": self.vae}

    def timed(self, part: str, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        if not self.waits:
            return step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = step()
        torch.cuda.synchronize()
        self.seconds[part] += time.perf_counter() - began
        return found

    def picture(self) -> torch.Tensor:
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        words = self.timed("text_encoder", lambda: self.text_encoder(self.tokens).last_hidden_state)
        given = {**self.given, "encoder_hidden_states": words}
        for _ in range(STEPS):
            moved = self.timed("transformer", lambda: self.transformer(**given, return_dict=False)[0])
            given["hidden_states"] = given["hidden_states"] - moved / STEPS
        latent = given["hidden_states"].reshape(1, 128, 128, 16).permute(0, 3, 1, 2)
        return self.timed("vae", lambda: self.vae.decode(latent).sample).cpu()


def pipeline(results: Results, _peers: bool) -> bool:
    parts, budget = Parts(), int(12 * GB)
    for _ in range(2):
        parts.picture()
    expected, eager = parts.picture(), dict(parts.seconds)
    parts.waits = False
    for module in parts.modules().values():
        to_host(module)
    weights = {name: bytes_of(module) for name, module in parts.modules().items()}
    speed = link([1 << 30] * 4, runs=5)["64_mib_median"] * GB
    times = {"text_encoder": 1, "transformer": STEPS, "vae": 1}
    limits = {name: max(eager[name], times[name] * max(0, weights[name] - budget) / speed) for name in weights}
    # Each picture turns from one part to the next: what fits into the budget is what the others may have to give up.
    switches = max(0, sum(min(budget, one) for one in weights.values()) - budget) / speed
    limit = sum(limits.values())
    results.write(part="flux pipeline", system="whole", ms=1e3 * sum(eager.values()), **{f"{k}_ms": 1e3 * v for k, v in eager.items()})
    good = True
    with ws.torch.offload(parts, budget=budget, device=DEVICE) as handle:
        for number in range(6):
            before = handle.stats().get("bytes_copied", 0)
            began = time.perf_counter()
            right = torch.equal(parts.picture(), expected)
            seconds = time.perf_counter() - began
            good = good and right
            results.write(
                part="flux pipeline",
                system="offload",
                picture=number,
                ms=1e3 * seconds,
                over_limit=seconds / limit,
                over_limit_with_switches=seconds / (limit + switches),
                copied_gb=(handle.stats()["bytes_copied"] - before) / GB,
                right=right,
            )
        print(handle, flush=True)
    return good


PARTS = {"transformer": transformer, "decoder": decoder, "pipeline": pipeline}


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated (default: all)")
    parser.add_argument("--out", type=Path, default=Path("pipelines.jsonl"), help="a line for each figure, as soon as it is known")
    parser.add_argument("--percent", type=int, nargs="+", default=PERCENT, help="budgets, of all weights (default: 0 25 50 75 90)")
    parser.add_argument("--no-peers", action="store_true", help="without diffusers' own offloading")
    args = parser.parse_args()
    PERCENT[:] = args.percent
    results, good = Results(args.out), True
    for name in args.parts.split(","):
        good = PARTS[name](results, not args.no_peers) and good
        torch.cuda.empty_cache()
    print("right" if good else "WRONG", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
