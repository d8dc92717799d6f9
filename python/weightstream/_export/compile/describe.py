"""From a compiled method to its record and its weights' bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import zlib
from collections.abc import Iterable

import torch
from executorch.exir.tensor import scalar_type_enum
from torch.export import ExportedProgram

from ..._native.errors import ExportError
from .floor import least_budgets, occupied
from .gather import flatten, reads_in_place, row_places, row_reads
from .inductor import Compiled
from .record import FORMAT_VERSION, SEVERAL_METHODS, Fields
from .sizes import sizes_of
from .spool import Slice, Spool
from .target import Target
from .trace import PROBE, Constant

WEIGHT, DIRECT, MUTABLE = 0, 1, 2
# In the place of a size that has no upper bound.
UNKNOWN = -1
LIBRARY_PREFIX = "weightstream_so_"
BUILD_ID_PREFIX = "weightstream_build_id_"
CHECKSUM_PREFIX = "weightstream_program_crc32_"
MARK_BYTES = 32


def checksum_mark(method: str) -> bytes:
    """Bytes that no weight holds, in the place of the program's checksum until it is known."""
    return hashlib.sha256(CHECKSUM_PREFIX.encode() + method.encode()).digest()


def dense(constant: Constant) -> torch.Tensor:
    """The constant's bytes exactly as its kernels index them: one dimension, from storage offset 0, nothing between."""
    value = constant.tensor.detach().cpu()
    whole = value.storage_offset() == 0 and value.untyped_storage().nbytes() == value.numel() * value.element_size()
    if whole and value.stride() == tuple(constant.strides):
        return value
    held = torch.empty_strided(constant.sizes, constant.strides, dtype=value.dtype)
    held.copy_(value)
    storage = held.untyped_storage()
    expected = value.numel() * value.element_size()
    if storage.nbytes() != expected:
        raise ExportError(
            f"constant '{constant.fqn}' with sizes {constant.sizes} and strides {constant.strides} is not dense: "
            f"{storage.nbytes()} bytes where {expected} were expected; please report this"
        )
    return held


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's storage as bytes, without a copy."""
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return memoryview(flat.numpy())


@dataclasses.dataclass(frozen=True)
class Stored:
    """One constant of a compiled method, its bytes taken out."""

    fqn: str
    kind: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    crc32: int
    data: Slice

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def identity(self) -> tuple[object, ...]:
        """Equal for constants that are one: dtype, sizes, order in memory and bytes."""
        return self.dtype, self.sizes, self.strides, self.data.sha256()


def stored(compiled: Compiled, offload: bool, spool: Spool) -> list[Stored]:
    """The method's constants, in the order of the record; their tensors are not needed any more."""
    return [_stored(constant, _kind(constant, offload), spool) for constant in compiled.trace.constants.values()]


def _stored(constant: Constant, kind: int, spool: Spool) -> Stored:
    held = dense(constant)
    data = raw_bytes(held)
    return Stored(constant.fqn, kind, held.dtype, tuple(constant.sizes), tuple(constant.strides), zlib.crc32(data), spool.put(data))


@dataclasses.dataclass
class Facts:
    """What the record says of the program beside what its compiler did. Plain values: they may come from another process."""

    offload: bool
    #: :func:`row_reads`.
    gathers: dict[int, int]
    #: :func:`row_places`.
    places: dict[int, str]
    #: Fields of inputs, outputs and sizes.
    signature: Fields
    #: What the user should know of the sizes.
    remarks: list[str]


def facts_of(program: ExportedProgram, offload: bool) -> Facts:
    """The facts of a program that has its final probes."""
    gathers = row_reads(program)
    places = {probe: fqn for probe, fqn in row_places(program).items() if probe in gathers}
    return Facts(offload, gathers, places, *_signature(program))


def record_of(
    method: str, compiled: Compiled, facts: Facts, target: Target, constants: list[Stored], keys: list[str] | None = None, direct: int = 0
) -> Fields:
    """The fields of the record, but for ``build_id``. Of a method among several: ``keys`` of its constants, and the ``direct`` bytes of
    the whole program."""
    index = {constant.fqn: number for number, constant in enumerate(constants)}
    probes = [index[fqn] for fqn in compiled.trace.probes]
    kinds = [constant.kind for constant in constants]
    nbytes = [constant.nbytes for constant in constants]
    sizes = [occupied(n, target.device) for n in nbytes]
    if keys is None:
        direct = sum(size for size, kind in zip(sizes, kinds) if kind != WEIGHT)
    in_place = reads_in_place(facts.gathers, probes, nbytes, [c.sizes[0] if c.sizes else 0 for c in constants])
    floor, hard_minimum = least_budgets(compiled.trace.events, _first_of_a_key(probes, keys), sizes, direct, in_place)
    fields: Fields = {
        "format_version": [FORMAT_VERSION if keys is None else SEVERAL_METHODS],
        "method": [method],
        "so_key": [LIBRARY_PREFIX + hashlib.sha256(compiled.library).hexdigest()],
        "offload": [int(facts.offload)],
        "device": [target.device],
        "target": [platform.system().lower(), platform.machine(), target.isa, torch.__version__.split("+")[0], target.sms()],
        "fqns": [constant.fqn for constant in constants],
        "keys": keys or [],
        "kinds": kinds,
        "dtypes": [int(scalar_type_enum(constant.dtype)) for constant in constants],
        "nbytes": nbytes,
        "crc32": [constant.crc32 for constant in constants],
        "layouts": _flatten((len(c.sizes), *c.sizes, *c.strides) for c in constants),
        "probes": probes,
        "gathers": flatten(facts.gathers),
        "access_order": [probes[number] for op, number in compiled.trace.events if op == PROBE],
        "trace": [op + 4 * number for op, number in compiled.trace.events],
        "floor": [floor],
        "hard_minimum": [hard_minimum],
        "activations": [UNKNOWN if compiled.trace.activations is None else compiled.trace.activations],
        **facts.signature,
    }
    if keys is None:
        del fields["keys"]
    if facts.places:
        fields["x_places"] = [number for probe, fqn in facts.places.items() for number in (probe, index[fqn])]
    if target.sm:
        # For people and tools: the runtime needs none of it.
        fields["x_tuned"] = [0]
    return fields


def _first_of_a_key(probes: list[int], keys: list[str] | None) -> list[int]:
    """Weights of one key are one: the first of them stands for all."""
    if keys is None:
        return probes
    first: dict[str, int] = {}
    for index, key in enumerate(keys):
        first.setdefault(key, index)
    return [first[keys[weight]] for weight in probes]


def build_id(*records: Fields) -> str:
    """128 bits over everything else in the program's records: the libraries' hashes, every weight's CRC and layout, the traces."""
    digest = hashlib.sha256()
    for fields in records:
        for name in sorted(fields):
            if name != "build_id":
                digest.update(repr((name, fields[name])).encode())
    return digest.hexdigest()[:32]


def _kind(constant: Constant, offload: bool) -> int:
    if constant.mutable:
        return MUTABLE
    return WEIGHT if offload and constant.probed else DIRECT


def _flatten(rows: Iterable[tuple[int, ...]]) -> list[int]:
    return [number for row in rows for number in row]


def _signature(program: ExportedProgram) -> tuple[Fields, list[str]]:
    """The fields of inputs, outputs and sizes, and remarks about the sizes."""
    inputs: list[int] = []
    names: list[str] = []
    sizes = sizes_of(program)
    user_inputs = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in user_inputs:
            continue
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise ExportError(f"input '{node.name}' is a {type(value).__name__}; only tensors can be inputs of a delegate")
        inputs += [int(scalar_type_enum(value.dtype)), value.dim()]
        for dim, size in enumerate(value.shape):
            inputs += sizes.input_dimension(len(names), dim, node.name, size)
        names.append(node.name)
    outputs: list[int] = []
    shapes = []
    returned = next(node for node in program.graph.nodes if node.op == "output").args[0]
    kept = set(program.graph_signature.user_outputs)
    for node in returned:
        if isinstance(node, torch.fx.Node) and node.name in kept:
            value = node.meta["val"]
            outputs += [int(scalar_type_enum(value.dtype)), value.dim()]
            shapes.append(tuple(value.shape))
    fields: Fields = {"inputs": inputs, "input_names": names, "outputs": outputs, **sizes.fields(shapes)}
    return fields, sizes.remarks()
