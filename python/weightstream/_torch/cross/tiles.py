"""Chooses the tile of each product and convolution by a small model of the card, where tuning would run all of them.

The model adds up, for one tile, the time of its multiplications, of its loads and of the latency that nothing hides, and counts how
often the card's SMs go round. It ranks; its times are not to be believed. Shared memory is estimated: what the compiled kernel
really needs may be more, and the tile is then refused and the next one taken.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from ..._native.errors import ExportError
from .cards import Card

#: What a tile's loads wait for, in seconds, if nothing hides it; a step of the loop; what a program costs beside its loop.
_LATENCY, _STEP, _START = 0.9e-6, 0.35e-6, 1e-6
#: The share of a data sheet's rate that kernels reach.
_REACHED = 0.8
_REGISTERS = 65536
#: Registers of a thread that hold no accumulator, and accumulators of a thread beyond which it spills.
_OTHERS, _MOST_ACCUMULATORS = 48, 192


@dataclasses.dataclass(frozen=True)
class Tile:
    """How a template divides its work."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}, {self.warps} warps, {self.stages} stages"


@dataclasses.dataclass(frozen=True)
class Product:
    """``batch`` products of ``[m, k]`` and ``[k, n]``, elements of ``size`` bytes."""

    batch: int
    m: int
    n: int
    k: int
    size: int


class Chooser:
    """A preprocessing function of the compiler's choices: leaves one of them, so that nothing is measured."""

    def __init__(self, card: Card):
        self.card = card
        #: Tiles whose compiled kernels needed more shared memory than the card has.
        self.refused: set[Tile] = set()

    def __call__(self, choices: list[Any]) -> list[Any]:
        from torch._inductor.select_algorithm import TritonTemplateCaller

        templates = [choice for choice in choices if isinstance(choice, TritonTemplateCaller)]
        if not templates:
            return choices
        left = [choice for choice in templates if _tile(choice) not in self.refused]
        if not left:
            raise ExportError(f"no tile of '{templates[0].name}' fits into the shared memory of {self.card.name}; please report this")
        return [min(left, key=self._rank)]

    def _rank(self, choice: Any) -> tuple[float, int]:
        """Seconds by the model; among those that do not fit by its estimate the smallest one comes first."""
        tile, product = _tile(choice), _product(choice)
        if tile is None or product is None:
            return 0.0, 0
        return seconds(self.card, product, tile), _shared(product, tile)


def seconds(card: Card, product: Product, tile: Tile) -> float:
    """How long the product takes, by the model; infinite if the tile does not fit."""
    shared = _shared(product, tile)
    accumulators = tile.m * tile.n / (32 * tile.warps)
    if shared > card.shared_memory_per_block_optin or accumulators > _MOST_ACCUMULATORS:
        return math.inf
    by_memory = card.shared_memory_per_multiprocessor // shared
    by_threads = card.max_threads_per_multi_processor // (32 * tile.warps)
    by_registers = int(_REGISTERS / (32 * tile.warps * (accumulators + _OTHERS)))
    resident = max(1, min(by_memory, by_threads, by_registers))
    sms = card.multi_processor_count
    tiles = product.batch * -(-product.m // tile.m) * -(-product.n // tile.n)
    steps = -(-product.k // tile.k)
    waves = -(-tiles // sms)
    # Several programs on one SM share it, and hide each other's latency.
    together = min(resident, waves)
    multiply = 2 * tile.m * tile.n * steps * tile.k / _rate(card, product, tile)
    held = max(0.5, tile.stages - 1) * (tile.m + tile.n) * tile.k * product.size * min(resident, max(1, tiles / sms))
    load = (tile.m + tile.n) * product.k * product.size / min(card.l2_rate / sms, held / _LATENCY)
    step = _STEP if together == 1 else _STEP / 2.3
    latency = steps * step / max(1, tile.stages - 1) + _START
    moved = product.batch * (product.m * product.k + product.k * product.n + product.m * product.n) * product.size
    return max(waves * (max(multiply, load) + latency / together), moved / (0.9 * card.memory_rate)) + 0.02e-6 * tiles / sms


def _rate(card: Card, product: Product, tile: Tile) -> float:
    """Operations a second of one SM."""
    rate = _REACHED * (card.float32_rate if product.size >= 4 else card.tensor_rate) / card.multi_processor_count
    # Wide tiles feed the tensor cores; four warps work on 64 rows.
    rate *= min(1.0, tile.m / 64) * min(1.0, tile.n / 64) ** 0.5
    rate *= 1.0 if tile.warps * 16 <= max(tile.m, 64) or tile.m * tile.n >= 64 * 128 else 0.8
    rate *= 0.75 if tile.m * tile.n < 128 * 128 else 1.0
    # Accumulators that take half of a thread's registers, and more, leave too few for the rest.
    return rate * (0.8 if tile.m * tile.n >= 128 * 32 * tile.warps else 1.0)


def _shared(product: Product, tile: Tile) -> int:
    """Bytes of shared memory: the stages of both operands, or the result, whose layout may be changed there."""
    stages = tile.stages * (tile.m + tile.n) * tile.k * product.size
    return max(stages, tile.m * tile.n * product.size) + 1024


def _tile(choice: Any) -> Tile | None:
    """The tile of one of the compiler's choices, which says it in words."""
    info = choice.info_dict()
    if "tile_shape" not in info:
        return None
    m, k, n = (int(number) for number in re.findall(r"\d+", str(info["tile_shape"])))
    return Tile(m, n, k, int(info["num_warps"]), int(info["num_stages"]))


def tile_of_kernel(source: str, config: Any) -> Tile | None:
    """The tile that a compiled template's source holds; None if the kernel is no template."""
    found = dict(re.findall(r"\b(BLOCK_[MNK])\s*:\s*tl\.constexpr\s*=\s*(\d+)", source))
    if len(found) < 3:
        return None
    return Tile(int(found["BLOCK_M"]), int(found["BLOCK_N"]), int(found["BLOCK_K"]), config.num_warps, config.num_stages)


def _product(choice: Any) -> Product | None:
    """What a choice computes. A convolution is a product of its output's places and its channels."""
    nodes = list(choice.input_nodes)
    if "convolution" in choice.name:
        output, weight = _sizes(choice.layout.size), _sizes(nodes[1].get_size())
        return Product(1, output[0] * math.prod(output[2:]), weight[0], math.prod(weight[1:]), nodes[0].get_dtype().itemsize)
    matrices = [node for node in nodes if len(node.get_size()) in (2, 3)][-2:]
    if len(matrices) < 2:
        return None
    one, two = (_sizes(node.get_size()) for node in matrices)
    return Product(one[0] if len(one) == 3 else 1, one[-2], two[-1], one[-1], matrices[0].get_dtype().itemsize)


def _sizes(sizes: Any) -> list[int]:
    """Numbers: those of the example where a size depends on symbols."""
    from torch._inductor.virtualized import V

    def number(size: Any) -> int:
        try:
            return int(size)
        except TypeError:
            return int(V.graph.sizevars.optimization_hint(size, fallback=1024))

    return [number(size) for size in sizes]
