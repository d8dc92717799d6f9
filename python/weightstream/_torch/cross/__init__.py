"""Compiling in a child process: several methods at a time, and for an NVIDIA GPU that is not there.

    the export's process          a child of it
    weights, record, files   <--  library and trace   <--  the compiler, which sees a card of the table and fake weights on it

The compiler asks a device four kinds of things, and each has a module here:

* what it is: ``answers`` (torch and its compiler) and ``driver`` (Triton), from the figures in ``cards``;
* how fast something ran on it: nothing is run. ``tiles`` and ``launches`` choose by a rule;
* its memory: ``weights`` gives fake tensors for the constants;
* the toolkit's headers and the driver's library: ``toolkit``.

All of it changes torch's modules and caches for good. So it happens in a child process (``child.py``) and nowhere else.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from ..._native.errors import ExportError
from ..._native.progress import note
from . import cards, child, weights
from .cards import CARDS

if TYPE_CHECKING:
    from .launches import Launches

#: What the child imitates; None in every other process.
_launches: Launches | None = None


def check(sm: str) -> None:
    """Raises :class:`ExportError` if nothing can be compiled for ``sm`` here."""
    named = sm.split(",")
    if not set(named) <= set(CARDS):
        raise ExportError(f"sm '{sm}' is unknown; use one of {', '.join(CARDS)}, or several with commas between them")
    if len(set(named)) != len(named):
        raise ExportError(f"sm '{sm}' names one twice")
    if importlib.util.find_spec("triton") is None or torch.version.cuda is None:
        raise ExportError(
            f"sm '{sm}' needs Triton, which compiles the kernels, and the installed torch {torch.__version__} is a wheel without it: "
            "install torch's wheel for CUDA, which brings Triton and needs no GPU"
        )


def options() -> dict[str, Any]:
    """The compiler's options in the place of those that tune."""
    from . import launches

    return launches.options()


def another_try() -> bool:
    """Whether a compilation failed because of tiles that the next one avoids. Never outside of the child."""
    tiles = _launches.another() if _launches is not None else []
    if tiles:
        note(f"too much shared memory for {'; '.join(map(str, tiles))}: compiling again with the next choice")
    return bool(tiles)


class Apart:
    """A compilation in a child of this process. With ``sm`` a card of it seems to be there; of several (``86,90``) one that all can be."""

    def __init__(self, program: ExportedProgram, sm: str, compile_here: Callable[[ExportedProgram], tuple[Any, Any]]):
        """Begins. ``compile_here`` gives a ``Compiled`` and plain facts for ``program``."""
        self._program, self._ends = program, contextlib.ExitStack()
        work = self._ends.enter_context(child.workspace())
        card = cards.of(sm) if sm else None
        if card is not None:
            note(f"kernels were not tuned: compiled for {card.named} without running, tiles by a model of {card.name}")
            if "," in sm:
                note(f"the driver compiles them for SM {sm} at load, and keeps what it made")

        def inside() -> tuple[Any, Any]:
            if card is not None:
                _imitate(sm, work)
                weights.move(program)
            compiled, facts = compile_here(program)
            weights.strip(compiled.trace.constants, program)
            return compiled, facts

        self._running = child.Running(inside, "compiling" if card is None else f"compiling for {card.named}")
        self._ends.callback(self._running.stop)

    def result(self) -> tuple[Any, Any]:
        """Waits for what ``compile_here`` gave."""
        with self._ends:
            try:
                compiled, facts = self._running.result()
            except RuntimeError as error:
                if "initialization error" not in str(error):
                    raise
                raise ExportError(
                    "the compiler asked this machine's driver, which a forked process cannot use: with this torch, attention that no fused "
                    "kernel computes does so; leave sm out to export for the GPU that is here, or export where there is none"
                ) from error
        weights.give_back(compiled.trace.constants, self._program)
        return compiled, facts

    def stop(self) -> None:
        """Ends it, if nobody has waited for its result."""
        self._ends.close()


def _imitate(sm: str, work: Path) -> None:
    """All that a whole compilation needs. Nothing is put back."""
    from . import toolkit
    from .launches import Launches

    global _launches
    toolkit.provide(work)
    imitate_device(sm)
    _launches = Launches(cards.of(sm), portable="," in sm)


def imitate_device(sm: str) -> None:
    """Lets this process's compiler believe that a card of ``sm`` is there, for good."""
    import triton
    from torch._inductor.fx_passes import joint_graph

    from . import answers
    from .driver import Driver

    # Patterns are traced with real tensors on a device; what they find does not depend on it.
    joint_graph.lazy_init(torch.device("cpu"))
    joint_graph.lazy_init = lambda *_: None
    answers.give(cards.of(sm))
    weights.compare_by_storage()
    triton.runtime.driver.set_active(Driver(cards.of(sm)))
