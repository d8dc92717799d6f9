"""Products for a GPU, where Triton's templates have to serve all of them."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.kernel import mm_plus_mm

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
