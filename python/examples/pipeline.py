"""A pipeline of diffusers under one budget: text encoders, a transformer that runs every step, and a decoder of pictures.

    python python/examples/pipeline.py [cuda:0]

The pipeline is Flux, of small parts with random weights; one that you load with `from_pretrained` works alike. `pipe(...)` is called as
ever. The picture is compared with that of the same pipeline without offloading.
"""

from __future__ import annotations

import sys

import torch
import weightstream as ws
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


def tokenizers() -> tuple[CLIPTokenizer, T5Tokenizer]:
    """Tokenizers whose words are letters."""
    words = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    clip = CLIPTokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[], model_max_length=77)
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), *((letter, -2.0) for letter in LETTERS)]
    return clip, T5Tokenizer(vocab=pieces, extra_ids=0)


def build() -> FluxPipeline:
    clip, t5 = tokenizers()
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipe = FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(),
            vae=AutoencoderKL(
                block_out_channels=(16, 32),
                norm_num_groups=4,
                sample_size=32,
                shift_factor=0.0,
                use_quant_conv=False,
                use_post_quant_conv=False,
                **blocks,
            ),
            text_encoder=CLIPTextModel(CLIPTextConfig(bos_token_id=52, eos_token_id=53, **text)),
            tokenizer=clip,
            text_encoder_2=T5EncoderModel(T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)),
            tokenizer_2=t5,
            transformer=FluxTransformer2DModel(
                in_channels=16,
                num_layers=2,
                num_single_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                pooled_projection_dim=32,
                axes_dims_rope=(4, 4, 8),
            ),
        )
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def pictures(pipe: FluxPipeline) -> torch.Tensor:
    noise = torch.Generator().manual_seed(1)
    return pipe("a cat", height=32, width=32, num_inference_steps=4, max_sequence_length=16, output_type="pt", generator=noise).images


def main(arguments: list[str]) -> None:
    device = arguments[0] if arguments else "cuda:0" if torch.cuda.is_available() else "cpu"
    expected = pictures(build().to(device))
    pipe = build()
    with ws.torch.offload(pipe, device=device) as handle:
        for number in range(3):
            found = pictures(pipe)
            assert torch.equal(found, expected), f"picture {number} differs"
        print(handle)
        for name, part in handle.stats()["entries"].items():
            print(f"{name:<16} {part['passes']:>3} passes, {part['bytes_copied']:>10,} bytes copied")
    print("3 pictures: the same as without offloading")


if __name__ == "__main__":
    main(sys.argv[1:])
