"""torchvision: classification, segmentation, a detector's backbone and video."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim

from public_models.entry import BATCH, Positional, model_of, pictures

LIBRARY = "torchvision"


def small(name: str, **settings: object) -> nn.Module:
    import torchvision

    return Positional(getattr(torchvision.models, name)(weights=None, num_classes=10, **settings))


def densenet() -> nn.Module:
    from torchvision.models import DenseNet

    return Positional(DenseNet(growth_rate=8, block_config=(2, 2, 2, 2), num_init_features=16, num_classes=10))


def vision_transformer() -> nn.Module:
    from torchvision.models import VisionTransformer

    return Positional(
        VisionTransformer(image_size=64, patch_size=16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10)
    )


def segmentation() -> nn.Module:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    return Positional(lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5))


def detector_backbone() -> nn.Module:
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return Positional(resnet_fpn_backbone(backbone_name="resnet18", weights=None))


def video() -> nn.Module:
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    sizes = {"patch_size": [2, 4, 4], "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": [2, 4, 4]}
    return Positional(SwinTransformer3d(num_classes=10, **sizes))


def shufflenet() -> nn.Module:
    from torchvision.models import ShuffleNetV2

    return Positional(ShuffleNetV2([2, 4, 2], [24, 48, 96, 192, 256], num_classes=10))


BATCHES = ({0: BATCH},)
model_of(LIBRARY, "resnet", lambda: small("resnet18"), pictures(64), "any batch", BATCHES)
model_of(LIBRARY, "mobilenet_v3", lambda: small("mobilenet_v3_small"), pictures(64), "any batch", BATCHES)
model_of(LIBRARY, "shufflenet", shufflenet, pictures(64), "any batch", BATCHES)
model_of(LIBRARY, "densenet", densenet, pictures(64), "any batch", BATCHES)
model_of(LIBRARY, "vit", vision_transformer, pictures(64), "any batch", BATCHES)
SIDE = Dim("side", min=4, max=12)
model_of(
    LIBRARY,
    "squeezenet",
    lambda: small("squeezenet1_1"),
    lambda: [(torch.randn(1, 3, n, n),) for n in (96, 64, 128)],
    "any size of square pictures",
    ({2: 16 * SIDE, 3: 16 * SIDE},),
)
model_of(LIBRARY, "lraspp", segmentation, pictures(64, (1, 1)), "one size")
model_of(LIBRARY, "detector_backbone", detector_backbone, pictures(64, (1, 1)), "one size")
model_of(LIBRARY, "video_swin", video, lambda: [(torch.randn(b, 3, 4, 32, 32),) for b in (2, 1, 4)], "any batch", BATCHES)
