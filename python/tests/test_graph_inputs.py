"""Inputs of graphs of many shapes share one buffer. On the CPU: views and copies."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from support import error_of

pytestmark = pytest.mark.no_export
DEVICE = "cuda:0" if ON_GPU else "cpu"


def make() -> ws.torch.GraphInputs:
    return ws.torch.GraphInputs(x=torch.empty(8, 16, device=DEVICE), ids=torch.empty(1, 8, dtype=torch.long, device=DEVICE))


def test_shapes_share_the_memory_of_the_largest():
    inputs = make()
    assert inputs.bytes == 8 * 16 * 4 + 8 * 8
    large, small = inputs.views(x=(8, 16), ids=(1, 8)), inputs.views(x=(3, 16), ids=(1, 3))
    assert small["x"].is_contiguous()
    assert {one["x"].data_ptr() for one in (large, small)} == {large["x"].data_ptr()}
    x, ids = torch.randn(2, 16, device=DEVICE), torch.arange(3, device=DEVICE)[None]
    large["x"].fill_(7)
    views = inputs.write({"x": (3, 16), "ids": (1, 3)}, x=x, ids=ids)
    assert torch.equal(views["x"], torch.cat([x, x.new_zeros(1, 16)]))
    assert torch.equal(small["ids"], ids)
    # What lies behind is another shape's.
    assert (large["x"][3:] == 7).all()


def test_a_dimension_inside_may_be_smaller():
    inputs = ws.torch.GraphInputs(mask=torch.empty(4, 6, device=DEVICE))
    given = torch.ones(2, 3, device=DEVICE)
    view = inputs.write({"mask": (2, 5)}, mask=given)["mask"]
    assert torch.equal(view, torch.nn.functional.pad(given, (0, 2)))


def test_what_does_not_fit_is_named_and_nothing_is_written():
    inputs = make()
    ids = torch.ones(1, 2, dtype=torch.long, device=DEVICE)
    shapes = {"x": (2, 16), "ids": (1, 2)}
    before = inputs.write(shapes, x=torch.ones(2, 16, device=DEVICE), ids=ids)["ids"].clone()
    assert "at most the shape (8, 16)" in error_of(lambda: inputs.views(x=(9, 16), ids=(1, 2)))
    assert "at most the shape (8, 16)" in error_of(lambda: inputs.views(x=(16,), ids=(1, 2)))
    assert "not so: ids" in error_of(lambda: inputs.views(x=(2, 16)))
    assert "not so: y" in error_of(lambda: inputs.views(x=(2, 16), ids=(1, 2), y=(1,)))
    assert "does not fit" in error_of(lambda: inputs.write(shapes, ids=2 * ids, x=torch.ones(3, 16, device=DEVICE)))
    assert "is torch.float32" in error_of(lambda: inputs.write(shapes, ids=2 * ids, x=torch.ones(2, 16, device=DEVICE).half()))
    assert "a tensor for each of x, ids" in error_of(lambda: inputs.write(shapes, x=torch.ones(2, 16, device=DEVICE)))
    assert "largest shape" in error_of(ws.torch.GraphInputs)
    assert torch.equal(inputs.views(**shapes)["ids"], before)
