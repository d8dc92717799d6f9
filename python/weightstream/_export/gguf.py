"""Weights of a GGUF file as they are in it: its integers, in the layers of a model that was loaded from it.

=======  ==============================  ===================================
type     a weight                        here
=======  ==============================  ===================================
Q4_0     d (q - 8)                       four bits, groups of 32
Q4_1     d q + m                         four bits, groups of 32, offsets
Q4_K     d s q - e n                     four bits, groups of 32, offsets
Q6_K     d s (q - 32)                    eight bits, groups of 16
Q8_0     d q                             eight bits, groups of 32
=======  ==============================  ===================================

Layers are found by their weights, which are the file's, dequantized: no table of names is needed, and rows may be in another order.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .._native.errors import ExportError
from .._native.progress import note
from .integers import Integers, QuantizedLinear, QuantizedTable, is_table_of

_BLOCK, _SUPER = 32, 256
#: Bits, and what is stored, scales and offsets, by blocks.
Parts = tuple[int, np.ndarray, np.ndarray, np.ndarray | None]


def _floats(blocks: np.ndarray, begin: int) -> np.ndarray:
    """A float of 16 bits of each block."""
    return np.ascontiguousarray(blocks[..., begin : begin + 2]).view(np.float16)[..., 0].astype(np.float32)


def _halves(bytes: np.ndarray) -> np.ndarray:
    """Low halves, then high halves."""
    return np.concatenate((bytes & 15, bytes >> 4), -1)


def _q4_0(blocks: np.ndarray) -> Parts:
    return (4, _halves(blocks[..., 2:]), _floats(blocks, 0), None)


def _q4_1(blocks: np.ndarray) -> Parts:
    scales = _floats(blocks, 0)
    return (4, _halves(blocks[..., 4:]), scales, _floats(blocks, 2) + 8 * scales)


def _q8_0(blocks: np.ndarray) -> Parts:
    return (8, blocks[..., 2:].view(np.int8), _floats(blocks, 0), None)


def _q4_k(blocks: np.ndarray) -> Parts:
    packed, parts = blocks[..., 4:16], blocks[..., 16:]
    low, high, both = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate((low & 63, (both & 15) | ((low >> 6) << 4)), -1).astype(np.float32) * _floats(blocks, 0)[..., None]
    least = np.concatenate((high & 63, (both >> 4) | ((high >> 6) << 4)), -1).astype(np.float32) * _floats(blocks, 2)[..., None]
    values = parts.reshape(*parts.shape[:-1], 4, 1, _BLOCK)
    values = np.concatenate((values & 15, values >> 4), -2)
    return (4, values, scales, 8 * scales - least)


def _q6_k(blocks: np.ndarray) -> Parts:
    low, high = blocks[..., :128], blocks[..., 128:192]
    scales = blocks[..., 192:208].view(np.int8).astype(np.float32) * _floats(blocks, 208)[..., None]
    low = low.reshape(*low.shape[:-1], 2, 1, 64)
    low = np.concatenate((low & 15, low >> 4), -2).reshape(*low.shape[:-3], 2, 4, _BLOCK)
    high = high.reshape(*high.shape[:-1], 2, 1, _BLOCK) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (8, (low | ((high & 3) << 4)).astype(np.int8) - 32, scales, None)


#: By the name of a type: bytes and weights of a block.
_TYPES = {
    "Q4_0": (18, _BLOCK, _q4_0),
    "Q4_1": (20, _BLOCK, _q4_1),
    "Q8_0": (34, _BLOCK, _q8_0),
    "Q4_K": (144, _SUPER, _q4_k),
    "Q6_K": (210, _SUPER, _q6_k),
}


def integers_of(kind: str, data: np.ndarray) -> Integers:
    """Of a tensor's rows of bytes, of a type that has a layout of ours."""
    size, _, decode = _TYPES[kind]
    bits, *parts = decode(data.reshape(data.shape[0], -1, size))
    return Integers(
        bits, *(None if one is None else torch.from_numpy(np.ascontiguousarray(one).reshape(data.shape[0], -1)) for one in parts)
    )


def take(models: Iterable[nn.Module], path: Path) -> int:
    """Gives linear layers whose weights are those of the file its integers; returns how many."""
    try:
        import gguf
    except ImportError as error:
        raise ExportError(f"quantize='{path}' needs gguf (pip install gguf): {error}") from error
    models = list(models)
    layers: dict[tuple[torch.dtype, tuple[int, ...]], dict[int, list[nn.Linear]]] = {}
    for layer in {id(one): one for model in models for one in model.modules() if _may_be(one)}.values():
        same = layers.setdefault((layer.weight.dtype, tuple(layer.weight.shape)), {})
        same.setdefault(_sum(layer.weight.detach()), []).append(layer)
    found: dict[nn.Linear, Integers] = {}
    others: set[str] = set()
    for tensor in gguf.GGUFReader(path).tensors:
        kind, shape = tensor.tensor_type.name, tuple(int(size) for size in reversed(tensor.shape))
        dtypes = [dtype for dtype, one in layers if one == shape]
        if kind not in _TYPES:
            others |= {kind} if dtypes else set()
        elif dtypes:
            dense = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
            for rows in (dense.to(dtype) for dtype in dtypes):
                for layer in layers[rows.dtype, shape].get(_sum(rows), []):
                    if (order := _order(layer.weight.detach(), rows)) is not None:
                        found[layer] = integers_of(kind, tensor.data).rows(order)
    _replace(models, found)
    count = sum(len(alike) for same in layers.values() for alike in same.values()) - len(found)
    keep = f", {count} keep their weights" if count else ""
    served = f" (the file has {', '.join(sorted(others))} too; served are {', '.join(_TYPES)})" if count and others else ""
    note(f"{len(found)} linear layers have the integers of {path.name}{keep}{served}")
    return len(found)


def _may_be(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and layer.weight.dtype in (torch.float32, torch.bfloat16, torch.float16)


def _sum(rows: torch.Tensor) -> int:
    """The same for the same rows in any order."""
    return int(_bytes(rows).view(np.int16).sum(dtype=np.int64))


def _order(weight: torch.Tensor, dense: torch.Tensor) -> torch.Tensor | None:
    """Which row of the file's is each row of a layer's; None if one is not there."""
    if torch.equal(weight, dense):
        return torch.arange(weight.shape[0])
    rows = {row.tobytes(): at for at, row in enumerate(_bytes(dense))}
    found = [rows.get(row.tobytes()) for row in _bytes(weight)]
    return None if None in found else torch.tensor(found)


def _bytes(rows: torch.Tensor) -> np.ndarray:
    return rows.contiguous().view(torch.uint8).numpy()


def _replace(models: Iterable[nn.Module], found: dict[nn.Linear, Integers]) -> None:
    weights = {id(layer.weight): one for layer, one in found.items()}
    dtypes = {id(layer.weight): layer.weight.dtype for layer in found}
    layers = {layer: QuantizedLinear(one, layer.bias, layer.weight.dtype) for layer, one in found.items()}
    for model in models:
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if child in layers:
                    setattr(parent, name, layers[child])
                elif is_table_of(child, set(weights)):
                    setattr(parent, name, QuantizedTable(weights[id(child.weight)], dtypes[id(child.weight)]))
