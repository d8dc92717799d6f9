"""Prompts of many lengths by CUDA graphs: attention runs between them, the rest of the layers is captured in pieces.

    python python/examples/prefill_graphs.py [DEVICE]    # cuda:0

A small Llama of transformers, with random weights. Each length is captured once. The graphs of all lengths take the memory of the longest.
A prompt goes to the least length that holds it. Its logits and its cache are compared with those of eager code, and eager code goes on
from that cache, token by token.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import weightstream as ws
from chat import build
from transformers import AttentionInterface, DynamicCache, LlamaForCausalLM

LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256)


class Attention:
    """What runs between the graphs: attention over the tokens that there are. Their keys and values are kept for the decoder."""

    def __init__(self) -> None:
        #: How many tokens there are. The rest of a length is padding, which no token looks at.
        self.tokens = 0
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        #: While a length is captured: called with what `attend` takes.
        self.between: Callable[..., None] | None = None

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, **options: Any) -> Any:
        output = torch.zeros_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        (self.between or self.attend)(module.layer_idx, query, key, value, output, options["scaling"])
        return output, None

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, scaling: float) -> None:
        query, key, value = (one[:, :, : self.tokens] for one in (query, key, value))
        # Copies, since the next graph overwrites these.
        self.kept[layer] = key.clone(), value.clone()
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        output[:, : self.tokens] = found.transpose(1, 2)


class Prefill:
    """The pass of a model over the tokens of a prompt, by graphs of each of `lengths`."""

    def __init__(self, model: LlamaForCausalLM, lengths: Sequence[int]):
        self.model, self.attention = model, Attention()
        AttentionInterface.register("between_graphs", self.attention)
        self.graphs = ws.torch.GraphPool(str(model.device), name="prefill")
        self.inputs = ws.torch.GraphInputs(tokens=torch.zeros(1, max(lengths), dtype=torch.int64, device=model.device))
        self.lengths = sorted(lengths)
        self.pieces: dict[int, list[tuple[Any, tuple[Any, ...]]]] = {}
        self.logits: dict[int, torch.Tensor] = {}
        for length in self.lengths:
            self._capture(length)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the last token, valid until the next call. :meth:`cache` has the keys and values."""
        length = self._begin(tokens)
        for graph, arguments in self.pieces[length]:
            graph.replay()
            if arguments:
                self.attention.attend(*arguments)
        return self.logits[length][:, tokens.shape[1] - 1]

    def eager(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same without graphs."""
        return self._pass(self._begin(tokens))[:, tokens.shape[1] - 1]

    def cache(self) -> DynamicCache:
        cache = DynamicCache()
        for layer, (key, value) in sorted(self.attention.kept.items()):
            cache.update(key, value, layer)
        return cache

    def close(self) -> None:
        self.pieces.clear()
        self.logits.clear()
        self.graphs.close()

    def _begin(self, tokens: torch.Tensor) -> int:
        length = next((length for length in self.lengths if length >= tokens.shape[1]), None)
        if length is None:
            raise ValueError(f"a prompt of {tokens.shape[1]} tokens: the longest that was captured has {self.lengths[-1]}")
        self.inputs.write({"tokens": (1, length)}, tokens=tokens)
        self.attention.tokens = tokens.shape[1]
        return length

    def _pass(self, length: int) -> torch.Tensor:
        usual = self.model.config._attn_implementation
        self.model.set_attn_implementation("between_graphs")
        try:
            return self.model(self.inputs.views(tokens=(1, length))["tokens"], use_cache=False).logits
        finally:
            self.model.set_attn_implementation(usual)

    def _capture(self, length: int) -> None:
        self.attention.tokens = length
        self._pass(length)  # first outside of a capture: loads kernels, fills caches
        pieces = self.pieces[length] = []
        with contextlib.ExitStack() as capture:

            def begin() -> None:
                graph = self.graphs.graph()
                capture.enter_context(self.graphs.capture(graph, group=length))
                pieces.append((graph, ()))

            def between(*arguments: Any) -> None:
                capture.close()  # ends the piece
                pieces[-1] = pieces[-1][0], arguments
                begin()

            self.attention.between = between
            try:
                begin()
                self.logits[length] = self._pass(length)
            finally:
                self.attention.between = None


def decode(model: LlamaForCausalLM, logits: torch.Tensor, cache: DynamicCache, count: int) -> list[int]:
    """The next tokens, each the likeliest."""
    found = []
    for _ in range(count):
        found.append(int(logits.argmax(-1)))
        logits = model(torch.tensor([found[-1:]], device=model.device), past_key_values=cache).logits[:, -1]
    return found


@torch.inference_mode()
def main(arguments: list[str]) -> None:
    device = arguments[0] if arguments else "cuda:0"
    torch.cuda.set_device(device)
    model, draw = build(1024).to(device), random.Random(0)
    prefill = Prefill(model, LENGTHS)
    report, graphs = prefill.graphs.report(), sum(map(len, prefill.pieces.values()))
    for _ in range(20):
        prompt = torch.randint(1, 512, (1, draw.randint(1, max(LENGTHS))), device=device)
        expected, wanted = prefill.eager(prompt).clone(), prefill.cache()
        logits, cache = prefill(prompt), prefill.cache()
        assert torch.equal(logits, expected), "other logits"
        assert all(
            torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) for a, b in zip(cache.layers, wanted.layers, strict=True)
        )
        assert decode(model, logits, cache, 8) == decode(model, expected, wanted, 8), "other tokens"
    del logits
    prefill.close()
    taken = [one["bytes"] >> 20 for one in report["captures"]]
    print(f"{len(LENGTHS)} lengths in {graphs} graphs; 20 prompts: the same as eager code")
    print(f"the pool holds {report['bytes'] >> 20} MB; its lengths were given {sum(taken)} MB, the longest {max(taken)} MB")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("graphs are of a GPU, and there is none that PyTorch can use")
    main(sys.argv[1:])
