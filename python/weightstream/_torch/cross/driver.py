"""The driver that Triton asks while it writes and compiles kernels: its interface is public, and each backend brings one."""

from __future__ import annotations

import struct
from typing import Any

import torch

from .cards import Card

# Attributes that `ptxas` writes into the section `.nv.info` of a cubin, of each kernel.
_REGISTERS, _FRAME = 0x2F, 0x11
#: An entry of that section whose value follows it.
_SIZED = 4


class Driver:
    """Answers for one card, and launches nothing."""

    def __init__(self, card: Card):
        self.card = card
        self.utils = _Utils(card)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return _refuse_to_run

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.card.sm, self.card.warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _refuse_to_run(*_: Any, **__: Any) -> None:
    raise RuntimeError("a kernel was to be launched while a program was compiled for a GPU that is not here; please report this")


class _Utils:
    """The part of a driver that opens cubins. What it tells of a kernel is read off the file."""

    def __init__(self, card: Card):
        self.card = card

    def get_device_properties(self, device: int) -> dict[str, int]:
        card = self.card
        return {
            "max_shared_mem": card.shared_memory_per_block_optin,
            "max_num_regs": card.regs_per_multiprocessor,
            "multiprocessor_count": card.multi_processor_count,
            "warpSize": card.warp_size,
            "sm_clock_rate": card.clock_rate,
            "mem_clock_rate": card.memory_clock_rate,
            "mem_bus_width": card.memory_bus_width,
        }

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Module and function, which nobody calls; registers, spilled words, and threads that the registers suffice for."""
        known = attributes(cubin)
        registers = known.get(_REGISTERS, 0)
        # The hardware hands them out by eights, to warps.
        rounded = max(8, -(-registers // 8) * 8)
        threads = min(1024, self.card.regs_per_multiprocessor // (rounded * 32) * 32)
        return 1, 1, registers, known.get(_FRAME, 0) // 4, threads


def attributes(cubin: bytes) -> dict[int, int]:
    """What `ptxas` wrote of the one kernel of a cubin: the largest value of each attribute that has a number."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + number * size) for number in range(count)]
    strings = sections[names][4]
    found: dict[int, int] = {}
    for section in sections:
        begin = strings + section[0]
        if cubin[begin : cubin.index(b"\0", begin)] == b".nv.info":
            _read_attributes(cubin, section[4], section[4] + section[5], found)
    return found


def _read_attributes(cubin: bytes, at: int, end: int, found: dict[int, int]) -> None:
    while at + 4 <= end:
        form, attribute, length = struct.unpack_from("<BBH", cubin, at)
        if form == _SIZED and length == 8:
            (value,) = struct.unpack_from("<I", cubin, at + 8)
            found[attribute] = max(found.get(attribute, 0), value)
        at += 4 + (length if form == _SIZED else 0)
