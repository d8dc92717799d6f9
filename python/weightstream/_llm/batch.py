"""Several texts that one pass continues. They end at the same place: what is shorter has padding before it, which nothing sees."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from .sampling import Sampling

if TYPE_CHECKING:
    from .model import LLM


def tokens_of(llm: LLM, prompts: list[list[int]], most: int, sampling: Sampling, seed: int) -> list[list[int]]:
    """The tokens after each of at most ``llm.batch`` prompts, without the one that ends a text. Each text draws for itself, with ``seed``."""
    begin, width = time.monotonic(), max(map(len, prompts))
    starts = [width - len(prompt) for prompt in prompts]
    texts = [[0] * start + prompt for start, prompt in zip(starts, prompts, strict=True)]
    made = [torch.Generator().manual_seed(seed) for _ in prompts]
    ended = [False] * len(prompts)
    logits = llm.read(texts, 0, starts)
    first, copied, passes = time.monotonic(), llm.copied(), 0
    for _ in range(most):
        for row, text in enumerate(texts):
            # Texts that have ended go on, and nobody reads that.
            token = sampling.next(logits[row], text[starts[row] :], made[row]) if not ended[row] else 0
            ended[row] |= token in llm.ends
            text.append(token)
        if all(ended) or len(texts[0]) > llm.context or len(texts[0]) == width + most:
            break
        logits, passes = llm.read(texts, len(texts[0]) - 1, starts), passes + 1
    found = [_until_end(text[width:], llm.ends) for text in texts]
    llm.figures = {
        "prompt_tokens": sum(map(len, prompts)),
        "prompt_seconds": first - begin,
        "tokens": sum(map(len, found)),
        "ended": "end" if all(ended) else "length" if len(texts[0]) == width + most else "context",
        "tokens_per_second": sum(map(len, found)) / max(time.monotonic() - first, 1e-9),
        "bytes_per_pass": (llm.copied() - copied) / max(passes, 1),
    }
    return found


def _until_end(tokens: list[int], ends: set[int]) -> list[int]:
    return tokens[: next((at for at, token in enumerate(tokens) if token in ends), len(tokens))]
