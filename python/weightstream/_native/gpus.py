"""The GPUs that PyTorch shows."""

from __future__ import annotations

import torch

from .errors import Error

#: The GPUs of which a stream was asked once.
_asked: set[int] = set()


def current_stream(index: int) -> int:
    """The handle of the current stream of a GPU.

    The first question makes a context on the device that is current then, which takes hundreds of MB: it has to be this one.
    """
    if index not in _asked:
        with torch.cuda.device(index):
            torch.cuda.current_stream()
        _asked.add(index)
    return torch._C._cuda_getCurrentRawStream(index)


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
