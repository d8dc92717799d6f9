"""An LLM of transformers that answers with some of its weights on the device: `generate` as ever, no export.

    python python/examples/chat.py [cuda:0]

The model is a small Llama with random weights; one that you load with `from_pretrained` works alike. The tokens are compared with those
of the same model without offloading.
"""

from __future__ import annotations

import copy
import sys

import torch
import weightstream as ws
from transformers import LlamaConfig, LlamaForCausalLM


def build(width: int) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=512, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=8, num_attention_heads=8, pad_token_id=0
        )
        return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def main(arguments: list[str]) -> None:
    device = arguments[0] if arguments else "cuda:0" if torch.cuda.is_available() else "cpu"
    model = build(128 if device == "cpu" else 1024)
    prompt = torch.randint(1, 512, (1, 12), generator=torch.Generator().manual_seed(0))
    whole = copy.deepcopy(model).to(device)
    expected = whole.generate(prompt.to(whole.device), max_new_tokens=16, do_sample=False)

    weights = sum(parameter.nbytes for parameter in model.parameters())
    with ws.torch.offload(model, budget=weights // 2, device=device) as handle:
        tokens = model.generate(prompt.to(model.device), max_new_tokens=16, do_sample=False)
        assert torch.equal(tokens, expected), "other tokens"
        print(handle)
    print(f"{tokens.shape[1] - prompt.shape[1]} tokens with half of {weights:,} bytes on {device}: the same as without offloading")


if __name__ == "__main__":
    main(sys.argv[1:])
