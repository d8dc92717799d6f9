"""transformers: models of pictures and of sound."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from public_models.entry import BATCH, Called, model_of, pictures

LIBRARY = "transformers"
SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
PATCHES: dict[str, Any] = {**SMALL, "image_size": 32, "patch_size": 8}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}
MODELS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "vit": ("ViTModel", "ViTConfig", PATCHES, 32),
    "deit": ("DeiTModel", "DeiTConfig", PATCHES, 32),
    "dinov2": ("Dinov2Model", "Dinov2Config", {**PATCHES, "mlp_ratio": 2}, 32),
    "clip_vision": ("CLIPVisionModel", "CLIPVisionConfig", PATCHES, 32),
    "siglip_vision": ("SiglipVisionModel", "SiglipVisionConfig", PATCHES, 32),
    "swin": (
        "SwinModel",
        "SwinConfig",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        32,
    ),
    "convnext": ("ConvNextModel", "ConvNextConfig", STAGES, 64),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {**STAGES, "hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 32},
        64,
    ),
}


def vision(model: str, config: str, settings: dict[str, Any]) -> nn.Module:
    import transformers

    return Called(getattr(transformers, model)(getattr(transformers, config)(**settings)), ("pixel_values",), {})


def detr() -> nn.Module:
    import transformers

    stages = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    backbone = transformers.ResNetConfig(**stages, out_features=["stage4"])
    layers = {
        f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 64), ("attention_heads", 4))
    }
    config = transformers.DetrConfig(backbone_config=backbone, d_model=32, num_queries=10, num_labels=5, **layers)
    return Called(transformers.DetrForObjectDetection(config), ("pixel_values",), {})


def sam_vision() -> nn.Module:
    import transformers

    sizes = {**SMALL, "image_size": 64, "patch_size": 8, "window_size": 4, "global_attn_indexes": [1], "output_channels": 32}
    config = transformers.SamVisionConfig(**sizes, mlp_dim=128)
    return Called(transformers.SamVisionModel(config), ("pixel_values",), {})


def wav2vec2() -> nn.Module:
    import transformers

    convolutions = {"conv_dim": (16, 16, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 2)}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    config = transformers.Wav2Vec2Config(**SMALL, **convolutions, **positions, num_feat_extract_layers=3, apply_spec_augment=False)
    return Called(transformers.Wav2Vec2Model(config), ("input_values",), {})


def whisper_encoder() -> nn.Module:
    import transformers

    sizes = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_layers": 1, "decoder_attention_heads": 4}
    config = transformers.WhisperConfig(vocab_size=64, d_model=64, num_mel_bins=16, max_source_positions=40, pad_token_id=0, **sizes)
    return Called(transformers.WhisperModel(config).get_encoder(), ("input_features",), {})


for name, (model, config, settings, size) in MODELS.items():
    model_of(
        LIBRARY,
        name,
        lambda model=model, config=config, settings=settings: vision(model, config, settings),
        pictures(size),
        "any batch",
        ({0: BATCH},),
    )
model_of(LIBRARY, "detr", detr, pictures(64, (1, 1)), "one size")
model_of(LIBRARY, "sam_vision", sam_vision, pictures(64, (1, 1)), "one size")
model_of(LIBRARY, "wav2vec2", wav2vec2, lambda: [(torch.randn(1, 2000),) for _ in range(2)], "one length")
model_of(LIBRARY, "whisper_encoder", whisper_encoder, lambda: [(torch.randn(b, 16, 80),) for b in (2, 1, 4)], "any batch", ({0: BATCH},))
