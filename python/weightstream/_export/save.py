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
from executorch.exir._serialize._cord import FileBackedData
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule, get_lowered_submodules
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.schema import DeviceType
from executorch.exir.tensor import TensorSpec

from .._native.errors import ExportError
from .._native.progress import note, step
from .._run import runtime
from .._torch import executorch
from .check_loads import check_loads
from .compile import describe, record, settings
from .compile.backend import BACKEND_ID
from .compile.program import WEIGHTS_TAG

SEGMENT_ALIGNMENT = 4096  # a page: segments can be mapped, registered and advised one by one
TARGET_DEVICE = "target_device"  # ExecuTorch's key for where a delegate's tensors lie

#: Method to its record and its delegate.
Delegates = dict[str, tuple[record.Fields, LoweredBackendModule]]


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
    packed: bool = False,
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

    ``packed``: codes floating-point weights without loss, of bf16 in about two thirds of the bytes; the same bits come of them on the device. See "Packed
    weights" in docs/export.md. Raises :class:`ExportError` if nothing of the program can be packed.

    The files are written beside their final places and renamed, so that a mapped older file is never truncated under its readers.
    """
    _check_two_files(pte_path, ptd_path)
    if not isinstance(edge, EdgeProgramManager):
        raise TypeError(f"save takes what to_edge_transform_and_lower returns (an EdgeProgramManager), not {type(edge).__name__}")
    found = _records_of(edge)
    device = _device_of_io(found, device_io)
    options = settings.option_specs(defaults or {})
    config_methods: dict[str, Any] = edge._config_methods or {}
    for method, (fields, delegate) in found.items():
        _mark_device(delegate, device)
        delegate._compile_specs = settings.replaced(delegate.compile_specs, options)
        _forget_plan(edge.exported_program(method).graph_module)
        config_methods.update(record.constant_methods(method, fields))
    edge._config_methods = config_methods
    with step("writing the program and its weights"):
        with executorch.corrected():
            program = edge.to_executorch(_config(device))
        weights = program._tensor_data.pop(WEIGHTS_TAG, None)
        if weights is None:
            raise ExportError("the program holds no weights of WeightStream: lower it with WeightStreamPartitioner")
        _write(pte_path, program.write_to_file)
        checksum = _program_crc32(Path(pte_path))
        _write(ptd_path, lambda file: _write_with_checksum(weights, list(found), checksum, file))
    if packed:
        _pack(pte_path, ptd_path)
    if check:
        delegates = [delegate for _, delegate in found.values()]
        has_budget = any(spec.key.startswith("weight_offload_budget") for each in delegates for spec in each.compile_specs)
        check_loads(pte_path, ptd_path, {method: fields for method, (fields, _) in found.items()}, has_budget=has_budget)


def _pack(pte_path: str | os.PathLike[str], ptd_path: str | os.PathLike[str]) -> None:
    with step("packing the weights"):
        status, text = runtime.command(["pack", os.fspath(ptd_path), "--program", os.fspath(pte_path), "--in-place"])
    if status != 0:
        raise ExportError(f"the program was written, and its weights were not packed: {text.strip()}")
    note(text.strip())


def _check_two_files(pte_path: str | os.PathLike[str], ptd_path: str | os.PathLike[str]) -> None:
    if os.path.realpath(pte_path) == os.path.realpath(ptd_path):
        raise ExportError(f"{os.fspath(ptd_path)} was given twice, for the program and for its weights: they are two files")


def _device_of_io(found: Delegates, device_io: bool | str) -> str | None:
    """The device of inputs and outputs of all methods as ExecuTorch names it; None for the CPU."""
    if device_io is False:
        return None
    name = "cuda" if device_io is True else device_io
    if not isinstance(name, str) or re.fullmatch(r"cuda(:\d{1,2})?", name) is None:
        raise ExportError(f'device_io takes True, "cuda" or "cuda:N", not {device_io!r}')
    method, (fields, _) = next(iter(found.items()))
    if fields["device"] != ["cuda"]:
        raise ExportError(
            f"method '{method}' was exported for the device '{fields['device'][0]}', so its inputs and outputs are on the CPU: leave "
            'device_io out, or export with WeightStreamPartitioner(device="cuda")'
        )
    return name if ":" in name else f"{name}:0"


def _mark_device(delegate: LoweredBackendModule, device: str | None) -> None:
    """Sets, or takes away, the mark of the delegate's device."""
    # A list of its own: another save may have none.
    specs = [spec for spec in delegate.compile_specs if spec.key != TARGET_DEVICE]
    delegate._compile_specs = specs if device is None else [*specs, CompileSpec(TARGET_DEVICE, device.encode())]


def _config(device: str | None) -> ExecutorchBackendConfig:
    """How ExecuTorch is to write the program."""
    if device is None:
        return ExecutorchBackendConfig(segment_alignment=SEGMENT_ALIGNMENT)
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


def _write_with_checksum(weights: Any, methods: list[str], checksum: int, file: Any) -> None:
    """Writes the `.ptd` with the program's checksum in the places that `preprocess` kept for it, one per method: the two files are
    serialised together, and the checksum is known only when the program is."""
    marks = {describe.checksum_mark(method) for method in methods}
    value = checksum.to_bytes(4, "little")
    found = 0
    for part in weights._buffers:
        if isinstance(part, FileBackedData):
            part.write_to_file(file)
            continue
        held = len(part) == describe.MARK_BYTES and bytes(part) in marks
        file.write(value + bytes(describe.MARK_BYTES - len(value)) if held else part)
        found += held
    if found != len(marks):
        raise ExportError(f"the {len(marks)} places for the program's checksum were found {found} times; please report this")


def _records_of(edge: EdgeProgramManager) -> Delegates:
    """The record and the delegate of each method that WeightStream runs, by name."""
    lowered = {method: _delegates(edge, method) for method in sorted(edge.methods)}
    others = [method for method, ours in lowered.items() if not ours]
    if len(others) == len(lowered):
        raise ExportError(f"{_words(others)} 0 WeightStream delegates where one was expected: use WeightStreamPartitioner")
    found = {method: _only(method, ours) for method, ours in lowered.items() if ours}
    records = {method: record.decode(delegate.processed_bytes) for method, delegate in found.items()}
    for method, (fields, companions) in records.items():
        _refuse_other_names(method, fields, len(found))
        _refuse_other_programs(method, fields, companions, {name: fields for name, (fields, _) in records.items()})
    for method in others:
        note(f"method '{method}' has no WeightStreamPartitioner: ExecuTorch runs it, with weights and state of its own")
    return {method: (records[method][0], delegate) for method, delegate in found.items()}


def _words(methods: list[str]) -> str:
    return f"method '{methods[0]}' has" if len(methods) == 1 else f"methods {', '.join(methods)} have"


def _delegates(edge: EdgeProgramManager, method: str) -> list[LoweredBackendModule]:
    lowered = [module for _, module, _ in get_lowered_submodules(edge.exported_program(method).graph_module)]
    return [module for module in lowered if module.backend_id == BACKEND_ID]


def _only(method: str, ours: list[LoweredBackendModule]) -> LoweredBackendModule:
    if len(ours) != 1:
        raise ExportError(f"method '{method}' has {len(ours)} WeightStream delegates where one was expected: use WeightStreamPartitioner")
    return ours[0]


def _refuse_other_names(method: str, fields: record.Fields, count: int) -> None:
    if fields["method"] != [method]:
        hint = f": pass WeightStreamPartitioner(method='{method}')" if count == 1 else ""
        raise ExportError(f"method '{method}' was compiled as '{fields['method'][0]}'{hint}")


def _refuse_other_programs(method: str, fields: record.Fields, companions: list[record.Fields], records: dict[str, record.Fields]) -> None:
    """Methods that were not lowered together know nothing of each other."""
    known = {each["method"][0]: each["build_id"] for each in [fields, *companions]}
    here = {name: each["build_id"] for name, each in records.items()}
    if known != here:
        raise ExportError(
            f"method '{method}' was lowered with {sorted(known)}, and the program has {sorted(here)}: methods of one program are lowered "
            "together, by WeightStreamPartitioner at the same place of every method's list of partitioners"
        )


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
