"""The models of `pipelines.py`, with random weights that are drawn on the GPU, and what one pass of each is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from pipeline_table import FORMS, NAMES
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM, T5Config, T5EncoderModel

DEVICE = "cuda:0"
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


def inner_bytes(tensor: torch.Tensor) -> int:
    """Of a quantized weight, those of the tensors in it."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.nbytes
    return sum(inner_bytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])


def bytes_of(module: nn.Module) -> int:
    return sum(map(inner_bytes, module.parameters()))


def formed(module: nn.Module, form: str) -> nn.Module:
    """Quantized on the GPU where it lies; its blocks compiled."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    if "int8" in form:
        quantize_(module, Int8WeightOnlyConfig(set_inductor_config=False))
    if "int4" in form:
        # Of a shape that the kernel takes: others stay as they are.
        fits = lambda one, _: isinstance(one, nn.Linear) and one.in_features % 1024 == 0 and one.out_features % 16 == 0  # noqa: E731
        quantize_(module, Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"), filter_fn=fits)
    torch.cuda.empty_cache()
    if "compiled" in form:
        for block in blocks_of(module):
            block.compile()
    return module


def blocks_of(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, FluxTransformer2DModel):
        return [*module.transformer_blocks, *module.single_transformer_blocks]
    return [layer.mlp for layer in module.model.layers]


def flux() -> nn.Module:
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
    sizes = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=151936, hidden_size=4096, intermediate_size=12288, **sizes))


class Speech:
    """Tokens one by one, after a prompt that a cache holds."""

    def __init__(self, model: nn.Module):
        self.model, self.cache = model, None

    def begin(self) -> torch.Tensor:
        found = self.model(torch.arange(1, 129, device=DEVICE)[None], use_cache=True)
        self.cache = found.past_key_values
        return found.logits[:, -1].cpu()

    def token(self) -> torch.Tensor:
        return self.model(torch.full((1, 1), 7, device=DEVICE), past_key_values=self.cache, use_cache=True).logits[:, -1].cpu()


class Parts:
    """What a pipeline of Flux consists of, at its sizes."""

    def __init__(self) -> None:
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
        self.waits = False

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


@dataclass
class Subject:
    """What is timed: a pass of a module, or of several."""

    name: str
    modules: list[nn.Module]
    step: Callable[[], torch.Tensor]
    #: Before the passes of each budget.
    ready: Callable[[], Any] = lambda: None
    #: The module whose children are lists of blocks.
    stack: nn.Module | None = None
    #: The pipeline's.
    parts: Parts | None = None
    #: Whether a pass of the module on the GPU has the same outputs each time.
    repeats: bool = True
    #: How many bytes of weights.
    whole: int = field(init=False)

    def __post_init__(self) -> None:
        self.whole = sum(map(bytes_of, self.modules))

    def is_compiled(self) -> bool:
        return self.name.endswith("compiled")

    def is_plain(self) -> bool:
        """Whether all weights are plain tensors; others are brought to the host by whoever offloads them."""
        return all(type(one) is nn.Parameter for module in self.modules for one in module.parameters())

    def on_gpu(self) -> tuple[list[torch.Tensor], int]:
        """Outputs of the first passes, and the bytes that a pass takes beside weights: the peak without them."""
        self.ready()
        # What is compiled is tuned in its first passes.
        for _ in range(2 if self.is_compiled() else 0):
            self.step()
        self.ready()
        expected = [self.step() for _ in range(3)]
        self.ready()
        self.repeats = all(torch.equal(self.step(), one) for one in expected)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        return expected, max(0, torch.cuda.max_memory_allocated() - self.whole)


def transformer(form: str = "") -> Subject:
    model, given = formed(drawn(flux), form) if form else drawn(flux), flux_inputs()
    return Subject(
        NAMES[f"transformer-{form}" if form else "transformer"], [model], lambda: model(**given, return_dict=False)[0].cpu(), stack=model
    )


def decoder(form: str = "") -> Subject:
    model = formed(drawn(qwen), form) if form else drawn(qwen)
    speech = Speech(model)
    return Subject(NAMES[f"decoder-{form}" if form else "decoder"], [model], speech.token, speech.begin, model.model)


def pipeline() -> Subject:
    parts = Parts()
    return Subject(NAMES["pipeline"], list(parts.modules().values()), parts.picture, parts=parts)


SUBJECTS: dict[str, Callable[[], Subject]] = {"transformer": transformer, "decoder": decoder, "pipeline": pipeline}
SUBJECTS |= {f"transformer-{form}": partial(transformer, form) for form in FORMS}
SUBJECTS |= {f"decoder-{form}": partial(decoder, form) for form in FORMS}
