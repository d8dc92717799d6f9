"""How ExecuTorch lowers a program: all methods at one place of the partitioners' lists, then all methods at the next place.

    {"prefill": [WS], "decode": [XNNPACK, WS]}     place 0: prefill     place 1: decode

Methods at one place are seen together. Those of another place are not, and would be a program of their own in the same file. Nothing
tells a backend of the places. But all programs are prepared before the first is lowered: a program that was prepared before a run of
the backend, and comes after it, was left for another place.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..._native.errors import ExportError

_runs = 0
_last: list[str] = []


def now() -> int:
    """How many runs of the backend there were."""
    return _runs


def begin_run(methods: Iterable[str]) -> None:
    """The backend begins to lower these methods."""
    global _runs, _last
    _runs += 1
    _last = sorted(methods)


def refuse_places(methods: Iterable[str]) -> None:
    """Raises :class:`ExportError` for methods that were prepared together with those of the last run."""
    raise ExportError(
        f"method {_list(methods)} and method {_list(_last)} have WeightStreamPartitioner at different places of their lists of partitioners, so "
        "that they are not lowered together and would share nothing: put it at the same place for every method"
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
