"""Products that the compiler would compute in a way that serves us badly."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.kernel import bmm, mm_plus_mm
from torch._inductor.kernel.mm_common import mm_args

aten = torch.ops.aten


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """Computes the two products of a sum one after the other.

    Triton's template for both has no tile for a small inner size, so the compiler would find no choice. A kernel that reads two
    weights also needs both in memory at once."""

    def tuned(a: Any, b: Any, c: Any, d: Any, *, layout: Any = None) -> Any:
        lowerings = lowering.lowerings
        return lowerings[aten.add](lowerings[aten.mm](a, b), lowerings[aten.mm](c, d))

    with unittest.mock.patch.object(mm_plus_mm, "tuned_mm_plus_mm", tuned):
        yield


@contextlib.contextmanager
def by_kernels() -> Iterator[None]:
    """Has batches of products with one row or one column computed by the runtime's kernels on the CPU.

    The compiler writes them as a loop of sums, without vector code here, and computes what it can again for each of its steps: with a
    cache of 2,048 places attention took most of a decoded token's time."""
    known = lowering.lowerings[aten.bmm]

    def tuned(a: Any, b: Any, *others: Any, layout: Any = None, **options: Any) -> Any:
        thin = a.get_size()[1] == 1 or b.get_size()[2] == 1
        if a.get_device().type != "cpu" or not thin or others or options:
            return known(a, b, *others, layout=layout, **options)
        *_, layout, a, b = mm_args(a, b, layout=layout)
        return bmm.aten_bmm.bind((a, b), layout).output_node()

    with unittest.mock.patch.dict(lowering.lowerings, {aten.bmm: tuned}):
        yield
