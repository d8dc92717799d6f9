"""An exported language model that generates text under a budget."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .._native.errors import Error
from .._run.runtime import Module
from .batch import tokens_of
from .sampling import Sampling
from .speculative import check_draft, propose
from .text import Tokenizer, until

#: A prompt: a text, the messages of a chat, or tokens.
Prompt = str | list[dict[str, Any]] | list[int]
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def bytes_of(budget: int | str) -> int:
    """``8 << 30``, ``"8GB"`` or ``"7.5 GiB"`` in bytes."""
    if isinstance(budget, int) and not isinstance(budget, bool):
        return budget
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", budget) if isinstance(budget, str) else None
    if found is None or found[2].upper() not in _UNITS:
        raise Error(f"a budget is a number of bytes, or a text such as '8GB' or '7.5GiB'; found {budget!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


class LLM:
    """What :func:`weightstream.llm.export` wrote into ``folder``, loaded with a budget for its weights.

    ``budget``: bytes or a text such as ``"8GB"``; without it the least possible one. Other keywords are those of
    :class:`weightstream.Module`. One call runs at a time; :meth:`new_session` is a second text over the same weights.

    ``draft``: a smaller model with the same words, which proposes tokens. This one, exported with ``verify=N``, reads N at a time and keeps
    those that it would have taken itself: the text is the same, and a pass that streams weights costs about as much for N tokens as for
    one. It is used where the most probable tokens are taken.

    Exported with ``batch=N`` it continues up to N texts in a pass, which streams the weights once: give :meth:`generate` a list of prompts.

    The tokens of the last text stay in the cache: a prompt that begins as that text did, as the next turn of a chat does, is read from the
    first difference on.
    """

    def __init__(self, folder: str | os.PathLike[str], budget: int | str | None = None, *, draft: LLM | None = None, **options: Any):
        folder = Path(folder)
        for name in ("model.pte", "model.ptd"):
            if not (folder / name).is_file():
                raise Error(f"'{folder}' has no {name}: `weightstream llm export CHECKPOINT {folder}` writes it")
        if budget is not None:
            options["weight_offload_budget_bytes"] = bytes_of(budget)
        if draft is not None:
            # A graph has its copies in it; without one the next weights come while the draft runs.
            options.setdefault("weight_offload_cuda_graph", False)
        self.module = Module(folder / "model.pte", folder / "model.ptd", **options)
        self.context = self._constant("get_max_context_len")
        self._chunk, self._words = self._constant("get_max_seq_len"), self._constant("get_vocab_size")
        #: Texts that a pass continues.
        self.batch: int = self._batch()
        #: Tokens that end a text.
        self.ends = self._end_tokens()
        settings = json.loads(self._constant("get_llm_settings"))
        self._defaults = settings["generation"]
        self._tokenizer = Tokenizer(folder / "tokenizer.json", settings) if (folder / "tokenizer.json").is_file() else None
        self._begin()
        self._draft = draft
        if draft is not None:
            self._verify = self._constant("get_verify_len")
            check_draft(self, draft)

    @property
    def words(self) -> int:
        """How many words the model has."""
        return self._words

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What makes tokens of text; None if there is no tokenizer.json."""
        return self._tokenizer

    def _begin(self) -> None:
        self._held: list[int] = []
        #: Of the last call of :meth:`generate`: tokens, why it ended, tokens per second, and bytes copied for each token.
        self.figures: dict[str, Any] = {}

    def _constant(self, name: str) -> Any:
        try:
            return self.module.execute(name)
        except Error as error:
            self.module.close()
            raise Error(f"the program does not tell {name}: it was not written by `weightstream llm export` ({error})") from None

    def _batch(self) -> int:
        try:
            return self.module.execute("get_max_batch_size")
        except Error:
            return 1

    def _end_tokens(self) -> set[int]:
        try:
            found = self.module.execute("get_eos_ids")
        except Error:
            return set()
        return set(found) if isinstance(found, tuple) else {found}

    def generate(
        self,
        prompt: Prompt | list[Prompt],
        *,
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        stop: str | tuple[str, ...] = (),
        stream: bool = False,
        template: dict[str, Any] | None = None,
    ) -> Any:
        """The text that follows ``prompt``: a text, the messages of a chat (``[{"role": "user", "content": …}]``), or tokens.

        Without ``temperature`` and the like the checkpoint's defaults hold; a temperature of 0 takes the most probable tokens. The same
        ``seed`` gives the same text. It ends at a token that ends texts, before the first of the texts ``stop``, after ``max_new_tokens``,
        or where the context does; :attr:`figures` says which. ``stream`` gives an iterator of its pieces as they come. ``template``: further
        variables of the chat template.

        With a list of prompts it is the list of their texts, as many in a pass as the program was exported for, and not as a stream.
        """
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty}
        sampling = Sampling.of(self._defaults, given)
        stops = tuple(one for one in ((stop,) if isinstance(stop, str) else stop) if one)
        if _are_several(prompt):
            if stream:
                raise Error("several prompts give their texts when all have ended: stream=True is for one prompt")
            tokens = self.all_tokens([self.encode(one, **template or {}) for one in prompt], max_new_tokens, sampling, seed)
            return ["".join(until(self._text().pieces(one), stops)) for one in tokens]
        one = self.tokens(self.encode(prompt, **template or {}), max_new_tokens, sampling, seed)
        pieces = until(self._text().pieces(one), stops)
        return pieces if stream else "".join(pieces)

    def encode(self, prompt: Prompt, **template: Any) -> list[int]:
        """The tokens of a prompt."""
        if isinstance(prompt, str):
            return self._text().encode(prompt)
        if prompt and all(isinstance(one, dict) for one in prompt):
            return self._text().encode_chat(prompt, **template)
        wrong = [one for one in prompt if isinstance(one, bool) or not hasattr(one, "__index__")]
        if wrong:
            raise Error(
                f"a prompt is a text, the messages of a chat, or tokens, and several are a list of these; found {wrong[0]!r} in one"
            )
        return [int(one) for one in prompt]

    def _text(self) -> Tokenizer:
        if self._tokenizer is None:
            raise Error("there is no tokenizer.json beside the program, so that it takes and gives tokens: use `tokens`")
        return self._tokenizer

    def tokens(self, prompt: list[int], max_new_tokens: int = 256, sampling: Sampling | None = None, seed: int = 0) -> Iterator[int]:
        """The tokens after those of ``prompt``, one at a time; a token that ends a text is not among them."""
        self._check(prompt)
        return self._tokens(prompt, max_new_tokens, sampling or Sampling.of(self._defaults, {}), torch.Generator().manual_seed(seed))

    def all_tokens(
        self, prompts: list[list[int]], max_new_tokens: int = 256, sampling: Sampling | None = None, seed: int = 0
    ) -> list[list[int]]:
        """The tokens after those of each prompt, :attr:`batch` prompts at a time; :attr:`figures` are those of the last of these."""
        for prompt in prompts:
            self._check(prompt)
        groups = [prompts[at : at + self.batch] for at in range(0, len(prompts), self.batch)]
        sampling = sampling or Sampling.of(self._defaults, {})
        return [tokens for group in groups for tokens in tokens_of(self, group, max_new_tokens, sampling, seed)]

    def _check(self, prompt: list[int]) -> None:
        if not prompt:
            raise Error("the prompt has no tokens")
        if len(prompt) >= self.context:
            raise Error(
                f"the prompt has {len(prompt)} tokens, and the program a context of {self.context}: shorten it, or export with --context "
                f"{len(prompt) + 256}"
            )
        for token in prompt:
            if not 0 <= token < self._words:
                raise Error(f"token {token} is not in the vocabulary of {self._words} words")

    def _tokens(self, prompt: list[int], most: int, sampling: Sampling, made: torch.Generator) -> Iterator[int]:
        begin, text, ended = time.monotonic(), list(prompt), "length"
        self.figures, first, copied = {"prompt_tokens": len(prompt)}, begin, 0
        tokens = self._stream(text, sampling, made)
        try:
            for token in itertools.islice(tokens, most):
                if len(text) == len(prompt):
                    first, copied = time.monotonic(), self.copied()
                text.append(token)
                if token in self.ends:
                    ended = "end"
                    return
                yield token
                if len(text) > self.context:
                    ended = "context"
                    return
        finally:
            # Also where the caller stops, as it does at a text of `stop`.
            count = len(text) - len(prompt)
            steps = max(count - 1, 1)
            self.figures |= {
                "prompt_seconds": first - begin,
                "tokens": count,
                "ended": ended if count == most or ended != "length" else "stop",
                "tokens_per_second": steps / max(time.monotonic() - first, 1e-9),
            }
            # Where the program was closed before, nobody knows what it copied.
            with contextlib.suppress(Error):
                self.figures["bytes_per_token"] = (self.copied() - copied) / steps

    def _stream(self, text: list[int], sampling: Sampling, made: torch.Generator) -> Iterator[int]:
        """The tokens after ``text``, to which the caller adds each of them."""
        while True:
            yield sampling.next(self._read(text), text, made)
            while self._draft is not None and sampling.is_greedy and len(text) - 1 + self._verify <= self.context:
                yield from self._verified(text, self._draft)

    def _verified(self, text: list[int], draft: LLM) -> list[int]:
        """The tokens after ``text`` that one pass gives: those of the draft that are right, and one more."""
        at = len(text) - 1
        proposed = propose(draft, text, self._verify - 1)
        self._held = text[:at]
        logits = self.module.execute("verify", torch.tensor([[text[at], *proposed]]), torch.tensor([at]))
        found = logits[0].argmax(-1).tolist()
        right = next((number for number, token in enumerate(proposed) if token != found[number]), len(proposed))
        self._held = [*text, *proposed[:right]]
        self.figures["passes"] = self.figures.get("passes", 0) + 1
        return found[: right + 1]

    def _read(self, text: list[int]) -> torch.Tensor:
        """The logits after a text. What the cache has of it already is not read again, but for its last token."""
        same = next((at for at, (a, b) in enumerate(zip(self._held, text, strict=False)) if a != b), min(len(self._held), len(text)))
        at = min(same, len(text) - 1)
        # A pass that fails leaves the cache as the pass left it.
        self._held = text[:at]
        while at < len(text):
            end = min(at + self._chunk, len(text))
            logits = self._pass([text[at:end]], at, [0])
            at, self._held = end, text[:end]
        return logits[0]

    def read(self, texts: list[list[int]], at: int, starts: list[int]) -> torch.Tensor:
        """The logits [texts, words] after texts of one length, of which the cache has what stands before the position ``at``. What stands
        before ``starts`` is padding."""
        self._held = []
        for begin in range(at, len(texts[0]), self._chunk):
            logits = self._pass([text[begin : begin + self._chunk] for text in texts], begin, starts)
        return logits

    def _pass(self, parts: list[list[int]], at: int, starts: list[int]) -> torch.Tensor:
        """The logits [parts, words] after parts that begin at one position. Places of the batch that are left repeat the first one."""
        left = self.batch - len(parts)
        given = torch.tensor(parts + parts[:1] * left), torch.tensor([at])
        more = () if self.batch == 1 else (torch.tensor(starts + starts[:1] * left),)
        logits = self.module.execute("decode" if len(parts[0]) == 1 else "prefill", *given, *more)
        return logits[: len(parts), -1].cpu()

    def copied(self) -> int:
        """Bytes that were copied to the device since the program was loaded."""
        return self.module.stats()["bytes_copied"]

    def new_session(self) -> LLM:
        """A second text over the same weights and budget, with a cache of its own."""
        other: LLM = LLM.__new__(LLM)
        other.__dict__.update(self.__dict__)
        other._begin()
        other.module = self.module.new_session()
        return other

    def set_budget(self, budget: int | str) -> None:
        """Another budget, from the next pass on: see :meth:`weightstream.Module.set_budget`."""
        self.module.set_budget(bytes_of(budget))

    def close(self) -> None:
        """Frees the program, or the session."""
        self.module.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _are_several(prompt: Any) -> bool:
    """Whether it is a list of prompts: of texts, chats or lists of tokens."""
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(one, str | list) for one in prompt)
