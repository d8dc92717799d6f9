"""Which reads take only some rows of a weight: the runtime may do them in place, in host memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.export import ExportedProgram

from ..._torch.probe import is_probe
from ..._torch.shapes import UNBOUNDED
from ..passes import experts, giants
from ..passes.dequantized import name_of

UNKNOWN = -1

_ATEN = torch.ops.aten


def row_reads(program: ExportedProgram) -> dict[int, int]:
    """Probe id to the most rows of the weight's first dimension that a pass takes, or :data:`UNKNOWN` without an upper bound.

    Of a table that :mod:`giants` cut into pieces, each piece has its share of the rows: the pieces together take no more rows than the
    table did, and the few that stand for rows of other pieces.

    ``program`` has its final probes. A probe is listed if its one reader is a lookup of rows (``embedding``, ``index_select``, or an
    index in the first dimension) or a product by experts, whose rows are matrices; and if a row lies together in memory.
    """
    found = {}
    tables: dict[str, dict[int, int]] = {}
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    for node in program.graph.nodes:
        if not is_probe(node) or len(node.users) != 1 or not _has_rows(node):
            continue
        (reader,) = node.users
        indices = _indices(reader, node)
        if indices is not None:
            found[node.args[1]] = min(_most(indices.meta["val"], program), node.meta["val"].shape[0])
            tables.setdefault(giants.table_of(names.get(node.args[0].name, node.name)), {})[node.args[1]] = node.meta["val"].shape[0]
    for pieces in tables.values():
        for probe, rows in pieces.items():
            if found[probe] != UNKNOWN:
                found[probe] = -(-found[probe] * rows // sum(pieces.values()))
    return dict(sorted(found.items()))


def row_places(program: ExportedProgram) -> dict[int, str]:
    """Probe id of matrices of experts to the constant in which the runtime says where each matrix is."""
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    found = {}
    for node in program.graph.nodes:
        matrices = experts.MATRICES.get(name_of(node)) if node.op == "call_function" else None
        for at, of in (matrices or {}).items():
            # Dense matrices have no scales, and on a GPU some have no places.
            read, places = (node.args[one] if one is not None and one < len(node.args) else None for one in (at, of))
            if read is not None and places is not None and is_probe(read):
                found[read.args[1]] = names[places.name]
    return dict(sorted(found.items()))


def _operator(node: torch.fx.Node) -> object:
    return getattr(node.target, "_op", node.target)


def reads_in_place(gathers: dict[int, int], probes: list[int], nbytes: list[int], rows: list[int]) -> set[int]:
    """The probes that the runtime reads in place by its rule (``Gather::pays``): a pass takes at most half of their table.

    ``probes[i]`` is the constant of probe ``i``; ``nbytes`` and ``rows`` are the bytes and rows of each constant.
    """

    def pays(probe: int, most: int) -> bool:
        table = probes[probe]
        return most != UNKNOWN and nbytes[table] > 0 and most * (nbytes[table] // rows[table]) <= nbytes[table] // 2

    return {probe for probe, most in gathers.items() if pays(probe, most)}


def flatten(gathers: dict[int, int]) -> list[int]:
    """As the record holds them: pairs of a probe and its rows."""
    return [number for pair in gathers.items() for number in pair]


def _has_rows(probe: torch.fx.Node) -> bool:
    value = probe.meta["val"]
    return value.dim() > 0 and value.shape[0] > 0 and value.stride(0) == max(value.stride())


def _indices(reader: torch.fx.Node, probe: torch.fx.Node) -> torch.fx.Node | None:
    """The node of the row numbers, if ``reader`` looks rows of ``probe`` up and does nothing else with it."""
    target = _operator(reader)
    if matrices := experts.MATRICES.get(name_of(reader)):
        places = [at for at, one in enumerate(reader.args) if one is probe]
        return reader.args[1] if len(places) == 1 and places[0] in matrices else None
    if reader.op != "call_function" or reader.args[0] is not probe:
        return None
    if target is _ATEN.embedding.default:
        indices = reader.args[1]
    elif target is _ATEN.index_select.default and reader.args[1] == 0:
        indices = reader.args[2]
    elif target is _ATEN.index.Tensor and _only_first(reader.args[1]):
        indices = reader.args[1][0]
    else:
        return None
    return indices if isinstance(indices, torch.fx.Node) and indices is not probe else None


def _only_first(indices: Iterable) -> bool:
    first, *others = indices
    return first is not None and all(index is None for index in others)


def _most(indices: torch.Tensor, program: ExportedProgram) -> int:
    if indices.dtype is torch.bool:
        return UNKNOWN
    most = 1
    for size in indices.shape:
        most *= size if isinstance(size, int) else _upper(size, program)
        if most >= UNBOUNDED:
            return UNKNOWN
    return most


def _upper(size: torch.SymInt, program: ExportedProgram) -> int:
    expression = size.node.expr
    bounds = program.range_constraints.get(expression) or size.node.shape_env.bound_sympy(expression)
    return int(bounds.upper) if bounds.upper < UNBOUNDED else UNBOUNDED
