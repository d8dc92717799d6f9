"""Sorting as it is written for CUDA: the same values and places as torch's stable sort."""

from __future__ import annotations

import math

import pytest
import torch
import weightstream as ws
from operator_models import Experts
from torch.export import Dim, export
from weightstream._export.passes import refusals, sorting
from weightstream._export.passes.decompose import decompose
from weightstream._export.passes.prepare import prepare

pytestmark = pytest.mark.no_runtime


def _rows(dtype: torch.dtype) -> torch.Tensor:
    """With many equal elements; infinities, both zeros and NaN where the dtype has them."""
    torch.manual_seed(0)
    rows = torch.randint(0, 4, (3, 9, 5)).to(dtype)
    if dtype.is_floating_point:
        rows[:, :7:2] = torch.tensor([math.nan, -math.inf, -0.0, math.inf, math.nan]).to(dtype)
    return rows


def _same(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(f.nan_to_num(9), e.nan_to_num(9)) and f.dtype == e.dtype for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_like_a_stable_sort(dtype, dim, descending):
    rows = _rows(dtype)
    expected = torch.sort(rows, dim=dim, descending=descending, stable=True)
    assert _same(sorting.sort_stable(rows, stable=True, dim=dim, descending=descending), expected)
    assert _same(sorting.sort(rows, dim, descending), expected)
    assert _same(sorting.topk(rows, 2, dim, descending), tuple(part.narrow(dim, 0, 2) for part in expected))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (0, 3)])
def test_of_few_elements(shape):
    rows = torch.rand(shape)
    assert _same(sorting.sort(rows), torch.sort(rows, stable=True))


def test_a_mixture_of_experts_for_cuda_sorts_nothing_itself():
    model, x = Experts().eval(), torch.randn(7, 32)
    program = decompose(prepare(export(model, (x,), dynamic_shapes=({0: Dim("rows", min=2, max=4096)},))), "cuda")
    refusals.refuse_on_a_gpu(program, "cpu")
    with pytest.raises(ws.ExportError, match=r"aten\._grouped_mm.*cannot run on a GPU"):
        refusals.refuse_on_a_gpu(program, "cuda")
    left = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in left if "sort" in name or "topk" in name]
    for rows in (2, 7, 40):
        x = torch.randn(rows, 32)
        assert torch.allclose(program.module()(x), model(x), atol=1e-5)
