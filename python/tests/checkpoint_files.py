"""A model that is made on meta, and its checkpoints: safetensors files, written here so that they can be wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from device_under_test import ON_GPU, exact_products
from torch import nn

DEVICE = "cuda:0" if ON_GPU else "cpu"
WIDTH = 1024 if ON_GPU else 64
NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def save(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    header, at, content = {"__metadata__": {"format": "pt"}}, 0, b""
    # Wide elements first, as safetensors has them.
    for name, tensor in sorted(tensors.items(), key=lambda one: -one[1].element_size()):
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(raw)]}
        at, content = at + len(raw), content + raw
    return save_raw(path, header, content)


def save_raw(path: Path, header: Any, content: bytes = b"") -> Path:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def save_sharded(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 3) -> Path:
    folder.mkdir(exist_ok=True)
    of = {name: f"model-{at % shards}.safetensors" for at, name in enumerate(tensors)}
    for file in set(of.values()):
        save(folder / file, {name: tensor for name, tensor in tensors.items() if of[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": of}))
    return folder


class Model(nn.Module):
    """An embedding, tied to the head; layers; a small buffer, a large one, and one that no checkpoint has."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WIDTH, WIDTH)
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.rand(WIDTH))
        self.register_buffer("table", torch.rand((1 << 20) // 4 // WIDTH, WIDTH))
        self.register_buffer("angles", torch.arange(WIDTH, device="cpu") / WIDTH, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens) + self.shift) + self.table[:2].sum(0) + self.angles)


def on_meta(**options: Any) -> Model:
    with torch.device("meta"):
        return Model(**options).eval()


def tokens() -> torch.Tensor:
    return torch.arange(4, device=DEVICE)


def stored(model: nn.Module) -> dict[str, torch.Tensor]:
    """As checkpoints have them: what is tied once."""
    found, names = {}, {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if names[id(tensor)] == name:
            found[name] = tensor.detach()
    return found


def expected_of(model: nn.Module) -> torch.Tensor:
    """What a copy of it computes that is on the device as a whole."""
    exact_products()
    with torch.no_grad():
        return copy.deepcopy(model).to(DEVICE)(tokens())
