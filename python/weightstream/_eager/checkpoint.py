"""Checkpoints: a module that was made on ``meta`` gets its weights from safetensors files, which are mapped and never read as a whole::

    folder ── index or *.safetensors ──► files ── header ──► name: dtype, shape, bytes
    file ── mapped ──► a tensor over the bytes ──► in the place of each parameter of this name

Names, shapes and dtypes have to be those of the module.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from .._native.errors import Error
from .mapping import Mapping
from .subclasses import is_plain

#: A header is not longer in any file that others write; a longer one is no header.
_LONGEST_HEADER = 100_000_000
#: Buffers of fewer bytes are copied: passes may write them.
_SMALL = 1 << 20
#: Names in a message.
_MOST_NAMES = 8

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
if hasattr(torch, "float8_e8m0fnu"):
    _DTYPES["F8_E8M0"] = torch.float8_e8m0fnu

_OTHER_KINDS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
_CONVERT = "convert it to safetensors: model.save_pretrained(folder) of transformers or diffusers, or safetensors.torch.save_file"


class Stored(NamedTuple):
    """A tensor in a file."""

    file: Mapping
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    def tensor(self) -> torch.Tensor:
        return self.file.tensor(self.dtype, self.shape, self.begin)


def tensors_of(weights: Any) -> dict[str, Stored]:
    """All tensors of a folder, a file or several files, by name."""
    found: dict[str, Stored] = {}
    for path, expected in _paths(weights).items():
        file = Mapping.of(path)
        here, _ = header_of(file)
        if absent := expected - here.keys():
            raise Error(
                f"offload: the index beside {path} says that it has {_names(absent)}, and it has not; download the checkpoint again"
            )
        for name, one in here.items():
            if name in found:
                raise Error(
                    f"offload: '{name}' is in {found[name].file.path} and in {file.path}; give the files of one checkpoint as a list"
                )
            found[name] = one
    return found


def _paths(weights: Any) -> dict[Path, set[str]]:
    """The files, and the names that an index says they have."""
    if isinstance(weights, (list, tuple)) and weights:
        return {path: names for one in weights for path, names in _paths_of(one).items()}
    return _paths_of(weights)


def _paths_of(given: Any) -> dict[Path, set[str]]:
    if not isinstance(given, (str, os.PathLike)) or isinstance(os.fspath(given), bytes):
        raise Error(f"offload: weights is a folder, a safetensors file or a list of files, found {type(given).__name__}")
    path = Path(given)
    if not path.exists():
        raise Error(
            f"offload: {path} is not there; give a folder or files on this machine (huggingface_hub.snapshot_download makes a folder)"
        )
    if path.name.endswith(".index.json"):
        return _indexed(path)
    if not path.is_dir():
        if path.suffix in _OTHER_KINDS:
            raise Error(f"offload: {path} is no safetensors file; {_CONVERT}")
        return {path: set()}
    indices = sorted(path.glob("*.safetensors.index.json"))
    if len(indices) > 1:
        raise Error(f"offload: {path} has {len(indices)} checkpoints: {_names(one.name for one in indices)}; give one of these paths")
    if indices:
        return _indexed(indices[0])
    files = sorted(path.glob("*.safetensors"))
    if not files:
        others = [one.name for one in sorted(path.iterdir()) if one.suffix in _OTHER_KINDS]
        what = (
            f"but {_names(others)}; {_CONVERT}" if others else "; give the folder that has the weights (of a pipeline, one for each part)"
        )
        raise Error(f"offload: {path} has no *.safetensors{' ' if others else ''}{what}")
    return {file: set() for file in files}


def _indexed(index: Path) -> dict[Path, set[str]]:
    try:
        by_name = json.loads(index.read_bytes())["weight_map"]
        named: dict[Path, set[str]] = {}
        for name, file in by_name.items():
            named.setdefault(index.parent / file, set()).add(name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Error(f"offload: {index} is no index of a checkpoint: 'weight_map', names and their files, is expected") from error
    if missing := [file.name for file in named if not file.is_file()]:
        raise Error(f"offload: {index} names files that are not there: {_names(missing)}; download them too")
    return named


def header_of(file: Mapping) -> tuple[dict[str, Stored], Any]:
    """What the header of a file says, checked against its size: its tensors, and what else it has, unchecked."""

    def refuse(what: str) -> Error:
        return Error(f"offload: {file.path} {what}")

    length = int.from_bytes(file[:8], "little")
    if length > _LONGEST_HEADER:
        raise refuse(f"is no safetensors file: its header would have {length} bytes")
    start = 8 + length
    if start > len(file):
        raise refuse(f"is truncated, or no safetensors file: its header would end at byte {start}, and it has {len(file)}")
    try:
        header = json.loads(file[8:start].decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise refuse(f"is no safetensors file: its header is not read ({error})") from error
    if not isinstance(header, dict):
        raise refuse("is no safetensors file: its header is no JSON object")
    beside = header.pop("__metadata__", None)
    found = {}
    for name, one in header.items():
        if not isinstance(one, dict) or not _are_numbers(one.get("shape")) or not _are_numbers(one.get("data_offsets"), 2):
            raise refuse(f"is malformed: tensor '{name}' needs 'dtype', 'shape' and two 'data_offsets', found {str(one)[:200]}")
        dtype, shape, (begin, end) = _DTYPES.get(str(one.get("dtype"))), tuple(one["shape"]), one["data_offsets"]
        if dtype is None:
            raise refuse(f"has tensor '{name}' of dtype {one.get('dtype')!r}, which is none of {', '.join(_DTYPES)}")
        if begin > end or end - begin != math.prod(shape) * dtype.itemsize:
            raise refuse(f"is malformed: tensor '{name}' of {one['dtype']} {list(shape)} has the bytes {begin}..{end}")
        if start + end > len(file):
            raise refuse(f"is truncated: tensor '{name}' ends at byte {start + end}, and the file has {len(file)}; download it again")
        if (start + begin) % dtype.itemsize:
            raise refuse(f"has tensor '{name}' at byte {start + begin}, no multiple of its elements' size; save it again with safetensors")
        found[name] = Stored(file, name, dtype, shape, start + begin)
    last = None
    for one in sorted((one for one in found.values() if math.prod(one.shape)), key=lambda one: one.begin):
        if last is not None and one.begin < last.begin + math.prod(last.shape) * last.dtype.itemsize:
            raise refuse(f"is malformed: tensors '{last.name}' and '{one.name}' have bytes in common")
        last = one
    return found, beside


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' stands there twice")
    return found


def _are_numbers(value: Any, count: int | None = None) -> bool:
    good = isinstance(value, list) and all(type(one) is int and 0 <= one < 1 << 63 for one in value)
    return good and count in (None, len(value))


def _names(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return ", ".join(f"'{one}'" for one in every[:_MOST_NAMES]) + more


class _Place(NamedTuple):
    """Where a module has a tensor."""

    name: str
    held: dict[str, Any]
    key: str
    tensor: torch.Tensor
    is_buffer: bool
    is_saved: bool


def _places(root: nn.Module) -> list[_Place]:
    """All, each under all its names."""
    found = []
    for prefix, module in root.named_modules(remove_duplicate=False):
        for held, is_buffer in ((module._parameters, False), (module._buffers, True)):
            for key, tensor in held.items():
                if tensor is not None:
                    is_saved = not (is_buffer and key in module._non_persistent_buffers_set)
                    found.append(_Place(f"{prefix}.{key}" if prefix else key, held, key, tensor, is_buffer, is_saved))
    return found


def load(root: nn.Module, weights: Any, convert: bool) -> Callable[[], None]:
    """All that files have, and all that is on ``meta``, gets its bytes from files. What is returned makes the module what it was."""
    stored, places = tensors_of(weights), _places(root)
    # What is real already too, if the files have it: whoever makes a module without weights has made it with what it begins with.
    found = [place for place in places if place.tensor.is_meta or (place.is_saved and place.name in stored)]
    absent: dict[int, list[_Place]] = {id(place.tensor): [] for place in found}
    for place in places:
        if id(place.tensor) in absent:
            absent[id(place.tensor)].append(place)
    _check(root, stored, places, absent, convert)
    fresh = {}
    with torch.inference_mode(False), torch.no_grad():
        for key, same in absent.items():
            fresh[key] = _value(same, [stored[place.name] for place in same if place.name in stored])
    before = [(place.held, place.key, place.tensor) for same in absent.values() for place in same]
    for key, same in absent.items():
        for place in same:
            place.held[place.key] = fresh[key]

    def undo() -> None:
        for held, key, tensor in before:
            held[key] = tensor

    return undo


def _check(root: nn.Module, stored: dict[str, Stored], places: list[_Place], absent: dict[int, list[_Place]], convert: bool) -> None:
    """Whether the files have what is absent, and nothing else."""
    said = []
    if unsaved := [same[0].name for same in absent.values() if not any(place.is_saved for place in same)]:
        said.append(
            f"buffers on 'meta' that no checkpoint has: {_names(unsaved)} (make the module so that buffers are real: "
            "accelerate.init_empty_weights(include_buffers=False))"
        )
    if strange := [same[0].name for same in absent.values() if not is_plain(same[0].tensor)]:
        said.append(f"tensor subclasses: {_names(strange)} (load these by other means, and leave plain ones to weights=)")
    wanted = [same for same in absent.values() if same[0].name not in {*unsaved, *strange}]
    if missing := [same[0].name for same in wanted if not any(place.name in stored for place in same)]:
        tied = "; of a model that ties weights, call model.tie_weights() before" if hasattr(root, "tie_weights") else ""
        said.append(f"missing in the files: {_names(missing)} (names are those of module.state_dict(){tied})")
    if extra := stored.keys() - {place.name for place in places}:
        said.append(
            f"in the files, and not in the module: {_names(extra)} (make the module that they were saved from; where a library renames or merges weights as it loads, write "
            "module.state_dict() to safetensors files once)"
        )
    pairs = [(place, stored[place.name]) for same in wanted for place in same if place.name in stored]
    if shapes := [_differs(place, one, tuple(place.tensor.shape), one.shape) for place, one in pairs if place.tensor.shape != one.shape]:
        said.append(f"of other shapes: {_listed(shapes)}")
    dtypes = [_differs(place, one, place.tensor.dtype, one.dtype) for place, one in pairs if place.tensor.dtype != one.dtype]
    other = [_differs(place, one, place.tensor.dtype, one.dtype) for place, one in pairs if not _converts(one.dtype, place.tensor.dtype)]
    if other and convert:
        said.append(f"of dtypes that convert=True does not convert, since one is no float: {_listed(other)}")
    if dtypes and not convert:
        said.append(
            f"of other dtypes: {_listed(dtypes)} (make the module with the dtype of the files, or give convert=True, which copies them)"
        )
    if said:
        raise Error(f"offload: the weights do not fit {type(root).__name__}: {'; '.join(said)}")


def _differs(place: _Place, one: Stored, expected: Any, found: Any) -> str:
    return f"'{place.name}' is expected to be {expected}, and is {found} in {one.file.path}"


def _converts(found: torch.dtype, expected: torch.dtype) -> bool:
    """Quantized bytes are no numbers by themselves."""
    return found == expected or (found.is_floating_point and expected.is_floating_point and min(found.itemsize, expected.itemsize) > 1)


def _listed(said: list[str]) -> str:
    more = [f"and {len(said) - _MOST_NAMES} more"] if len(said) > _MOST_NAMES else []
    return ", ".join(said[:_MOST_NAMES] + more)


def _value(same: list[_Place], found: list[Stored]) -> torch.Tensor:
    """What takes the place of a tensor, under all its names."""
    place, one = same[0], found[0].tensor()
    for other in found[1:]:
        if not torch.equal(_bytes(one), _bytes(other.tensor())):
            raise Error(
                f"offload: '{found[0].name}' and '{other.name}' are one tensor of the module, and differ in the files; make the module without "
                "tying them"
            )
    if one.dtype != place.tensor.dtype:
        one = one.to(place.tensor.dtype)
    elif place.is_buffer and one.nbytes < _SMALL:
        one = one.clone()
    if place.is_buffer:
        return one
    fresh = nn.Parameter(one, requires_grad=place.tensor.requires_grad and one.dtype.is_floating_point)
    fresh.__dict__.update(place.tensor.__dict__)
    return fresh


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
