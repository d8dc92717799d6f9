"""Dynamic shapes: what compiling must not assume about them, and must not change."""

from __future__ import annotations

import unittest.mock

import pytest
import sympy
import torch
import weightstream as ws
from device_under_test import DEVICE, exact_products
from doctor import Pte
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch._inductor import utils
from torch._inductor.codegen import simd, triton_utils
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges
from weightstream._torch.shapes import fits_in_32_bits

ROWS, DIM = 4, 8


class RowSums(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(DIM, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layer(x).sum(1), -1)


def saved(folder, **bounds):
    """A model with a dynamic batch and a dynamic length, saved; the example has 4 and 6."""
    torch.manual_seed(1)
    exact_products()
    model = RowSums().eval()
    shapes = ({0: Dim("batch", min=2, **bounds), 1: Dim("length", min=2, **bounds)},)
    program = torch.export.export(model, (torch.randn(ROWS, 6, DIM),), dynamic_shapes=shapes)
    edge = to_edge_transform_and_lower(
        ws.apply_weight_offload(program),
        partitioner=[ws.WeightStreamPartitioner(device=DEVICE)],
        compile_config=ws.edge_compile_config(),
    )
    ws.save(edge, str(folder / "model.pte"), str(folder / "model.ptd"))
    return model, str(folder / "model.pte"), str(folder / "model.ptd")


@pytest.fixture(scope="module")
def unbounded(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("unbounded"))


def test_without_an_upper_bound_the_example_is_the_largest_shape(unbounded):
    """ExecuTorch's rule; what the compiler found fast for the example (a length of at most 4096) is none."""
    model, pte, ptd = unbounded
    dims = Pte(pte).payload["inputs"][2:]
    assert [largest for _, largest, _ in zip(*[iter(dims)] * 3)][:2] == [2**62, 2**62]
    x = torch.randn(ROWS, 6, DIM)
    with ws.Module(pte, ptd) as module:
        assert torch.allclose(module(x), model(x), atol=1e-5)
        assert torch.allclose(module(x[:2, :3]), model(x[:2, :3]), atol=1e-5)
        with pytest.raises(RuntimeError, match=r"input 0.*\[4, 6, 8\]"):
            module(torch.randn(ROWS, 7, DIM))
        assert torch.allclose(module(x), model(x), atol=1e-5)


def test_a_plan_that_no_memory_can_hold_is_refused(tmp_path):
    """ExecuTorch would take it, and zero it byte by byte until the system ends the process."""
    _, pte, ptd = saved(tmp_path, max=2**24)
    with pytest.raises(RuntimeError, match=r"out of memory: \d+ bytes .* method 'forward' .* available memory .* max=") as refused:
        ws.Module(pte, ptd)
    planned = int(str(refused.value).split("out of memory: ")[1].split()[0])
    assert planned >= 2**48 * DIM * 4


def test_activations_are_those_of_the_largest_shape(tmp_path):
    """The compiler chooses a layout by the example's batch, and takes it for less than 16 from there on."""
    torch.manual_seed(1)
    exact_products()
    model = nn.Conv2d(3, 4, 3, padding=1).eval()
    shapes = ({0: Dim("batch", min=2, max=64)},)
    program = torch.export.export(model, (torch.randn(4, 3, 16, 16),), dynamic_shapes=shapes)
    edge = to_edge_transform_and_lower(
        ws.apply_weight_offload(program),
        partitioner=[ws.WeightStreamPartitioner(device=DEVICE)],
        compile_config=ws.edge_compile_config(),
    )
    pte, ptd = str(tmp_path / "model.pte"), str(tmp_path / "model.ptd")
    ws.save(edge, pte, ptd)
    x = torch.randn(64, 3, 16, 16)
    with ws.Module(pte, ptd) as module:
        assert torch.allclose(module(x), model(x), atol=1e-5)
        taken = module.stats()["activation_peak_bytes"]
    assert Pte(pte).payload["activations"][0] >= taken >= 64 * 4 * 16 * 16 * 4


@pytest.mark.parametrize(("largest", "fits"), [(sympy.oo, False), (2**25 - 1, True), (2**25, False)])
def test_an_index_has_32_bits_only_where_every_size_allows_it(largest, fits):
    """The compiler itself goes by the example where there is no upper bound."""
    environment, size = ShapeEnv(), sympy.Symbol("s0", integer=True, positive=True)
    environment.var_to_range[size] = ValueRanges(2, torch.utils._sympy.numbers.int_oo if largest is sympy.oo else largest)
    environment.backed_var_to_val[size] = sympy.Integer(6)
    graph = unittest.mock.Mock(sizevars=SizeVarAllocator(environment))
    with V.set_graph_handler(graph), V.set_aot_compilation(True):
        assert fits_in_32_bits(size * 64) is fits
        assert utils.expr_fits_within_32bit(size * 64) is (fits or largest is sympy.oo)


class Seen(Exception):
    pass


def test_the_export_compiles_by_that_rule(tmp_path):
    """Both places that decide it ask our function while the compiler runs, and their own again behind it."""
    places = [simd, triton_utils]
    seen = []

    def compiler(*_, **__):
        seen.extend(place.expr_fits_within_32bit for place in places)
        raise Seen

    with unittest.mock.patch.object(torch._inductor, "aot_compile", compiler), pytest.raises(Seen):
        saved(tmp_path)
    assert seen == [fits_in_32_bits] * 2
    assert [place.expr_fits_within_32bit for place in places] == [utils.expr_fits_within_32bit] * 2
