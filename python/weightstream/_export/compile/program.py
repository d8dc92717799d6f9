"""A program: its methods, lowered together, and what each of them carries for the others.

One method alone is written as ever. Several share their constants by key, one build id, and the direct bytes in their floors; the
payload of each holds the records of all others, so that the load of the first one can plan for the program.
"""

from __future__ import annotations

from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.tensor import scalar_type_enum
from executorch.exir.tensor_layout import TensorLayout
from torch.export import ExportedProgram

from ..._native.errors import ExportError
from ..._native.progress import note
from . import describe, identity, record, settings
from .floor import occupied
from .lower_method import Lowered, Wanted, lower
from .spool import Spool
from .target import Target

WEIGHTS_TAG = "weightstream_weights"


def lower_one(program: ExportedProgram, specs: list[CompileSpec], call: record.Fields | None) -> PreprocessResult:
    """The only method of a program. ``call`` says how it is called, if its partitioner knew."""
    method = settings.method_of(specs)
    found = lower({method: program}, {method: _wanted(specs)}, Spool())[method]
    fields = describe.record_of(method, found.compiled, found.facts, found.target, found.constants) | (call or {})
    fields["build_id"] = [describe.build_id(fields)]
    return _package(found, fields, fields["fqns"])


def lower_several(
    programs: dict[str, ExportedProgram], specs: dict[str, list[CompileSpec]], told: settings.Internal
) -> dict[str, PreprocessResult]:
    """All methods of a program. What can be refused without compiling is refused first."""
    wanted = {method: _wanted(specs[method]) for method in programs}
    _refuse_mixtures(wanted)
    state = identity.agree(programs, told.shared_state)
    wanted = {method: one._replace(state=set(state[method])) for method, one in wanted.items()}
    found = lower(dict(sorted(programs.items())), wanted, Spool())
    keys = identity.keys_of({method: one.constants for method, one in found.items()}, state)
    direct = _direct_bytes(found, keys)
    records = {
        method: describe.record_of(method, one.compiled, one.facts, one.target, one.constants, keys[method], direct)
        | told.calls.get(method, {})
        for method, one in found.items()
    }
    build_id = describe.build_id(*records.values())
    for fields in records.values():
        fields["build_id"] = [build_id]
    return {
        method: _package(one, records[method], keys[method], [records[other] for other in records if other != method])
        for method, one in found.items()
    }


def _wanted(specs: list[CompileSpec]) -> Wanted:
    values = {spec.key: spec.value.decode() for spec in specs}
    return Wanted(Target.of(values), values["offload"] == "1")


def _refuse_mixtures(wanted: dict[str, Wanted]) -> None:
    """Methods of one program have one store, on one device."""
    asked = {
        "device": {method: one.target.device for method, one in wanted.items()},
        "sm": {method: one.target.sm or "that of the GPU here" for method, one in wanted.items()},
        "offload": {method: str(one.offload) for method, one in wanted.items()},
    }
    for what, values in asked.items():
        if len(set(values.values())) > 1:
            each = ", ".join(f"{value} for '{method}'" for method, value in values.items())
            raise ExportError(f"{what} is {each}: the methods of a program share one store of weights, so give all of them the same")


def _direct_bytes(found: dict[str, Lowered], keys: dict[str, list[str]]) -> int:
    """What the direct constants of all methods occupy. They are always resident, whichever method runs."""
    held: dict[tuple[str, int], int] = {}
    for method, one in found.items():
        for key, constant in zip(keys[method], one.constants):
            if constant.kind != describe.WEIGHT:
                held[key, constant.kind] = occupied(constant.nbytes, one.target.device)
    return sum(held.values())


def _package(found: Lowered, fields: record.Fields, keys: list[str], others: list[record.Fields] | None = None) -> PreprocessResult:
    method, store = found.method, NamedDataStore()
    for key, constant in zip(keys, found.constants):
        layout = TensorLayout(scalar_type_enum(constant.dtype), list(constant.sizes), _dim_order(constant.strides))
        store.add_named_data(key, constant.data, 1, WEIGHTS_TAG, layout)
    store.add_named_data(describe.BUILD_ID_PREFIX + method, bytes.fromhex(fields["build_id"][0]), 1, WEIGHTS_TAG)
    store.add_named_data(describe.CHECKSUM_PREFIX + method, describe.checksum_mark(method), 1, WEIGHTS_TAG)
    store.add_named_data(fields["so_key"][0], found.compiled.library, 4096, None)
    note(
        f"method '{method}': {len(fields['fqns'])} constants, {sum(fields['nbytes'])} bytes, {len(fields['probes'])} probes, "
        f"floor {fields['floor'][0]} bytes"
    )
    return PreprocessResult(record.encode(fields, others or []), {}, store.get_named_data_store_output())


def _dim_order(strides: tuple[int, ...]) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])
