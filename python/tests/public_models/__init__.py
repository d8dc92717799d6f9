"""Models of public libraries, from their configuration classes, with random weights and a few layers.

`make zoo` runs all of them. The libraries are imported only when a model is built.
"""

from __future__ import annotations

from public_models import diffusers_models, timm_models, torchao_models, torchvision_models, transformers_text, transformers_vision
from public_models.entry import PUBLIC, Entry

#: Run by `make test`: small, quick to compile, of every library.
A_DOZEN = [
    "transformers_granite",
    "transformers_gpt_neox",
    "transformers_bert",
    "transformers_whisper_encoder",
    "transformers_clip_vision",
    "timm_eva",
    "timm_poolformer",
    "torchvision_squeezenet",
    "torchvision_densenet",
    "diffusers_tiny_vae_decoder",
    "diffusers_dit",
    "torchao_mlp_mixed",
]

__all__ = ["A_DOZEN", "PUBLIC", "Entry"]
__all__ += ["diffusers_models", "timm_models", "torchao_models", "torchvision_models", "transformers_text", "transformers_vision"]
