"""A language model of transformers as methods of a program."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from .._native.errors import ExportError

#: Kinds of layers, of `layer_types`, whose keys and values any position can be gone back to.
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
#: What transformers calls the attention below, by the kind of device.
_ATTENTION_OF = {"cpu": "weightstream_grouped", "cuda": "weightstream_fused"}
#: What some models add to attention. A function that has no place for it would leave it out.
_MORE = ("softcap", "s_aux", "position_bias")


def _attention(compute: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, None]]:
    """What transformers calls for ``compute``: with ``query`` [batch, heads, length, size], ``key`` and ``value`` [batch, shared heads,
    places, size], and ``mask`` [batch, 1, length, places], true where a query sees a place. Gives [batch, length, heads, size]."""

    def attention(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        if any(more.get(name) is not None for name in _MORE):
            # The model's own, which adds masks of numbers.
            own = sys.modules[type(module).__module__].eager_attention_forward
            numbers = None if mask is None else torch.zeros((), dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
            return own(module, query, key, value, numbers, scaling=scaling, **more)[0], None
        if mask is not None and mask.shape[0] > 1:
            # What stands before a text sees nothing, and would be no number, which masks do not keep from the others.
            mask = mask | ~mask.any(-1, keepdim=True)
        found = compute(query, key, value, mask, query.shape[-1] ** -0.5 if scaling is None else scaling)
        return found.transpose(1, 2).contiguous(), None

    return attention


def _grouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """The queries that share keys are rows of one product: keys and values are not copied for each of them."""
    batch, heads, length, _ = query.shape
    shared, places = key.shape[1:3]
    rows = (query * scaling).reshape(batch, shared, heads // shared * length, -1)
    scores = (rows @ key.transpose(-1, -2)).view(batch, shared, heads // shared, length, places)
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(2), -torch.inf)
    found = scores.softmax(-1).view(batch, shared, -1, places) @ value
    return found.view(batch, heads, length, -1)


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """For the fused kernel, which reads keys and values as they are, too."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


for _device, _compute in (("cpu", _grouped), ("cuda", _fused)):
    AttentionInterface.register(_ATTENTION_OF[_device], _attention(_compute))
    AttentionMaskInterface.register(_ATTENTION_OF[_device], sdpa_mask)


@contextlib.contextmanager
def attention_for(model: Any, device: str) -> Iterator[None]:
    """Lets a model compute attention by the functions above, if it would by PyTorch's ``scaled_dot_product_attention``."""
    before = model.config._attn_implementation
    if before != "sdpa":
        yield
        return
    model.set_attn_implementation(_ATTENTION_OF.get(device, before))
    try:
        yield
    finally:
        model.set_attn_implementation(before)


class Decoder(TorchExportableModuleWithStaticCache):
    """Tokens [batch, length] and the position of the first ones [1] in, both int64; logits [batch, 1, words] of the token after the last one
    out. With a batch of more than one there is a third input, ``start`` [batch]: the position where each text begins. What stands before
    is padding.

    Each layer's cache has ``context`` places, also where attention reads a window of them: a text may go back to any position.
    """

    def __init__(self, model: Any, context: int, batch: int = 1):
        kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
        if others := kinds - _ATTENTION:
            raise ExportError(
                f"a {model.config.model_type} has layers whose state is no cache of keys and values ({', '.join(sorted(others))}): "
                "export it by weightstream.export, with a module of your own"
            )
        model.generation_config.update(use_cache=True, cache_implementation="static")
        super().__init__(model, batch_size=batch, max_cache_len=context)
        self.context = context
        self.keep = 1
        #: Releases of transformers before 5.24 call it so. What a model does not know it leaves out.
        self.name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def forward(self, tokens: torch.Tensor, position: torch.Tensor, start: torch.Tensor | None = None) -> torch.Tensor:
        for layer in self.static_cache.layers:
            layer.cumulative_length.copy_(position[0])
        more = {self.name: self.static_cache}
        if start is not None:
            places = torch.arange(self.context, device=tokens.device)
            more["attention_mask"] = places >= start[:, None]
            at = position + torch.arange(tokens.shape[1], device=tokens.device)
            more["position_ids"] = (at - start[:, None]).clamp(min=0)
        found = self.model(input_ids=tokens, use_cache=True, logits_to_keep=self.keep, **more)
        if getattr(found, self.name, None) is not self.static_cache:
            raise ExportError(f"a {self.model.config.model_type} does not keep its keys and values in the cache that it is given")
        return found.logits

    def for_all_tokens(self) -> nn.Module:
        """The same with logits [1, length, words]: of the token after each one. Weights and caches are the same."""
        other = copy.copy(self)
        other.keep = 0
        return other
