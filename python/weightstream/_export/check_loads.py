"""Whether a program that was just written can be loaded."""

from __future__ import annotations

import os

from .._native import bindings
from .._native.errors import Error, ExportError
from .._native.progress import note, step
from .._run import runtime
from .compile import record

#: A program may be meant for another machine than the one that exports it.
_ELSEWHERE = ("this processor lacks", "out of memory:")


def check_loads(
    pte: str | os.PathLike[str], ptd: str | os.PathLike[str], records: dict[str, record.Fields], *, has_budget: bool = False
) -> None:
    """Loads the files as a user would, all methods once, and closes them: with the program's own budget if it has one, else with the
    least. Runs nothing.

    Programs for a GPU are not loaded: the process that exports may hold most of its memory.
    """
    fields = next(iter(records.values()))
    if fields["device"] != ["cpu"]:
        return
    try:
        bindings.library()
    except (Error, OSError) as absent:
        note(f"the files were not loaded to check them: {absent}")
        return
    try:
        with step("loading the program to check it"):
            least = fields["offload"] == [1] and not has_budget
            specs = {"weight_offload_budget_bytes": runtime.required_budget(pte, ptd=ptd)} if least else {}
            runtime.Module(pte, ptd, **specs).close()
    except Error as problem:
        if any(words in str(problem) for words in _ELSEWHERE):
            note(f"the files were not loaded to check them: {problem}")
            return
        raise ExportError(f"the program was written and cannot be loaded: {problem}") from None
