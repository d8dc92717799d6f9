"""An LLM whose weights stay in safetensors files: the model is made without any, and the files are mapped.

    python python/examples/from_disk.py [cuda:0]

The folder is written here, by a small Llama with random weights; one that was downloaded works alike. The tokens are compared with those
of the model that was saved.
"""

from __future__ import annotations

import sys
import tempfile

import torch
import weightstream as ws
from accelerate import init_empty_weights
from chat import build
from transformers import AutoConfig, AutoModelForCausalLM


@torch.inference_mode()
def main(arguments: list[str]) -> None:
    device = arguments[0] if arguments else "cuda:0" if torch.cuda.is_available() else "cpu"
    whole = build(128 if device == "cpu" else 1024)
    prompt = torch.randint(1, 512, (1, 12), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        whole.save_pretrained(folder)
        expected = whole.to(device).generate(prompt.to(whole.device), max_new_tokens=16, do_sample=False)

        with init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
        model.tie_weights()
        with ws.torch.offload(model, weights=folder, device=device) as handle:
            tokens = model.generate(prompt.to(model.device), max_new_tokens=16, do_sample=False)
            assert torch.equal(tokens, expected), "other tokens"
            print(handle)
    print(f"{tokens.shape[1] - prompt.shape[1]} tokens with the weights in files, on {device}: the same as without offloading")


if __name__ == "__main__":
    main(sys.argv[1:])
