"""Writing the two files."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir.lowered_backend_module import get_lowered_submodules

from . import _method, _record
from ._backend import BACKEND_ID, WEIGHTS_TAG
from ._errors import ExportError
from ._progress import step

SEGMENT_ALIGNMENT = 4096  # a page: segments can be mapped, registered and advised one by one


def edge_compile_config() -> EdgeCompileConfig:
    """The edge configuration that WeightStream needs: operators keep their layouts, and the probe is allowed."""
    return EdgeCompileConfig(_skip_dim_order=True, _check_ir_validity=False)


def save(edge: EdgeProgramManager, pte_path: str | os.PathLike[str], ptd_path: str | os.PathLike[str]) -> None:
    """Writes the program and its weights, adding the record as constant methods.

    The files are written beside their final places and renamed, so that a mapped older file is never truncated under its readers.
    """
    if not isinstance(edge, EdgeProgramManager):
        raise TypeError(f"save takes what to_edge_transform_and_lower returns (an EdgeProgramManager), not {type(edge).__name__}")
    method, fields = _record_of(edge)
    methods: dict[str, Any] = edge._config_methods or {}
    methods.update(_record.constant_methods(method, fields))
    edge._config_methods = methods
    with step("writing the program and its weights"):
        program = edge.to_executorch(ExecutorchBackendConfig(segment_alignment=SEGMENT_ALIGNMENT))
        weights = program._tensor_data.pop(WEIGHTS_TAG, None)
        if weights is None:
            raise ExportError("the program holds no weights of WeightStream: lower it with WeightStreamPartitioner")
        _write(pte_path, program.write_to_file)
        checksum = _program_crc32(Path(pte_path))
        _write(ptd_path, lambda file: _write_with_checksum(weights, method, checksum, file))


def _program_crc32(path: Path) -> int:
    """CRC-32 of the program's tables: what lies before its first segment, by the extended header (bytes 24 to 32)."""
    with path.open("rb") as file:
        head = file.read(32)
        start = int.from_bytes(head[24:32], "little")
        return zlib.crc32(head + file.read(start - len(head)))


def _write_with_checksum(weights: Any, method: str, checksum: int, file: Any) -> None:
    """Writes the `.ptd` with the program's checksum in the place that `preprocess` kept for it: the two files are serialised
    together, and the checksum is known only when the program is."""
    mark = _method.checksum_mark(method)
    value = checksum.to_bytes(4, "little") + bytes(len(mark) - 4)
    found = 0
    for part in weights._buffers:
        held = part == mark if isinstance(part, (bytes, bytearray)) and len(part) == len(mark) else False
        file.write(value if held else bytes(part) if isinstance(part, bytearray) else part)
        found += held
    if found != 1:
        raise ExportError(f"the place for the program's checksum was found {found} times; please report this")


def _record_of(edge: EdgeProgramManager) -> tuple[str, _record.Fields]:
    names = sorted(edge.methods)
    if len(names) != 1:
        raise ExportError(
            f"the program has {len(names)} methods ({', '.join(names)}); a program can have one until methods can share a budget: "
            "export each into files of its own"
        )
    (method,) = names
    lowered = [module for _, module, _ in get_lowered_submodules(edge.exported_program(method).graph_module)]
    ours = [module for module in lowered if module.backend_id == BACKEND_ID]
    if len(ours) != 1:
        raise ExportError(f"method '{method}' has {len(ours)} WeightStream delegates where one was expected: use WeightStreamPartitioner")
    fields = _record.decode(ours[0].processed_bytes)
    if fields["method"] != [method]:
        raise ExportError(f"method '{method}' was compiled as '{fields['method'][0]}': pass WeightStreamPartitioner(method='{method}')")
    return method, fields


def _write(path: str | os.PathLike[str], write: Any) -> None:
    target = Path(path)
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise
