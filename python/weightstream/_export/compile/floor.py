"""The least budgets of a program, from its trace. The runtime computes them again (``schedule::floor``); a test ties the two."""

from __future__ import annotations

from collections.abc import Sequence, Set

from .trace import KERNEL, PROBE

# Sizes of constants are rounded up to this before they count. The number recorded is that of policy `lru`.
GRANULES = {"cpu": 64, "cuda": 512}


def occupied(nbytes: int, device: str) -> int:
    """Bytes of the budget that a constant takes."""
    granule = GRANULES[device]
    return -(-nbytes // granule) * granule


def least_budgets(
    events: Sequence[tuple[int, int]], probes: Sequence[int], sizes: Sequence[int], direct: int, in_place: Set[int] = frozenset()
) -> tuple[int, int]:
    """``(floor, hard_minimum)`` in bytes.

    ``events`` is the trace, ``probes[i]`` the weight of probe ``i``, ``sizes`` the bytes that each weight occupies, ``direct`` the bytes
    of all direct constants. The floor is ``direct + max over consecutive kernels of bytes(open(k) | open(k+1)) + the largest copy in
    flight``. It is never more than all weights together: with that much, everything is loaded up front. Probes that are read
    ``in_place`` take nothing.
    """
    nothing = len(sizes)
    probes = [nothing if probe in in_place else weight for probe, weight in enumerate(probes)]
    sizes = [*sizes, 0]
    leases: dict[int, int] = {}
    peak = 0
    kernels: list[frozenset[int]] = []
    for op, number in events:
        if op == PROBE:
            leases[number] = probes[number]
            peak = max(peak, _bytes(frozenset(leases.values()), sizes))
        elif op == KERNEL:
            if leases:
                kernels.append(frozenset(leases.values()))
        else:
            del leases[number]
    everything = _bytes(frozenset(probes), sizes)
    pairs = [_bytes(a | b, sizes) for a, b in zip(kernels, kernels[1:] + kernels[:1])]
    largest = max((sizes[w] for w in probes), default=0)
    floor = min(max(max(pairs, default=0), peak) + largest, everything)
    return direct + floor, direct + peak


def _bytes(weights: frozenset[int], sizes: Sequence[int]) -> int:
    return sum(sizes[w] for w in weights)
