"""Products with weights of four and of eight bits on a GPU, in Triton. Importing it needs Triton, which comes with PyTorch for CUDA only.

Of four bits, a byte has a column of the first half of a row and one of the second half, so that both halves of the other operand are read as they lie.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

#: Up to so many rows a program of the kernel is for one row of the result.
FEW = 4

# Four bytes hold eight weights. A weight from 0 to 15 in the right bits of a float is 128 more than itself, exactly: one instruction makes it,
# and one takes 128 and the middle away.
_LOW_BF16: tl.constexpr = tl.constexpr(
    "{ "
    ".reg .b32 t, one, less; "
    "and.b32 t, $2, 0x0f0f0f0f; "
    "mov.b32 one, 0x3f803f80; "
    "mov.b32 less, 0xc308c308; "
    "prmt.b32 $0, t, 0x43434343, 0x4140; "
    "prmt.b32 $1, t, 0x43434343, 0x4342; "
    "fma.rn.bf16x2 $0, $0, one, less; "
    "fma.rn.bf16x2 $1, $1, one, less; "
    "}"
)
_HIGH_BF16: tl.constexpr = tl.constexpr(
    "{ "
    ".reg .b32 t, one, less; "
    "shr.b32 t, $2, 4; "
    "and.b32 t, t, 0x0f0f0f0f; "
    "mov.b32 one, 0x3f803f80; "
    "mov.b32 less, 0xc308c308; "
    "prmt.b32 $0, t, 0x43434343, 0x4140; "
    "prmt.b32 $1, t, 0x43434343, 0x4342; "
    "fma.rn.bf16x2 $0, $0, one, less; "
    "fma.rn.bf16x2 $1, $1, one, less; "
    "}"
)
# These keep the 128.
_LOW_FP32: tl.constexpr = tl.constexpr(
    "{ "
    ".reg .b32 t; "
    "and.b32 t, $4, 0x0f0f0f0f; "
    "prmt.b32 $0, t, 0x43000000, 0x7044; "
    "prmt.b32 $1, t, 0x43000000, 0x7144; "
    "prmt.b32 $2, t, 0x43000000, 0x7244; "
    "prmt.b32 $3, t, 0x43000000, 0x7344; "
    "}"
)
_HIGH_FP32: tl.constexpr = tl.constexpr(
    "{ "
    ".reg .b32 t; "
    "shr.b32 t, $4, 4; "
    "and.b32 t, t, 0x0f0f0f0f; "
    "prmt.b32 $0, t, 0x43000000, 0x7044; "
    "prmt.b32 $1, t, 0x43000000, 0x7144; "
    "prmt.b32 $2, t, 0x43000000, 0x7244; "
    "prmt.b32 $3, t, 0x43000000, 0x7344; "
    "}"
)


@triton.jit
def _expert(NUMBERS, row, COUNT: tl.constexpr):
    """Which of ``COUNT`` matrices a row is multiplied by, and whether there is such a one."""
    number = tl.load(NUMBERS + row).to(tl.int64)
    known = (number >= 0) & (number < COUNT)
    return tl.where(known, number, 0), known


@triton.jit
def _place(PLACES, TOLD: tl.constexpr, number, known, each, SIZE: tl.constexpr, COUNT: tl.constexpr):
    """How many elements of so many bytes lie before a matrix: ``each`` for every one before it, if nothing else is told. One program of a
    row counts that it is read.
    """
    if TOLD:
        # The runtime's address: for the compiler this kernel writes to no argument.
        counts = tl.load(PLACES + COUNT)
        asked = known & (counts != 0) & (tl.program_id(0) == 0)
        tl.atomic_add(counts.to(tl.pointer_type(tl.int64)) + number, tl.full((), 1, tl.int64), mask=asked, sem="relaxed")
    # Matrices whose places are told have a multiple of 16 bytes. Written so, the compiler knows it, and loads 16 bytes at once.
    return tl.load(PLACES + number) // 16 * (16 // SIZE) if TOLD else number * each


@triton.jit
def _few_rows_of_4(
    X,
    W,
    S,
    Y,
    NUMBERS,
    PLACES,
    SCALE_PLACES,
    TOLD: tl.constexpr,
    SCALES_TOLD: tl.constexpr,
    COUNT: tl.constexpr,
    EACH: tl.constexpr,
    N: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of ``X`` times ``BLOCK_N`` rows of the weight. With ``COUNT`` weights, each row of ``X`` is multiplied by ``EACH`` of them."""
    # What a thread loads at once has one scale.
    CHUNK: tl.constexpr = 16
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = X + tl.program_id(1) // EACH * 2 * HALF
    known = True
    if COUNT:
        number, known = _expert(NUMBERS, tl.program_id(1), COUNT)
        W += _place(PLACES, TOLD, number, known, N * HALF, 1, COUNT)
        S += _place(SCALE_PLACES, SCALES_TOLD, number, known, N * GROUPS, 2, COUNT)
    sums = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for start in range(0, HALF, BLOCK):
        at = start + tl.arange(0, BLOCK)
        chunk = start + tl.arange(0, BLOCK // CHUNK) * CHUNK
        inside, there = at < HALF, (n < N)[:, None]
        w = tl.load(W + n[:, None] * HALF + at[None, :], mask=there & inside[None, :], other=0)
        first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(x + HALF + at, mask=inside, other=0.0).to(tl.float32)
        scaled = there & (chunk < HALF)[None, :]
        one = tl.load(S + n[:, None] * GROUPS + (chunk // GROUP)[None, :], mask=scaled, other=0.0)
        other = tl.load(S + n[:, None] * GROUPS + ((HALF + chunk) // GROUP)[None, :], mask=scaled, other=0.0)
        low = tl.inline_asm_elementwise(_LOW_FP32, "=r,=r,=r,=r,r", [w], dtype=tl.float32, is_pure=True, pack=4)
        high = tl.inline_asm_elementwise(_HIGH_FP32, "=r,=r,=r,=r,r", [w], dtype=tl.float32, is_pure=True, pack=4)
        low = tl.sum(tl.reshape(low * first[None, :], (BLOCK_N, BLOCK // CHUNK, CHUNK)), 2)
        high = tl.sum(tl.reshape(high * second[None, :], (BLOCK_N, BLOCK // CHUNK, CHUNK)), 2)
        low -= 136 * tl.sum(tl.reshape(first, (BLOCK // CHUNK, CHUNK)), 1)[None, :]
        high -= 136 * tl.sum(tl.reshape(second, (BLOCK // CHUNK, CHUNK)), 1)[None, :]
        sums += tl.sum(low * one.to(tl.float32) + high * other.to(tl.float32), 1)
    sums = tl.where(known, sums, float("nan"))
    tl.store(Y + tl.program_id(1) * N + n, sums.to(Y.dtype.element_ty), mask=n < N)


@triton.jit
def _scales(S, n, column, GROUP: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Of the rows ``n``: the scales of the first and of the last column of a block."""
    first = tl.load(S + n * GROUPS + column // GROUP)
    return first, tl.load(S + n * GROUPS + column // GROUP + 1) if 2 * GROUP == BLOCK else first


@triton.jit
def _spread(scales, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Those of all columns of the block, which has one group or two."""
    first, last = scales[0][:, None], scales[1][:, None]
    return tl.where((tl.arange(0, BLOCK) < GROUP)[None, :], first, last) if 2 * GROUP == BLOCK else first


@triton.jit
def _rows(ORDER, OWNER, M, EACH: tl.constexpr, BLOCK_M: tl.constexpr):
    """Of a tile: the rows of the result and whether each is there, those of ``X`` that it reads, and the number of its matrix.

    Rows that are not there are read as another one, and not written.
    """
    block = tl.program_id(0) % tl.cdiv(M, BLOCK_M)
    place = block * BLOCK_M + tl.arange(0, BLOCK_M)
    if EACH:
        m = tl.load(ORDER + place, mask=place < M, other=-1).to(tl.int64)
        there, number = m >= 0, tl.maximum(tl.load(OWNER + block), 0).to(tl.int64)
        m = tl.maximum(m, 0)
        given = m // EACH
    else:
        m, there, number = place.to(tl.int64), place < M, tl.zeros((), dtype=tl.int64)
        given = tl.minimum(place, M - 1).to(tl.int64)
    return m, there, given, number


@triton.jit
def _many_rows_of_4(
    X,
    W,
    S,
    Y,
    ORDER,
    OWNER,
    M,
    EACH: tl.constexpr,
    N: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile of the result. Tiles of the same rows of the weight run one after the other, so that these are in the cache.

    The weight is the left operand: that can be in registers, where its elements are made.
    """
    m, there, given, number = _rows(ORDER, OWNER, M, EACH, BLOCK_M)
    n = (tl.program_id(0) // tl.cdiv(M, BLOCK_M)) * BLOCK_N + tl.arange(0, BLOCK_N)
    W += number * N * HALF
    S += number * N * GROUPS
    x, row = X + given[None, :] * 2 * HALF, tl.minimum(n, N - 1)
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    one = _scales(S, row, 0, GROUP, GROUPS, BLOCK)
    other = _scales(S, row, HALF, GROUP, GROUPS, BLOCK)
    for start in range(0, HALF, BLOCK):
        at = start + tl.arange(0, BLOCK)
        low, high = _spread(one, GROUP, BLOCK), _spread(other, GROUP, BLOCK)
        # Those of the next block are on their way while this one is multiplied.
        after = start + BLOCK if start + BLOCK < HALF else start
        one = _scales(S, row, after, GROUP, GROUPS, BLOCK)
        other = _scales(S, row, HALF + after, GROUP, GROUPS, BLOCK)
        if HALF % BLOCK == 0:
            w = tl.load(W + row[:, None] * HALF + at[None, :])
            first = tl.load(x + at[:, None])
            second = tl.load(x + HALF + at[:, None])
        else:
            inside = at < HALF
            w = tl.load(W + row[:, None] * HALF + at[None, :], mask=inside[None, :], other=0)
            first = tl.load(x + at[:, None], mask=inside[:, None], other=0.0)
            second = tl.load(x + HALF + at[:, None], mask=inside[:, None], other=0.0)
        low *= tl.inline_asm_elementwise(_LOW_BF16, "=r,=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=4)
        high *= tl.inline_asm_elementwise(_HIGH_BF16, "=r,=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=4)
        # Not into `sums`: Triton 3.6 would let the product run on into the next block, which writes what it still reads.
        part = tl.dot(low, first)
        part = tl.dot(high, second, part)
        sums += part
    tl.store(Y + m[None, :] * N + n[:, None], sums.to(Y.dtype.element_ty), mask=there[None, :] & (n < N)[:, None])


@triton.jit
def _few_rows_of_8(
    X,
    W,
    S,
    Y,
    NUMBERS,
    PLACES,
    SCALE_PLACES,
    TOLD: tl.constexpr,
    SCALES_TOLD: tl.constexpr,
    COUNT: tl.constexpr,
    EACH: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STEP_N: tl.constexpr,
    STEP_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of ``X`` times ``BLOCK_N`` rows of the weight, each with one scale, or of 16 bits and without. Others as of four bits."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, N - 1)
    x = X + tl.program_id(1) // EACH * K
    known = True
    if COUNT:
        number, known = _expert(NUMBERS, tl.program_id(1), COUNT)
        W += _place(PLACES, TOLD, number, known, N * K, W.dtype.element_ty.primitive_bitwidth // 8, COUNT)
        S += _place(SCALE_PLACES, SCALES_TOLD, number, known, N, S.dtype.element_ty.primitive_bitwidth // 8, COUNT)
    sums = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        at = start + tl.arange(0, BLOCK)
        # Columns that are not there are multiplied by zero.
        given = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        column = tl.minimum(at, K - 1) if K % BLOCK else at
        w = tl.load(W + row[:, None] * STEP_N + column[None, :] * STEP_K)
        sums += tl.sum(w.to(tl.float32) * given[None, :], 1)
    if W.dtype.element_ty != tl.bfloat16:
        sums *= tl.load(S + row).to(tl.float32)
    sums = tl.where(known, sums, float("nan"))
    tl.store(Y + tl.program_id(1) * N + n, sums.to(Y.dtype.element_ty), mask=n < N)


@triton.jit
def _many_rows_of_8(
    X,
    W,
    S,
    Y,
    ORDER,
    OWNER,
    M,
    EACH: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STEP_N: tl.constexpr,
    STEP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile of the result, as of four bits."""
    m, there, given_row, number = _rows(ORDER, OWNER, M, EACH, BLOCK_M)
    n = (tl.program_id(0) // tl.cdiv(M, BLOCK_M)) * BLOCK_N + tl.arange(0, BLOCK_N)
    W += number * N * K
    S += number * N
    x, row = X + given_row[None, :] * K, tl.minimum(n, N - 1)
    if W.dtype.element_ty != tl.bfloat16:
        scale = tl.load(S + row).to(tl.float32)
    else:
        # A factor that the compiler does not know: without one the product would run on into the next block.
        scale = tl.full((BLOCK_N,), 1.0, tl.float32)
        scale = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [scale], dtype=tl.float32, is_pure=False, pack=1)
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if K % BLOCK == 0:
            w = tl.load(W + row[:, None] * STEP_N + at[None, :] * STEP_K)
            given = tl.load(x + at[:, None])
        else:
            w = tl.load(W + row[:, None] * STEP_N + tl.minimum(at, K - 1)[None, :] * STEP_K)
            given = tl.load(x + at[:, None], mask=(at < K)[:, None], other=0.0)
        # GPUs before 9.0 have no other way for floats of eight bits.
        w = w.to(tl.bfloat16) if W.dtype.element_ty == tl.int8 else w.to(tl.float32).to(tl.bfloat16)
        # Scaled here, and not at the end: see the kernel for four bits.
        sums += tl.dot(w, given) * scale[:, None]
    tl.store(Y + m[None, :] * N + n[:, None], sums.to(Y.dtype.element_ty), mask=there[None, :] & (n < N)[:, None])


def _few(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    numbers: torch.Tensor | None,
    each: int,
    turned: bool,
    places: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
):
    """The product by the kernels for few rows. ``places``: of the matrices and of their scales, as :mod:`experts` has them."""
    count, rows = (0, x.shape[0]) if numbers is None else (packed.shape[0], numbers.shape[0])
    width, n, columns = packed.shape[-1], packed.shape[-2], x.shape[1]
    if turned:
        width, n = n, width
    out, block = x.new_empty(rows, n), max(16, min(1024, triton.next_power_of_2(width)))
    given = (x, packed, scales, out, *(x if one is None else one for one in (numbers, *places)))
    given += (places[0] is not None, places[1] is not None, count, each, n)
    blocks = {"BLOCK_N": 32, "BLOCK": min(block, 64), "num_warps": 4} if turned else {"BLOCK_N": 4, "BLOCK": block, "num_warps": 2}
    grid = (triton.cdiv(n, blocks["BLOCK_N"]), rows)
    if width == columns:
        wrap_triton(_few_rows_of_8)[grid](*given, columns, *((1, n) if turned else (columns, 1)), **blocks)
    else:
        wrap_triton(_few_rows_of_4)[grid](*given, width, group, scales.shape[-1], **blocks)
    return out


def _tiles(packed: torch.Tensor, x: torch.Tensor, tile: int, little_memory: bool, turned: bool) -> dict[str, int]:
    """Sizes of a tile, for the kernels for many rows."""
    width = packed.shape[-2] if turned else packed.shape[-1]
    eight = width == x.shape[1]
    wide = 128 if tile == 128 and not eight else 64
    # Of four bits, a block is in one group or has two whole ones. Rows that have no such block have one scale.
    most = (128 if eight else 64) // (2 if little_memory else 1) // (2 if packed.element_size() == 2 else 1)
    block = next((size for size in (128, 64, 32, 16) if size <= most and width % size == 0), most)
    return {"BLOCK_M": tile, "BLOCK_N": wide, "BLOCK": block, "num_warps": wide // 16, "num_stages": 3}


@triton_op("weightstream::quantized_few_rows", mutates_args={})
def quantized_few_rows(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """``x`` [M, K], dense, times the weight of ``packed`` and ``scales``, as ``quantized_mm`` has them: [M, N].

    Of eight bits each row has one scale. Of four bits the scales have the type of ``x``.
    """
    return _few(x, packed, scales, group, None, 1, False)


@triton_op("weightstream::quantized_many_rows", mutates_args={})
def quantized_many_rows(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int, tile: int, little_memory: bool
) -> torch.Tensor:
    """The same for more rows, in tiles of so many: a power of two from 16 to 128. ``little_memory``: the GPU's blocks share less than 160 KiB."""
    out, blocks = x.new_empty(x.shape[0], packed.shape[0]), _tiles(packed, x, tile, little_memory, False)
    return _many(x, packed, scales, group, out, (x, x, x.shape[0], 0), blocks, False)


def _many(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int, out: torch.Tensor, rows: tuple, blocks: dict, turned: bool
):
    """The product by the kernels for many rows. ``rows``: ORDER, OWNER, M and EACH of the kernels."""
    n, columns, many = out.shape[1], x.shape[1], rows[2]

    def grid(meta: dict) -> tuple[int]:
        return (triton.cdiv(many, blocks["BLOCK_M"]) * triton.cdiv(n, blocks["BLOCK_N"]),)

    if packed.shape[-2 if turned else -1] == columns:
        wrap_triton(_many_rows_of_8)[grid](x, packed, scales, out, *rows, n, columns, *((1, n) if turned else (columns, 1)), **blocks)
    else:
        wrap_triton(_many_rows_of_4)[grid](x, packed, scales, out, *rows, n, columns // 2, group, scales.shape[-1], **blocks)
    return out


@quantized_few_rows.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], packed.shape[0])


@quantized_many_rows.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int, tile: int, little_memory: bool) -> torch.Tensor:
    return x.new_empty(x.shape[0], packed.shape[0])
