"""Progress of long steps: one line each, on standard error, with the time a step took."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator


def _enabled() -> bool:
    return os.environ.get("WEIGHTSTREAM_PROGRESS", "1") != "0"


def note(text: str) -> None:
    """Prints one line, unless ``WEIGHTSTREAM_PROGRESS=0``."""
    if _enabled():
        print(f"weightstream: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Announces a step and says afterwards how long it took."""
    note(f"{text} ...")
    begin = time.monotonic()
    yield
    note(f"{text}: {time.monotonic() - begin:.1f} s")
