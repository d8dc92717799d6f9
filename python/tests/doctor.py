"""Reads exported files, changes one thing in them and writes them back, so that refusals can be provoked.

The containers (`.pte`, `.ptd`) are read and written with ExecuTorch's own serialisers; the record in the delegate's
payload with the few lines of flatbuffers below, which know nothing of the exporter's code.
"""

from __future__ import annotations

import copy
import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flatbuffers
from executorch.exir import schema
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorConfig, FlatTensorSerializer
from flatbuffers import encode, packer
from flatbuffers.table import Table

Record = dict[str, list[Any]]

BACKEND = "WeightStreamBackend"
INFIX = "__weight_offload__"
PROBE, KERNEL, RELEASE = 0, 1, 2
WEIGHT, DIRECT, MUTABLE = 0, 1, 2


def field_offset(slot: int) -> int:
    """Place of a table's field in its vtable."""
    return 4 + 2 * slot


def tables(table: Table, slot: int) -> Iterator[Table]:
    offset = table.Offset(field_offset(slot))
    for i in range(table.VectorLen(offset) if offset else 0):
        yield Table(table.Bytes, table.Indirect(table.Vector(offset) + 4 * i))


def strings(table: Table, slot: int) -> list[str]:
    offset = table.Offset(field_offset(slot))
    count = table.VectorLen(offset) if offset else 0
    return [table.String(table.Vector(offset) + 4 * i).decode() for i in range(count)]


def longs(table: Table, slot: int) -> list[int]:
    offset = table.Offset(field_offset(slot))
    count = table.VectorLen(offset) if offset else 0
    return [encode.Get(packer.int64, table.Bytes, table.Vector(offset) + 8 * i) for i in range(count)]


def decode_payload(data: bytes) -> Record:
    """`Payload` of schema/record.fbs as a dictionary; each field holds integers or strings."""
    data = bytes(data)
    assert data[4:8] == b"WSR1", f"the payload starts with {data[:8]!r}, expected the identifier WSR1"
    return record_of(Table(data, encode.Get(packer.uoffset, data, 0)))


def decode_others(data: bytes) -> list[Record]:
    """The records of the program's other methods in a payload."""
    return [record_of(table) for table in tables(Table(data, encode.Get(packer.uoffset, data, 0)), 1)]


def record_of(payload: Table) -> Record:
    record: Record = {}
    for field in tables(payload, 0):
        name = field.String(field.Offset(field_offset(0)) + field.Pos).decode()
        record[name] = longs(field, 1) or strings(field, 2)
    return record


def encode_payload(record: Record) -> bytes:
    """The reverse of `decode_payload`."""
    builder = flatbuffers.Builder(1024)
    fields = [encode_field(builder, name, values) for name, values in record.items() if values]
    builder.StartVector(4, len(fields), 4)
    for field in reversed(fields):
        builder.PrependUOffsetTRelative(field)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"WSR1")
    return bytes(builder.Output())


def encode_field(builder: flatbuffers.Builder, name: str, values: list[Any]) -> int:
    textual = isinstance(values[0], str)
    offsets = [builder.CreateString(v) for v in values] if textual else []
    builder.StartVector(4 if textual else 8, len(values), 4 if textual else 8)
    for value in reversed(offsets if textual else values):
        if textual:
            builder.PrependUOffsetTRelative(value)
        else:
            builder.PrependInt64(value)
    vector, key = builder.EndVector(), builder.CreateString(name)
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, key, 0)
    builder.PrependUOffsetTRelativeSlot(2 if textual else 1, vector, 0)
    return builder.EndObject()


def payloads(pte: Path | str) -> dict[str, bytes]:
    """The payload of each method that has a delegate of ours."""
    program = deserialize_pte_binary(Path(pte).read_bytes()).program
    found = {plan.name: [d for d in plan.delegates if d.id == BACKEND] for plan in program.execution_plan}
    return {name: bytes(program.backend_delegate_data[ours[0].processed.index].data) for name, ours in found.items() if ours}


class Pte:
    """A `.pte` whose record can be changed in both of its places."""

    def __init__(self, path: Path | str):
        self.file = deserialize_pte_binary(Path(path).read_bytes())
        self.program = self.file.program

    @property
    def method(self) -> schema.ExecutionPlan:
        """The plan that calls the delegate."""
        (plan,) = [p for p in self.program.execution_plan if any(d.id == BACKEND for d in p.delegates)]
        return plan

    @property
    def delegate(self) -> schema.BackendDelegate:
        (delegate,) = [d for d in self.method.delegates if d.id == BACKEND]
        return delegate

    @property
    def payload(self) -> Record:
        return decode_payload(self.program.backend_delegate_data[self.delegate.processed.index].data)

    @payload.setter
    def payload(self, record: Record) -> None:
        self.program.backend_delegate_data[self.delegate.processed.index].data = encode_payload(record)

    @property
    def methods(self) -> Record:
        """The record as the constant methods hold it."""
        prefix, record = self.method.name + INFIX, {}
        for plan in self.program.execution_plan:
            if plan.name.startswith(prefix):
                record[plan.name.removeprefix(prefix)] = [constant(plan.values[i].val) for i in plan.outputs]
        return record

    @methods.setter
    def methods(self, record: Record) -> None:
        prefix = self.method.name + INFIX
        plans = self.program.execution_plan
        model_plan = next(p for p in plans if p.name.startswith(prefix))
        kept = [p for p in plans if not p.name.startswith(prefix)]
        made = [constant_plan(model_plan, prefix + name, values) for name, values in record.items() if values]
        self.program.execution_plan = sorted(kept + made, key=lambda p: p.name)

    @property
    def named_data(self) -> dict[str, DataEntry]:
        return self.file.named_data.pte_data

    def named_bytes(self, key: str) -> bytes:
        return bytes(self.file.named_data.buffers[self.named_data[key].buffer_index])

    def set_named_bytes(self, key: str, data: bytes) -> None:
        buffers = list(self.file.named_data.buffers)
        buffers[self.named_data[key].buffer_index] = data
        self.file.named_data.buffers = buffers

    def save(self, path: Path | str) -> Path:
        data = bytes(serialize_pte_binary(copy.deepcopy(self.file), extract_delegate_segments=True))
        Path(path).write_bytes(data)
        return Path(path)


def constant(value: Any) -> int | str:
    if isinstance(value, schema.Int):
        return value.int_val
    if isinstance(value, schema.String):
        return value.string_val
    raise AssertionError(f"a constant method holds a {type(value).__name__}, expected Int or String")


def constant_plan(like: schema.ExecutionPlan, name: str, values: list[Any]) -> schema.ExecutionPlan:
    """A plan without inputs that returns these values."""
    plan = copy.deepcopy(like)
    plan.name, plan.inputs, plan.outputs = name, [], list(range(len(values)))
    made = (schema.String(v) if isinstance(v, str) else schema.Int(v) for v in values)
    plan.values = [schema.EValue(v) for v in made]
    return plan


class Ptd:
    """A `.ptd` whose entries can be taken out or changed."""

    def __init__(self, path: Path | str):
        self.payload = FlatTensorSerializer().deserialize(Cord(Path(path).read_bytes()))

    @property
    def entries(self) -> dict[str, DataEntry]:
        return self.payload.named_data

    def bytes_of(self, key: str) -> bytes:
        return bytes(self.payload.buffers[self.entries[key].buffer_index])

    def set_bytes(self, key: str, data: bytes) -> None:
        buffers = list(self.payload.buffers)
        buffers[self.entries[key].buffer_index] = data
        self.payload.buffers = buffers

    def save(self, path: Path | str) -> Path:
        data = FlatTensorSerializer(FlatTensorConfig(segment_alignment=4096)).serialize(self.payload)
        Path(path).write_bytes(bytes(data))
        return Path(path)


def sealed(pte: Path | str, ptd: Path | str, out: Path | str) -> Path:
    """Writes `ptd` with the checksum of this program, so that a change of it is not refused for being one."""
    program, data = Path(pte).read_bytes(), Ptd(ptd)
    checksum = zlib.crc32(program[: int.from_bytes(program[24:32], "little")])
    data.set_bytes("weightstream_program_crc32_forward", checksum.to_bytes(4, "little") + bytes(28))
    return data.save(out)


def changed_record(pte: Path | str, out: Path | str, change: Any, *, where: str = "both") -> Path:
    """Writes `pte` with its record changed by `change(record)`, in the payload, the constant methods, or both."""
    doctored = Pte(pte)
    for place in ("payload", "methods") if where == "both" else (where,):
        record = copy.deepcopy(getattr(doctored, place))
        change(record)
        setattr(doctored, place, record)
    return doctored.save(out)


def function_that_fails(library: bytes, symbol: str) -> bytes:
    """A compiled library in which the exported function of this name returns 1 at once."""
    (table,) = struct.unpack_from("<Q", library, 32)
    (count,) = struct.unpack_from("<H", library, 56)
    segments = [struct.unpack_from("<IIQQQQQQ", library, table + 56 * i) for i in range(count)]
    (address,) = [value for name, value in dynamic_symbols(library) if name == symbol]
    # type, flags, offset, virtual address, physical address, size in the file
    (at,) = [address - s[3] + s[2] for s in segments if s[0] == 1 and s[3] <= address < s[3] + s[5]]
    code = b"\xb8\x01\x00\x00\x00\xc3"  # mov eax, 1; ret
    return library[:at] + code + library[at + len(code) :]


def dynamic_symbols(library: bytes) -> Iterator[tuple[str, int]]:
    """Names and addresses of what a 64-bit ELF file exports or asks for."""
    (table,) = struct.unpack_from("<Q", library, 40)
    entry, count = struct.unpack_from("<HH", library, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, table + i * entry) for i in range(count)]
    for section in (s for s in sections if s[1] == 11):  # SHT_DYNSYM
        names = library[sections[section[6]][4] :]
        for at in range(section[4], section[4] + section[5], 24):
            name, _info, _other, _index, value = struct.unpack_from("<IBBHQ", library, at)
            yield names[name : names.index(b"\0", name)].decode(), value


def changed_library(pte: Path | str, out: Path | str, change: Callable[[bytes], bytes]) -> Path:
    """Writes `pte` with another compiled library, under the key that belongs to it."""
    doctored = Pte(pte)
    (key,) = doctored.payload["so_key"]
    library = change(doctored.named_bytes(key))
    new = key[: -len(hashlib.sha256().hexdigest())] + hashlib.sha256(library).hexdigest()
    doctored.set_named_bytes(key, library)
    doctored.named_data[new] = doctored.named_data.pop(key)
    doctored.payload = {**doctored.payload, "so_key": [new]}
    doctored.methods = {**doctored.methods, "so_key": [new]}
    return doctored.save(out)


def swap_two_probes(record: Record) -> tuple[str, str]:
    """Exchanges two probes of weights of equal size in the trace; every sum in the record stays right.

    Returns the weights' names: the one the trace now expects first, and the one the compiled code asks for first.
    """
    probes, nbytes, fqns = record["probes"], record["nbytes"], record["fqns"]
    order = [event // 4 for event in record["trace"] if event % 4 == PROBE]
    first, second = next(
        (a, b) for i, a in enumerate(order) for b in order[i + 1 :] if probes[a] != probes[b] and nbytes[probes[a]] == nbytes[probes[b]]
    )
    other = {first: second, second: first}

    def exchanged(event: int) -> int:
        op, number = event % 4, event // 4
        return op + 4 * (number if op == KERNEL else other.get(number, number))

    record["trace"] = [exchanged(event) for event in record["trace"]]
    record["access_order"] = [probes[e // 4] for e in record["trace"] if e % 4 == PROBE]
    return fqns[probes[second]], fqns[probes[first]]


def counted_bytes(record: Record) -> int:
    """What all constants of a program occupy of a budget: each rounded up to its device's granule."""
    granule = {"cpu": 64, "cuda": 512}[record["device"][0]]
    return sum(-(-n // granule) * granule for n in record["nbytes"])
