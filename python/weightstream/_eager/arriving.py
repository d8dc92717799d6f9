"""Weights that are on a GPU when their module is offloaded: they are brought to host memory first."""

from __future__ import annotations

import torch
from torch import nn

from .._native import progress
from .subclasses import Outer, bytes_of, flattens, holders_of, inner_of, is_plain
from .watch import set_data

#: From so many bytes on it is said that this takes a while.
_SLOW = 1 << 30


def bring_to_host(root: nn.Module, name: str) -> None:
    """One parameter at a time, whose memory on the GPU is free then."""
    holders = holders_of(root)
    there = [(of, one) for of, one in root.named_parameters() if one.device.type == "cuda"]
    whole = sum(bytes_of(one) for _, one in there)
    if whole < _SLOW:
        _bring(there, holders)
        return
    with progress.step(f"{name}: bringing {whole / (1 << 30):.1f} GB of weights from the GPU to host memory"):
        _bring(there, holders)


def _bring(there: list[tuple[str, nn.Parameter]], holders: dict[int, list[nn.Module]]) -> None:
    #: By the address on the GPU: what shares memory there shares it on the host.
    memory: dict[int, torch.UntypedStorage] = {}
    for name, parameter in there:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            parts = [parameter] if is_plain(parameter) else [one.tensor for one in inner_of(name, parameter, holders[id(parameter)])]
            for one in parts:
                if one.device.type == "cuda":
                    with torch.inference_mode(one.is_inference()):
                        set_data(one, _on_host(one, memory))
        if flattens(parameter):
            # The outer tensor says where it was. Another one of the same inner tensors says where they are.
            Outer(name, parameter, holders[id(parameter)]).show()


def _on_host(one: torch.Tensor, memory: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    there = one.untyped_storage()
    storage = memory.get(there.data_ptr())
    if storage is None:
        storage = memory[there.data_ptr()] = there.cpu()
    return torch.empty(0, dtype=one.dtype).set_(storage, one.storage_offset(), one.size(), one.stride())
