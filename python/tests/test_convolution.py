"""Convolutions of one dimension get a second one for a GPU; what they compute stays the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from weightstream._export.passes import convolution

pytestmark = pytest.mark.no_runtime


class Lines(nn.Module):
    def __init__(self):
        super().__init__()
        self.same = nn.Conv1d(4, 6, 4, padding="same")
        self.strided = nn.Conv1d(6, 8, 4, stride=2, padding=1, dilation=2, groups=2)
        self.back = nn.ConvTranspose1d(8, 4, 3, stride=2, output_padding=1, bias=False)
        self.plane = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x, picture):
        plane = torch.ops.aten.convolution(picture, self.plane, None, [2], [1], [1], False, [0], 1)
        return self.back(self.strided(self.same(x))), plane


def test_one_dimension_becomes_two_and_lists_are_written_out():
    model, inputs = Lines().eval(), (torch.randn(2, 4, 20), torch.randn(1, 4, 9, 9))
    program = torch.export.export(model, inputs).run_decompositions(convolution.written_out())
    assert convolution.widen(program) == 3
    found, expected = program.module()(*inputs), model(*inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    lists = [node.args[3] for node in program.graph.nodes if node.target is torch.ops.aten.convolution.default]
    assert all(len(strides) == 2 for strides in lists)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("padding", "dilation", "more", "groups"), [(0, 1, 0, 1), (1, 2, 1, 2), (3, 1, 0, 2), (2, 2, 1, 1)])
def test_a_transposed_convolution_is_a_plain_one(dims, stride, padding, dilation, more, groups):
    if more >= max(stride, dilation):
        pytest.skip("torch refuses an output padding that is no smaller than stride and dilation")
    x, weight = torch.randn(2, 4, *[6] * dims), torch.randn(4, 3, *[3] * dims)
    arguments = (x, weight, torch.randn(3 * groups), [stride], [padding], [dilation], True, [more], groups)
    expected = torch.ops.aten.convolution.default(*arguments)
    torch.testing.assert_close(convolution.transposed(*arguments), expected, atol=1e-4, rtol=1e-4)
