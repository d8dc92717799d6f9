#!/usr/bin/env python3
"""Carries exported programs of `llama.py` to another machine without their weights: some megabytes instead of 14 GB.

Exports take most of the time of a comparison, and need no more than the kind of GPU on which they run. `pack` keeps the programs, the
tables of their data, and the checksum of each weight; `unpack` draws the same weights again, compares them, and writes the data
files. `compare.py` draws weights on the GPU, and a GPU of another kind draws others: that is an error that names the first weight. With
`--on-cpu` the CPU draws them, as `elastic.py`, `methods.py` and `turns.py` do.

    python benches/gpu/carry.py pack /tmp/models/16-layers-1-tokens one.tgz
    python benches/gpu/carry.py unpack one.tgz /tmp/models/16-layers-1-tokens
    python benches/gpu/carry.py unpack elastic.tgz FOLDER --layers 8 --on-cpu --small
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import torch

#: What lies beside the programs and is needed to measure, or to export the others.
BESIDE = ("tuning.json", "kernels.json", "expected.pt")
#: What is carried of a data file.
SKELETON = ".ptd.json"
#: Segments of fewer bytes are kept: norms, the checksum of the program.
SMALL = 1 << 16


def segments(ptd: Path) -> tuple[bytes, list[tuple[str, int, int]]]:
    """What comes before the first segment, and of each segment a name, its place in the file and its bytes."""
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorHeader, _deserialize_to_flat_tensor

    with ptd.open("rb") as file:
        header = FlatTensorHeader.from_bytes(file.read(4096)[8:])
        file.seek(0)
        head = file.read(header.segment_base_offset)
    # The header lies within the table, whose offsets count from the file's start.
    table = _deserialize_to_flat_tensor(head[: header.flatbuffer_offset + header.flatbuffer_size])
    names = {entry.segment_index: entry.key for entry in reversed(table.named_data)}
    found = [(names[i], header.segment_base_offset + one.offset, one.size) for i, one in enumerate(table.segments)]
    return head, found


def pack(folder: Path, archive: Path) -> None:
    kinds = sorted(path.stem for path in folder.glob("*.pte") if path.with_suffix(".ptd").exists())
    if not kinds:
        raise SystemExit(f"carry: {folder} holds no .pte with its .ptd")
    with tarfile.open(archive, "w:gz") as tar:
        for path in [folder / f"{kind}.pte" for kind in kinds] + [folder / name for name in BESIDE]:
            if path.exists():
                tar.add(path, path.name)
        for kind in kinds:
            add(tar, f"{kind}{SKELETON}", json.dumps(skeleton(folder / f"{kind}.ptd")).encode())


def skeleton(ptd: Path) -> dict:
    head, found = segments(ptd)
    kept, sums = {}, {}
    with ptd.open("rb") as file:
        for name, at, size in found:
            file.seek(at)
            data = file.read(size)
            sums[name] = zlib.crc32(data)
            if size < SMALL:
                kept[name] = data.hex()
    return {"size": ptd.stat().st_size, "head": head.hex(), "segments": found, "kept": kept, "crc32": sums}


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(data)
    tar.addfile(about, io.BytesIO(data))


def unpack(archive: Path, folder: Path, weight: Callable[[str], torch.Tensor]) -> None:
    """`weight` gives the weight of a name."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    for about in sorted(folder.glob(f"*{SKELETON}")):
        write(about.with_suffix(""), json.loads(about.read_text()), weight)
        about.unlink()


def write(ptd: Path, about: dict, weight: Callable[[str], torch.Tensor]) -> None:
    part = ptd.with_suffix(".part")
    with part.open("wb") as file:
        file.write(bytes.fromhex(about["head"]))
        for name, at, size in about["segments"]:
            kept = about["kept"].get(name)
            data = bytes.fromhex(kept) if kept is not None else weight(name).cpu().view(torch.uint8).numpy().data
            if len(memoryview(data).cast("B")) != size or zlib.crc32(data) != about["crc32"][name]:
                raise SystemExit(f"carry: weight '{name}' is not the one that {ptd.name} was exported with: was it another kind of GPU?")
            file.seek(at)
            file.write(data)
        file.truncate(about["size"])
    part.replace(ptd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    for name, words in {"pack": ("folder", "archive"), "unpack": ("archive", "folder")}.items():
        step = steps.add_parser(name)
        for word in words:
            step.add_argument(word, type=Path)
    unpacked = steps.choices["unpack"]
    unpacked.add_argument("--layers", type=int, default=16)
    unpacked.add_argument("--on-cpu", action="store_true", help="the CPU draws the weights")
    unpacked.add_argument("--small", action="store_true", help="layers of 33 MB")
    args = parser.parse_args()
    if args.step == "pack":
        pack(args.folder, args.archive)
        return
    import llama

    sizes = llama.SMALL if args.small else {}
    model = llama.build_on_cpu(args.layers, **sizes) if args.on_cpu else llama.build(args.layers, **sizes)
    weights = dict(model.named_parameters())
    unpack(args.archive, args.folder, weights.__getitem__)


if __name__ == "__main__":
    main()
