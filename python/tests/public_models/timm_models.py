"""timm: `create_model` with few blocks and small pictures; its classes where `create_model` fixes the sizes."""

from __future__ import annotations

from typing import Any

from torch import nn

from public_models.entry import BATCH, Positional, model_of, pictures

LIBRARY = "timm"
SIZE = 64
PATCHES: dict[str, Any] = {"img_size": SIZE, "num_classes": 10}
#: The entry's name, timm's name or class, and what makes it small.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet": ("resnet18", {"channels": (16, 24, 32, 48)}),
    "efficientnet": ("tinynet_e", {}),
    "mobilenetv3": ("mobilenetv3_small_050", {}),
    "regnet": ("regnetx_002", {}),
    "convnext": ("convnext_atto", {"depths": (1, 1, 2, 1), "dims": (16, 24, 32, 48)}),
    "vit": ("vit_tiny_patch16_224", {**PATCHES, "embed_dim": 64, "depth": 2, "num_heads": 4}),
    "swin": ("swin_tiny_patch4_window7_224", {**PATCHES, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}),
    "mixer": ("MlpMixer", {**PATCHES, "patch_size": 16, "embed_dim": 64, "num_blocks": 2}),
    "eva": ("eva02_tiny_patch14_224", {"img_size": 56, "embed_dim": 64, "depth": 2, "num_heads": 4}),
    "poolformer": ("MetaFormer", {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48)}),
}


def build(name: str, settings: dict[str, Any]) -> nn.Module:
    import timm
    from timm.models import metaformer, mlp_mixer

    settings = {"num_classes": 10, **settings}
    by_class = {"MlpMixer": mlp_mixer.MlpMixer, "MetaFormer": metaformer.MetaFormer}.get(name)
    return Positional(by_class(**settings) if by_class else timm.create_model(name, pretrained=False, **settings))


for name, (full_name, settings) in MODELS.items():
    model_of(
        LIBRARY,
        name,
        lambda full_name=full_name, settings=settings: build(full_name, settings),
        pictures(settings.get("img_size", SIZE)),
        "any batch",
        ({0: BATCH},),
    )
