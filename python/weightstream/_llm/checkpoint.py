"""A language model and its tokenizer, from a folder as Hugging Face's libraries write it, or from a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._native.errors import ExportError
from .._native.progress import note, step
from .widen import in_float32


class Checkpoint(NamedTuple):
    """What an export starts from."""

    model: Any
    #: None if there is none: the program takes tokens as numbers then.
    tokenizer: Any
    #: The file whose integers the program shall have.
    gguf: Path | None


def load(source: Path, dtype: torch.dtype, beside: Path) -> Checkpoint:
    """Reads ``source``; what has to be in float32 first is written below ``beside`` for a while. Nothing is downloaded. Raises
    :class:`ExportError`."""
    if source.is_file() and source.suffix == ".gguf":
        return _load(source.parent, source, dtype, source, gguf_file=source.name)
    if not source.is_dir():
        raise ExportError(
            f"'{source}' is neither a folder with a checkpoint nor a .gguf file" + ("" if source.exists() else "; it does not exist")
        )
    if not (source / "config.json").is_file():
        files = [file.name for file in sorted(source.glob("*.gguf"))]
        hint = f"; did you mean '{source / files[0]}'?" if files else ""
        raise ExportError(f"'{source}' has no config.json, so that it is no checkpoint of Hugging Face's libraries{hint}")
    if dtype is not torch.float32:
        return _load(source, source, dtype, None)
    with in_float32(source, beside) as folder:
        # Who has mapped a file needs its name no more.
        return _load(folder, source, dtype, None)


def _load(folder: Path, where: Path, dtype: torch.dtype, gguf: Path | None, **options: Any) -> Checkpoint:
    """From ``folder``; ``where`` is what the user named."""
    try:
        import transformers
    except ImportError as error:
        raise ExportError(f"a checkpoint is read by transformers (pip install 'weightstream[llm]'): {error}") from error
    with step(f"reading {where}"):
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, **options)
        except Exception as error:  # transformers raises what its parts raise
            raise ExportError(f"transformers cannot read '{where}' as a language model: {error}") from error
        tokenizer = _tokenizer(transformers, folder, where, options)
    return Checkpoint(model.eval().requires_grad_(False), tokenizer, gguf)


def _tokenizer(transformers: Any, folder: Path, where: Path, options: dict[str, Any]) -> Any:
    if not options and not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        note(f"'{where}' has no tokenizer: the program takes tokens as numbers")
        return None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:
        raise ExportError(f"transformers cannot read the tokenizer of '{where}': {error}") from error
    if not tokenizer.is_fast:
        raise ExportError(f"the tokenizer of '{where}', a {type(tokenizer).__name__}, has no form as a tokenizer.json")
    return tokenizer


def settings_of(checkpoint: Checkpoint) -> str:
    """What generation needs beside the methods, as the JSON that the constant method ``get_llm_settings`` gives.

    ``chat_template`` (Jinja, or null), ``tokens`` (the special tokens that it names), ``generation`` (the checkpoint's defaults).
    """
    tokenizer, config = checkpoint.tokenizer, checkpoint.model.generation_config
    template = None if tokenizer is None else tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    tokens = {} if tokenizer is None else {name: value for name in names if isinstance(value := getattr(tokenizer, name, None), str)}
    wanted = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
    generation = {name: value for name in wanted if (value := getattr(config, name, None)) is not None}
    return json.dumps({"chat_template": template, "tokens": tokens, "generation": generation})


def end_tokens(model: Any) -> list[int]:
    """Tokens that end a text."""
    found = model.generation_config.eos_token_id
    found = model.config.get_text_config().eos_token_id if found is None else found
    return [] if found is None else [found] if isinstance(found, int) else [int(one) for one in found]
