#!/usr/bin/env python3
"""Experts from a cache of slots on a GPU, filled and multiplied inside a CUDA graph: bits, rows that have no memory, and speed.

    python benches/gpu/experts.py --out experts.jsonl

One layer has 128 experts, 8 for a token, of Qwen3-30B's sizes, in bf16 and in four bits; its weights are in a file that is mapped and
registered read-only. Four parts, each by its name with `--parts`:

right    A graph is replayed with other ids and other numbers of slots. Each output is compared bit for bit with the same kernels over
         resident weights, each slot with the file, and misses with an LRU in Python.
pages    The same where only the first rows of the cache have memory, and where more get it, or lose it, between replays.
many     Kernels for many rows: any number of slots gives the same bits; their time over that of the kernels for few rows, and over
         `torch.bmm` of as many rows, evenly spread, in bf16.
speed    Fills against copies of the same bytes; 48 layers in a graph; fills beside copies of other weights.

Milliseconds are medians. Everything is a ratio to what the same run measured, too. The status is 1 if a bit differs.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import mmap
import random
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from measure import Results

DEVICE = "cuda"
#: Experts, those of a token, and the sizes of one; columns of four bits that have a scale.
E, TOP, HIDDEN, INNER, GROUP = 128, 8, 2048, 768, 32
ACT = "silu"
#: Tokens of a pass and slots of a cache that are tried for bits; layers and slots of each for speed.
TOKENS, SPACES = (1, 2, 4, 8), (4, 8, 32, 128)
MANY, MANY_SPACES = (16, 64, 512), (8, 32, 128)
LAYERS, SLOTS = 48, 32
#: Tensors begin at so many bytes of the file.
ALIGN = 4096
KINDS = ("bf16", "int4")
PARTS = ("right", "pages", "many", "speed")
MIB = 1 << 20
#: Cycles in which the host issues some hundred copies.
LONG = 8_000_000


# ---- the driver ----


class Driver:
    """The calls that torch has no name for."""

    #: Of `cuMemHostRegister`: seen by the device, and never written.
    MAPPED, READ_ONLY = 0x02, 0x08

    def __init__(self) -> None:
        torch.zeros(1, device=DEVICE)
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *args: Any) -> None:
        if code := getattr(self.library, name)(*args):
            raise RuntimeError(f"{name} failed with {code}")

    def register(self, address: int, size: int) -> int:
        """Where the device sees the memory."""
        self.call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(self.MAPPED | self.READ_ONLY))
        return self.seen(address)

    def unregister(self, address: int) -> None:
        self.call("cuMemHostUnregister", ctypes.c_void_p(address))

    def seen(self, address: int) -> int:
        found = ctypes.c_uint64()
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(found), ctypes.c_void_p(address), ctypes.c_uint(0))
        return found.value

    def copy(self, target: int, source: int, size: int) -> None:
        """What `cudaMemcpyAsync` does, on the current stream."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(target), ctypes.c_void_p(source), ctypes.c_size_t(size), stream)


class _Prop(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location_type", ctypes.c_int), ("location", ctypes.c_int), ("flags", ctypes.c_int))


class Pages:
    """Addresses for so many bytes, of which the first have memory."""

    def __init__(self, driver: Driver, size: int):
        self.driver, self.device = driver, torch.cuda.current_device()
        self.prop = _Prop(type=1, location_type=1, location=self.device)
        unit, address = ctypes.c_size_t(), ctypes.c_uint64()
        driver.call("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(self.prop), ctypes.c_int(0))
        self.unit = unit.value
        self.size, self.bytes = math.ceil(size / self.unit) * self.unit, size
        whole, none = ctypes.c_size_t(self.size), ctypes.c_size_t(0)
        driver.call("cuMemAddressReserve", ctypes.byref(address), whole, none, ctypes.c_uint64(0), ctypes.c_uint64(0))
        self.address, self.mapped = address.value, 0
        self.pieces: list[tuple[int, int, ctypes.c_uint64]] = []

    def map(self, size: int) -> None:
        """Gives memory to the first ``size`` bytes, and to no page after them."""
        end = math.ceil(size / self.unit) * self.unit
        if end <= self.mapped:
            return
        handle, many = ctypes.c_uint64(), ctypes.c_size_t(end - self.mapped)
        at = ctypes.c_uint64(self.address + self.mapped)
        self.driver.call("cuMemCreate", ctypes.byref(handle), many, ctypes.byref(self.prop), ctypes.c_uint64(0))
        self.driver.call("cuMemMap", at, many, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        access = _Access(location_type=1, location=self.device, flags=3)
        self.driver.call("cuMemSetAccess", at, many, ctypes.byref(access), ctypes.c_size_t(1))
        self.pieces.append((self.mapped, end - self.mapped, handle))
        self.mapped = end

    def unmap_last(self) -> None:
        """Takes back the memory of the last :meth:`map`, which nothing may read any longer."""
        begin, many, handle = self.pieces.pop()
        self.driver.call("cuMemUnmap", ctypes.c_uint64(self.address + begin), ctypes.c_size_t(many))
        self.driver.call("cuMemRelease", handle)
        self.mapped = begin

    def close(self) -> None:
        while self.pieces:
            self.unmap_last()
        self.driver.call("cuMemAddressFree", ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.bytes,), "typestr": "|i1", "data": (self.address, False), "version": 2}


# ---- weights ----


def shapes(kind: str) -> list[tuple[tuple[int, int], torch.dtype]]:
    """Of an expert's tensors: gate and up, down, and their scales."""
    if kind == "bf16":
        return [((2 * INNER, HIDDEN), torch.bfloat16), ((HIDDEN, INNER), torch.bfloat16)]
    weights = [((2 * INNER, HIDDEN // 2), torch.int8), ((HIDDEN, INNER // 2), torch.int8)]
    return [*weights, ((2 * INNER, HIDDEN // GROUP), torch.bfloat16), ((HIDDEN, INNER // GROUP), torch.bfloat16)]


def row_bytes(kind: str) -> list[int]:
    return [math.prod(shape) * dtype.itemsize for shape, dtype in shapes(kind)]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Its bits, as numbers that are equal only if they are."""
    return tensor.contiguous().view(-1).view(torch.int8)


class Weights:
    """A layer's, in a file that is mapped and registered, and resident."""

    def __init__(self, driver: Driver, kind: str, folder: Path, seed: int):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        self.kind, self.resident = kind, []
        for (rows, columns), dtype in shapes(kind):
            if dtype is torch.int8:
                found = torch.randint(-128, 128, (E, rows, columns), generator=generator, device=DEVICE, dtype=dtype)
            elif kind == "int4":
                found = torch.rand(E, rows, columns, generator=generator, device=DEVICE).add_(0.5).div_(200).to(dtype)
            else:
                found = torch.randn(E, rows, columns, generator=generator, device=DEVICE, dtype=dtype).div_(columns**0.5)
            self.resident.append(found)
        self.offsets, end = [], 0
        for tensor in self.resident:
            self.offsets.append(end)
            end += math.ceil(tensor.nbytes / ALIGN) * ALIGN
        self.size = end
        path = folder / f"{kind}-{seed}.bin"
        with path.open("wb") as file:
            for tensor, at in zip(self.resident, self.offsets):
                file.seek(at)
                file.write(raw(tensor).cpu().numpy().data)
            file.truncate(end)
        with path.open("rb") as file:
            self.mapping = mmap.mmap(file.fileno(), end, prot=mmap.PROT_READ)
        with warnings.catch_warnings():
            # Nobody writes to it.
            warnings.simplefilter("ignore", UserWarning)
            self.host = torch.frombuffer(self.mapping, dtype=torch.int8)
        # Pages that were read before are registered faster.
        self.host[::ALIGN].sum()
        self.address = self.host.data_ptr()
        self.driver, self.seen = driver, driver.register(self.address, end)

    def close(self) -> None:
        torch.cuda.synchronize()
        self.driver.unregister(self.address)

    def sources(self) -> list[int]:
        """Where the device sees each tensor in the file."""
        return [self.seen + at for at in self.offsets]

    def dense(self, part: int) -> torch.Tensor:
        """Dequantized, float32."""
        weight = self.resident[part]
        if self.kind == "bf16":
            return weight.float()
        values = torch.cat((weight & 15, (weight >> 4) & 15), -1).float() - 8
        return values * self.resident[part + 2].float().repeat_interleave(GROUP, -1)

    def in_the_file(self) -> bool:
        """Whether what is resident has the file's bits, as the processor reads them."""
        pieces = zip(self.resident, self.offsets)
        return all(torch.equal(raw(one).cpu(), self.host[at : at + one.nbytes]) for one, at in pieces)


def empty_cache(kind: str, slots: int) -> list[torch.Tensor]:
    """Rows with bits of no number, so that a product over a row that was not filled shows."""
    return [poison(torch.empty(slots, *shape, dtype=dtype, device=DEVICE)) for shape, dtype in shapes(kind)]


def poison(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(torch.int8).fill_(-1)
    return tensor


# ---- a layer ----


class Layer:
    """A layer's state, cache and buffers for ``tokens`` tokens. Those that layers can share come from ``like``."""

    def __init__(self, kind: str, tokens: int, cache: list[torch.Tensor], slots: int, like: Layer | None = None):
        import expert_slots as kernels

        self.kernels, self.kind, self.cache = kernels, kind, cache
        self.state = kernels.new_state(E, slots, DEVICE)
        n = tokens * TOP
        self.ids = torch.zeros(n, dtype=torch.int64, device=DEVICE)
        if like is not None:
            self.x, self.routing, self.slots, self.fills = like.x, like.routing, like.slots, like.fills
            self.h, self.rows, self.out = like.h, like.rows, like.out
            return
        generator = torch.Generator(DEVICE).manual_seed(tokens)
        self.x = torch.randn(tokens, HIDDEN, generator=generator, device=DEVICE).to(torch.bfloat16)
        self.routing = torch.rand(n, generator=generator, device=DEVICE)
        self.slots = torch.full((n,), -1, dtype=torch.int32, device=DEVICE)
        self.fills = torch.zeros(2 * E, dtype=torch.int32, device=DEVICE)
        self.h = torch.empty(n, INNER, dtype=torch.bfloat16, device=DEVICE)
        self.rows = torch.empty(n, HIDDEN, dtype=torch.float32, device=DEVICE)
        self.out = torch.empty(tokens, HIDDEN, dtype=torch.bfloat16, device=DEVICE)

    def products(self, slots: torch.Tensor, weights: list[torch.Tensor]) -> None:
        if self.kind == "bf16":
            self.kernels.gate_up(self.x, slots, weights[0], self.h, TOP, ACT)
            self.kernels.down(self.h, slots, self.routing, weights[1], self.rows)
        else:
            self.kernels.gate_up_4(self.x, slots, weights[0], weights[2], None, self.h, TOP, ACT)
            self.kernels.down_4(self.h, slots, self.routing, weights[1], weights[3], None, self.rows)

    def fill(self, sources: list[int], programs: int = 16) -> None:
        self.kernels.fill(self.state, self.fills, list(zip(sources, self.cache)), programs)

    def run(self, sources: list[int], rounds: int) -> None:
        """The pass that a graph has."""
        for number in range(rounds):
            self.kernels.resolve(self.state, self.ids, self.slots, self.fills, number, number == rounds - 1)
            self.fill(sources)
            self.products(self.slots, self.cache)
        self.kernels.add(self.rows, self.out, TOP)

    def whole(self, resident: list[torch.Tensor]) -> torch.Tensor:
        """The output over resident weights: a row's number is the expert's."""
        self.spoil()
        self.products(self.ids.to(torch.int32), resident)
        self.kernels.add(self.rows, self.out, TOP)
        return self.out.clone()

    def spoil(self) -> None:
        """So that rows that nobody computes show."""
        for buffer in (self.h, self.rows, self.out):
            buffer.fill_(float("nan"))

    def empty(self, slots: int) -> None:
        self.state.copy_(self.kernels.new_state(E, slots, DEVICE))


class Lru:
    """The rules of the kernel, in Python."""

    def __init__(self, slots: int):
        self.slots, self.clock, self.hits, self.misses = slots, 0, 0, 0
        self.table: dict[int, int] = {}
        self.owner, self.stamp = [-1] * E, [0] * E

    def run(self, ids: list[int], rounds: int) -> None:
        wanted = sorted(set(ids))
        self.hits += sum(expert in self.table for expert in wanted)
        for _ in range(rounds):
            if not wanted:
                return
            self.clock += 1
            for expert in wanted:
                if expert in self.table:
                    self.stamp[self.table[expert]] = self.clock
            for expert in wanted:
                if expert in self.table:
                    continue
                may_go = [(self.stamp[slot], slot) for slot in range(self.slots) if self.stamp[slot] != self.clock]
                if not may_go:
                    break
                slot = min(may_go)[1]
                self.table.pop(self.owner[slot], None)
                self.owner[slot], self.table[expert], self.stamp[slot] = expert, slot, self.clock
                self.misses += 1
            wanted = [expert for expert in wanted if expert not in self.table or self.stamp[self.table[expert]] != self.clock]
        assert not wanted, f"rounds do not suffice: {wanted} are left"

    def forget(self, slots: int) -> None:
        for slot in range(slots, E):
            self.table.pop(self.owner[slot], None)
            self.owner[slot], self.stamp[slot] = -1, 0
        self.slots = slots


def routings(pattern: str, tokens: int, draw: random.Random) -> Iterator[list[int]]:
    """The experts of one pass after the other; those of a token differ."""
    at, order = 0, draw.sample(range(E), E)
    share = [1 / (rank + 1) for rank in range(E)]
    while True:
        found: list[int] = []
        for _ in range(tokens):
            if pattern == "cyclic":
                found += [(at + j) % E for j in range(TOP)]
                at += TOP
            elif pattern == "uniform":
                found += draw.sample(range(E), TOP)
            else:
                chosen: list[int] = []
                while len(chosen) < TOP:
                    expert = order[draw.choices(range(E), share)[0]]
                    chosen += [] if expert in chosen else [expert]
                found += chosen
        yield found


def rounds_of(tokens: int, slots: int) -> int:
    return math.ceil(min(tokens * TOP, E) / slots)


def capture(work: Callable[[], None]) -> Any:
    """A graph of it, after one run that compiles its kernels."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def slots_wrong(layer: Layer, resident: list[torch.Tensor]) -> tuple[int, int]:
    """Slots that have an expert, and how many of these do not have its bits."""
    owner = layer.state[8 + E : 8 + 2 * E].tolist()
    filled = [(slot, expert) for slot, expert in enumerate(owner) if expert >= 0]
    same = [[torch.equal(raw(c[slot]), raw(r[expert])) for c, r in zip(layer.cache, resident)] for slot, expert in filled]
    return len(filled), sum(not all(one) for one in same)


def play(
    layer: Layer,
    weights: Weights,
    graph: Any,
    lru: Lru,
    rounds: int,
    patterns: Iterator[list[int]],
    passes: int,
    change: Callable[[int], None],
) -> dict[str, Any]:
    """Replays the graph ``passes`` times, each after ``change``: outputs that differ, slots that do, and counts that do."""
    wrong = 0
    for number in range(passes):
        change(number)
        ids = next(patterns)
        layer.ids.copy_(torch.tensor(ids))
        expected = layer.whole(weights.resident)
        layer.spoil()
        graph.replay()
        lru.run(ids, rounds)
        wrong += not (torch.equal(raw(layer.out), raw(expected)) and torch.isfinite(expected).all())
    filled, bad = slots_wrong(layer, weights.resident)
    state = layer.state[:8].tolist()
    owner = layer.state[8 + E : 8 + 2 * E].tolist()
    agrees = state[1] == lru.clock and state[4:6] == [lru.hits, lru.misses] and owner == lru.owner
    return {
        "passes": passes,
        "outputs_wrong": wrong,
        "slots": filled,
        "slots_wrong": bad,
        "flags": state[2],
        "hits": state[4],
        "misses": state[5],
        "lru_misses": lru.misses,
        "right": not wrong and not bad and not state[2] and agrees,
    }


# ---- the parts ----


def right(results: Table, weights: Weights, passes: int) -> None:
    resident = weights.resident
    results.write(part="right", kind=weights.kind, what="resident weights against the file", right=weights.in_the_file())
    gate_up, down = weights.dense(0), weights.dense(1)
    cache = empty_cache(weights.kind, E)
    for tokens in TOKENS:
        for slots in SPACES:
            layer, rounds = Layer(weights.kind, tokens, cache, slots), rounds_of(tokens, slots)
            graph = capture(lambda layer=layer, rounds=rounds: layer.run(weights.sources(), rounds))
            for pattern in ("cyclic", "uniform", "zipf"):
                layer.empty(slots)
                for tensor in cache:
                    poison(tensor)
                lru = Lru(slots)

                def change(number: int, layer: Layer = layer, lru: Lru = lru, least: int = slots) -> None:
                    """More slots from a third of the passes on, and fewer from another on, which lose what they had."""
                    if number == passes // 3:
                        lru.slots = min(2 * least + 1, E)
                        layer.state[0] = lru.slots
                    elif number == 2 * passes // 3:
                        layer.kernels.forget(layer.state, least, least)
                        lru.forget(least)
                        for tensor in layer.cache:
                            poison(tensor[least:])

                draw = routings(pattern, tokens, random.Random(slots))
                found = play(layer, weights, graph, lru, rounds, draw, passes, change)
                results.write(part="right", kind=weights.kind, tokens=tokens, s=slots, rounds=rounds, pattern=pattern, **found)
            far = distance(layer, layer.whole(resident), gate_up, down)
            results.write(
                part="right", kind=weights.kind, tokens=tokens, s=slots, what="products in float32", distance=far, right=far < 0.02
            )


def distance(layer: Layer, found: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> float:
    """The largest difference to the same layer in float32, over the largest element."""
    tokens = layer.x.shape[0]
    expected = torch.zeros(tokens, HIDDEN, device=DEVICE)
    ids, routing = layer.ids.view(tokens, TOP).tolist(), layer.routing.view(tokens, TOP)
    for token, experts in enumerate(ids):
        for j, expert in enumerate(experts):
            gate, up = (gate_up[expert] @ layer.x[token].float()).chunk(2)
            expected[token] += routing[token, j] * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    return ((found.float() - expected).abs().max() / expected.abs().max()).item()


def pages(results: Table, driver: Driver, weights: Weights, passes: int) -> None:
    tokens, least, rows = 4, 4, row_bytes(weights.kind)
    ranges = [Pages(driver, E * size) for size in rows]

    def reach(slots: int) -> None:
        for one, size in zip(ranges, rows):
            one.map(slots * size)

    reach(least)
    parts = zip(ranges, shapes(weights.kind))
    cache = [torch.as_tensor(one, device=DEVICE).view(dtype).view(E, *shape) for one, (shape, dtype) in parts]
    layer, rounds, lru = Layer(weights.kind, tokens, cache, least), rounds_of(tokens, least), Lru(least)
    graph = capture(lambda: layer.run(weights.sources(), rounds))
    layer.empty(least)
    draw = routings("uniform", tokens, random.Random(1))
    for slots in (least, 8, 32, 8):
        mapped = [one.mapped for one in ranges]
        if slots > lru.slots:
            reach(slots)
            layer.state[0] = lru.slots = slots
        elif slots < lru.slots:
            layer.kernels.forget(layer.state, slots, slots)
            lru.forget(slots)
            torch.cuda.synchronize()
            for one, size in zip(ranges, rows):
                if one.mapped - one.pieces[-1][1] >= slots * size:
                    one.unmap_last()
        found = play(layer, weights, graph, lru, rounds, draw, passes, lambda number: None)
        share = sum(one.mapped for one in ranges) / sum(one.size for one in ranges)
        changed = mapped != [one.mapped for one in ranges]
        results.write(part="pages", kind=weights.kind, tokens=tokens, s=slots, has_memory=share, pages_changed=changed, **found)
    torch.cuda.synchronize()
    del graph
    for one in ranges:
        one.close()


class ManyRows(Layer):
    """The same layer by the kernels for many rows, whose order is made once in a pass."""

    def __init__(self, kind: str, tokens: int, cache: list[torch.Tensor], slots: int):
        super().__init__(kind, tokens, cache, slots)
        self.tile = self.kernels.tile_of(tokens * TOP, E)
        self.sorted = self.kernels.new_order(tokens * TOP, E, self.tile, DEVICE)
        self.counts = torch.zeros(E, dtype=torch.int32, device=DEVICE)

    def sort(self) -> None:
        self.kernels.sort_rows(self.ids, *self.sorted, self.counts, self.tile)

    def run(self, sources: list[int], rounds: int) -> None:
        self.sort()
        super().run(sources, rounds)

    def whole(self, resident: list[torch.Tensor]) -> torch.Tensor:
        self.sort()
        return super().whole(resident)

    def products(self, slots: torch.Tensor, weights: list[torch.Tensor]) -> None:
        if self.kind == "bf16":
            self.kernels.gate_up_many(self.x, slots, *self.sorted, weights[0], self.h, TOP, ACT, self.tile)
            self.kernels.down_many(self.h, slots, *self.sorted, self.routing, weights[1], self.rows, self.tile)
        else:
            first, second = (weights[0], weights[2], None), (weights[1], weights[3], None)
            self.kernels.gate_up_many_4(self.x, slots, *self.sorted, *first, self.h, TOP, ACT, self.tile)
            self.kernels.down_many_4(self.h, slots, *self.sorted, self.routing, *second, self.rows, self.tile)


def many(results: Table, weights: Weights) -> None:
    cache, resident = empty_cache(weights.kind, E), weights.resident
    gate_up, down = weights.dense(0), weights.dense(1)
    first, second = (one.to(torch.bfloat16).transpose(1, 2) for one in (gate_up, down))
    for tokens in MANY:
        for slots in MANY_SPACES:
            layer, rounds = ManyRows(weights.kind, tokens, cache, slots), rounds_of(tokens, slots)
            graph = capture(lambda layer=layer, rounds=rounds: layer.run(weights.sources(), rounds))
            layer.empty(slots)
            for tensor in cache:
                poison(tensor)
            draw = routings("zipf", tokens, random.Random(slots))
            found = play(layer, weights, graph, Lru(slots), rounds, draw, 4, lambda number: None)
            results.write(part="many", kind=weights.kind, tokens=tokens, s=slots, rounds=rounds, **found)
        few = Layer(weights.kind, tokens, cache, slots)
        few.ids = layer.ids = torch.tensor(next(routings("uniform", tokens, random.Random(5))), device=DEVICE)
        ids = layer.ids.to(torch.int32)
        far = distance(layer, layer.whole(resident), gate_up, down)
        spread = torch.randn(E, math.ceil(tokens * TOP / E), HIDDEN, device=DEVICE).to(torch.bfloat16)
        graphs = {
            "many": capture(lambda layer=layer, ids=ids: (layer.sort(), layer.products(ids, resident))),
            "few": capture(lambda few=few, ids=ids: few.products(ids, resident)),
            "bmm": capture(lambda spread=spread: torch.bmm(torch.bmm(spread, first)[:, :, :INNER], second)),
        }
        ms = {name: statistics.median(elapsed(graph.replay) for _ in range(9)) for name, graph in graphs.items()}
        results.write(
            part="many products",
            kind=weights.kind,
            tokens=tokens,
            tile=layer.tile,
            ms=ms["many"],
            over_few=ms["many"] / ms["few"],
            over_bmm=ms["many"] / ms["bmm"],
            distance=far,
            right=far < 0.02,
        )


def gb_s(size: int, ms: float) -> float:
    return size / ms / 1e6


def elapsed(work: Callable[[], None]) -> float:
    """Milliseconds on the device."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def fills_against_copies(results: Table, driver: Driver, weights: Weights) -> float:
    """Records of eight experts, from the file and from pinned memory. The speed of copies from the file, GB/s."""
    kind, rows, turns, draw = weights.kind, row_bytes(weights.kind), 16, random.Random(3)
    layer = Layer(kind, 1, empty_cache(kind, TOP), TOP)
    chosen = [draw.sample(range(E), TOP) for _ in range(turns)]
    pairs = torch.tensor([[x for slot, expert in enumerate(one) for x in (expert, slot)] for one in chosen])
    given = torch.zeros(turns, 2 * E, dtype=torch.int32)
    given[:, : 2 * TOP] = pairs
    given = given.to(DEVICE)
    layer.state[3] = TOP
    pinned = torch.empty(weights.size, dtype=torch.int8, pin_memory=True)
    pinned.copy_(weights.host)
    size, of_the_file = turns * TOP * sum(rows), 0.0
    for host, base, seen in (
        ("file", weights.address, weights.seen),
        ("pinned", pinned.data_ptr(), driver.seen(pinned.data_ptr())),
    ):

        def copies(base: int = base) -> None:
            for one in chosen:
                for slot, expert in enumerate(one):
                    for target, at, row in zip(layer.cache, weights.offsets, rows):
                        driver.copy(target.data_ptr() + slot * row, base + at + expert * row, row)

        def fills(programs: int, seen: int = seen) -> None:
            sources = [seen + at for at in weights.offsets]
            for one in given:
                layer.kernels.fill(layer.state, one, list(zip(sources, layer.cache)), programs)

        fills(16)
        ways = {"copies": copies, **{programs: lambda p=programs: fills(p) for programs in (8, 16, 32, 64)}}
        times: dict[Any, list[float]] = {way: [] for way in ways}
        for _ in range(3):
            for way, run in ways.items():
                times[way].append(elapsed(run))
        copied = gb_s(size, statistics.median(times.pop("copies")))
        of_the_file = of_the_file or copied
        # What the last fills left.
        same = all(torch.equal(raw(c[s]), raw(r[e])) for c, r in zip(layer.cache, weights.resident) for s, e in enumerate(chosen[-1]))
        for programs, found in times.items():
            speed = gb_s(size, statistics.median(found))
            results.write(
                part="fills",
                kind=kind,
                host=host,
                programs=programs,
                gb_s=speed,
                copies_gb_s=copied,
                over_copies=speed / copied,
                right=same,
            )
    return of_the_file


class Stack:
    """48 layers with caches of their own, over the host memory of a few layers."""

    def __init__(self, given: list[Weights]):
        self.given, kind = given, given[0].kind
        first = Layer(kind, 1, empty_cache(kind, SLOTS), SLOTS)
        self.layers = [first, *(Layer(kind, 1, empty_cache(kind, SLOTS), SLOTS, first) for _ in range(LAYERS - 1))]
        self.ids = torch.zeros(LAYERS, TOP, dtype=torch.int64, device=DEVICE)
        self.fixed = torch.arange(TOP, dtype=torch.int32, device=DEVICE)
        for layer, ids in zip(self.layers, self.ids):
            layer.ids = ids
        self.number = 0

    def sources(self, number: int) -> list[int]:
        return self.given[number % len(self.given)].sources()

    def cached(self) -> None:
        for number, layer in enumerate(self.layers):
            layer.run(self.sources(number), 1)

    def products_alone(self) -> None:
        for layer in self.layers:
            layer.products(self.fixed, layer.cache)
            layer.kernels.add(layer.rows, layer.out, TOP)

    def fills_alone(self) -> None:
        for number, layer in enumerate(self.layers):
            layer.kernels.resolve(layer.state, layer.ids, layer.slots, layer.fills, 0, True)
            layer.fill(self.sources(number))

    def ask(self, missing: int) -> None:
        """Ids for a pass in which so many of each layer miss: those come in a cycle that is longer than the cache."""
        kept, self.number = TOP - missing, self.number + 1
        fresh = [kept + (self.number * max(missing, 1) + j) % (E - kept) for j in range(missing)]
        self.ids.copy_(torch.tensor([*range(kept), *fresh]).expand(LAYERS, TOP))

    def misses(self) -> int:
        return sum(layer.state[5].item() for layer in self.layers)


def graphs_of_48(results: Table, given: list[Weights], link: float) -> None:
    kind, record = given[0].kind, sum(row_bytes(given[0].kind))
    stack = Stack(given)
    stack.ask(0)
    cached, alone = capture(stack.cached), capture(stack.products_alone)
    products = statistics.median(elapsed(alone.replay) for _ in range(9))
    for name, missing in (("nothing misses", 0), ("one misses", 1), ("all miss", TOP)):
        times = []
        for number in range(14):
            stack.ask(missing)
            before = stack.misses()
            times.append(elapsed(cached.replay))
            found = stack.misses() - before
            # The first passes leave what the ones before had.
            assert number < 5 or found == missing * LAYERS, f"{found} misses, and {missing * LAYERS} were meant"
        ms, bare = statistics.median(times[5:]), missing * LAYERS * record / link / 1e6
        # Products wait for fills, so that both follow each other.
        ratios = {"over_link": ms / bare, "over_link_and_products": ms / (bare + products)} if missing else {"over_products": ms / products}
        results.write(part="graph", kind=kind, layers=LAYERS, what=name, ms=ms, products_ms=products, link_ms=bare, **ratios)
    wrong = 0
    for number, layer in enumerate(stack.layers):
        if number % 8 == 0:
            wrong += slots_wrong(layer, given[number % len(given)].resident)[1]
    results.write(part="graph", kind=kind, layers=LAYERS, what="slots of six layers", slots_wrong=wrong, right=not wrong)


def beside_copies(results: Table, driver: Driver, given: list[Weights]) -> None:
    """Fills and copies of as many bytes, alone and at once. The longer of both at once, over their sum alone, tells what is lost."""
    stack = Stack(given)
    piece, size = 32 * MIB, LAYERS * TOP * sum(row_bytes(given[0].kind))
    stack.ask(TOP)
    graph = capture(stack.fills_alone)
    pinned = torch.empty(16 * piece, dtype=torch.int8, pin_memory=True)
    target = torch.empty(2 * piece, dtype=torch.int8, device=DEVICE)
    count = math.ceil(size / piece)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def copies() -> None:
        for number in range(count):
            driver.copy(target.data_ptr() + number % 2 * piece, pinned.data_ptr() + number % 16 * piece, piece)

    def at_once(works: dict[int, Callable[[], None]]) -> list[float]:
        """Milliseconds from one begin to the end of each, on streams of their own."""
        torch.cuda.synchronize()
        begin = torch.cuda.Event(enable_timing=True)
        ends = []
        # Everything is issued while the device waits.
        torch.cuda._sleep(LONG)
        begin.record()
        for number, work in works.items():
            end = torch.cuda.Event(enable_timing=True)
            with torch.cuda.stream(streams[number]):
                streams[number].wait_event(begin)
                work()
                end.record()
            ends.append(end)
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for end in ends]

    both: dict[int, Callable[[], None]] = {0: graph.replay, 1: copies}
    found: dict[str, list[float]] = {name: [] for name in ("fills", "copies", "fills_beside", "copies_beside")}
    for turn in range(7):
        for name, works in (("fills", {0: both[0]}), ("copies", {1: both[1]}), ("beside", both)):
            stack.ask(TOP)
            times = at_once(works)
            if turn >= 2:
                for one, ms in zip((name,) if len(times) == 1 else ("fills_beside", "copies_beside"), times):
                    found[one].append(ms)
    ms = {name: statistics.median(times) for name, times in found.items()}
    results.write(
        part="beside",
        kind=given[0].kind,
        **{f"{name}_ms": one for name, one in ms.items()},
        fills_slower=ms["fills_beside"] / ms["fills"],
        copies_slower=ms["copies_beside"] / ms["copies"],
        both_over_sum=max(ms["fills_beside"], ms["copies_beside"]) / (ms["fills"] + ms["copies"]),
    )


class Table:
    """Results, written at once, and printed in the end: a table for each part."""

    def __init__(self, results: Results):
        self.results, self.lines = results, []

    def write(self, **figures: Any) -> None:
        self.lines.append(figures)
        self.results.write(**figures)

    def print(self) -> bool:
        """Whether everything was right."""
        for part in dict.fromkeys(line["part"] for line in self.lines):
            lines = [line for line in self.lines if line["part"] == part]
            names = [name for name in dict.fromkeys(name for line in lines for name in line) if name != "part"]
            cells = [names, *([_cell(line.get(name, "")) for name in names] for line in lines)]
            widths = [max(len(row[at]) for row in cells) for at in range(len(names))]
            print(f"\n{part}")
            for row in cells:
                print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip())
        wrong = [line for line in self.lines if not line.get("right", True)]
        print(f"\n{len(self.lines)} lines, {len(wrong)} wrong")
        return not wrong


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--passes", type=int, default=12, help="replays of a sequence")
    parser.add_argument("--folder", type=Path, help="where the weights' files are written, 3.1 GB; a temporary folder if not given")
    parser.add_argument("--out", type=Path, default=Path("experts.jsonl"))
    args = parser.parse_args()
    results = Table(Results(args.out, gpu=torch.cuda.get_device_name()))
    driver = Driver()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for kind in args.kinds:
            given = [Weights(driver, kind, Path(folder), seed) for seed in range(2 if "speed" in args.parts else 1)]
            if "right" in args.parts:
                right(results, given[0], args.passes)
            if "pages" in args.parts:
                pages(results, driver, given[0], args.passes)
            if "many" in args.parts:
                many(results, given[0])
            if "speed" in args.parts:
                link = fills_against_copies(results, driver, given[0])
                graphs_of_48(results, given, link)
                beside_copies(results, driver, given)
            for weights in given:
                weights.close()
    return 0 if results.print() else 1


if __name__ == "__main__":
    raise SystemExit(main())
