"""Decoders of transformers with a static cache, exported as its own wrapper exports them: one program prefills and decodes.

Small configurations with random weights. The reference is the model without a cache over everything seen so far.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from device_under_test import DEVICE
from torch import nn
from torch.export import Dim, ExportedProgram
from zoo import Inputs, Spec, register

LONGEST = 64
PROMPT = 9
LENGTH = Dim("length", min=1, max=LONGEST - 1)
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 16}),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
}
COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Decoder(Spec):
    """A causal language model. A pass takes tokens and their positions."""

    keywords: tuple[str, ...] = ("input_ids", "cache_position")

    def export(self) -> ExportedProgram:
        from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

        tokens, positions = self.passes(1)[0]
        wrapper = TorchExportableModuleForDecoderOnlyLM(self.model(), batch_size=1, max_cache_len=LONGEST)
        given: dict[str, Any] = {"input_ids": tokens, "dynamic_shapes": {"input_ids": {1: LENGTH}}}
        if "cache_position" in inspect.signature(wrapper.export).parameters:
            given["cache_position"] = positions
            given["dynamic_shapes"]["cache_position"] = {0: LENGTH}
        return wrapper.export(**given, strict=False)

    def eager(self, passes: list[Inputs]) -> list[list[torch.Tensor]]:
        model, seen, found = self.model().to(DEVICE), torch.empty(1, 0, dtype=torch.int64), []
        with torch.no_grad():
            for tokens, _ in passes:
                seen = torch.cat([seen, tokens], 1)
                found.append([model(seen.to(DEVICE)).logits[:, -tokens.shape[1] :].cpu()])
        return found


def build(family: str) -> nn.Module:
    name, more = FAMILIES[family]
    return causal(name, **COMMON, **more)


def causal(config_name: str, **settings: Any) -> nn.Module:
    """The causal language model of a configuration, prepared for a static cache."""
    import transformers

    config = getattr(transformers, config_name)(**settings)
    config._attn_implementation = "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config)
    cache = {"batch_size": 1, "max_cache_len": LONGEST}
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=LONGEST, cache_config=cache
    )
    return model


def inputs() -> list[Inputs]:
    """A prompt, then tokens one by one, then two at once."""
    found, at = [], 0
    for length in (PROMPT, 1, 1, 1, 2, 1):
        found.append((torch.randint(0, COMMON["vocab_size"], (1, length)), torch.arange(at, at + length)))
        at += length
    return found


DECODERS = [f"decoder_{family}" for family in FAMILIES]
REFUSED_ON_A_GPU = {"qwen3_moe": "transformers.grouped_mm_fallback"}
for family in FAMILIES:
    register(
        Decoder(
            f"decoder_{family}",
            lambda family=family: build(family),
            inputs,
            "no token can be decoded: a length of 1 is refused, or the cache is lost",
            stateful=True,
            dynamic_shapes=({1: LENGTH}, {0: LENGTH}),
            refused_on_a_gpu=REFUSED_ON_A_GPU.get(family, ""),
        )
    )
