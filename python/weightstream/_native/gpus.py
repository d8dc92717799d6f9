"""The GPUs that PyTorch shows."""

from __future__ import annotations

import torch

from .errors import Error


def gpu(index: int | None, what: str) -> torch.device:
    """The GPU of this index, or the current one; ``what`` begins the error where it is not there."""
    if not torch.cuda.is_available():
        why = "it was built without CUDA" if torch.version.cuda is None else "see nvidia-smi and CUDA_VISIBLE_DEVICES"
        raise Error(f"{what}: 'cuda{'' if index is None else f':{index}'}' is not there: PyTorch {torch.__version__} shows no GPU ({why})")
    count = torch.cuda.device_count()
    if index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if index >= count:
        raise Error(f"{what}: 'cuda:{index}' is not there: PyTorch shows {count} GPU{'' if count == 1 else 's'}, counted from 0")
    return torch.device("cuda", index)
