"""Operators that are decomposed at export: right at both ends of the budget, or refused by their name and module."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from executorch.exir import to_edge_transform_and_lower
from operator_models import OPERATORS
from support import budget_of, error_of, open_module, run_passes
from torch import nn
from zoo import ZOO, largest_error

pytestmark = pytest.mark.cpu_only("their functions in the runtime are the CPU's")
EQUAL = [name for name in OPERATORS if name != "op_noise"]


@pytest.mark.parametrize("budget", ["floor", 100])
@pytest.mark.parametrize("name", EQUAL)
def test_right_at_the_ends_of_the_budget(name, budget, exported, reference):
    spec, files = ZOO[name], exported(name)
    found = run_passes(open_module(files, budget_of(files, budget)), spec.passes())
    for number, expected in enumerate(reference(name)[: len(found)]):
        error = largest_error(found[number], expected)
        assert error <= spec.tolerance, f"pass {number}: off by {error}"


@pytest.mark.models("op_arrays")
def test_a_singular_matrix_is_an_error_of_the_pass_as_in_eager(exported):
    module = open_module(exported("op_arrays"))
    good = ZOO["op_arrays"].passes(1)[0]
    singular = torch.zeros(5, 9)
    singular[:3, :3] = -3 * torch.eye(3)
    error_of(lambda: module.forward(good[0], singular))
    assert torch.isfinite(module.forward(*good)[1]).all()


@pytest.mark.models("op_noise")
def test_random_numbers_are_spread_well_and_differ(exported):
    spec, files = ZOO["op_noise"], exported("op_noise")
    first, second = run_passes(open_module(files), spec.passes(2))
    assert largest_error(first[:1], spec.eager(spec.passes(1))[0][:1]) <= 1e-4
    for place in range(1, 6):
        assert not torch.equal(first[place], second[place]), f"output {place} is the same in both passes"
    uniform, like, normal, integers, small = first[1:]
    for numbers in (uniform, like.flatten()):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert abs(numbers.mean() - 0.5) < 0.03
        assert abs(numbers.std() - 12**-0.5) < 0.02
    assert not torch.equal(uniform, like.flatten())
    assert abs(normal.mean()) < 0.08
    assert abs(normal.std() - 1) < 0.05
    assert (integers.dtype, small.dtype) == (torch.int64, torch.int32)
    for numbers, low, high in ((integers, -3, 5), (small, 0, 7)):
        counts = torch.bincount(numbers.long() - low)
        assert len(counts) == high - low
        assert counts.min() > 0.8 * 4096 / (high - low)


@pytest.mark.models("op_noise")
def test_a_program_that_is_loaded_again_draws_the_same_numbers(exported):
    spec, files = ZOO["op_noise"], exported("op_noise")
    first, again = (run_passes(open_module(files), spec.passes(2)) for _ in range(2))
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))


class Inside(nn.Module):
    """An operator in a module of a module."""

    def __init__(self, function):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), _Calls(function))

    def forward(self, x):
        return self.block(x)


class _Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _complex(x):
    return torch.view_as_complex(x.reshape(-1, 2))


REFUSED = {
    "large transform": (lambda x: torch.fft.rfft(x, n=5000).abs(), "_fft_r2c", "at most 4096"),
    "large inverse": (lambda x: torch.linalg.inv(x @ x.T + torch.eye(33)), "linalg_inv", "at most 32"),
    "complex operator": (lambda x: _complex(x).cosh().abs(), "aten.cosh", "view_as_real"),
    "complex cast": (lambda x: _complex(x).to(torch.float32), "aten._to_copy", "take .real"),
    "bytes of complex numbers": (lambda x: _complex(x).view(torch.int32), "aten.view", "take torch.view_as_real"),
    "uint8 picture": (
        lambda x: torch.nn.functional.interpolate(x.to(torch.uint8)[None, None], (4, 4), mode="bilinear", antialias=True),
        "_upsample_bilinear2d_aa",
        "make it float",
    ),
    "groups of columns": (
        lambda x: torch._grouped_mm(x.T.bfloat16(), x.bfloat16(), offs=torch.full((2,), 16, dtype=torch.int32)),
        "_grouped_mm",
        "groups",
    ),
}


@pytest.mark.no_runtime
@pytest.mark.parametrize("case", REFUSED)
def test_what_stays_refused_is_named_with_its_module(case):
    function, operator, why = REFUSED[case]
    program = ws.apply_weight_offload(torch.export.export(Inside(function).eval(), (torch.randn(33 if "inverse" in case else 32, 8),)))
    partitioner = ws.WeightStreamPartitioner()
    message = error_of(
        lambda: to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=ws.edge_compile_config()), ws.ExportError
    )
    for part in (operator, "in block.1", why):
        assert part in message
