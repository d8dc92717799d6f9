"""Every operator that the export rewrites, beside the operator itself: without an export, on real tensors.

A rewrite without a row fails. What a row draws is in `rewrite_rows` and `complex_rows`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from complex_rows import COMPLEX_ROWS
from form_models import Recurrent
from rewrite_rows import PARTS, ROWS, Draw
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map
from weightstream._export.passes import complex_forms, convolution, masks
from weightstream._export.passes.decompose import decompose
from weightstream._export.passes.inline import Pair
from weightstream._export.passes.operators import table_of_operators
from weightstream._export.passes.prepare import prepare
from weightstream._torch import recurrent

pytestmark = [pytest.mark.no_runtime, pytest.mark.cpu_only("kernels of the CPU are what is compared with")]
#: Calls of a row. Those of whole layers take longer.
DRAWN, LAYERS = 40, 10
TOLERANCE = {torch.bfloat16: 2e-2, torch.float64: 1e-6, torch.complex128: 1e-6}


def rewrites() -> dict[str, Callable[..., Any]]:
    """All of them, by the operator's name."""
    convolutions = {op: function for op, function in convolution.written_out().items() if function is convolution._with_numbers}
    tables = table_of_operators(), masks.decompositions(), recurrent.unrolled(), convolutions
    return {str(op): function for table in tables for op, function in table.items()}


def compare(name: str, op: Any, function: Callable[..., Any], draw: Callable[[Draw], Any]) -> None:
    """Fails if results differ, or if the kernel refuses most of the calls."""
    d, count = Draw(zlib.crc32(name.encode())), 0
    calls = LAYERS if name.endswith((".input", ".data")) else DRAWN
    for _ in range(calls):
        torch.manual_seed(d.randrange(1 << 30))
        args, kwargs = draw(d)
        try:
            expected = op(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError):
            continue
        found = function(*args, **kwargs)
        expected = op(*args, **kwargs) if found is NotImplemented else expected
        same(found if found is not NotImplemented else expected, expected, f"{op}{args, kwargs}")
        count += 1
    assert count >= calls // 4


def same(found: Any, expected: Any, call: str) -> None:
    found, expected = tree_leaves(found), tree_leaves(expected)
    assert len(found) == len(expected), call
    for one, other in zip(found, expected, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other, call
            continue
        assert (one.shape, one.dtype) == (other.shape, other.dtype), call
        bound = TOLERANCE.get(other.dtype, 1e-4)
        assert torch.allclose(one, other.resolve_conj(), atol=bound, rtol=bound, equal_nan=True), call


def function_of(name: str) -> tuple[Any, Callable[..., Any]]:
    """The operator and its rewrite."""
    namespace, packet, overload = name.split(".")
    if namespace == "torchvision":
        pytest.importorskip("torchvision")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload), rewrites()[name]


@pytest.mark.parametrize("name", ROWS)
def test_a_rewrite_gives_what_the_operators_kernel_gives(name):
    op, function = function_of(name)
    with torch.no_grad(), recurrent.shaped_states():
        compare(name, op, function, ROWS[name])


def test_every_rewrite_has_a_row():
    table = rewrites()
    covered = {table[name] for name in ROWS if name in table}
    missing = [name for name, function in table.items() if name not in {*ROWS, *PARTS} and function not in covered]
    assert not missing, f"rows of python/tests/rewrite_rows.py are missing for {missing}"


def test_cells_on_a_gpu_leave_nothing_fused():
    """Export on a GPU: ATen takes its fused operators there, and they have no function in the runtime."""
    with torch.library._scoped_library("aten", "IMPL", "Meta") as library, FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        # On a GPU its kernel tells the shapes.
        library.impl("_thnn_fused_gru_cell", lambda x, h, kept, *bias: (torch.empty_like(kept), torch.empty_like(x)))
        model, x = Recurrent().eval(), torch.empty(2, 2, 8)
        with torch.no_grad():
            program = torch.export.export(model, (x,))
        for exported in (program, program.run_decompositions()):
            left = {str(node.target) for node in decompose(prepare(exported), "cuda").graph.nodes if node.op == "call_function"}
            assert not [name for name in left if any(word in name for word in ("gru", "lstm", "fused", "cudnn"))]


# --- complex numbers


def parts_of(x: Any) -> Any:
    return Pair(x.real.clone(), x.imag.clone()) if isinstance(x, torch.Tensor) and x.is_complex() else x


def in_parts(op: Any) -> Callable[..., Any]:
    """The operator as it is computed on the parts of its arguments."""
    form = complex_forms.form_of(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(parts_of, (args, kwargs))
        found = form(*args, **kwargs)
        if not isinstance(found, Pair):
            return found
        if isinstance(found.re, torch.Tensor):
            return torch.complex(*found)
        return [torch.complex(re, im) for re, im in zip(*found, strict=True)]

    return call


@pytest.mark.parametrize("name", COMPLEX_ROWS)
def test_complex_numbers_in_parts_are_what_the_kernel_gives(name):
    op, draw = COMPLEX_ROWS[name]
    compare(name, op, in_parts(op), draw)


def test_every_operator_on_complex_numbers_has_a_row():
    forms = {*complex_forms._COMPLEX, *complex_forms._MADE, *complex_forms._SAME_TO_BOTH}
    assert forms <= set(COMPLEX_ROWS), f"rows of python/tests/complex_rows.py are missing for {forms - set(COMPLEX_ROWS)}"
