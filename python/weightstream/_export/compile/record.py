"""The record of a method: what the runtime must know and cannot see, as named fields of integers and strings.

One encoder writes it twice. Tools read it without loading from constant methods of the program (``constant_methods``). The runtime
reads it from the delegate's payload (``encode``), so the two files need nothing beside them. ``src/format/record/mod.rs`` in the repository
lists the fields.
"""

from __future__ import annotations

from collections.abc import Sequence

import flatbuffers
from flatbuffers import encode as fb_encode
from flatbuffers import number_types as fb_types
from flatbuffers import packer as fb_packer
from flatbuffers import table as fb_table

#: Of a program with one method.
FORMAT_VERSION = 4
#: Of a program with several: its constants have keys of their own, and each payload holds the records of the other methods.
SEVERAL_METHODS = 5
IDENTIFIER = b"WSR1"
SEPARATOR = "__weight_offload__"

Fields = dict[str, "list[int] | list[str]"]


def constant_methods(method: str, fields: Fields) -> dict[str, list[int] | list[str]]:
    """The record as constant methods ``<method>__weight_offload__<field>``. An empty list is left out: a method must return something."""
    return {f"{method}{SEPARATOR}{name}": list(values) for name, values in fields.items() if values}


def encode(fields: Fields, others: Sequence[Fields] = ()) -> bytes:
    """The record as a flatbuffer ``Payload`` (``schema/record.fbs``), with the records of the program's ``others`` methods."""
    builder = flatbuffers.Builder(1024)
    tables = [_payload(builder, other, None) for other in others]
    builder.Finish(_payload(builder, fields, _tables(builder, tables) if tables else None), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _payload(builder: flatbuffers.Builder, fields: Fields, others: int | None) -> int:
    vector = _tables(builder, [_field(builder, name, values) for name, values in fields.items() if values])
    builder.StartObject(1 if others is None else 2)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    if others is not None:
        builder.PrependUOffsetTRelativeSlot(1, others, 0)
    return builder.EndObject()


def _tables(builder: flatbuffers.Builder, tables: list[int]) -> int:
    builder.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        builder.PrependUOffsetTRelative(table)
    return builder.EndVector()


def _field(builder: flatbuffers.Builder, name: str, values: list[int] | list[str]) -> int:
    text = builder.CreateString(name)
    strings = isinstance(values[0], str)
    if strings:
        offsets = [builder.CreateString(value) for value in values]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
    else:
        builder.StartVector(8, len(values), 8)
        for value in reversed(values):
            builder.PrependInt64(value)
    vector = builder.EndVector()
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.PrependUOffsetTRelativeSlot(2 if strings else 1, vector, 0)
    return builder.EndObject()


def decode(payload: bytes) -> tuple[Fields, list[Fields]]:
    """What :func:`encode` wrote: the fields of the method, and those of the program's other methods."""
    if payload[4:8] != IDENTIFIER:
        raise ValueError(f"not a WeightStream record: identifier {payload[4:8]!r}, expected {IDENTIFIER!r}")
    root = fb_table.Table(payload, fb_encode.Get(fb_packer.uoffset, payload, 0))
    return _fields(root), [_fields(other) for other in _children(root, 1)]


def _fields(payload: fb_table.Table) -> Fields:
    fields: Fields = {}
    for table in _children(payload, 0):
        name = table.String(table.Pos + table.Offset(4)).decode()
        ints = _elements(table, 1, lambda at, t=table: t.Get(fb_types.Int64Flags, at), 8)
        strings = _elements(table, 2, lambda at, t=table: t.String(at).decode(), 4)
        fields[name] = strings or ints
    return fields


def _children(table: fb_table.Table, slot: int) -> list[fb_table.Table]:
    return _elements(table, slot, lambda at: fb_table.Table(table.Bytes, table.Indirect(at)), 4)


def _elements(table: fb_table.Table, slot: int, read, width: int) -> list:
    offset = table.Offset(4 + 2 * slot)
    if not offset:
        return []
    start = table.Vector(offset)
    return [read(start + width * i) for i in range(table.VectorLen(offset))]
