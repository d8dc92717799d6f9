"""Views of weights that leave a call: nobody holds what they show any longer."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map_only

from .subclasses import flattens, plain_of
from .weights import span


class Escaped:
    """Finds tensors over memory that a plan shows, and gives them memory of their own."""

    def __init__(self, shown: list[tuple[torch.Tensor, torch.Tensor]], modules: Iterable[nn.Module]):
        self._spans = sorted((one.data_ptr(), one.data_ptr() + span(one)) for _, one in shown if one.numel())
        self._starts = [start for start, _ in self._spans]
        streaming = {id(one) for one, _ in shown}
        self._shown = {id(one) for one, _ in shown}
        self._with_buffers = [one for one in modules if any(id(buffer) in streaming for buffer in one._buffers.values())]

    def reaches(self, value: Any) -> bool:
        """Whether it is a tensor over this memory."""
        if not isinstance(value, torch.Tensor):
            return False
        if flattens(value):
            return any(map(self.reaches, plain_of(value)))
        if value.layout is not torch.strided or not value.numel():
            return False
        at = value.data_ptr()
        before = bisect.bisect_right(self._starts, at) - 1
        return before >= 0 and at < self._spans[before][1]

    def own(self, value: Any) -> Any:
        """The tensor, or a copy of it."""
        return value.clone() if self.reaches(value) else value

    def own_all(self, result: Any, outermost: bool) -> Any:
        """What a call returns, without such tensors. What an inner call returns is looked at quickly: there are a thousand of them."""
        if type(result) is torch.Tensor:
            return self.own(result)
        found = tree_flatten(result)[0] if outermost else result if type(result) in (tuple, list) else ()
        return tree_map_only(torch.Tensor, self.own, result) if any(map(self.reaches, found)) else result

    def keep_buffers(self) -> None:
        """A forward may put a view of its buffer in the buffer's place."""
        for module in self._with_buffers:
            for name, buffer in module._buffers.items():
                if id(buffer) not in self._shown:
                    module._buffers[name] = self.own(buffer)
