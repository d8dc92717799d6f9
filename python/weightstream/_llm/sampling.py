"""The next token from logits."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .._native.errors import Error


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, in the order in which transformers applies it. A temperature of 0 takes the most probable one."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        bounds = {
            "temperature": (self.temperature >= 0, "a number from 0"),
            "top_k": (self.top_k >= 0, "a number of tokens, or 0 for all"),
            "top_p": (0 < self.top_p <= 1, "a share above 0 and up to 1"),
            "repetition_penalty": (self.repetition_penalty > 0, "a number above 0"),
        }
        for name, (fits, what) in bounds.items():
            if not fits:
                raise Error(f"{name} is {what}, not {getattr(self, name)}")

    @classmethod
    def of(cls, defaults: dict[str, Any], given: dict[str, Any]) -> Sampling:
        """The checkpoint's defaults, as far as nothing else is given. A checkpoint that does not sample has a temperature of 0."""
        found = {name: defaults[name] for name in ("top_k", "top_p", "repetition_penalty") if name in defaults}
        found["temperature"] = defaults.get("temperature", 1.0) if defaults.get("do_sample") else 0.0
        return cls(**found | {name: value for name, value in given.items() if value is not None})

    @property
    def is_greedy(self) -> bool:
        """Whether the token is the most probable one, whatever was drawn before."""
        return self.temperature == 0 and self.repetition_penalty == 1

    def next(self, logits: torch.Tensor, before: list[int], made: torch.Generator) -> int:
        """A token; ``logits`` [words], ``before``: the tokens of the text."""
        logits = logits.float()
        if self.repetition_penalty != 1 and before:
            at = torch.tensor(sorted(set(before)))
            seen = logits[at]
            logits = logits.index_copy(0, at, torch.where(seen < 0, seen * self.repetition_penalty, seen / self.repetition_penalty))
        if self.temperature == 0:
            return int(logits.argmax())
        logits = logits / self.temperature
        if 0 < self.top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[-1], -torch.inf)
        if self.top_p < 1:
            probabilities, order = logits.softmax(-1).sort()
            # The least probable ones go whose sum is at most what is left out; the most probable one stays.
            out = probabilities.cumsum(-1) <= 1 - self.top_p
            out[-1] = False
            logits = logits.index_fill(0, order[out], -torch.inf)
        return int(torch.multinomial(logits.softmax(-1), 1, generator=made))
