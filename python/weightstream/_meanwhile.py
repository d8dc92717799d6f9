"""What a call does around its wait for a GPU, done over and over while it waits.

In a pass of which most is copies the calling thread waits for milliseconds. Meanwhile its core's caches are taken by others, and what
is behind the wait and in front of the next one takes some times as long as it would otherwise (the text of ``src/device/waiting.rs``
has figures). Done in the meantime as well, to no effect, it is quick when it counts.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

__all__ = ["Callback", "Meanwhile"]

Callback = ctypes.CFUNCTYPE(None)


class Meanwhile:
    """Of the calls of one object, whose method `again` goes through everything. `callback` is what the runtime calls."""

    def __init__(self, again: Callable[[], None]):
        # The object has this one, and is freed with its last reference from elsewhere.
        self._again = weakref.WeakMethod(again)
        self._raised: BaseException | None = None
        self.callback = Callback(self._run)

    def _run(self) -> None:
        again = self._again()
        if again is None or self._raised is not None:
            return
        try:
            again()
        except BaseException as error:  # what a signal's handler raises comes here as well: Ctrl-C
            self._raised = error

    def finish(self) -> None:
        """Behind the wait: raises what was raised in it."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
