"""Memory of ours for PyTorch's allocator."""

from __future__ import annotations

import functools
from typing import Any

from .bindings import _library_path, library
from .errors import Error

#: The oldest torch with which this ran on a GPU: it follows its allocator's inside.
LEAST_TORCH = (2, 11)


def pool() -> Any:
    """A ``torch.cuda.MemPool`` of the current device whose memory comes from the device's budget.

    What is allocated in it takes the place of weights instead of failing: those of ranges and of idle modules that share the device, the
    lowest priority first. Passes of ``offload(shared=True)`` use such a pool by themselves. PyTorch keeps what it was given until the
    pool ends, or ``torch.cuda.empty_cache()`` finds it unused. Weights of ranges that went come back after ``Range.prioritize()``.
    Needs torch 2.11 or later::

        activations = weightstream.torch.pool()
        with torch.cuda.use_mem_pool(activations):
            y = model(x)
    """
    import torch

    check_torch("pool()")
    return torch.cuda.MemPool(allocator("segment"))


def has_least_torch() -> bool:
    """Whether memory of ours can be PyTorch's with this torch."""
    import torch

    return tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2]) >= LEAST_TORCH


def check_torch(what: str) -> None:
    import torch

    if not has_least_torch():
        least = ".".join(map(str, LEAST_TORCH))
        raise Error(f"weightstream.torch.{what} needs torch {least} or later, the oldest that it was run with; found {torch.__version__}")


@functools.cache
def _plugged(kind: str) -> Any:
    """PyTorch calls these functions by their addresses as long as the process lives, so it stays."""
    import torch

    if not torch.cuda.is_available():
        raise Error("weightstream.torch: memory for PyTorch is memory of a GPU, and there is none that PyTorch can use")
    library()
    return torch.cuda.memory.CUDAPluggableAllocator(str(_library_path()), f"ws_{kind}_alloc", f"ws_{kind}_free")


def allocator(kind: str) -> Any:
    return _plugged(kind).allocator()
