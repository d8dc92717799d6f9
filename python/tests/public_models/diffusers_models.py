"""diffusers: denoisers and autoencoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from public_models.entry import BATCH, Called, Positional, model_of

LIBRARY = "diffusers"
TUPLE = {"return_dict": False}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 8}
LATENTS: dict[str, Any] = {"sample_size": 8, "patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 2}
BATCHES = (2, 1, 4)
EACH = {0: BATCH}


def of(name: str, *inputs: str, **settings: Any) -> nn.Module:
    import diffusers

    return Called(getattr(diffusers, name)(**settings), inputs, TUPLE)


def unet_condition() -> nn.Module:
    blocks = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
    sizes = {"block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32, "attention_head_dim": 8}
    names = ("sample", "timestep", "encoder_hidden_states")
    return of("UNet2DConditionModel", *names, sample_size=16, norm_num_groups=8, **blocks, **sizes)


def unet() -> nn.Module:
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    sizes = {"block_out_channels": (32, 64), "layers_per_block": 1, "attention_head_dim": 8, "norm_num_groups": 8}
    return of("UNet2DModel", "sample", "timestep", sample_size=16, **blocks, **sizes)


def autoencoder(method: str) -> nn.Module:
    import diffusers

    sizes = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "latent_channels": 4}
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    whole = diffusers.AutoencoderKL(**sizes, **blocks)
    return Positional(getattr(whole, method))


def tiny_autoencoder() -> nn.Module:
    import diffusers

    return Positional(
        diffusers.AutoencoderTiny(
            encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)
        ).decoder
    )


def dit() -> nn.Module:
    names = ("hidden_states", "timestep", "class_labels")
    return of("DiTTransformer2DModel", *names, **HEADS, **LATENTS, num_embeds_ada_norm=100, norm_num_groups=8)


def pixart() -> nn.Module:
    names = ("hidden_states", "encoder_hidden_states", "timestep")
    more = {"caption_channels": 24, "cross_attention_dim": 32, "use_additional_conditions": False, "norm_num_groups": 8}
    return of("PixArtTransformer2DModel", *names, **HEADS, **LATENTS, **more)


def sd3() -> nn.Module:
    names = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")
    more = {"joint_attention_dim": 24, "caption_projection_dim": 32, "pooled_projection_dim": 16, "pos_embed_max_size": 8}
    return of("SD3Transformer2DModel", *names, **HEADS, **LATENTS, **more)


def flux() -> nn.Module:
    names = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "img_ids", "txt_ids")
    more = {"num_layers": 1, "num_single_layers": 1, "joint_attention_dim": 24, "pooled_projection_dim": 16, "axes_dims_rope": (2, 2, 4)}
    return of("FluxTransformer2DModel", *names, **HEADS, **more, patch_size=1, in_channels=16)


def sana() -> nn.Module:
    names = ("hidden_states", "encoder_hidden_states", "timestep")
    cross = {"num_cross_attention_heads": 4, "cross_attention_head_dim": 8, "cross_attention_dim": 32, "caption_channels": 24}
    return of("SanaTransformer2DModel", *names, **HEADS, **cross, in_channels=4, out_channels=4, num_layers=2, sample_size=8, patch_size=1)


def noisy(channels: int, size: int, *others: tuple[int, ...]) -> list[tuple[torch.Tensor, ...]]:
    """Latents, one vector or sequence per other input, and the step."""
    return [
        (torch.randn(b, channels, size, size), *(torch.randn(b, *shape) for shape in others), torch.randint(0, 1000, (b,)).float())
        for b in BATCHES
    ]


def conditioned() -> list[tuple[torch.Tensor, ...]]:
    return [(sample, step, states) for sample, states, step in noisy(4, 16, (6, 32))]


def labelled() -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(b, 4, 8, 8), torch.randint(0, 100, (b,)), torch.randint(0, 100, (b,))) for b in BATCHES]


def flux_inputs() -> list[tuple[torch.Tensor, ...]]:
    """One picture of 16 places beside six tokens of text."""
    places = torch.stack([torch.zeros(16), torch.arange(16) // 4, torch.arange(16) % 4], 1).float()
    shapes = ((16, 16), (6, 24), (16,))
    return [(*(torch.randn(b, *shape) for shape in shapes), torch.rand(b), places, torch.zeros(6, 3)) for b in BATCHES]


model_of(LIBRARY, "unet_condition", unet_condition, conditioned, "any batch", (EACH, EACH, EACH))
model_of(LIBRARY, "unet", unet, lambda: noisy(3, 16), "any batch", (EACH, EACH))
model_of(
    LIBRARY, "vae_decoder", lambda: autoencoder("decoder"), lambda: [(torch.randn(b, 4, 8, 8),) for b in BATCHES], "any batch", (EACH,)
)
model_of(
    LIBRARY, "vae_encoder", lambda: autoencoder("encoder"), lambda: [(torch.randn(b, 3, 16, 16),) for b in BATCHES], "any batch", (EACH,)
)
model_of(LIBRARY, "tiny_vae_decoder", tiny_autoencoder, lambda: [(torch.randn(b, 4, 8, 8),) for b in BATCHES], "any batch", (EACH,))
model_of(LIBRARY, "dit", dit, labelled, "any batch", (EACH, EACH, EACH))
model_of(LIBRARY, "pixart", pixart, lambda: noisy(4, 8, (6, 24)), "any batch", (EACH, EACH, EACH))
model_of(LIBRARY, "sd3", sd3, lambda: noisy(4, 8, (6, 24), (16,)), "any batch", (EACH,) * 4)
model_of(LIBRARY, "flux", flux, flux_inputs, "any batch", (EACH, EACH, EACH, EACH, {}, {}))
model_of(LIBRARY, "sana", sana, lambda: noisy(4, 8, (6, 24)), "any batch", (EACH, EACH, EACH))
