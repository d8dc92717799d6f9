"""A language model of transformers as methods of a program."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from .._native.errors import ExportError

#: Kinds of layers, of `layer_types`, whose keys and values any position can be gone back to.
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
#: What transformers calls the attention below.
_GROUPED = "weightstream_grouped"


def _grouped_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, *, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attention in which the queries that share keys are rows of one product: keys and values are not copied for each of them.

    ``query`` [batch, heads, length, size]; ``key`` and ``value`` [batch, shared heads, places, size]; ``mask`` [batch, 1, length, places],
    true where a query sees a place. Gives [batch, length, heads, size].
    """
    batch, heads, length, _ = query.shape
    shared, places = key.shape[1:3]
    rows = (query * scaling).reshape(batch, shared, heads // shared * length, -1)
    scores = (rows @ key.transpose(-1, -2)).view(batch, shared, heads // shared, length, places)
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(2), -torch.inf)
    found = scores.softmax(-1).view(batch, shared, -1, places) @ value
    return found.view(batch, heads, length, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(_GROUPED, _grouped_attention)
AttentionMaskInterface.register(_GROUPED, sdpa_mask)


@contextlib.contextmanager
def grouped_attention(model: Any) -> Iterator[None]:
    """Lets a model compute attention by the function above, if it would by PyTorch's ``scaled_dot_product_attention``."""
    before = model.config._attn_implementation
    if before != "sdpa":
        yield
        return
    model.set_attn_implementation(_GROUPED)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


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
