"""The command ``weightstream``: ``export`` and ``llm`` are Python's, all else is in the native library."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import unittest.mock
from pathlib import Path
from typing import Any

from ._native.errors import Error
from ._run import runtime

_EXPORT = (
    "  export   Compiles a program that torch.export.save wrote (.pt2), and writes the .pte and the .ptd\n"
    "  llm      Compiles a language model from its checkpoint: a folder of Hugging Face's libraries, or a .gguf file\n"
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given[:1] == ["export"]:
            return _export(given[1:])
        if given[:1] == ["llm"]:
            from ._llm import command

            return command.run(given[1:], _export_llm)
        status, text = runtime.command(given)
    except Error as error:
        print(f"weightstream: {error}", file=sys.stderr)
        return 1
    if given in ([], ["--help"], ["-h"], ["help"]):
        text = text.replace("  help ", _EXPORT + "  help ", 1)
    print(text, end="", file=sys.stderr if status else sys.stdout)
    return status


def _export_llm(*arguments: Any, **options: Any) -> None:
    from . import llm

    llm.export(*arguments, **options)


def run() -> int:
    """Becomes the program ``weightstream-run``, which runs a program's files; returns only if that is not there."""
    return _become("weightstream-run")


def generate() -> int:
    """Becomes the program ``weightstream-generate``, which generates tokens; returns only if that is not there."""
    return _become("weightstream-generate")


def _become(name: str) -> int:
    program = Path(__file__).parent / "bin" / name
    if program.is_file():
        os.execv(program, [str(program), *sys.argv[1:]])
    print(f"{name}: {program} is missing: install the package with pip", file=sys.stderr)
    return 1


class _Once(argparse.Action):
    """Takes an option once: argparse would keep the last of several values, and say nothing."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = namespace.__dict__.setdefault("given", set())
        if self.dest in given:
            parser.error(f"{option_string} is given twice")
        given.add(self.dest)
        setattr(namespace, self.dest, values if self.nargs != 0 else True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weightstream export", description="Compiles an exported program for WeightStream.")
    once = functools.partial(parser.add_argument, action=_Once)
    parser.add_argument("program", metavar="MODEL.pt2", help="what torch.export.save wrote")
    parser.add_argument("pte", metavar="MODEL.pte", help="the program to write")
    parser.add_argument("ptd", metavar="WEIGHTS.ptd", help="its weights")
    once("--device", default="cpu", choices=("cpu", "cuda"), help="where it runs (default: cpu)")
    once("--sm", default="", help="compute capability of a GPU that is not here: 80, 86, 89, 90, 100, 120; for several 86,89,90")
    once("--isa", default="x86-64-v3", help="x86-64 level of the host's code (default: x86-64-v3)")
    once("--attention", default="auto", choices=("auto", "math"), help="how a GPU computes attention (default: auto)")
    once("--no-offload", nargs=0, default=False, help="keep all weights in memory: the baseline for measurements")
    once("--device-io", nargs=0, default=False, help="inputs and outputs lie on the first GPU")
    parser.add_argument(
        "--default",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a default for an option, as weight_offload_budget_mb=512; once for each option",
    )
    return parser


def _defaults(parser: argparse.ArgumentParser, given: list[str]) -> dict[str, str]:
    defaults: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            parser.error(f"--default takes KEY=VALUE, not '{text}'")
        if key in defaults:
            parser.error(f"--default gives '{key}' twice")
        defaults[key] = value
    return defaults


def _export(arguments: list[str]) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    defaults = _defaults(parser, given.default)
    from ._native.errors import ExportError

    try:
        # Late: `plan` and `inspect` need nothing that exports.
        from . import export

        export(
            _load(given.program),
            None,
            given.pte,
            given.ptd,
            device=given.device,
            isa=given.isa,
            sm=given.sm,
            attention=given.attention,
            offload=not given.no_offload,
            device_io=given.device_io,
            defaults=defaults,
        )
    except (ExportError, OSError) as error:
        print(f"weightstream export: {error}", file=sys.stderr)
        return 1
    return 0


def _load(path: str) -> Any:
    """The program that ``torch.export.save`` wrote."""
    import torch

    from ._native.errors import ExportError

    try:
        # It would log a traceback beside what it raises.
        with unittest.mock.patch.object(torch.export.log, "disabled", True):
            return torch.export.load(path)
    except Exception as error:  # torch raises what its parts raise
        raise ExportError(f"cannot load {path}: {error}") from None
