"""A draft model proposes tokens, which its target verifies several at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._native.errors import Error
from .sampling import Sampling

if TYPE_CHECKING:
    from .model import LLM


def check_draft(target: LLM, draft: LLM) -> None:
    """Raises :class:`Error` unless a token means the same to both."""
    if draft.words != target.words:
        raise Error(f"the draft has {draft.words} words and the model {target.words}: a draft has the same tokenizer")
    if draft.tokenizer is not None and target.tokenizer is not None and draft.tokenizer.vocabulary() != target.tokenizer.vocabulary():
        raise Error("the draft's tokenizer has other tokens than the model's: a draft has the same tokenizer")


def propose(draft: LLM, text: list[int], count: int) -> list[int]:
    """The most probable tokens after ``text`` by ``draft``. Where it has none, because its text or its context ends, any token will do: a
    wrong proposal costs nothing but its place."""
    found = list(draft.tokens(text, count, Sampling())) if len(text) < draft.context else []
    return found + [0] * (count - len(found))
