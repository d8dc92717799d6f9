"""Models of public libraries, from their configuration classes, with random weights and a few layers.

`make zoo` runs all of them. The libraries are imported only when a model is built.
"""

from __future__ import annotations

from public_models import diffusers_models, timm_models, torchvision_models, transformers_text, transformers_vision
from public_models.entry import PUBLIC, Entry

#: Run by `make test`: small, quick to compile, of every library.
A_DOZEN = [
    "transformers_qwen2",
    "transformers_gpt_neox",
    "transformers_bert",
    "transformers_t5_encoder",
    "transformers_clip_text",
    "transformers_vit",
    "timm_vit",
    "timm_mixer",
    "timm_resnet",
    "torchvision_squeezenet",
    "diffusers_dit",
    "diffusers_sd3",
]

__all__ = ["A_DOZEN", "PUBLIC", "Entry"]
__all__ += ["diffusers_models", "timm_models", "torchvision_models", "transformers_text", "transformers_vision"]
