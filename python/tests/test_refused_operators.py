"""Operators without code in the runtime: the export says which ones, and which modules called them."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from executorch.exir import to_edge_transform_and_lower
from models import ZOO
from support import error_of
from torch import nn
from torch.library import custom_op

pytestmark = [pytest.mark.no_runtime, pytest.mark.cpu_only("the operators are looked up in one table")]


@custom_op("weightstream_tests::foreign", mutates_args=())
def foreign(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@foreign.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Call(lambda x: x.median(1).values)
        self.qr = Call(lambda x: torch.linalg.qr(x)[1])
        self.foreign = Call(torch.ops.weightstream_tests.foreign)
        self.fine = Call(lambda x: x.sort(1).values)

    def forward(self, x):
        return self.norm(x), self.qr(x), self.foreign(x), self.fine(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer()])

    def forward(self, x):
        return *self.layers[0](x), torch.bincount(x.reshape(-1).to(torch.int64)).sum()


def test_all_of_them_are_named_with_their_modules_and_no_function_of_the_runtime_is():
    program = torch.export.export(Model().eval(), (torch.rand(4, 8),))
    partitioner = [ws.WeightStreamPartitioner(device="cpu")]
    config = ws.edge_compile_config()
    text = error_of(lambda: to_edge_transform_and_lower(program, partitioner=partitioner, compile_config=config), ws.ExportError)
    assert "operator 'aten.median' in layers.0.norm (sort, and take the element in the middle)" in text
    assert "operator 'aten.linalg_qr' in layers.0.qr" in text
    assert "operator 'weightstream_tests.foreign' in layers.0.foreign" in text
    assert "operator 'aten.bincount' (" in text
    assert "layers.0.fine" not in text
    assert "aoti_torch" not in text


CASES = {
    "sparse constant": (
        lambda module, x: torch.sparse.mm(module.held, x),
        torch.eye(4).to_sparse(),
        None,
        ["constant 'inner.held'", "sparse"],
    ),
    "quantized result": (
        lambda module, x: torch.dequantize(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)),
        None,
        None,
        ["'aten.quantize_per_tensor' in inner", "qint8"],
    ),
    "places without a bound": (lambda module, x: x[x > 0], None, {0: torch.export.Dim("n")}, ["'aten.index.Tensor' in inner", "max="]),
    "a number without a bound": (lambda module, x: x.new_zeros(x.sum().int().item()), None, None, ["in inner", "torch._check"]),
}


class Held(nn.Module):
    def __init__(self, function, held):
        super().__init__()
        self.function = function
        self.register_buffer("held", held)

    def forward(self, x):
        return self.function(self, x)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("case", CASES)
def test_tensors_that_cannot_be_held_are_refused_with_their_place(case):
    function, held, sizes, words = CASES[case]
    program = torch.export.export(Around(Held(function, held)), (torch.rand(4, 8),), dynamic_shapes=(sizes,) if sizes else None)
    text = error_of(lambda: ws.WeightStreamPartitioner().transform_for_pre_decomposition(program), ws.ExportError)
    for word in words:
        assert word in text


def test_a_number_that_the_host_reads_is_refused_for_a_gpu():
    program = torch.export.export(Around(Call(lambda x: x.narrow(0, 0, 1) * x.sum().item())), (torch.rand(4, 8),))
    partitioner = ws.WeightStreamPartitioner(device="cuda", sm="90")
    text = error_of(lambda: partitioner.transform_for_pre_decomposition(program), ws.ExportError)
    assert "aten.item' in inner cannot run on a GPU" in text
    assert "index_copy" in text


@pytest.mark.parametrize("name", ["decoder_qwen3_moe", "form_cursor", "op_experts"])
def test_the_test_models_that_a_gpu_refuses_say_why(name):
    partitioner = ws.WeightStreamPartitioner(device="cuda", sm="90")
    text = error_of(lambda: partitioner.transform_for_pre_decomposition(ZOO[name].export()), ws.ExportError)
    assert f"'{ZOO[name].refused_on_a_gpu}'" in text


class Boxes(nn.Module):
    """Operators of torchvision's library, each in a module of its own."""

    def __init__(self):
        super().__init__()
        library = torch.ops.torchvision
        self.nms = Call(lambda boxes: boxes[library.nms(boxes[:, 1:], boxes[:, 0], 0.5)])
        self.pool = Call(lambda x: library.roi_pool(x[0], x[1], 1.0, 2, 2)[0])
        self.aligned = Call(lambda x: library.ps_roi_align(x[0], x[1], 1.0, 2, 2, 2)[0])
        self.pooled = Call(lambda x: library.ps_roi_pool(x[0], x[1], 1.0, 2, 2)[0])
        self.fine = Call(lambda x: library.roi_align(x[0], x[1], 1.0, 2, 2, 2, False))
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.deform = Call(lambda x: library.deform_conv2d(*x, x[0][:, :0], x[0][0, :, 0, 0], *[1, 1, 0, 0, 1, 1, 1, 1], False))

    def forward(self, x, boxes, offset):
        both = x, boxes
        return (
            self.nms(boxes),
            self.pool(both),
            self.aligned(both),
            self.pooled(both),
            self.fine(both),
            self.deform((x, self.weight, offset)),
        )


def test_operators_of_torchvisions_library_are_refused_by_name_or_rewritten():
    pytest.importorskip("torchvision")
    boxes = torch.cat((torch.zeros(5, 1), torch.rand(5, 4) * 8), 1)
    program = torch.export.export(Boxes().eval(), (torch.randn(1, 4, 8, 8), boxes, torch.randn(1, 18, 6, 6)))
    text = error_of(lambda: ws.WeightStreamPartitioner().transform_for_pre_decomposition(program), ws.ExportError)
    for name, module in (
        ("nms", "nms"),
        ("roi_pool", "pool"),
        ("ps_roi_align", "aligned"),
        ("ps_roi_pool", "pooled"),
        ("deform_conv2d", "deform"),
    ):
        assert f"operator 'torchvision.{name}' in {module}" in text
    assert "in fine" not in text
