"""An LLM as ExecuTorch's runners take it: a transformers model with a static cache, exported as `prefill` and `decode`.

    python python/examples/llm.py FOLDER    # writes model.pte and model.ptd into FOLDER, loads them, generates 32 tokens

The model has the architecture of Qwen3-0.6B, scaled to 206 MB, and random weights: nothing is downloaded. `ws.llm.export` takes the
folder of a checkpoint or a .gguf file in its place; `ws.LLM` has the loop of `generate`, and tokens for text.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

#: From the configuration of Qwen3-0.6B.
QWEN3: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
}
#: The same at half the width, with fewer layers and words. Token 0 begins a text, token 1 ends one.
SCALED: dict[str, Any] = {
    **QWEN3,
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
#: Places in the cache: the prompt and all tokens that follow.
CONTEXT = 256
#: With these weights the two largest logits of every step of this prompt's text are further apart than rounding moves them.
SEED = 6
PROMPT = [0, 3108, 4720, 811, 64, 7000, 1999, 2718, 31, 4159, 265, 3589]


def build(settings: dict[str, Any] | None = None, *, context: int = CONTEXT, seed: int = SEED) -> nn.Module:
    """The model, with random weights under which every layer counts."""
    config = transformers.Qwen3Config(**{**(settings or SCALED), "max_position_embeddings": context})
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=weight.shape[1] ** -0.5)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
    # Here texts have the length that is asked for: generate() takes what it is not told from the model.
    model.generation_config.eos_token_id = None
    return model


def export(model: nn.Module, folder: Path, *, context: int = CONTEXT, **options: Any) -> None:
    """Writes model.pte and model.ptd into the folder. One pass of `prefill` takes any prompt."""
    import weightstream as ws

    ws.llm.export(model, folder, context=context, chunk=context, **options)


def generate(module: Any, prompt: list[int], count: int) -> list[int]:
    """The `count` most probable tokens after the prompt, by the methods of a `ws.Module` or of one of its sessions."""
    logits = module.prefill(torch.tensor([prompt]), torch.tensor([0]))
    found = [int(logits[0, -1].argmax())]
    while len(found) < count:
        position = len(prompt) + len(found) - 1
        logits = module.decode(torch.tensor([found[-1:]]), torch.tensor([position]))
        found.append(int(logits[0, -1].argmax()))
    return found


def reference(model: nn.Module, prompt: list[int], count: int) -> tuple[list[int], float]:
    """The same by transformers' own `generate`, and how far apart the two largest logits are where they are closest."""
    settings = transformers.GenerationConfig(
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        cache_implementation="dynamic",
        output_logits=True,
        return_dict_in_generate=True,
    )
    given = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(given, attention_mask=torch.ones_like(given), generation_config=settings)
    largest = torch.cat(out.logits).topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), float((largest[:, 0] - largest[:, 1]).min())


def main() -> None:
    import weightstream as ws

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    export(build(), folder)
    with ws.Module(folder / "model.pte", folder / "model.ptd") as module:
        started = time.monotonic()
        tokens = generate(module, PROMPT, 32)
        print(*tokens)
        print(f"{len(tokens) / (time.monotonic() - started):.1f} tokens per second at the floor")


if __name__ == "__main__":
    main()
