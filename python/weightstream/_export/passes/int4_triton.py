"""Products with weights of four bits on a GPU, in Triton. Importing it needs Triton, which comes with PyTorch for CUDA only.

A byte has a column of the first half of a row and one of the second half, so that both halves of the other operand are read as they lie.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

#: Up to so many rows a program of the kernel is for one row of the result.
FEW = 4


@triton.jit
def _few_rows(
    X,
    W,
    S,
    Y,
    N: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    BY_GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of ``X`` times ``BLOCK_N`` rows of the weight."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = X + tl.program_id(1) * 2 * HALF
    there = n < N
    sums = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for start in range(0, HALF, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < HALF
        w = tl.load(W + n[:, None] * HALF + at[None, :], mask=there[:, None] & inside[None, :], other=0).to(tl.int32)
        first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(x + HALF + at, mask=inside, other=0.0).to(tl.float32)
        low = ((w & 15) - 8).to(tl.float32) * first[None, :]
        high = (((w >> 4) & 15) - 8).to(tl.float32) * second[None, :]
        if BY_GROUP:
            # Products of a group are added before they are scaled.
            low = tl.sum(tl.reshape(low, (BLOCK_N, BLOCK // GROUP, GROUP)), 2)
            high = tl.sum(tl.reshape(high, (BLOCK_N, BLOCK // GROUP, GROUP)), 2)
            group = start // GROUP + tl.arange(0, BLOCK // GROUP)
        else:
            group = at
        mask = there[:, None] & (group * GROUP < HALF if BY_GROUP else inside)[None, :]
        one = group if BY_GROUP else at // GROUP
        other = HALF // GROUP + group if BY_GROUP else (HALF + at) // GROUP
        low *= tl.load(S + n[:, None] * GROUPS + one[None, :], mask=mask, other=0.0).to(tl.float32)
        high *= tl.load(S + n[:, None] * GROUPS + other[None, :], mask=mask, other=0.0).to(tl.float32)
        sums += tl.sum(low + high, 1)
    tl.store(Y + tl.program_id(1) * N + n, sums.to(Y.dtype.element_ty), mask=there)


@triton.jit
def _many_rows(
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
    """A tile of the result. Tiles of the same rows of the weight run one after the other, so that these are in the cache."""
    blocks = tl.cdiv(M, BLOCK_M)
    m = (tl.program_id(0) % blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows, there = m[:, None] < M, n[None, :] < N
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, HALF, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < HALF
        w = tl.load(W + n[None, :] * HALF + at[:, None], mask=there & inside[:, None], other=0).to(tl.int32)
        one = tl.load(S + n[None, :] * GROUPS + (at // GROUP)[:, None], mask=there & inside[:, None], other=0.0)
        other = tl.load(S + n[None, :] * GROUPS + ((HALF + at) // GROUP)[:, None], mask=there & inside[:, None], other=0.0)
        first = tl.load(X + m[:, None] * 2 * HALF + at[None, :], mask=rows & inside[None, :], other=0.0)
        second = tl.load(X + m[:, None] * 2 * HALF + HALF + at[None, :], mask=rows & inside[None, :], other=0.0)
        sums = tl.dot(first, ((w & 15) - 8).to(X.dtype.element_ty) * one, sums)
        sums = tl.dot(second, (((w >> 4) & 15) - 8).to(X.dtype.element_ty) * other, sums)
    tl.store(Y + m[:, None] * N + n[None, :], sums.to(Y.dtype.element_ty), mask=rows & there)


@triton_op("weightstream::int4_few_rows", mutates_args={})
def int4_few_rows(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """``x`` [M, K], dense, times the weight of ``packed`` [N, K / 2] and ``scales`` [N, K / group], of the same type: [M, N]."""
    out = x.new_empty(x.shape[0], packed.shape[0])
    rows, half = packed.shape
    block, by_group = min(512, triton.next_power_of_2(half)), half % group == 0 and group & (group - 1) == 0
    block = max(block, group) if by_group else block
    wrap_triton(_few_rows)[(triton.cdiv(rows, 4), x.shape[0])](
        x, packed, scales, out, rows, half, group, scales.shape[1], by_group, BLOCK_N=4, BLOCK=block, num_warps=4
    )
    return out


@triton_op("weightstream::int4_many_rows", mutates_args={})
def int4_many_rows(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int, tile: int) -> torch.Tensor:
    """The same for more rows, in tiles of so many."""
    out = x.new_empty(x.shape[0], packed.shape[0])
    rows, half = packed.shape
    wide = 128 if tile >= 64 else 64

    def grid(meta: dict) -> tuple[int]:
        return (triton.cdiv(x.shape[0], tile) * triton.cdiv(rows, wide),)

    wrap_triton(_many_rows)[grid](
        x,
        packed,
        scales,
        out,
        x.shape[0],
        rows,
        half,
        group,
        scales.shape[1],
        BLOCK_M=tile,
        BLOCK_N=wide,
        BLOCK=32,
        num_warps=8 if tile >= 128 else 4,
        num_stages=3,
    )
    return out


@int4_few_rows.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], packed.shape[0])


@int4_many_rows.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, group: int, tile: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], packed.shape[0])
