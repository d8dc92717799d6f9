"""A dozen of the models of `make zoo`: right at floor, 50 and 100 %, with the same bits."""

from __future__ import annotations

import pytest
from public_models import A_DOZEN, PUBLIC
from support import budget_of, open_module, run_passes
from zoo import bits, largest_error

pytestmark = pytest.mark.cpu_only("`make zoo` exports for the CPU")


@pytest.mark.parametrize("name", A_DOZEN)
def test_a_public_model_is_right_at_every_budget(name, exported):
    pytest.importorskip(PUBLIC[name].library)
    spec, files = PUBLIC[name].spec, exported(name)
    passes = spec.passes()
    expected, seen = spec.eager(passes), []
    assert len({tuple(bits(out)) for out in expected}) == len(passes), "outputs do not depend on inputs"
    for budget in ("floor", 50, 100):
        found = run_passes(open_module(files, budget_of(files, budget)), passes, spec.keywords)
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            error = largest_error(ours, theirs)
            assert error <= spec.tolerance, f"pass {number} at {budget} is off by {error}"
        seen.append([bits(one) for one in found])
    assert seen[0] == seen[1] == seen[2]


def test_the_dozen_is_of_every_library():
    assert len(A_DOZEN) == len(set(A_DOZEN)) == 12
    assert {PUBLIC[name].library for name in A_DOZEN} == {entry.library for entry in PUBLIC.values()}
    assert len(PUBLIC) >= 40
