"""Products whose weight was quantized, in the forms in which torchao and others write them.

::

    linear(x, dequantize_affine(q, [1, group], scale, zero_point, …), bias)       integers of four and eight bits
    matmul(x, to(mul(to(t(q)), t(scale))))                                        floats of eight bits
    mul(mm(x, to(t(q))), scale)                                                   integers of eight bits, one scale for each row
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram

from ..._torch.probe import is_probe
from .nodes import constants, value_of
from .places import operator_of

_ATEN = torch.ops.aten
_SUFFIX = ".parametrizations.weight.original0"
_BYTES = (torch.int8, torch.float8_e4m3fn)
_CASTS = (_ATEN._to_copy.default, _ATEN.to.dtype)
_RANGES = {(-8, 7): 4, (0, 15): 4, (-128, 127): 8, (0, 255): 8}


class Weight(NamedTuple):
    """A quantized weight of a program: ``(stored - 8) * scale + offset`` of the element's group for four bits, without the 8 for eight."""

    node: torch.fx.Node
    fqn: str
    bits: int
    #: [N, K]: from 0 to 15, or of eight bits; [N, K / group]; the same, or None.
    stored: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    group: int


class Product(NamedTuple):
    """A product by such a weight, and the node that has its result."""

    node: torch.fx.Node
    result: torch.fx.Node

    @property
    def x(self) -> torch.fx.Node:
        return self.node.args[0]

    @property
    def bias(self) -> torch.fx.Node | None:
        return self.node.args[2] if len(self.node.args) > 2 else None


def name_of(node: torch.fx.Node) -> str:
    found = operator_of(node)
    return "" if found is None else found._schema.name


def source_of(node: Any) -> Any:
    """What a probe reads."""
    return node.args[0] if isinstance(node, torch.fx.Node) and is_probe(node) else node


def find(program: ExportedProgram) -> list[tuple[Weight, list[Product]]]:
    """Quantized weights that only products read, and these."""
    known = Known(program)
    found: dict[torch.fx.Node, tuple[Weight, list[Product]]] = {}
    ends: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    for node in program.graph.nodes:
        if (one := known.product(node)) is None:
            continue
        weight, product = one
        first, products = found.setdefault(weight.node, (weight, []))
        if torch.equal(first.scales, weight.scales):
            products.append(product)
            ends.setdefault(weight.node, set()).add(node)
    return [one for source, one in found.items() if readers(source) == ends[source]]


def readers(node: torch.fx.Node) -> set[torch.fx.Node]:
    """The nodes that compute with a weight, behind those that dequantize it."""
    found: set[torch.fx.Node] = set()
    for user in node.users:
        if user.target is _ATEN._assert_tensor_metadata.default:
            continue
        passes = (
            is_probe(user) or user.target in (*_CASTS, _ATEN.t.default, _ATEN.mul.Tensor) or name_of(user) == "torchao::dequantize_affine"
        )
        found |= readers(user) if passes and user.users else {user}
    return found


class Known:
    """What a program's constants say."""

    def __init__(self, program: ExportedProgram):
        self.program = program
        self.constants = constants(program)

    def product(self, node: torch.fx.Node) -> tuple[Weight, Product] | None:
        """The weight of a product, if it was quantized."""
        linear = node.target is _ATEN.linear.default
        if not linear and node.target not in (_ATEN.mm.default, _ATEN.matmul.default):
            return None
        x, operand, *rest = node.args
        weight = self.weight(operand, transposed=not linear)
        if weight is None or x in (operand, *rest) or x.meta["val"].dim() < (1 if linear else 2):
            return None
        result = node
        if node.target is _ATEN.mm.default and (scaled := self._scaled(node, weight)) is not None:
            result, scales = scaled
            weight = weight._replace(scales=weight.scales * scales)
        return weight, Product(node, result)

    def weight(self, node: torch.fx.Node, transposed: bool) -> Weight | None:
        """What ``node`` dequantizes; ``transposed``: to [K, N]."""
        scales = []
        while (source := source_of(node)) not in self.constants:
            if name_of(source) == "torchao::dequantize_affine":
                return None if transposed or scales else self._affine(source)
            if source.target is _ATEN.t.default:
                transposed = not transposed
            elif source.target is _ATEN.mul.Tensor:
                scale = self.value(source.args[1])
                if scale is None or scale.dim() != 2 or scale.shape[0 if transposed else 1] != 1:
                    return None
                scales.append(scale.t() if transposed else scale)
            elif source.target not in _CASTS:
                return None
            node = source.args[0]
        stored = value_of(self.program, self.constants[source])
        if transposed or stored is None or stored.dtype not in _BYTES or stored.dim() != 2 or len(scales) > 1:
            return None
        scale = scales[0] if scales else torch.ones(1, 1)
        scale = scale.expand(stored.shape[0], 1).contiguous()
        return Weight(source, self._fqn(source), 8, stored, scale, None, stored.shape[1])

    def value(self, node: Any) -> torch.Tensor | None:
        """The value of a node that depends on a constant alone."""
        source = source_of(node)
        if not isinstance(source, torch.fx.Node):
            return None
        if source in self.constants:
            return value_of(self.program, self.constants[source])
        if source.target not in (*_CASTS, _ATEN.t.default, _ATEN.reshape.default, _ATEN.view.default):
            return None
        inner = self.value(source.args[0])
        return None if inner is None else source.target(inner, *source.args[1:], **source.kwargs)

    def _scaled(self, node: torch.fx.Node, weight: Weight) -> tuple[torch.fx.Node, torch.Tensor] | None:
        """The node that scales the rows of a product, and their scales."""
        user = next(iter(node.users)) if len(node.users) == 1 else None
        if user is None or user.target is not _ATEN.mul.Tensor or user.args[0] is not node:
            return None
        scales = self.value(user.args[1])
        if scales is None or scales.shape != weight.stored.shape[:1] or user.meta["val"].dtype is not node.meta["val"].dtype:
            return None
        return user, scales.unsqueeze(1)

    def _affine(self, node: torch.fx.Node) -> Weight | None:
        names = [argument.name for argument in node.target._schema.arguments]
        given = {**dict(zip(names, node.args)), **node.kwargs}
        source, block = source_of(given["input"]), list(given["block_size"])
        low = given.get("quant_min")
        bits = _RANGES.get((low, given.get("quant_max")))
        values, scales = self.value(source) if source in self.constants else None, self.value(given["scale"])
        zeros = None if given.get("zero_point") is None else self.value(given["zero_point"])
        if bits is None or values is None or scales is None or values.dim() != 2 or len(block) != 2 or block[0] != 1:
            return None
        if zeros is None and given.get("zero_point") is not None:
            return None
        middle = low + (1 << bits - 1)
        offsets = scales.new_full(scales.shape, middle) if zeros is None else middle - zeros.to(scales.dtype)
        offsets = (offsets * scales).reshape(values.shape[0], -1) if offsets.any() else None
        stored = values.to(torch.int16) - low
        stored = stored if bits == 4 else (stored - 128).to(torch.int8)
        return Weight(source, self._fqn(source), bits, stored, scales.reshape(values.shape[0], -1), offsets, block[1])

    def _fqn(self, node: torch.fx.Node) -> str:
        fqn = self.constants[node].target
        return fqn.removesuffix(_SUFFIX) + ".weight" if fqn.endswith(_SUFFIX) else fqn
