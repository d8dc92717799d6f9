"""An LLM with int8 weights of torchao, and compiled blocks, at the least budget and with half of it on the device.

    python python/examples/quantized.py [cuda:0]

The model is the small Llama of chat.py, with random weights. The tokens are compared with those of the same quantized and compiled model
without offloading.
"""

from __future__ import annotations

import copy
import sys

import torch
import weightstream as ws
from chat import build
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import LlamaForCausalLM


def compile_blocks(model: LlamaForCausalLM) -> None:
    """The attention of a layer would be compiled once a layer: it is given its number in the cache."""
    for layer in model.model.layers:
        layer.mlp.compile(backend="aot_eager")  # without a backend: Inductor, which takes a minute


@torch.no_grad()  # torchao moves no weight between devices in inference mode
def main(arguments: list[str]) -> None:
    device = arguments[0] if arguments else "cuda:0" if torch.cuda.is_available() else "cpu"
    model = build(256 if device == "cpu" else 1024).requires_grad_(False)
    quantize_(model, Int8WeightOnlyConfig())
    prompt = torch.randint(1, 512, (1, 12), generator=torch.Generator().manual_seed(0))
    whole = copy.deepcopy(model).to(device)
    compile_blocks(whole)
    expected = whole.generate(prompt.to(whole.device), max_new_tokens=16, do_sample=False)

    compile_blocks(model)
    with ws.torch.offload(model, device=device) as handle:
        tokens = model.generate(prompt.to(model.device), max_new_tokens=16, do_sample=False)
        assert torch.equal(tokens, expected), "other tokens"
        largest, weights = handle.stats()["largest_call"], handle.stats()["total_weight_bytes"]
        handle.set_budget(max(handle.stats()["floor_bytes"], weights // 2))
        tokens = model.generate(prompt.to(model.device), max_new_tokens=16, do_sample=False)
        assert torch.equal(tokens, expected), "other tokens"
        print(handle)
    print(f"the largest call is {largest['module']}, which holds {largest['bytes']:,} of {weights:,} bytes")
    print(f"{tokens.shape[1] - prompt.shape[1]} tokens of int8 weights on {device}: the same as without offloading")


if __name__ == "__main__":
    main(sys.argv[1:])
