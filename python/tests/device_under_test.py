"""The device under test: `cpu`, or `cuda` where WEIGHTSTREAM_TEST_DEVICE says so, as for the Rust tests."""

from __future__ import annotations

import os

import torch

DEVICE = os.environ.get("WEIGHTSTREAM_TEST_DEVICE", "cpu")
if DEVICE not in ("cpu", "cuda"):
    raise SystemExit(f"WEIGHTSTREAM_TEST_DEVICE is '{DEVICE}'; expected 'cpu' or 'cuda'")
ON_GPU = DEVICE == "cuda"
#: Exports for a GPU of this compute capability, which need not be here.
SM = os.environ.get("WEIGHTSTREAM_TEST_SM", "")


def problem() -> str | None:
    """Why nothing can be tested on the device, or None."""
    if ON_GPU and not torch.cuda.is_available():
        return "WEIGHTSTREAM_TEST_DEVICE=cuda, and torch finds no NVIDIA GPU or no driver (or is a build without CUDA)"
    return None


def exact_products() -> None:
    """float32 products and convolutions in float32: the reference must not be less exact than what is compared with it."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def kind() -> str:
    """What the kernels of an export are made for: the same whether the GPU is here or not, so that exports can be carried to it."""
    if not ON_GPU:
        return "cpu"
    return f"cuda {SM or ''.join(map(str, torch.cuda.get_device_capability()))}"
