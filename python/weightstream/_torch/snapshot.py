"""The snapshot: a copy of a mutable buffer's old value that no pass of the compiler removes.

A copy of a buffer looks useless to the compiler, which counts only placeholders as inputs. What was read before an update would be
read after it. `remove_noop_ops` drops `state.clone()`, and constant folding drops `state * 1`. The snapshot is opaque to both. It
becomes a plain copying kernel where buffers are ordered by their reads and writes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import clone, register_lowering
from torch.library import custom_op


@custom_op("weightstream::snapshot", mutates_args=())
def snapshot(value: torch.Tensor) -> torch.Tensor:
    """A dense copy of ``value`` as it is at this place of the program."""
    return value.clone(memory_format=torch.contiguous_format)


@snapshot.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value, memory_format=torch.contiguous_format)


SNAPSHOT = torch.ops.weightstream.snapshot.default


@register_lowering(SNAPSHOT, type_promotion_kind=None)
def _lower_snapshot(value: Any) -> Any:
    result = clone(value, memory_format=torch.contiguous_format)
    result.realize()
    return ir.ExternKernel.require_contiguous(result)
