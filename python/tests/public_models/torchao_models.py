"""torchao: recipes for weights of four and eight bits, for three kinds of models."""

from __future__ import annotations

from typing import Any

import torch
from decoder_models import COMMON
from torch import nn
from zoo import Spec

from public_models.entry import BATCH, Positional, enter, stirred
from public_models.transformers_text import BATCHES, LENGTHS, encoder, sequences, texts, without_cache

LIBRARY = "torchao"
WIDTH, HIDDEN = 128, 384


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def recipes() -> dict[str, Any]:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.quantization.quant_primitives import MappingType

    def intx(dtype: torch.dtype, granularity: Any, mapping: Any = MappingType.SYMMETRIC) -> Any:
        return IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity, mapping_type=mapping)

    return {
        "int4": "int4",
        "int4_groups_of_64": intx(torch.int4, PerGroup(64)),
        "int4_rows": intx(torch.int4, PerAxis(0)),
        "int4_zero_points": intx(torch.int4, PerGroup(32), MappingType.ASYMMETRIC),
        "int8": "int8",
        "int8_zero_points": intx(torch.int8, PerAxis(0), MappingType.ASYMMETRIC),
        "int8_dynamic": Int8DynamicActivationInt8WeightConfig(),
        "fp8": "fp8",
        "mixed": lambda layer: "int4" if layer.out_features > layer.in_features else "int8" if layer.bias is None else None,
    }


NAMES = ["int4", "int4_groups_of_64", "int4_rows", "int4_zero_points", "int8", "int8_zero_points", "int8_dynamic", "fp8", "mixed"]
KINDS: dict[str, tuple[Any, Any, str, Any]] = {
    "mlp": (
        lambda: Positional(nn.Sequential(*[Mlp() for _ in range(3)])),
        lambda: [(torch.randn(batch, WIDTH),) for batch in (3, 1, 4)],
        "any batch",
        ({0: BATCH},),
    ),
    "decoder": (lambda: without_cache("LlamaConfig", COMMON), sequences, "no cache; any length", ({1: LENGTHS},)),
    "encoder": (lambda: encoder("BertModel", "BertConfig", COMMON), texts, "any batch and length", BATCHES),
}


def build(kind: str, recipe: str) -> nn.Module:
    from weightstream._export.quantize import quantized

    return quantized(stirred(KINDS[kind][0]()), recipes()[recipe])


for kind, (_, inputs, deployed, sizes) in KINDS.items():
    for recipe in NAMES:
        name = f"{LIBRARY}_{kind}_{recipe}"
        # Activations of eight bits jump where sums differ in their last bit: an embedding that is off by 1e-6 changes eager outputs by 0.08.
        allowed = 1e-1 if recipe == "int8_dynamic" else 1e-4
        made = lambda kind=kind, recipe=recipe: build(kind, recipe)  # noqa: E731
        spec = Spec(name, made, inputs, deployed, dynamic_shapes=(sizes,), tolerance=allowed)
        enter(LIBRARY, spec, deployed)
