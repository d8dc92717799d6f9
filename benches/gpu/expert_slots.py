"""Kernels of a layer of experts that serves its weights from a cache of slots, in Triton. Importing it needs Triton.

A pass over ``T`` tokens with ``k`` experts each has ``n = T * k`` rows. It takes rounds, as many as the plan says: :func:`resolve` decides
which experts are in the cache in this round, :func:`fill` brings those that were not, and :func:`gate_up` and :func:`down` compute the rows
whose experts are there. After the last round :func:`add` sums the rows of each token. Nothing asks the host, so a graph of the pass replays
under any routing and with any number of slots for which its rounds suffice.

The state of a layer is one tensor of ``8 + 4 * E`` numbers, int32::

    0  slots that have memory now, S        4  hits: distinct experts of a pass that were there, in all passes
    1  clock: one more in each round        5  misses: fills, in all passes
    2  what was wrong, a sum of flags       6, 7  zero
    3  fills of this round
    table[E]    slot of an expert, -1: it is not there
    owner[E]    expert of a slot, -1: it is empty
    stamp[E]    the clock at the last use of a slot
    pending[E]  1: a row of this pass still wants this expert

Weights of four bits are packed as in ``_export/passes/quantized.py``, with a leading ``E``: byte j of a row has the columns j and
K / 2 + j, each plus 8; scales and offsets, which zero points make, are ``[E, N, K / group]``.

The order of every sum follows from sizes alone, so a row has the same bits in any round, in any slot and beside any other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Numbers of a state before its tables.
HEAD = 8
#: Flags of a state's third number: a row asked for an expert that is not one of the layer; rows were left after the last round.
OUT_OF_RANGE, LEFT = 1, 2
#: Tensors of a layer that one launch fills.
TENSORS = 6
#: Eight-byte words that a program of `fill` has on their way at once: four times 16 bytes for each of 512 threads.
_WORDS = 4096


# ---- who is there ----


@triton.jit(do_not_specialize=["n", "round", "last"])
def _resolve(state, ids, slots, fills, n, round, last, E: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK: tl.constexpr):
    """One program. Its threads see what others wrote only after a barrier, and none writes what another may not have read yet."""
    table = state + 8
    owner = table + E
    stamp = owner + E
    pending = stamp + E
    e = tl.arange(0, BLOCK_E)
    real = e < E
    available = tl.load(state)
    clock = tl.load(state + 1)
    flags = tl.load(state + 2)
    hits = tl.load(state + 4)
    misses = tl.load(state + 5)
    if round == 0:
        # A pass that failed may have left some.
        tl.store(pending + e, tl.zeros((BLOCK_E,), tl.int32), mask=real)
        tl.debug_barrier()
        wrong = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, n, BLOCK):
            i = start + tl.arange(0, BLOCK)
            asked = tl.load(ids + i, mask=i < n, other=0)
            known = (asked >= 0) & (asked < E)
            wrong = tl.where(known, wrong, 1)
            tl.store(pending + tl.where(known, asked, 0), tl.full((BLOCK,), 1, tl.int32), mask=known & (i < n))
        flags = flags | tl.max(wrong, 0)
    tl.debug_barrier()
    wanted = tl.load(pending + e, mask=real, other=0) != 0
    there = wanted & (tl.load(table + e, mask=real, other=-1) >= 0)
    count = 0
    if tl.max(wanted.to(tl.int32), 0) > 0:
        now = clock + 1
        owners = tl.load(owner + e, mask=real, other=-1)
        stamps = tl.load(stamp + e, mask=real, other=0)
        used = tl.load(pending + tl.maximum(owners, 0), mask=real & (owners >= 0), other=0) != 0
        tl.debug_barrier()
        tl.store(stamp + e, tl.zeros((BLOCK_E,), tl.int32) + now, mask=used)
        # Of the slots that may go: the oldest first, and of the same age the first. A slot goes once in a round.
        NEVER: tl.constexpr = 1 << 62
        may_go = (e < available) & real & (stamps != now) & (used == 0)
        age = tl.where(may_go, stamps.to(tl.int64) * BLOCK_E + e, NEVER)
        missing = tl.where(wanted & (there == 0), e, BLOCK_E)
        expert = tl.min(missing, 0)
        oldest = tl.min(age, 0)
        while (expert < BLOCK_E) & (oldest < NEVER):
            victim = (oldest & (BLOCK_E - 1)).to(tl.int32)
            # Who goes was not wanted in this round, so it is none of those that come.
            gone = tl.max(tl.where(e == victim, owners, -1), 0)
            tl.store(table + tl.maximum(gone, 0), -1, mask=gone >= 0)
            tl.store(table + expert, victim)
            tl.store(owner + victim, expert)
            tl.store(stamp + victim, now)
            tl.store(fills + 2 * count, expert)
            tl.store(fills + 2 * count + 1, victim)
            count += 1
            missing = tl.where(e == expert, BLOCK_E, missing)
            age = tl.where(e == victim, NEVER, age)
            expert = tl.min(missing, 0)
            oldest = tl.min(age, 0)
        tl.store(state + 1, now)
        tl.store(state + 5, misses + count)
        if round == 0:
            tl.store(state + 4, hits + tl.sum(there.to(tl.int32), 0))
    tl.store(state + 3, count)
    tl.debug_barrier()
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        asked = tl.load(ids + i, mask=i < n, other=-1)
        known = (asked >= 0) & (asked < E)
        asked = tl.where(known, asked, 0)
        slot = tl.load(table + asked, mask=known, other=-1)
        turn = tl.load(pending + asked, mask=known, other=0) != 0
        tl.store(slots + i, tl.where(turn, slot, -1), mask=i < n)
    left = wanted & (tl.load(table + e, mask=real, other=-1) < 0)
    tl.debug_barrier()
    tl.store(pending + e, left.to(tl.int32), mask=real)
    if last != 0:
        flags = flags | (2 * tl.max(left.to(tl.int32), 0))
    tl.store(state + 2, flags)


@triton.jit(do_not_specialize=["keep", "available"])
def _forget(state, keep, available, E: tl.constexpr, BLOCK_E: tl.constexpr):
    table = state + 8
    owner = table + E
    stamp = owner + E
    e = tl.arange(0, BLOCK_E)
    leaves = (e < E) & (e >= keep)
    owners = tl.load(owner + e, mask=leaves, other=-1)
    tl.debug_barrier()
    minus = tl.full((BLOCK_E,), -1, tl.int32)
    tl.store(table + tl.maximum(owners, 0), minus, mask=owners >= 0)
    tl.store(owner + e, minus, mask=leaves)
    # A slot that comes back is empty: it is taken before any other.
    tl.store(stamp + e, minus + 1, mask=leaves)
    tl.store(state, available)


def new_state(experts: int, slots: int, device: torch.device | str = "cuda") -> torch.Tensor:
    """Of a layer with an empty cache."""
    state = torch.zeros(HEAD + 4 * experts, dtype=torch.int32)
    state[0] = slots
    state[HEAD : HEAD + 2 * experts] = -1
    return state.to(device)


def resolve(state: torch.Tensor, ids: torch.Tensor, slots: torch.Tensor, fills: torch.Tensor, round: int, last: bool = False) -> None:
    """Gives the experts that rows still want their slots, as far as these reach.

    Writes to ``slots`` [n] the slot of each row that is computed in this round and -1 for the others, and to ``fills`` [2 * E] the pairs of
    an expert and a slot that :func:`fill` has to bring. ``last``: rows that are left after this round are flagged.
    """
    experts, n = (state.numel() - HEAD) // 4, ids.numel()
    block = min(max(triton.next_power_of_2(n), 32), 1024)
    # One warp needs no other's answer; many ids need many threads.
    warps = 1 if n <= 256 else 8
    _resolve[(1,)](state, ids, slots, fills, n, round, int(last), experts, triton.next_power_of_2(experts), block, num_warps=warps)


def forget(state: torch.Tensor, keep: int, available: int) -> None:
    """Empties the slots from ``keep`` on, between passes, and says how many have memory from now on. After a failed pass none is kept."""
    experts = (state.numel() - HEAD) // 4
    _forget[(1,)](state, keep, available, experts, triton.next_power_of_2(experts), num_warps=1)


# ---- fills ----


@triton.jit
def _fill(
    state,
    fills,
    src0,
    dst0,
    src1,
    dst1,
    src2,
    dst2,
    src3,
    dst3,
    src4,
    dst4,
    src5,
    dst5,
    ROW0: tl.constexpr,
    ROW1: tl.constexpr,
    ROW2: tl.constexpr,
    ROW3: tl.constexpr,
    ROW4: tl.constexpr,
    ROW5: tl.constexpr,
    WORDS: tl.constexpr,
):
    """All fills of a round are one row of pieces, which the programs take in turn; no program waits for another."""
    PIECE: tl.constexpr = 8 * WORDS
    # Pieces of an expert that end before each tensor's.
    END0: tl.constexpr = (ROW0 + PIECE - 1) // PIECE
    END1: tl.constexpr = END0 + (ROW1 + PIECE - 1) // PIECE
    END2: tl.constexpr = END1 + (ROW2 + PIECE - 1) // PIECE
    END3: tl.constexpr = END2 + (ROW3 + PIECE - 1) // PIECE
    END4: tl.constexpr = END3 + (ROW4 + PIECE - 1) // PIECE
    END5: tl.constexpr = END4 + (ROW5 + PIECE - 1) // PIECE
    word = tl.arange(0, WORDS)
    for number in range(tl.program_id(0), tl.load(state + 3) * END5, tl.num_programs(0)):
        which = number // END5
        piece = number % END5
        expert = tl.load(fills + 2 * which).to(tl.int64)
        slot = tl.load(fills + 2 * which + 1).to(tl.int64)
        src = src0.to(tl.int64)
        dst = dst0.to(tl.int64)
        row = tl.full((), ROW0, tl.int64)
        first = tl.full((), 0, tl.int32)
        if ROW1 > 0:
            src = tl.where(piece >= END0, src1.to(tl.int64), src)
            dst = tl.where(piece >= END0, dst1.to(tl.int64), dst)
            row = tl.where(piece >= END0, ROW1, row)
            first = tl.where(piece >= END0, END0, first)
        if ROW2 > 0:
            src = tl.where(piece >= END1, src2.to(tl.int64), src)
            dst = tl.where(piece >= END1, dst2.to(tl.int64), dst)
            row = tl.where(piece >= END1, ROW2, row)
            first = tl.where(piece >= END1, END1, first)
        if ROW3 > 0:
            src = tl.where(piece >= END2, src3.to(tl.int64), src)
            dst = tl.where(piece >= END2, dst3.to(tl.int64), dst)
            row = tl.where(piece >= END2, ROW3, row)
            first = tl.where(piece >= END2, END2, first)
        if ROW4 > 0:
            src = tl.where(piece >= END3, src4.to(tl.int64), src)
            dst = tl.where(piece >= END3, dst4.to(tl.int64), dst)
            row = tl.where(piece >= END3, ROW4, row)
            first = tl.where(piece >= END3, END3, first)
        if ROW5 > 0:
            src = tl.where(piece >= END4, src5.to(tl.int64), src)
            dst = tl.where(piece >= END4, dst5.to(tl.int64), dst)
            row = tl.where(piece >= END4, ROW5, row)
            first = tl.where(piece >= END4, END4, first)
        begin = (piece - first).to(tl.int64) * PIECE
        # Rows are multiples of 16 bytes and tensors begin at one: with that said, a thread loads 16 bytes at once.
        words = tl.multiple_of(((row - begin) // 16).to(tl.int32) * 2, 2)
        source = tl.multiple_of((src + expert * row + begin).to(tl.pointer_type(tl.int64)), 16)
        target = tl.multiple_of((dst + slot * row + begin).to(tl.pointer_type(tl.int64)), 16)
        found = tl.load(source + word, mask=word < words, other=0)
        tl.store(target + word, found, mask=word < words)


def fill(state: torch.Tensor, fills: torch.Tensor, parts: list[tuple[int | torch.Tensor, torch.Tensor]], programs: int = 16) -> None:
    """Copies the experts of ``fills`` from host memory, with a kernel: all tensors of the layer, up to six.

    Each of ``parts`` is where the tensor of all experts begins in registered host memory, as the device sees it, and its cache, whose row
    is a slot. Its rows are dense, begin at 16 bytes and have a multiple of 16 bytes.
    """
    rows = [cache.stride(0) * cache.element_size() for _, cache in parts]
    assert len(parts) <= TENSORS
    assert all(row and row % 16 == 0 for row in rows), f"rows of {rows} bytes are no multiples of 16"
    none = TENSORS - len(parts)
    places = [place for part in parts for place in part]
    places += places[-2:] * none
    _fill[(programs,)](state, fills, *places, *rows, *[0] * none, WORDS=_WORDS, num_warps=16)


# ---- products of few rows ----


@triton.jit
def _activated(gate, ACT: tl.constexpr):
    # GELU by tanh is x · sigmoid(2y), where tanh has y.
    inner = gate if ACT == "silu" else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(inner)


@triton.jit
def _times(w, row, x, K: tl.constexpr, BLOCK: tl.constexpr):
    """Rows ``row`` of the weight at ``w`` times the row at ``x``."""
    sums = tl.zeros((row.shape[0], BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if K % BLOCK == 0:
            weight = tl.load(w + row[:, None] * K + at[None, :])
            given = tl.load(x + at)
        else:
            weight = tl.load(w + row[:, None] * K + at[None, :], mask=(at < K)[None, :], other=0.0)
            given = tl.load(x + at, mask=at < K, other=0.0)
        sums += weight.to(tl.float32) * given.to(tl.float32)[None, :]
    return tl.sum(sums, 1)


@triton.jit
def _low(byte):
    """128 more than what the low half has: the bits of a float, with no conversion."""
    return (((byte.to(tl.int32) & 15) << 16) | 0x43000000).to(tl.float32, bitcast=True)


@triton.jit
def _high(byte):
    return (((byte.to(tl.int32) & 240) << 12) | 0x43000000).to(tl.float32, bitcast=True)


@triton.jit
def _times_4(w, s, o, row, x, HALF: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, OFFSETS: tl.constexpr, BLOCK: tl.constexpr):
    """The same of four bits."""
    # What is summed before it is scaled has one scale.
    CHUNK: tl.constexpr = 16
    CHUNKS: tl.constexpr = BLOCK // CHUNK
    ROWS: tl.constexpr = row.shape[0]
    sums = tl.zeros((ROWS, CHUNKS), dtype=tl.float32)
    for start in range(0, HALF, BLOCK):
        at = start + tl.arange(0, BLOCK)
        chunk = start + tl.arange(0, CHUNKS) * CHUNK
        inside = at < HALF
        scaled = (chunk < HALF)[None, :]
        packed = tl.load(w + row[:, None] * HALF + at[None, :], mask=inside[None, :], other=0)
        first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(x + HALF + at, mask=inside, other=0.0).to(tl.float32)
        one = row[:, None] * GROUPS + (chunk // GROUP)[None, :]
        other = row[:, None] * GROUPS + ((HALF + chunk) // GROUP)[None, :]
        all_first = tl.sum(tl.reshape(first, (CHUNKS, CHUNK)), 1)[None, :]
        all_second = tl.sum(tl.reshape(second, (CHUNKS, CHUNK)), 1)[None, :]
        low = tl.sum(tl.reshape(_low(packed) * first[None, :], (ROWS, CHUNKS, CHUNK)), 2) - 136 * all_first
        high = tl.sum(tl.reshape(_high(packed) * second[None, :], (ROWS, CHUNKS, CHUNK)), 2) - 136 * all_second
        sums += low * tl.load(s + one, mask=scaled, other=0.0).to(tl.float32)
        sums += high * tl.load(s + other, mask=scaled, other=0.0).to(tl.float32)
        if OFFSETS:
            sums += all_first * tl.load(o + one, mask=scaled, other=0.0).to(tl.float32)
            sums += all_second * tl.load(o + other, mask=scaled, other=0.0).to(tl.float32)
    return tl.sum(sums, 1)


@triton.jit
def _gate_and_up(N: tl.constexpr, BLOCK_N: tl.constexpr):
    """The columns of ``h`` of a program, and their rows of the weight: gate and up in turn. Columns past the last are read as it."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    both = tl.arange(0, 2 * BLOCK_N)
    return n, tl.minimum(tl.program_id(0) * BLOCK_N + both // 2, N - 1) + both % 2 * N


@triton.jit
def _store_h(h, sums, n, N: tl.constexpr, ACT: tl.constexpr, BLOCK_N: tl.constexpr):
    gate, up = tl.split(tl.reshape(sums, (BLOCK_N, 2)))
    tl.store(h + n, (_activated(gate, ACT) * up).to(h.dtype.element_ty), mask=n < N)


@triton.jit
def _gate_up(
    x,
    slots,
    w,
    h,
    TOP: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK_N`` columns of one row of ``h``."""
    i = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + i).to(tl.int64)
    if slot >= 0:
        n, row = _gate_and_up(N, BLOCK_N)
        sums = _times(w + slot * 2 * N * K, row, x + i // TOP * K, K, BLOCK)
        _store_h(h + i * N, sums, n, N, ACT, BLOCK_N)


@triton.jit
def _gate_up_4(
    x,
    slots,
    w,
    s,
    o,
    h,
    TOP: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    OFFSETS: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + i).to(tl.int64)
    if slot >= 0:
        n, row = _gate_and_up(N, BLOCK_N)
        scales = slot * 2 * N * GROUPS
        sums = _times_4(w + slot * N * K, s + scales, o + scales, row, x + i // TOP * K, K // 2, K // GROUPS, GROUPS, OFFSETS, BLOCK)
        _store_h(h + i * N, sums, n, N, ACT, BLOCK_N)


@triton.jit
def _down(h, slots, routing, w, rows, K: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """``BLOCK_N`` columns of one of the ``rows``."""
    i = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + i).to(tl.int64)
    if slot >= 0:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        sums = _times(w + slot * N * K, tl.minimum(n, N - 1), h + i * K, K, BLOCK)
        tl.store(rows + i * N + n, sums * tl.load(routing + i).to(tl.float32), mask=n < N)


@triton.jit
def _down_4(
    h,
    slots,
    routing,
    w,
    s,
    o,
    rows,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    OFFSETS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + i).to(tl.int64)
    if slot >= 0:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        scales = slot * N * GROUPS
        row = tl.minimum(n, N - 1)
        sums = _times_4(w + slot * N * (K // 2), s + scales, o + scales, row, h + i * K, K // 2, K // GROUPS, GROUPS, OFFSETS, BLOCK)
        tl.store(rows + i * N + n, sums * tl.load(routing + i).to(tl.float32), mask=n < N)


@triton.jit
def _add(rows, out, TOP: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for j in range(TOP):
        sums += tl.load(rows + (token * TOP + j) * N + n, mask=n < N, other=0.0)
    tl.store(out + token * N + n, sums.to(out.dtype.element_ty), mask=n < N)


def _block(columns: int, most: int) -> int:
    """Columns that a program takes at once: a power of two that divides them, unless only a small one does."""
    divides = min(columns & -columns, most)
    return divides if divides >= 128 else max(16, min(triton.next_power_of_2(columns), most))


def gate_up(x: torch.Tensor, slots: torch.Tensor, w: torch.Tensor, h: torch.Tensor, top: int, act: str) -> None:
    """``h[i] = act(gate · x[i // top]) * (up · x[i // top])`` for each row that has a slot.

    ``x`` [T, H]; ``w`` [slots, 2I, H]; ``h`` [n, I]. ``act`` is ``silu`` or ``gelu_tanh``. Nothing is read or written for the other rows.
    """
    columns, width = h.shape[1], x.shape[1]
    _gate_up[(triton.cdiv(columns, 4), h.shape[0])](x, slots, w, h, top, width, columns, act, 4, _block(width, 1024), num_warps=4)


def gate_up_4(
    x: torch.Tensor,
    slots: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    h: torch.Tensor,
    top: int,
    act: str,
) -> None:
    """The same of four bits: ``w`` [slots, 2I, H / 2] int8, ``scales`` and ``offsets`` [slots, 2I, H / group]."""
    columns, width = h.shape[1], x.shape[1]
    given, grid = (x, slots, w, scales, scales if offsets is None else offsets, h), (triton.cdiv(columns, 4), h.shape[0])
    _gate_up_4[grid](*given, top, width, columns, scales.shape[-1], offsets is not None, act, 4, _block(width // 2, 1024), num_warps=4)


def down(h: torch.Tensor, slots: torch.Tensor, routing: torch.Tensor, w: torch.Tensor, rows: torch.Tensor) -> None:
    """``rows[i] = routing[i] * (w · h[i])`` for each row that has a slot. ``w`` [slots, H, I]; ``rows`` [n, H], float32."""
    columns, width = rows.shape[1], h.shape[1]
    _down[(triton.cdiv(columns, 8), rows.shape[0])](h, slots, routing, w, rows, width, columns, 8, _block(width, 512), num_warps=4)


def down_4(
    h: torch.Tensor,
    slots: torch.Tensor,
    routing: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    rows: torch.Tensor,
) -> None:
    """The same of four bits: ``w`` [slots, H, I / 2] int8, ``scales`` and ``offsets`` [slots, H, I / group]."""
    columns, width = rows.shape[1], h.shape[1]
    given = (h, slots, routing, w, scales, scales if offsets is None else offsets, rows)
    sizes = (width, columns, scales.shape[-1], offsets is not None, 8, _block(width // 2, 512))
    _down_4[(triton.cdiv(columns, 8), rows.shape[0])](*given, *sizes, num_warps=4)


def add(rows: torch.Tensor, out: torch.Tensor, top: int) -> None:
    """Sums the ``top`` rows of each token, in their order: ``rows`` [T * top, H], ``out`` [T, H]."""
    tokens, width = out.shape
    block = min(triton.next_power_of_2(width), 1024)
    _add[(triton.cdiv(width, block), tokens)](rows, out, top, width, block, num_warps=4)


# ---- products of many rows ----


@triton.jit(do_not_specialize=["n"])
def _count(ids, counts, n, BLOCK: tl.constexpr):
    """Rows of one expert."""
    e = tl.program_id(0)
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        found += (tl.load(ids + i, mask=i < n, other=-1) == e).to(tl.int32)
    tl.store(counts + e, tl.sum(found, 0))


@triton.jit(do_not_specialize=["n"])
def _place(ids, counts, order, tiles, n, E: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """The rows of one expert, in their order, behind those of the experts before it; and its tiles."""
    e = tl.program_id(0)
    all_e = tl.arange(0, BLOCK_E)
    count = tl.load(counts + all_e, mask=all_e < E, other=0)
    needs = (count + TILE - 1) // TILE
    own = tl.load(counts + e)
    begin = tl.sum(tl.where(all_e < e, count, 0), 0)
    tile = tl.sum(tl.where(all_e < e, needs, 0), 0)
    at = begin
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mine = (tl.load(ids + i, mask=i < n, other=-1) == e).to(tl.int32)
        tl.store(order + at + tl.cumsum(mine, 0) - 1, i, mask=mine != 0)
        at += tl.sum(mine, 0)
    for done in range(0, own, TILE):
        tl.store(tiles + 2 + 2 * tile, begin + done)
        tl.store(tiles + 3 + 2 * tile, tl.minimum(own - done, TILE))
        tile += 1
    # The last expert's program knows how many tiles there are.
    tl.store(tiles, tile, mask=e == E - 1)


@triton.jit
def _tile(slots, order, tiles, number, TILE: tl.constexpr):
    """The rows of a tile, which of them there are, and the slot that all have: -1 past the last tile, and in other rounds."""
    there = number < tl.load(tiles)
    first = tl.load(tiles + 2 + 2 * number, mask=there, other=0)
    count = tl.load(tiles + 3 + 2 * number, mask=there, other=0)
    m = tl.arange(0, TILE)
    # Rows that are not there are read as the first, and not written.
    rows = tl.load(order + first + tl.where(m < count, m, 0), mask=(m >= 0) & there, other=0)
    slot = tl.load(slots + tl.load(order + first, mask=there, other=0), mask=there, other=-1)
    return rows.to(tl.int64), m < count, slot.to(tl.int64)


@triton.jit
def _part(w, row, x, start, K: tl.constexpr, BLOCK: tl.constexpr):
    """Of one block of columns: rows ``row`` of the weight at ``w`` times the rows at ``x``. The weight is the left operand."""
    at = start + tl.arange(0, BLOCK)
    if K % BLOCK == 0:
        weight = tl.load(w + row[:, None] * K + at[None, :])
        given = tl.load(x[None, :] + at[:, None])
    else:
        weight = tl.load(w + row[:, None] * K + at[None, :], mask=(at < K)[None, :], other=0.0)
        given = tl.load(x[None, :] + at[:, None], mask=(at < K)[:, None], other=0.0)
    return tl.dot(weight, given, input_precision="ieee")


@triton.jit
def _given_4(x, start, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Of one block of bytes: what the low and the high halves are multiplied by."""
    at = start + tl.arange(0, BLOCK)
    first = tl.load(x[None, :] + at[:, None], mask=(at < HALF)[:, None], other=0.0)
    second = tl.load(x[None, :] + HALF + at[:, None], mask=(at < HALF)[:, None], other=0.0)
    return first, second


@triton.jit
def _part_4(
    w,
    s,
    o,
    row,
    first,
    second,
    start,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    OFFSETS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same of four bits. A block of bytes is in one group in each half."""
    at = start + tl.arange(0, BLOCK)
    packed = tl.load(w + row[:, None] * HALF + at[None, :], mask=(at < HALF)[None, :], other=0)
    one = row * GROUPS + start // GROUP
    other = row * GROUPS + (HALF + start) // GROUP
    low = (_low(packed) - 136) * tl.load(s + one).to(tl.float32)[:, None]
    high = (_high(packed) - 136) * tl.load(s + other).to(tl.float32)[:, None]
    if OFFSETS:
        low += tl.load(o + one).to(tl.float32)[:, None]
        high += tl.load(o + other).to(tl.float32)[:, None]
    part = tl.dot(low.to(first.dtype), first, input_precision="ieee")
    return tl.dot(high.to(first.dtype), second, part, input_precision="ieee")


@triton.jit
def _gate_up_many(
    x,
    slots,
    order,
    tiles,
    w,
    h,
    TOP: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    ACT: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK_N`` columns of the rows of one tile."""
    rows, written, slot = _tile(slots, order, tiles, tl.program_id(1), TILE)
    if slot >= 0:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = tl.minimum(n, N - 1)
        gate = tl.zeros((BLOCK_N, TILE), dtype=tl.float32)
        up = tl.zeros((BLOCK_N, TILE), dtype=tl.float32)
        given, weight = x + rows // TOP * K, w + slot * 2 * N * K
        # Not into the sums, as in the kernels of `quantized_triton.py`.
        for start in range(0, K, BLOCK):
            gate += _part(weight, row, given, start, K, BLOCK)
            up += _part(weight, row + N, given, start, K, BLOCK)
        found = _activated(gate, ACT) * up
        tl.store(h + rows[None, :] * N + n[:, None], found.to(h.dtype.element_ty), mask=written[None, :] & (n < N)[:, None])


@triton.jit
def _gate_up_many_4(
    x,
    slots,
    order,
    tiles,
    w,
    s,
    o,
    h,
    TOP: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    OFFSETS: tl.constexpr,
    ACT: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows, written, slot = _tile(slots, order, tiles, tl.program_id(1), TILE)
    if slot >= 0:
        HALF: tl.constexpr = K // 2
        GROUP: tl.constexpr = K // GROUPS
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = tl.minimum(n, N - 1)
        gate = tl.zeros((BLOCK_N, TILE), dtype=tl.float32)
        up = tl.zeros((BLOCK_N, TILE), dtype=tl.float32)
        given, weight, scale, offset = x + rows // TOP * K, w + slot * N * K, s + slot * 2 * N * GROUPS, o + slot * 2 * N * GROUPS
        for start in range(0, HALF, BLOCK):
            first, second = _given_4(given, start, HALF, BLOCK)
            gate += _part_4(weight, scale, offset, row, first, second, start, HALF, GROUP, GROUPS, OFFSETS, BLOCK)
            up += _part_4(weight, scale, offset, row + N, first, second, start, HALF, GROUP, GROUPS, OFFSETS, BLOCK)
        found = _activated(gate, ACT) * up
        tl.store(h + rows[None, :] * N + n[:, None], found.to(h.dtype.element_ty), mask=written[None, :] & (n < N)[:, None])


@triton.jit
def _down_many(
    h,
    slots,
    order,
    tiles,
    routing,
    w,
    out,
    K: tl.constexpr,
    N: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows, written, slot = _tile(slots, order, tiles, tl.program_id(1), TILE)
    if slot >= 0:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = tl.minimum(n, N - 1)
        sums = tl.zeros((BLOCK_N, TILE), dtype=tl.float32)
        for start in range(0, K, BLOCK):
            sums += _part(w + slot * N * K, row, h + rows * K, start, K, BLOCK)
        sums *= tl.load(routing + rows).to(tl.float32)[None, :]
        tl.store(out + rows[None, :] * N + n[:, None], sums, mask=written[None, :] & (n < N)[:, None])


@triton.jit
def _down_many_4(
    h,
    slots,
    order,
    tiles,
    routing,
    w,
    s,
    o,
    out,
    K: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    OFFSETS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows, written, slot = _tile(slots, order, tiles, tl.program_id(1), TILE)
    if slot >= 0:
        HALF: tl.constexpr = K // 2
        GROUP: tl.constexpr = K // GROUPS
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = tl.minimum(n, N - 1)
        sums = tl.zeros((BLOCK_N, TILE), dtype=tl.float32)
        weight, scale, offset = w + slot * N * HALF, s + slot * N * GROUPS, o + slot * N * GROUPS
        for start in range(0, HALF, BLOCK):
            first, second = _given_4(h + rows * K, start, HALF, BLOCK)
            sums += _part_4(weight, scale, offset, row, first, second, start, HALF, GROUP, GROUPS, OFFSETS, BLOCK)
        sums *= tl.load(routing + rows).to(tl.float32)[None, :]
        tl.store(out + rows[None, :] * N + n[:, None], sums, mask=written[None, :] & (n < N)[:, None])


#: Columns of a result that a program for many rows computes.
_WIDE = 64


def tile_of(n: int, experts: int) -> int:
    """Rows of a tile, from the sizes alone: as many as an expert has of `n` rows, on average."""
    return min(max(triton.next_power_of_2(triton.cdiv(n, experts)), 16), 128)


def new_order(n: int, experts: int, tile: int, device: torch.device | str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the rows in the order of their experts, and for how many tiles there are, and the first row and the rows of each."""
    most = min(n, n // tile + experts)
    return torch.zeros(n, dtype=torch.int32, device=device), torch.zeros(2 + 2 * most, dtype=torch.int32, device=device)


def sort_rows(ids: torch.Tensor, order: torch.Tensor, tiles: torch.Tensor, counts: torch.Tensor, tile: int) -> None:
    """Once in a pass: puts the rows of each expert together, in tiles of up to ``tile``. ``counts`` [E]; rows of no expert are left out."""
    n, experts = ids.numel(), counts.numel()
    block = min(max(triton.next_power_of_2(n), 128), 1024)
    _count[(experts,)](ids, counts, n, block, num_warps=4)
    _place[(experts,)](ids, counts, order, tiles, n, experts, triton.next_power_of_2(experts), block, tile, num_warps=4)


def _block_4(width: int, groups: int) -> int:
    """Bytes of a row that a program takes at once: in one group in each half."""
    return 64 if groups == 1 else next(size for size in (64, 32, 16) if (width // groups) % size == 0 and (width // 2) % size == 0)


def _many(tiles: torch.Tensor, columns: int) -> tuple[int, int]:
    return triton.cdiv(columns, _WIDE), tiles.numel() // 2 - 1


def gate_up_many(
    x: torch.Tensor,
    slots: torch.Tensor,
    order: torch.Tensor,
    tiles: torch.Tensor,
    w: torch.Tensor,
    h: torch.Tensor,
    top: int,
    act: str,
    tile: int,
) -> None:
    """As :func:`gate_up`, for many rows, whose order is from :func:`sort_rows`. Rows with a slot are those of whole experts."""
    columns, width = h.shape[1], x.shape[1]
    sizes = (top, width, columns, act, tile, _WIDE, 64)
    _gate_up_many[_many(tiles, columns)](x, slots, order, tiles, w, h, *sizes, num_warps=4, num_stages=3)


def gate_up_many_4(
    x: torch.Tensor,
    slots: torch.Tensor,
    order: torch.Tensor,
    tiles: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    h: torch.Tensor,
    top: int,
    act: str,
    tile: int,
) -> None:
    """The same of four bits."""
    columns, width, groups = h.shape[1], x.shape[1], scales.shape[-1]
    given = (x, slots, order, tiles, w, scales, scales if offsets is None else offsets, h)
    sizes = (top, width, columns, groups, offsets is not None, act, tile, _WIDE, _block_4(width, groups))
    _gate_up_many_4[_many(tiles, columns)](*given, *sizes, num_warps=4, num_stages=3)


def down_many(
    h: torch.Tensor,
    slots: torch.Tensor,
    order: torch.Tensor,
    tiles: torch.Tensor,
    routing: torch.Tensor,
    w: torch.Tensor,
    rows: torch.Tensor,
    tile: int,
) -> None:
    """As :func:`down`, for many rows."""
    columns, width = rows.shape[1], h.shape[1]
    given, sizes = (h, slots, order, tiles, routing, w, rows), (width, columns, tile, _WIDE, 64)
    _down_many[_many(tiles, columns)](*given, *sizes, num_warps=4, num_stages=3)


def down_many_4(
    h: torch.Tensor,
    slots: torch.Tensor,
    order: torch.Tensor,
    tiles: torch.Tensor,
    routing: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    rows: torch.Tensor,
    tile: int,
) -> None:
    """The same of four bits."""
    columns, width, groups = rows.shape[1], h.shape[1], scales.shape[-1]
    given = (h, slots, order, tiles, routing, w, scales, scales if offsets is None else offsets, rows)
    sizes = (width, columns, groups, offsets is not None, tile, _WIDE, _block_4(width, groups))
    _down_many_4[_many(tiles, columns)](*given, *sizes, num_warps=4, num_stages=3)
