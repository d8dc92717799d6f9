"""Writing the two files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir.lowered_backend_module import get_lowered_submodules

from . import _record
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
        raise TypeError(
            f"save takes what to_edge_transform_and_lower returns (an EdgeProgramManager), not {type(edge).__name__}"
        )
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
        _write(ptd_path, weights.write_to_file)


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
        raise ExportError(
            f"method '{method}' has {len(ours)} WeightStream delegates where one was expected: use WeightStreamPartitioner"
        )
    fields = _record.decode(ours[0].processed_bytes)
    if fields["method"] != [method]:
        raise ExportError(
            f"method '{method}' was compiled as '{fields['method'][0]}': pass WeightStreamPartitioner(method='{method}')"
        )
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
