"""A function in a child process: its result, its error and its lines of progress come back.

The child is forked, not started as a new process. A program that is half exported holds operators, symbols and hooks that torch
cannot serialise as a whole, and many GB of weights that need not be copied. What makes a fork safe here:

* the child computes with one thread, so that it waits for no pool whose threads it does not have;
* it never uses CUDA, whose contexts do not survive a fork: every question to a device is answered by the imitation;
* it collects no garbage of its parent's and ends by ``_exit``: nothing that the parent owns is destroyed twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, NoReturn, TypeVar

import torch

from ..._native import progress
from ..._native.errors import ExportError

Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1


class ChildTraceback(Exception):
    """Where an error was raised in the child: the cause of the error in the parent."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder for what a child makes, removed even if the child dies."""
    with tempfile.TemporaryDirectory(prefix="weightstream-", ignore_cleanup_errors=True) as work:
        yield Path(work)


class Running(Generic[Result]):
    """A function that runs in a child of this process."""

    def __init__(self, function: Callable[[], Result], what: str):
        """Begins. The result of ``function`` has to be picklable; ``what`` names the work if the child dies."""
        self._what = what
        self._reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of other threads; the comment above says why they do not matter.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = os.fork()
        if self._child == 0:
            os.close(self._reader)
            _serve(function, writer)
        os.close(writer)

    def result(self) -> Result:
        """Waits for the result. An error of the function is raised here."""
        outcome, child = None, self._child
        try:
            with os.fdopen(self._reader, "rb") as pipe:
                outcome = _listen(pipe)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            self._child = 0
            _, status = os.waitpid(child, 0)
        if outcome is None:
            raise ExportError(f"{self._what}: {_end(status)}")
        kind, value, place = outcome
        if kind == "error":
            raise value from (ChildTraceback(place) if place else None)
        return value

    def stop(self) -> None:
        """Ends a child whose result nobody waits for any more."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            os.close(self._reader)
            self._child = 0


def run(function: Callable[[], Result], what: str) -> Result:
    """Calls ``function`` in a child and returns its result."""
    return Running(function, what).result()


def _listen(pipe: BinaryIO) -> tuple[str, Any, str] | None:
    """Prints lines until the outcome comes; None if the child ends without one."""
    while True:
        try:
            kind, value, place = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError):
            return None
        if kind != "line":
            return kind, value, place
        progress.note(value)


def _end(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"the child process ended with status {os.waitstatus_to_exitcode(status)} and without a result; please report this"
    number = os.WTERMSIG(status)
    hint = " (the system does that where memory runs out)" if number == signal.SIGKILL else ""
    return f"the child process was ended by {signal.Signals(number).name}{hint}"


def _serve(function: Callable[[], Any], writer: int) -> NoReturn:
    """The child's whole life."""
    status = 1
    try:
        gc.freeze()
        # A parent that is killed takes its child along.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        torch.set_num_threads(1)
        with os.fdopen(writer, "wb") as pipe:
            progress.send_to(lambda text: _send(pipe, "line", text))
            try:
                _send(pipe, "result", function())
            except Exception as error:
                told, place = _portable(error)
                _send(pipe, "error", told, place)
        status = 0
    except KeyboardInterrupt:
        # The parent was interrupted too, and says so.
        pass
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _send(pipe: BinaryIO, kind: str, value: Any, place: str = "") -> None:
    # Whole or not at all: what cannot be pickled must not leave half of itself in the pipe.
    pipe.write(pickle.dumps((kind, value, place)))
    pipe.flush()


def _portable(error: Exception) -> tuple[Exception, str]:
    """The error as the parent is to raise it, and where it comes from. A refusal says all by itself."""
    if isinstance(error, ExportError):
        return error, ""
    place = "".join(traceback.format_exception(error))
    try:
        same = pickle.loads(pickle.dumps(error))
        if type(same) is type(error) and str(same) == str(error):
            return same, place
    except Exception:
        pass
    return ExportError(f"{type(error).__name__}: {error}"), place
