"""Modules that callers call from outside, and what keeps two of their passes apart."""

from __future__ import annotations

import threading

from torch import nn

from .._native.errors import Error
from .plan import PlannedEntry
from .recording import Call


class Entry:
    """A module that callers call from outside."""

    def __init__(self, module: nn.Module, name: str):
        self.module, self.name = module, name
        #: What its last recorded pass called, and what was made of it.
        self.recorded: list[Call] | None = None
        self.planned: PlannedEntry | None = None
        self.astray_in_a_row = 0


class Alone:
    """One pass, or one change, at a time."""

    def __init__(self, name: str):
        self._busy, self._name = threading.Lock(), name

    def __enter__(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise Error(f"offload: {self._name} is running already, on this thread or another one; one pass at a time")

    def __exit__(self, *_: object) -> None:
        self._busy.release()
