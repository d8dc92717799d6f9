"""The cards that stand for each compute capability: what the compiler asks of a card, and what ranks tiles.

Kernels are compiled for the capability and run on every card of it; the figures of one card decide how work is divided. They come from

* NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": threads, registers, shared memory;
* NVIDIA's data sheets and architecture white papers of the card: SMs, clocks, caches, memory, dense rates of tensor cores.

``l2_rate`` is in no data sheet. Its values are estimates: about twice what HBM delivers, four times what GDDR delivers.
"""

from __future__ import annotations

import dataclasses

_KB = 1 << 10
_MB = 1 << 20
_GB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Card:
    """One card. The names up to ``memory_bus_width`` are those of torch's device properties."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    #: kHz.
    clock_rate: int
    memory_clock_rate: int
    #: Bits.
    memory_bus_width: int
    #: Operations a second: products of 16-bit numbers on tensor cores, and of float32 without them.
    tensor_rate: float
    float32_rate: float
    #: Bytes a second.
    memory_rate: float
    l2_rate: float
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 * _KB
    warp_size: int = 32
    is_integrated: int = 0
    gcnArchName: str = ""

    @property
    def capability(self) -> tuple[int, int]:
        return self.major, self.minor

    @property
    def sm(self) -> int:
        return 10 * self.major + self.minor

    @property
    def named(self) -> str:
        return f"SM {self.major}.{self.minor}"


# Threads per SM, shared memory per block and per SM in KB: of 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0.
_AMPERE = (2048, 163 * _KB, 164 * _KB)
_SMALL = (1536, 99 * _KB, 100 * _KB)
_LARGE = (2048, 227 * _KB, 228 * _KB)

CARDS = {
    "80": Card("NVIDIA A100-SXM4-80GB", 8, 0, 108, 80 * _GB, 40 * _MB, *_AMPERE, 1410000, 1593000, 5120, 312e12, 19.5e12, 2.0e12, 4.0e12),
    "86": Card("NVIDIA A10", 8, 6, 72, 24 * _GB, 6 * _MB, *_SMALL, 1695000, 6251000, 384, 125e12, 31e12, 0.6e12, 2.0e12),
    "89": Card("NVIDIA L40S", 8, 9, 142, 48 * _GB, 96 * _MB, *_SMALL, 2520000, 9001000, 384, 362e12, 91e12, 0.86e12, 3.5e12),
    "90": Card("NVIDIA H100 80GB HBM3", 9, 0, 132, 80 * _GB, 50 * _MB, *_LARGE, 1980000, 2619000, 5120, 989e12, 67e12, 3.3e12, 5.5e12),
    "100": Card("NVIDIA B200", 10, 0, 148, 180 * _GB, 126 * _MB, *_LARGE, 1965000, 3996000, 8192, 2250e12, 80e12, 8.0e12, 14e12),
    "120": Card("NVIDIA GeForce RTX 5090", 12, 0, 170, 32 * _GB, 96 * _MB, *_SMALL, 2407000, 14001000, 512, 209e12, 105e12, 1.8e12, 7e12),
}

#: The newest capability whose code every later card runs: what NVIDIA's compiler writes for 9.0 and 10.0 may use what no other card has.
_COMMON = "89"


def of(sm: str) -> Card:
    """The card that is compiled for where programs are to run on ``"90"``, or on each of ``"86,89,120"``.

    For several it has the capability of the oldest, and no more shared memory than any of them. Raises ``KeyError`` for one not known.
    """
    found = [CARDS[one] for one in sm.split(",")]
    if len(found) == 1:
        return found[0]
    oldest = min(found, key=lambda card: card.sm)
    common = min(oldest, CARDS[_COMMON], key=lambda card: card.sm)
    shared = {
        name: min(getattr(card, name) for card in found) for name in ("shared_memory_per_block_optin", "shared_memory_per_multiprocessor")
    }
    return dataclasses.replace(oldest, major=common.major, minor=common.minor, **shared)
