"""Writing the two files."""

from __future__ import annotations

import copy
import os
import re
import secrets
import zlib
from pathlib import Path
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule, get_lowered_submodules
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.schema import DeviceType
from executorch.exir.tensor import TensorSpec

from . import _executorch, _method, _record, _specs
from ._backend import BACKEND_ID, WEIGHTS_TAG
from ._check import check_loads
from ._errors import ExportError
from ._progress import step

SEGMENT_ALIGNMENT = 4096  # a page: segments can be mapped, registered and advised one by one
TARGET_DEVICE = "target_device"  # ExecuTorch's key for where a delegate's tensors lie


def edge_compile_config() -> EdgeCompileConfig:
    """The edge configuration that WeightStream needs: operators keep their layouts, and the probe is allowed."""
    return EdgeCompileConfig(_skip_dim_order=True, _check_ir_validity=False)


def save(
    edge: EdgeProgramManager,
    pte_path: str | os.PathLike[str],
    ptd_path: str | os.PathLike[str],
    *,
    device_io: bool | str = False,
    check: bool = True,
    defaults: dict[str, Any] | None = None,
) -> None:
    """Writes the program and its weights, adding the record as constant methods.

    ``device_io``: for a program exported for CUDA, lets ExecuTorch's inputs and outputs lie in the GPU's memory: ``True`` or ``"cuda"``
    for the first GPU, ``"cuda:1"`` for another one; the file says which. The caller then gives tensors on that GPU, which are used in
    place, and gets tensors there. Without it both are on the CPU, and the runtime copies. It changes nothing for callers of the C
    interface, who may give either.

    ``check``: loads a program for the CPU once it is written, with the least budget, and raises :class:`ExportError` with the runtime's
    reason if that fails. The files stay. A machine without the native library, or without the instructions that the program was
    compiled for, loads nothing and says so.

    ``defaults``: options of the runtime that hold where a load, ``set_option`` and the environment say nothing:
    ``{"weight_offload_budget_mb": 512}``. They stand in the program.

    The files are written beside their final places and renamed, so that a mapped older file is never truncated under its readers.
    """
    _check_two_files(pte_path, ptd_path)
    if not isinstance(edge, EdgeProgramManager):
        raise TypeError(f"save takes what to_edge_transform_and_lower returns (an EdgeProgramManager), not {type(edge).__name__}")
    method, fields, delegate = _record_of(edge)
    config = _config(delegate, _device_of_io(method, fields, device_io))
    delegate._compile_specs = _specs.replaced(delegate.compile_specs, _specs.option_specs(defaults or {}))
    _forget_plan(edge.exported_program(method).graph_module)
    methods: dict[str, Any] = edge._config_methods or {}
    methods.update(_record.constant_methods(method, fields))
    edge._config_methods = methods
    with step("writing the program and its weights"):
        with _executorch.corrected():
            program = edge.to_executorch(config)
        weights = program._tensor_data.pop(WEIGHTS_TAG, None)
        if weights is None:
            raise ExportError("the program holds no weights of WeightStream: lower it with WeightStreamPartitioner")
        _write(pte_path, program.write_to_file)
        checksum = _program_crc32(Path(pte_path))
        _write(ptd_path, lambda file: _write_with_checksum(weights, method, checksum, file))
    if check:
        has_budget = any(spec.key.startswith("weight_offload_budget") for spec in delegate.compile_specs)
        check_loads(pte_path, ptd_path, method, fields, has_budget=has_budget)


def _check_two_files(pte_path: str | os.PathLike[str], ptd_path: str | os.PathLike[str]) -> None:
    if os.path.realpath(pte_path) == os.path.realpath(ptd_path):
        raise ExportError(f"{os.fspath(ptd_path)} was given twice, for the program and for its weights: they are two files")


def _device_of_io(method: str, fields: _record.Fields, device_io: bool | str) -> str | None:
    """The device of inputs and outputs as ExecuTorch names it; None for the CPU."""
    if device_io is False:
        return None
    name = "cuda" if device_io is True else device_io
    if not isinstance(name, str) or re.fullmatch(r"cuda(:\d{1,2})?", name) is None:
        raise ExportError(f'device_io takes True, "cuda" or "cuda:N", not {device_io!r}')
    if fields["device"] != ["cuda"]:
        raise ExportError(
            f"method '{method}' was exported for the device '{fields['device'][0]}', so its inputs and outputs are on the CPU: leave "
            'device_io out, or export with WeightStreamPartitioner(device="cuda")'
        )
    return name if ":" in name else f"{name}:0"


def _config(delegate: LoweredBackendModule, device: str | None) -> ExecutorchBackendConfig:
    """How ExecuTorch is to write the program. Sets, or takes away, the mark of the delegate's device."""
    # A list of its own: the delegate's is shared with its partitioner.
    delegate._compile_specs = [spec for spec in delegate.compile_specs if spec.key != TARGET_DEVICE]
    if device is None:
        return ExecutorchBackendConfig(segment_alignment=SEGMENT_ALIGNMENT)
    delegate._compile_specs.append(CompileSpec(TARGET_DEVICE, device.encode()))
    return ExecutorchBackendConfig(
        segment_alignment=SEGMENT_ALIGNMENT,
        enable_non_cpu_memory_planning=True,
        propagate_device_config=PropagateDeviceConfig(skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True),
        # With a place of its own for an input ExecuTorch would copy there by itself, which it cannot on a device.
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
    )


def _forget_plan(graph: torch.fx.GraphModule) -> None:
    """Lets a program be saved again: ExecuTorch keeps buffers, and the specs of a delegate's outputs, of an earlier save."""

    def fresh(spec: Any) -> Any:
        if not isinstance(spec, TensorSpec):
            return spec
        spec = copy.copy(spec)
        spec.init_mem_planning_fields()
        spec.device, spec.device_index = DeviceType.CPU, 0
        return spec

    for key in ("non_const_buffer_sizes", "non_const_buffer_device"):
        graph.meta.pop(key, None)
    for node in graph.graph.nodes:
        if node.target is executorch_call_delegate and "spec" in node.meta:
            node.meta["spec"] = torch.utils._pytree.tree_map(fresh, node.meta["spec"])


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


def _record_of(edge: EdgeProgramManager) -> tuple[str, _record.Fields, LoweredBackendModule]:
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
    return method, fields, ours[0]


def _write(path: str | os.PathLike[str], write: Any) -> None:
    target = Path(path)
    partial = target.with_name(f"{target.name}.{secrets.token_hex(8)}.partial")
    # With the permissions that the process gives its files; tempfile gives others.
    file = partial.open("xb")
    try:
        with file:
            write(file)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise
