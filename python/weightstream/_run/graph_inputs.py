"""Inputs of graphs that were captured for several shapes: one buffer for each, of its largest shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._native.errors import Error

if TYPE_CHECKING:
    import torch

__all__ = ["GraphInputs"]


class GraphInputs:
    """Buffers for the inputs of graphs of many shapes: they take the memory of the largest shape, not of all of them.

    Each input is given by a tensor of its largest shape, on the device where it is read. Graphs are captured over :meth:`views` of a shape;
    before a replay :meth:`write` copies inputs that may be smaller, and fills the rest of the shape with zeros::

        inputs = weightstream.torch.GraphInputs(x=torch.empty(256, 512, device="cuda:0"))
        for n in (1, 64, 256):
            views = inputs.views(x=(n, 512))
            with graphs.capture(g := graphs.graph()):
                y = model(**views)
        ...
        inputs.write({"x": (64, 512)}, x=batch)     # of at most 64 rows
        g.replay()
    """

    def __init__(self, **largest: torch.Tensor):
        if not largest:
            raise Error("GraphInputs: a tensor of the largest shape of each input is expected")
        self._shapes = {name: tuple(one.shape) for name, one in largest.items()}
        # A buffer of ours, since the tensors may change.
        self._buffers = {name: one.new_zeros(one.numel()) for name, one in largest.items()}

    @property
    def bytes(self) -> int:
        """What the buffers take."""
        return sum(one.nbytes for one in self._buffers.values())

    def views(self, **shapes: Sequence[int]) -> dict[str, torch.Tensor]:
        """The first bytes of each buffer as a tensor of this shape. Views of different shapes share memory."""
        unknown = shapes.keys() ^ self._shapes.keys()
        if unknown:
            raise Error(
                f"GraphInputs: the shape of each of {', '.join(self._shapes)} is expected, and no other; not so: {', '.join(sorted(unknown))}"
            )
        return {name: self._view(name, tuple(shape)) for name, shape in shapes.items()}

    def write(self, shapes: Mapping[str, Sequence[int]], **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copies a tensor into the view of a shape of each input, from the first element of each dimension on, and fills the rest with zeros.

        What is issued to the current stream afterwards finds it there. The views are returned.
        """
        views = self.views(**shapes)
        if tensors.keys() != views.keys():
            raise Error(f"GraphInputs: a tensor for each of {', '.join(views)} is expected, found {', '.join(tensors) or 'none'}")
        for name, tensor in tensors.items():
            _check(name, tensor, views[name])
        for name, tensor in tensors.items():
            view = views[name]
            if tensor.shape != view.shape:
                view.zero_()
            view[tuple(slice(0, size) for size in tensor.shape)].copy_(tensor)
        return views

    def _view(self, name: str, shape: tuple[int, ...]) -> Any:
        largest = self._shapes[name]
        fits = len(shape) == len(largest) and all(0 <= size <= most for size, most in zip(shape, largest, strict=True))
        if not fits:
            raise Error(f"GraphInputs: input '{name}' has at most the shape {largest}, found {shape}")
        return self._buffers[name][: math.prod(shape)].view(shape)


def _check(name: str, tensor: torch.Tensor, view: torch.Tensor) -> None:
    if tensor.dtype != view.dtype:
        raise Error(f"GraphInputs: input '{name}' is {view.dtype}, found {tensor.dtype}")
    if tensor.dim() != view.dim() or any(size > most for size, most in zip(tensor.shape, view.shape, strict=True)):
        raise Error(f"GraphInputs: input '{name}' was captured for {tuple(view.shape)}, and {tuple(tensor.shape)} does not fit into that")
