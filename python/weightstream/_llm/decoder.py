"""A language model of transformers as methods of a program."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

from .._native.errors import ExportError

#: Kinds of layers, of `layer_types`, whose keys and values any position can be gone back to.
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}


class Decoder(TorchExportableModuleWithStaticCache):
    """Tokens [1, length] and the position of the first one [1] in, both int64; logits [1, 1, words] of the token after the last one out.

    Each layer's cache has ``context`` places, also where attention reads a window of them: a text may go back to any position.
    """

    def __init__(self, model: Any, context: int):
        kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
        if others := kinds - _ATTENTION:
            raise ExportError(
                f"a {model.config.model_type} has layers whose state is no cache of keys and values ({', '.join(sorted(others))}): "
                "export it by weightstream.export, with a module of your own"
            )
        model.generation_config.update(use_cache=True, cache_implementation="static")
        super().__init__(model, batch_size=1, max_cache_len=context)
        self.keep = 1

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        for layer in self.static_cache.layers:
            layer.cumulative_length.copy_(position[0])
        return self.model(input_ids=tokens, cache=self.static_cache, use_cache=True, logits_to_keep=self.keep).logits

    def for_all_tokens(self) -> nn.Module:
        """The same with logits [1, length, words]: of the token after each one. Weights and caches are the same."""
        other = copy.copy(self)
        other.keep = 0
        return other
