#!/usr/bin/env python3
"""What packing would leave of the bytes of other types: the code of `src/format/packed` with fields of their widths. Nothing is coded.

    python benches/packed_types.py [FILE.safetensors]

Signs and mantissas stay as they are; exponents take the fields of the code (2, 2 and 3 bits, then a byte), by rank in each tensor. Of int8 the
bits above the lowest four take the place of the exponent. On random normal numbers, or on the float tensors of a file; fp8 and int8 are
scaled by the largest number of each row, as quantizers do.
"""

from __future__ import annotations

import sys

import torch

#: Kind, integer of its width, its first bit and bits of the exponent.
KINDS = {
    "bf16": (torch.bfloat16, torch.int16, 7, 8),
    "fp16": (torch.float16, torch.int16, 10, 5),
    "fp32": (torch.float32, torch.int32, 23, 8),
    "fp8 e4m3": (torch.float8_e4m3fn, torch.uint8, 3, 4),
    "fp8 e5m2": (torch.float8_e5m2, torch.uint8, 2, 5),
    "int8": (torch.int8, torch.uint8, 4, 4),
}


def as_kind(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    dtype = KINDS[kind][0]
    if "8" not in kind.replace("fp16", ""):
        return tensor.to(dtype)
    scale = tensor.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    largest = 127 if dtype is torch.int8 else torch.finfo(dtype).max
    scaled = tensor / scale * largest
    return scaled.round().to(dtype) if dtype is torch.int8 else scaled.to(dtype)


def stored(tensor: torch.Tensor, kind: str) -> tuple[float, float]:
    """Bytes with the code's fields, and with the entropy of what they code."""
    _, integer, first, bits = KINDS[kind]
    words = tensor.contiguous().view(integer).flatten().to(torch.int64)
    counts = torch.bincount((words >> first) & ((1 << bits) - 1), minlength=1 << bits).sort(descending=True).values.double()
    raw = 8 * tensor.element_size() - bits
    fields = 2 * counts.sum() + 2 * counts[3:].sum() + 3 * counts[6:].sum() + 8 * counts[13:].sum()
    share = counts[counts > 0] / counts.sum()
    entropy = -(share * share.log2()).sum() * counts.sum()
    both = [float(raw * counts.sum() + one) / 8 for one in (fields, entropy)]
    return both[0], both[1]


def main() -> None:
    if len(sys.argv) > 1:
        from safetensors.torch import load_file

        tensors = [one.float() for one in load_file(sys.argv[1]).values() if one.is_floating_point() and one.dim() == 2]
    else:
        tensors = [torch.randn(4096, 1024, generator=torch.Generator().manual_seed(0)) / 64]
    print("| kind | of its bytes | with the entropy of its exponents |\n|---|---|---|")
    for kind in KINDS:
        found = [(one.nbytes, *stored(one, kind)) for one in (as_kind(tensor, kind) for tensor in tensors)]
        whole, fields, entropy = (sum(one) for one in zip(*found, strict=True))
        print(f"| {kind} | {fields / whole:.3f} | {entropy / whole:.3f} |")


if __name__ == "__main__":
    main()
