"""Whether a program that was just written can be loaded."""

from __future__ import annotations

import os

from . import _native, _record, _runtime
from ._errors import ExportError
from ._progress import note, step

#: A program may be meant for another machine than the one that exports it.
_ELSEWHERE = ("this processor lacks", "out of memory:")


def check_loads(pte: str | os.PathLike[str], ptd: str | os.PathLike[str], method: str, fields: _record.Fields) -> None:
    """Loads the files with the least budget, as a user would, and closes them. Runs nothing of the program.

    Programs for a GPU are not loaded: the process that exports may hold most of its memory.
    """
    if fields["device"] != ["cpu"]:
        return
    try:
        _native.library()
    except (_native.Error, OSError) as absent:
        note(f"the files were not loaded to check them: {absent}")
        return
    try:
        with step("loading the program to check it"):
            specs = {"weight_offload_budget_bytes": _runtime.required_budget(pte, method)} if fields["offload"] == [1] else {}
            _runtime.Module(pte, ptd, method, **specs).close()
    except _native.Error as problem:
        if any(words in str(problem) for words in _ELSEWHERE):
            note(f"the files were not loaded to check them: {problem}")
            return
        raise ExportError(f"the program was written and cannot be loaded: {problem}") from None
