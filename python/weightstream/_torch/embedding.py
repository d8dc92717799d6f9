"""A lowering of ``aten.embedding`` that writes its result out, so that the table's lease ends there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import lowering

_EMBEDDING = torch.ops.aten.embedding.default


@contextlib.contextmanager
def realized_embedding() -> Iterator[None]:
    """Inductor recomputes cheap reads: it would fuse the row lookup into the norm kernels of the next layers, and hold the table's
    lease over all of them. That is correct, and makes the floor a table larger; a materialised result costs one activation."""
    original = lowering.lowerings[_EMBEDDING]

    def embed(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        result.realize()
        return result

    lowering.lowerings[_EMBEDDING] = embed
    try:
        yield
    finally:
        lowering.lowerings[_EMBEDDING] = original
