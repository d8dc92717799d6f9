"""Weights of fewer bits, by torchao or from a GGUF file, of a copy of what is exported."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._native.errors import ExportError
from .._native.progress import note, step
from . import experts
from .integers import Integers, QuantizedTable, is_table_of

WORDS = ("int4", "int8", "fp8")
#: Elements of a row that have one scale, where rows divide into such groups.
_GROUP = 32

#: A word, a config of torchao, a GGUF file, or a function that gives a word, a config or None for a layer.
Choice = str | Any | Callable[[nn.Module], Any]


def quantized(models: Any, how: Choice) -> Any:
    """``models``, a module or a dictionary of modules, with quantized linear layers. The tensors that stay are the same, the modules are
    copies, and what two of them share they share still."""
    several = models if isinstance(models, Mapping) else {"": models}
    for name, model in several.items():
        if not isinstance(model, nn.Module):
            where = f" of method '{name}'" if name else ""
            raise TypeError(f"quantize changes layers, so that it takes modules; the model{where} is of the type {type(model).__name__}")
    tensors = [tensor for model in several.values() for tensor in (*model.parameters(), *model.buffers())]
    copies = copy.deepcopy(dict(several), {id(tensor): tensor for tensor in tensors})
    with step("quantizing"):
        if is_gguf(how):
            _take(copies, Path(how))
            return copies if isinstance(models, Mapping) else copies[""]
        chosen, mixtures = _chosen(copies, how), _mixtures(copies, how)
        if not chosen and not mixtures:
            raise ExportError("quantize found no linear layer with a weight of floating point")
        for layer, kind in mixtures:
            experts.quantize(layer, kind)
        before = {id(layer.weight): (layer.weight, layer) for layer, _ in chosen}
        _apply(chosen)
        for model in copies.values():
            _tie(model, before)
    return copies if isinstance(models, Mapping) else copies[""]


def is_gguf(how: Any) -> bool:
    return isinstance(how, str | Path) and str(how).endswith(".gguf")


def _take(models: Mapping[str, nn.Module], path: Path) -> None:
    from . import gguf

    if not path.is_file():
        raise ExportError(f"quantize='{path}': there is no such file")
    if not gguf.take(models.values(), path):
        raise ExportError(
            f"quantize='{path}': no linear layer has the weights of this file, or they are of types without a layout here; load the model "
            "from the file, in float32 or bfloat16, as transformers' from_pretrained(…, gguf_file=…) does"
        )


def _chosen(models: dict[str, nn.Module], how: Choice) -> list[tuple[nn.Module, Any]]:
    layers = {id(layer): layer for model in models.values() for layer in model.modules() if _is_plain(layer)}
    by_layer = how if callable(how) and not _is_config(how) else lambda layer: how
    chosen = [(layer, by_layer(layer)) for layer in layers.values()]
    return [(layer, _config(layer, one)) for layer, one in chosen if one is not None]


def _mixtures(models: dict[str, nn.Module], how: Choice) -> list[tuple[nn.Module, str]]:
    """The mixtures of experts, and the words that say how. They stay as they are under a config of torchao, which is for linear layers."""
    layers = {id(layer): layer for model in models.values() for layer in model.modules() if experts.is_dense(layer)}
    chosen = [(layer, _word(layer, how) if callable(how) and not _is_config(how) else how) for layer in layers.values()]
    found = [(layer, one) for layer, one in chosen if one in WORDS]
    if any(one is not None for _, one in chosen) and len(found) < len(chosen):
        note(
            f"{len(chosen) - len(found)} layers of experts keep their weights: a config of torchao is for linear layers, and a word for both"
        )
    return found


def _word(layer: nn.Module, how: Callable[[nn.Module], Any]) -> Any:
    try:
        return how(layer)
    except Exception as error:
        raise ExportError(
            f"quantize: the function of a layer raised an error for {type(layer).__name__}, the experts of a layer ({error!r}); it gets these and "
            "linear layers, and gives a word or None"
        ) from error


def _is_plain(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) and type(layer.weight) is nn.Parameter and layer.weight.is_floating_point()


def _is_config(how: Any) -> bool:
    from torchao.core.config import AOBaseConfig

    return isinstance(how, AOBaseConfig)


def _config(layer: nn.Linear, how: Any) -> Any:
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerAxis, PerGroup

    if how == "int8":
        return Int8WeightOnlyConfig()
    if how == "fp8":
        return Float8WeightOnlyConfig()
    if how == "int4":
        granularity = PerAxis(0) if layer.in_features % _GROUP else PerGroup(_GROUP)
        return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=granularity)
    if not _is_config(how):
        raise ExportError(
            f"quantize is one of {', '.join(map(repr, WORDS))}, a config of torchao, a function of a layer or the path of a .gguf file; found {how!r}"
        )
    return how


def _apply(chosen: list[tuple[nn.Module, Any]]) -> None:
    from torchao.quantization import quantize_

    for layer, config in chosen:
        quantize_(layer, config, filter_fn=lambda module, _, layer=layer: module is layer)


def _tie(model: nn.Module, before: Mapping[int, tuple[torch.Tensor, nn.Module]]) -> None:
    """Gives tables that were tied to a layer of eight bits, one scale for a row, the layer's weight as it is now."""
    from torchao.quantization import Int8Tensor

    for parent in list(model.modules()):
        for name, table in list(parent.named_children()):
            if not is_table_of(table, set(before)):
                continue
            weight = before[id(table.weight)][1].weight
            if isinstance(weight, Int8Tensor) and weight.scale.shape == (table.num_embeddings, 1):
                setattr(parent, name, QuantizedTable(Integers(8, weight.qdata.detach(), weight.scale.detach()), table.weight.dtype))


def needs_torchao() -> None:
    """Raises :class:`ExportError` if torchao cannot be imported."""
    try:
        import torchao  # noqa: F401
    except ImportError as error:
        raise ExportError(f"quantize needs torchao (pip install torchao): {error}") from error
