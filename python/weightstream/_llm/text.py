"""Text to tokens and back, by the file ``tokenizer.json`` and the settings of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .._native.errors import Error


class Tokenizer:
    """The tokenizer of a program. transformers has the code, the program's files have the data."""

    def __init__(self, file: Path, settings: dict[str, Any]):
        try:
            from transformers import PreTrainedTokenizerFast
        except ImportError as error:
            raise Error(f"text needs the tokenizers of transformers (pip install 'weightstream[llm]'): {error}") from error
        self._file, self._template = file, settings["chat_template"]
        self._found = PreTrainedTokenizerFast(tokenizer_file=str(file), chat_template=self._template, **settings["tokens"])

    def vocabulary(self) -> dict[str, int]:
        """Each token's number."""
        return self._found.get_vocab()

    def encode(self, text: str) -> list[int]:
        return self._found.encode(text)

    def encode_chat(self, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
        """The tokens of messages, and of the beginning of an answer."""
        return self._found.encode(self.render(messages, **variables), add_special_tokens=False)

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """The same as text."""
        if self._template is None:
            raise Error("the model has no chat template, so that it takes text, and no messages")
        return self._found.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **variables)

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of tokens as they come; a character that takes several tokens comes with the last of them."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        for token in tokens:
            piece = stream.step(self._found.backend_tokenizer, token)
            if piece:
                yield piece


def until(pieces: Iterator[str], stops: tuple[str, ...]) -> Iterator[str]:
    """Pieces up to the first of some texts. What may be the beginning of one is held back until it is known."""
    held = ""
    for piece in pieces:
        held += piece
        ends = [at for stop in stops if (at := held.find(stop)) >= 0]
        if ends:
            if min(ends):
                yield held[: min(ends)]
            return
        keep = max((size for stop in stops for size in range(1, len(stop)) if held.endswith(stop[:size])), default=0)
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    if held:
        yield held
