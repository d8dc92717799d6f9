"""Progress of long steps: one line each, on standard error, with the time a step took."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator


def _print(text: str) -> None:
    print(f"weightstream: {text}", file=sys.stderr, flush=True)


#: Where lines go.
_write: Callable[[str], None] = _print


def send_to(write: Callable[[str], None]) -> None:
    """Lets ``write`` have this process's lines: a child sends them to its parent, whose standard error may be another one."""
    global _write
    _write = write


def _enabled() -> bool:
    return os.environ.get("WEIGHTSTREAM_PROGRESS", "1") != "0"


def note(text: str) -> None:
    """Prints one line, unless ``WEIGHTSTREAM_PROGRESS=0``."""
    if _enabled():
        _write(text)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Announces a step and says afterwards how long it took."""
    note(f"{text} ...")
    begin = time.monotonic()
    yield
    note(f"{text}: {time.monotonic() - begin:.1f} s")
