"""What a call does while it waits for a GPU: it changes nothing, and what is raised in it is not lost."""

from __future__ import annotations

import gc
import math
import threading
import weakref

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from models import ZOO
from support import run_passes
from weightstream._meanwhile import Callback, Meanwhile


class Work:
    def __init__(self, raises: BaseException | None = None):
        self.calls, self.raises = 0, raises
        self.meanwhile = Meanwhile(self.again)

    def again(self) -> None:
        self.calls += 1
        if self.raises is not None:
            raise self.raises


def test_each_call_does_the_work():
    work = Work()
    work.meanwhile.callback()
    work.meanwhile.callback()
    work.meanwhile.finish()
    assert work.calls == 2


def test_what_is_raised_is_raised_behind_the_wait_once():
    """Ctrl-C comes wherever Python runs; ctypes would print it and go on."""
    work = Work(KeyboardInterrupt())
    work.meanwhile.callback()
    work.meanwhile.callback()
    assert work.calls == 1, "the rest of the wait is a plain one"
    with pytest.raises(KeyboardInterrupt):
        work.meanwhile.finish()
    work.meanwhile.finish()


def test_the_work_ends_with_its_object():
    work = Work()
    call, gone = work.meanwhile.callback, weakref.ref(work)
    gc.disable()
    try:
        del work
        assert gone() is None
    finally:
        gc.enable()
    call()


class Counting(ws.Module):
    calls = 0
    raises: BaseException | None = None

    def _again(self) -> None:
        super()._again()
        self.calls += 1
        raised, self.raises = self.raises, None
        if raised is not None:
            raise raised


def same(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> bool:
    return all(torch.equal(a, b) for pair in zip(found, expected, strict=True) for a, b in zip(*pair, strict=True))


@pytest.mark.models("demo")
def test_outputs_are_those_of_a_call_that_only_waits(exported):
    files, passes = exported("demo"), ZOO["demo"].passes(4)
    with Counting(str(files.pte), str(files.ptd)) as module:
        done, module._meanwhile.callback = module._meanwhile.callback, Callback()
        expected = run_passes(module, passes)
        assert module.calls == 0
        module._meanwhile.callback = done
        assert same(run_passes(module, passes), expected)
        # A pass at the floor copies a hundred megabytes; on the CPU nothing is waited for.
        assert (module.calls > 0) == ON_GPU
        if ON_GPU:
            module.raises = KeyboardInterrupt()
            with pytest.raises(KeyboardInterrupt):
                module.forward(*passes[0])
            assert same(run_passes(module, passes[:1]), expected[:1])


class Looking(ws.Module):
    """Whether the outputs of the call before are what they were, while the next one waits."""

    looked = 0

    def _again(self) -> None:
        super()._again()
        for index in range(self._lib.wsm_num_outputs(self._open_handle())):
            view = self._output(index).tensor
            assert view.nbytes == math.prod(view.sizes[: view.ndim]) * 4, "float32"
            self.looked += 1


@pytest.mark.models("dynamic")
def test_outputs_of_the_call_before_keep_their_sizes_while_others_are_made(exported):
    files, passes = exported("dynamic"), ZOO["dynamic"].passes()
    assert len({tuple(inputs[0].shape) for inputs in passes}) > 1
    with Looking(str(files.pte), str(files.ptd)) as module:
        for inputs in passes * 3:
            module.forward(*inputs)
            # Behind each call as well: where nothing is waited for, this is all that is looked at.
            module._again()
        assert module.looked >= 3 * len(passes)


@pytest.mark.models("demo")
@pytest.mark.skipif(not ON_GPU, reason="only a GPU is waited for")
def test_a_thread_that_keeps_python_busy_is_not_taken_turns_with(exported):
    files, passes, end = exported("demo"), ZOO["demo"].passes(50), threading.Event()

    def work() -> None:
        while not end.is_set():
            sum(range(1000))

    other = threading.Thread(target=work)
    with Counting(str(files.pte), str(files.ptd)) as module:
        run_passes(module, passes[:2])
        module.calls = 0
        other.start()
        try:
            run_passes(module, passes)
        finally:
            end.set()
            other.join()
        # Each pass without the rule; with it the 1st, 3rd, 6th, 11th, 20th and 37th.
        assert module.calls < 25
