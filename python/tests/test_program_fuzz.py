"""A short run of the fuzzer of programs; `make fuzz TARGET=programs` is a long one."""

from __future__ import annotations

import pytest
import torch
from program_draw import draw
from program_fuzz import RIGHT, WRONG, fuzz, summary


def test_programs_of_a_fixed_seed_equal_eager_pytorch():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        verdicts = fuzz(range(1, 9), 8)
    finally:
        torch.set_num_threads(threads)
    wrong = [f"program {one.program.seed}: {one.text}" for one in verdicts if one.kind == WRONG]
    assert not wrong, "\n".join(wrong)
    assert sum(one.kind == RIGHT for one in verdicts) >= 5, summary(verdicts)


@pytest.mark.no_package
def test_a_seed_draws_one_program():
    assert draw(5).told() == draw(5).told()
    programs = [draw(seed) for seed in range(60)]
    assert len({one.source() for one in programs}) == 60
    assert any(one.named for one in programs)
    assert any(one.dynamic and one.smallest == 0 for one in programs)
    assert any("complex" in one.source() or "fft" in one.source() for one in programs)
