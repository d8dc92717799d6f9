"""Checkpoints of floats of two bytes, for programs of float32: the numbers are the same, and a file has them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .._native.progress import step

_HALVES = ("F16", "BF16")
#: Bytes of an element as it is written, where that is more than one.
_ELEMENT = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, **dict.fromkeys(_HALVES, 4), "I16": 2, "U16": 2}


@contextmanager
def in_float32(source: Path, beside: Path) -> Iterator[Path]:
    """A folder with what ``source`` has, and its safetensors files in float32, until the end. It is made below ``beside``.

    A conversion in memory would take twice the checkpoint's bytes there. Files are mapped, so that memory has to hold one tensor at a time.
    ``source`` itself where nothing is to be converted.
    """
    index = source / "model.safetensors.index.json"
    named = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else None
    files = [file for file in sorted(source.glob("*.safetensors")) if (named is None or file.name in named) and _has_halves(file)]
    config = json.loads((source / "config.json").read_text())
    if not files or "quantization_config" in config:
        yield source
        return
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".float32-", dir=beside) as folder:
        for file in source.iterdir():
            if file not in files:
                (Path(folder) / file.name).symlink_to(file.resolve())
        size = 2 * sum(file.stat().st_size for file in files)
        with step(f"writing the weights in float32, at most {size / 1e9:.1f} GB, which go when the program is written"):
            for file in files:
                _widen(file, Path(folder) / file.name)
        yield Path(folder)


def _has_halves(file: Path) -> bool:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return any(opened.get_slice(name).get_dtype() in _HALVES for name in list(opened.keys()))


def _widen(source: Path, target: Path) -> None:
    """One tensor at a time, by the format's description: the header's size, the header, the tensors as it says."""
    from safetensors import safe_open

    with safe_open(source, "pt") as opened, target.open("wb") as out:
        # The largest elements first, so that all begin at a multiple of their size.
        names = sorted(opened.keys(), key=lambda name: -_ELEMENT.get(opened.get_slice(name).get_dtype(), 1))
        header, at = {"__metadata__": opened.metadata() or {"format": "pt"}}, 0
        for name in names:
            part = opened.get_slice(name)
            dtype, shape = part.get_dtype(), part.get_shape()
            bytes = 4 * torch.Size(shape).numel() if dtype in _HALVES else opened.get_tensor(name).nbytes
            header[name] = {"dtype": "F32" if dtype in _HALVES else dtype, "shape": shape, "data_offsets": [at, at + bytes]}
            at += bytes
        text = json.dumps(header).encode()
        # Tensors begin at a multiple of eight.
        text += b" " * (-len(text) % 8)
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            tensor = opened.get_tensor(name)
            tensor = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
            out.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
