"""Whether a program that was just written can be loaded."""

from __future__ import annotations

import os

from . import _native, _record, _runtime
from ._errors import ExportError
from ._progress import note, step

#: A program may be meant for another machine than the one that exports it.
_ELSEWHERE = ("this processor lacks", "out of memory:")


#: Whether the runtime loads programs of several methods. THE PLACE TO SWITCH THE CHECK ON: set it to True once it does.
_LOADS_SEVERAL_METHODS = False


def check_loads(
    pte: str | os.PathLike[str], ptd: str | os.PathLike[str], records: dict[str, _record.Fields], *, has_budget: bool = False
) -> None:
    """Loads the files as a user would, all methods once, and closes them: with the program's own budget if it has one, else with the
    least. Runs nothing.

    Programs for a GPU are not loaded: the process that exports may hold most of its memory.
    """
    method, fields = next(iter(records.items()))
    if fields["device"] != ["cpu"] or (len(records) > 1 and not _LOADS_SEVERAL_METHODS):
        return
    try:
        _native.library()
    except (_native.Error, OSError) as absent:
        note(f"the files were not loaded to check them: {absent}")
        return
    try:
        with step("loading the program to check it"):
            least = fields["offload"] == [1] and not has_budget
            budget = max(_runtime.required_budget(pte, method) for method in records) if least else 0
            module = _runtime.Module(pte, ptd, method, **({"weight_offload_budget_bytes": budget} if least else {}))
            with module:
                for other in [other for other in records if other != method]:
                    module._load(other)
    except _native.Error as problem:
        if any(words in str(problem) for words in _ELSEWHERE):
            note(f"the files were not loaded to check them: {problem}")
            return
        raise ExportError(f"the program was written and cannot be loaded: {problem}") from None
