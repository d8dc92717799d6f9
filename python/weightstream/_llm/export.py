"""From a checkpoint to a program: methods, caches, and what runners ask for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from .._export.export import export as export_program
from .._native.errors import ExportError
from .checkpoint import Checkpoint, end_tokens, load, settings_of
from .decoder import Decoder, attention_for

#: Places in the cache, and tokens that one pass of ``prefill`` takes, where nothing is said.
CONTEXT, CHUNK = 2048, 512
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export(
    source: str | os.PathLike[str] | Any,
    folder: str | os.PathLike[str],
    *,
    quantize: Any = "auto",
    device: str = "cpu",
    dtype: str | None = None,
    context: int | None = None,
    chunk: int | None = None,
    verify: int = 0,
    batch: int = 1,
    **options: Any,
) -> None:
    """Writes ``model.pte``, ``model.ptd`` and ``tokenizer.json`` into ``folder``, for :class:`LLM` and ExecuTorch's LLM runners.

    ``source``: a folder with a checkpoint as Hugging Face's libraries write it, a ``.gguf`` file, or a causal language model of transformers
    that is loaded already. ``quantize``: what :func:`weightstream.export` takes, or None; ``"auto"`` keeps the integers of a GGUF file and
    nothing else. ``dtype``: ``"float32"``, the default on the CPU, ``"bfloat16"``, the default on a GPU, or ``"float16"``.

    ``context``: places in the cache, prompt and answer together; at most what the model was made for, 2048 without it. ``chunk``: the most
    tokens that one pass of ``prefill`` takes; longer prompts are read in several passes. ``verify``: the tokens of a pass of the method
    ``verify``, which gives the logits of each; without it there is none. ``batch``: how many texts a pass continues: one that streams
    weights costs about the same for all of them. There is no ``verify`` then.

    Other keywords (``sm``, ``isa``, ``attention``, ``device_io``, ``check``, ``defaults``) go to :func:`weightstream.export`. Raises
    :class:`ExportError` for what cannot be served, and ``ValueError`` for sizes that are none.
    """
    folder = Path(folder)
    found = _checkpoint(source, dtype or ("float32" if device == "cpu" else "bfloat16"), folder)
    context = _context(found.model, context)
    chunk = min(CHUNK, context) if chunk is None else chunk
    for name, value, least, most in (("chunk", chunk, 1, context), ("verify", verify, 0, context)):
        if not least <= value <= most:
            raise ValueError(f"{name} is a number of tokens from {least} to the context of {most}, not {value}")
    if batch < 1 or (verify and batch > 1):
        raise ValueError(f"batch is a number of texts from 1, and 1 with `verify`, which is for one text; found {batch}")
    decoder, options = Decoder(found.model, context, batch), dict(options)
    position = (torch.tensor([0]),) if batch == 1 else (torch.tensor([0]), torch.zeros(batch, dtype=torch.int64))
    methods: dict[str, Any] = {"prefill": decoder, "decode": decoder}
    inputs = {"prefill": (_tokens(batch, min(8, chunk)), *position), "decode": (_tokens(batch, 1), *position)}
    # A pass of one token is `decode`: a chunk of one needs no dynamic size.
    shapes = {} if chunk == 1 else {"prefill": ({1: torch.export.Dim("length", min=1, max=chunk)}, *(None for _ in position))}
    if verify:
        methods["verify"], inputs["verify"] = decoder.for_all_tokens(), (_tokens(1, verify), *position)
    if device != "cpu":
        # A token has hundreds of kernels: the host takes longer to launch them than the GPU to run them.
        options["defaults"] = {"weight_offload_cuda_graph": True} | dict(options.get("defaults") or {})
    folder.mkdir(parents=True, exist_ok=True)
    with attention_for(found.model, device):
        export_program(
            methods,
            inputs,
            folder / "model.pte",
            folder / "model.ptd",
            dynamic_shapes=shapes,
            device=device,
            quantize=found.gguf if quantize == "auto" else quantize,
            constant_methods=_constants(found, context, chunk, verify, batch) | options.pop("constant_methods", {}),
            **options,
        )
    if found.tokenizer is not None:
        found.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))


def _tokens(batch: int, count: int) -> torch.Tensor:
    return torch.zeros(batch, count, dtype=torch.int64)


def _checkpoint(source: Any, dtype: str, folder: Path) -> Checkpoint:
    if dtype not in _DTYPES:
        raise ValueError(f"dtype is one of {', '.join(_DTYPES)}, not {dtype!r}")
    if isinstance(source, str | os.PathLike):
        return load(Path(source), _DTYPES[dtype], folder)
    if not hasattr(source, "generation_config"):
        raise ExportError(f"expected the path of a checkpoint or a causal language model of transformers, found a {type(source).__name__}")
    return Checkpoint(source, None, None)


def _context(model: Any, context: int | None) -> int:
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None) or CONTEXT
    if context is None:
        return min(CONTEXT, most)
    if not 2 <= context <= most:
        raise ValueError(f"context is a number of tokens from 2 to {most}, what the model was made for; found {context}")
    return context


def _constants(found: Checkpoint, context: int, chunk: int, verify: int, batch: int) -> dict[str, Any]:
    """What ExecuTorch's runners and ours ask a program for."""
    config, ends = found.model.config.get_text_config(), end_tokens(found.model)
    constants = {
        "get_max_seq_len": chunk,
        "get_max_context_len": context,
        "get_max_batch_size": batch,
        "get_vocab_size": config.vocab_size,
        "get_bos_id": config.bos_token_id,
        "get_eos_ids": ends,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": chunk > 1,
        "get_llm_settings": settings_of(found),
    }
    if verify:
        constants["get_verify_len"] = verify
    return {name: value for name, value in constants.items() if value not in (None, [])}
