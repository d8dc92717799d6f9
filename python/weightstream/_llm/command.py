"""``weightstream llm``: from a checkpoint to a program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from .._native.errors import ExportError


def run(arguments: list[str], export: Callable[..., None]) -> int:
    """Runs the command with what follows ``weightstream llm``; its exit status. ``export`` is called late: --help needs no torch."""
    given = _parser().parse_args(arguments)
    try:
        export(
            given.source,
            given.folder,
            quantize=None if given.quantize == "none" else given.quantize,
            device=given.device,
            dtype=given.dtype,
            context=given.context,
            chunk=given.chunk,
            verify=given.verify,
            batch=given.batch,
            **({"sm": given.sm} if given.sm else {}),
        )
    except (ExportError, OSError, ValueError) as error:
        print(f"weightstream llm export: {error}", file=sys.stderr)
        return 1
    print(f"{given.folder}: model.pte, model.ptd, and tokenizer.json if the checkpoint has a tokenizer")
    return 0


def _parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="weightstream llm", description="Language models: from a checkpoint to text.")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    parser = commands.add_parser(
        "export",
        help="compile a checkpoint, and write the program, its weights and its tokenizer",
        description="Compiles a language model for WeightStream. In Python, `weightstream.LLM(OUT)` generates text with it.",
    )
    parser.add_argument("source", metavar="CHECKPOINT", help="a folder as Hugging Face's libraries write it, or a .gguf file")
    parser.add_argument("folder", metavar="OUT", help="the folder for model.pte, model.ptd and tokenizer.json")
    parser.add_argument(
        "--quantize",
        default="auto",
        choices=("auto", "int4", "int8", "fp8", "none"),
        help="bits of the weights; auto keeps those of a GGUF file, and changes nothing else (default: auto)",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where it runs (default: cpu)")
    parser.add_argument(
        "--sm", default="", help="compute capability of a GPU that is not here: 80, 86, 89, 90, 100, 120; for several 86,89,90"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="of activations and dense weights (default: float32, on a GPU bfloat16)"
    )
    parser.add_argument(
        "--context", type=int, metavar="TOKENS", help="places in the cache: prompt and answer (default: 2048, or what fits)"
    )
    parser.add_argument("--chunk", type=int, metavar="TOKENS", help="most tokens in one pass over the prompt (default: 512)")
    parser.add_argument(
        "--verify",
        type=int,
        default=0,
        metavar="TOKENS",
        help="add a method `verify`, which gives the logits of so many tokens (default: none)",
    )
    parser.add_argument(
        "--batch", type=int, default=1, metavar="TEXTS", help="texts that a pass continues, in `weightstream.LLM` (default: 1)"
    )
    return whole
