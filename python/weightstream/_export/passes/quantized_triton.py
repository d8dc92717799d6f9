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
def _few_rows_of_4(
    X,
    W,
    S,
    Y,
    N: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of ``X`` times ``BLOCK_N`` rows of the weight."""
    # What a thread loads at once has one scale.
    CHUNK: tl.constexpr = 16
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = X + tl.program_id(1) * 2 * HALF
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
def _many_rows_of_4(
    X,
    W,
    S,
    Y,
    M,
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
    blocks = tl.cdiv(M, BLOCK_M)
    m = (tl.program_id(0) % blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows that are not there are read as the last ones, and not written.
    x, row = X + tl.minimum(m, M - 1).to(tl.int64)[None, :] * 2 * HALF, tl.minimum(n, N - 1)
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
    tl.store(Y + m.to(tl.int64)[None, :] * N + n[:, None], sums.to(Y.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None])


@triton.jit
def _few_rows_of_8(X, W, S, Y, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """One row of ``X`` times ``BLOCK_N`` rows of the weight, each with one scale."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, N - 1)
    x = X + tl.program_id(1) * K
    sums = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        at = start + tl.arange(0, BLOCK)
        # Columns that are not there are multiplied by zero.
        given = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        w = tl.load(W + row[:, None] * K + tl.minimum(at, K - 1)[None, :]) if K % BLOCK else tl.load(W + row[:, None] * K + at[None, :])
        sums += tl.sum(w.to(tl.float32) * given[None, :], 1)
    sums *= tl.load(S + row).to(tl.float32)
    tl.store(Y + tl.program_id(1) * N + n, sums.to(Y.dtype.element_ty), mask=n < N)


@triton.jit
def _many_rows_of_8(X, W, S, Y, M, N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of the result, as of four bits."""
    blocks = tl.cdiv(M, BLOCK_M)
    m = (tl.program_id(0) % blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    x, row = X + tl.minimum(m, M - 1).to(tl.int64)[None, :] * K, tl.minimum(n, N - 1)
    scale = tl.load(S + row).to(tl.float32)
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if K % BLOCK == 0:
            w = tl.load(W + row[:, None] * K + at[None, :])
            given = tl.load(x + at[:, None])
        else:
            w = tl.load(W + row[:, None] * K + tl.minimum(at, K - 1)[None, :])
            given = tl.load(x + at[:, None], mask=(at < K)[:, None], other=0.0)
        # GPUs before 9.0 have no other way for floats of eight bits.
        w = w.to(tl.bfloat16) if W.dtype.element_ty == tl.int8 else w.to(tl.float32).to(tl.bfloat16)
        # Scaled here, and not at the end: see the kernel for four bits.
        sums += tl.dot(w, given) * scale[:, None]
    tl.store(Y + m.to(tl.int64)[None, :] * N + n[:, None], sums.to(Y.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None])


@triton_op("weightstream::quantized_few_rows", mutates_args={})
def quantized_few_rows(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """``x`` [M, K], dense, times the weight of ``packed`` and ``scales``, as ``quantized_mm`` has them: [M, N].

    Of eight bits each row has one scale. Of four bits the scales have the type of ``x``.
    """
    out, (rows, width) = x.new_empty(x.shape[0], packed.shape[0]), packed.shape
    block = max(16, min(1024, triton.next_power_of_2(width)))
    grid = (triton.cdiv(rows, 4), x.shape[0])
    if width == x.shape[1]:
        wrap_triton(_few_rows_of_8)[grid](x, packed, scales, out, rows, width, BLOCK_N=4, BLOCK=block, num_warps=2)
    else:
        wrap_triton(_few_rows_of_4)[grid](x, packed, scales, out, rows, width, group, scales.shape[1], BLOCK_N=4, BLOCK=block, num_warps=2)
    return out


@triton_op("weightstream::quantized_many_rows", mutates_args={})
def quantized_many_rows(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int, tile: int, little_memory: bool
) -> torch.Tensor:
    """The same for more rows, in tiles of so many: a power of two from 16 to 128. ``little_memory``: the GPU's blocks share less than 160 KiB."""
    out, (rows, width) = x.new_empty(x.shape[0], packed.shape[0]), packed.shape
    eight = width == x.shape[1]
    wide = 128 if tile == 128 and not eight else 64
    # Of four bits, a block is in one group or has two whole ones. Rows that have no such block have one scale.
    most = (128 if eight else 64) // (2 if little_memory else 1)
    block = next((size for size in (128, 64, 32, 16) if size <= most and width % size == 0), most)

    def grid(meta: dict) -> tuple[int]:
        return (triton.cdiv(x.shape[0], tile) * triton.cdiv(rows, wide),)

    blocks = {"BLOCK_M": tile, "BLOCK_N": wide, "BLOCK": block, "num_warps": wide // 16, "num_stages": 3}
    if eight:
        wrap_triton(_many_rows_of_8)[grid](x, packed, scales, out, x.shape[0], rows, width, **blocks)
    else:
        wrap_triton(_many_rows_of_4)[grid](x, packed, scales, out, x.shape[0], rows, width, group, scales.shape[1], **blocks)
    return out


@quantized_few_rows.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], packed.shape[0])


@quantized_many_rows.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int, tile: int, little_memory: bool) -> torch.Tensor:
    return x.new_empty(x.shape[0], packed.shape[0])
