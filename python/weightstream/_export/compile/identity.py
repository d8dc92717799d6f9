"""Which constants of a program's methods are one.

    immutable    equal dtype, sizes and bytes              whatever their names
    state        one FQN, or a pair of the user's map      never by bytes

A buffer that any method writes is state in every method that has it. :func:`agree` decides and checks this before anything is compiled:
it needs names and bytes, and no compiler. :func:`keys_of` gives each constant its key afterwards, when the compiler's own constants
are known too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ..._native.errors import ExportError
from ..passes.experts import is_places
from .describe import MUTABLE, Stored

#: FQN to key, per method.
State = dict[str, dict[str, str]]
SharedState = dict[str, str]

#: Kinds whose names are the user's; ExecuTorch makes buffers of literals, and numbers them in each method.
_NAMED = (InputKind.PARAMETER, InputKind.BUFFER)
_NUMBERED = re.compile(r"_(lifted_)?tensor_constant\d+")
#: Pairs that an error shows.
_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Held:
    """A parameter or buffer of one method."""

    method: str
    fqn: str
    tensor: torch.Tensor
    buffer: bool
    written: bool

    @property
    def name(self) -> str:
        return f"{self.method}.{self.fqn}"

    def shape(self) -> tuple[torch.dtype, tuple[int, ...]]:
        return self.tensor.dtype, tuple(self.tensor.shape)


def held_by(method: str, program: ExportedProgram) -> dict[str, Held]:
    """The parameters and buffers of a method, by FQN."""
    written = set(program.graph_signature.buffers_to_mutate.values())
    return {
        fqn: Held(method, fqn, value, kind is InputKind.BUFFER, fqn in written)
        for fqn, (kind, value) in _tensors(program).items()
        if kind in _NAMED and not _NUMBERED.fullmatch(fqn)
    }


def _tensors(program: ExportedProgram) -> dict[str, tuple[InputKind, torch.Tensor]]:
    held = {**program.constants, **program.state_dict}
    specs = [spec for spec in program.graph_signature.input_specs if isinstance(held.get(spec.target), torch.Tensor)]
    return {spec.target: (spec.kind, held[spec.target]) for spec in specs}


def agree(programs: dict[str, ExportedProgram], shared: SharedState | None) -> State:
    """The keys of each method's state, by FQN. Raises :class:`ExportError` where names, shapes or bytes of the methods do not agree."""
    methods = {method: held_by(method, programs[method]) for method in sorted(programs)}
    targets = _targets(shared or {}, methods)
    keys = {one.name: targets.get(one.name, one).fqn for one in _all(methods)}
    written = {keys[one.name] for one in _all(methods) if one.written}
    _refuse_what_is_not_written(targets, methods, written)
    groups: dict[str, list[Held]] = {}
    for one in _all(methods):
        groups.setdefault(keys[one.name], []).append(one)
    for key, group in groups.items():
        (_check_state if key in written else _check_weights)(key, group)
    _refuse_bare_reads(programs, [one for one in _all(methods) if one.written])
    if shared is None:
        _refuse_separate_state(methods, {key: groups[key] for key in written})
    return {method: {fqn: keys[one.name] for fqn, one in held.items() if keys[one.name] in written} for method, held in methods.items()}


def refuse_alone(programs: dict[str, ExportedProgram], shared: SharedState | None) -> None:
    """Raises :class:`ExportError` for a ``shared_state`` that is given for a program of one method, and says more than nothing."""
    if shared:
        agree(programs, shared)


def _all(methods: dict[str, dict[str, Held]]) -> Iterator[Held]:
    for held in methods.values():
        yield from held.values()


def _targets(shared: SharedState, methods: dict[str, dict[str, Held]]) -> dict[str, Held]:
    """``method.fqn`` to what it shares its state with."""
    found = {source: (_find(source, methods), _find(target, methods)) for source, target in shared.items()}
    for source, (one, other) in found.items():
        if other.name in shared:
            raise ExportError(
                f"shared_state maps '{source}' to '{other.name}', which it maps to '{shared[other.name]}': map both to the buffer whose name stays"
            )
        if one.shape() != other.shape():
            raise ExportError(f"shared_state maps '{source}' ({_words(one)}) to '{other.name}' ({_words(other)}): one state has one shape")
    return {source: other for source, (_, other) in found.items()}


def _find(name: str, methods: dict[str, dict[str, Held]]) -> Held:
    # A method's name may hold dots, as an FQN does.
    method = next((method for method in sorted(methods, key=len, reverse=True) if name.startswith(f"{method}.")), None)
    if method is None:
        raise ExportError(f"shared_state names '{name}', and no method: write '<method>.<buffer>'; the methods are {_list(methods)}")
    fqn = name.removeprefix(f"{method}.")
    if fqn not in methods[method]:
        buffers = [one.fqn for one in methods[method].values() if one.buffer]
        raise ExportError(f"shared_state names '{name}': method '{method}' uses no buffer '{fqn}'; it uses {_list(buffers)}")
    if not methods[method][fqn].buffer:
        raise ExportError(f"shared_state names '{name}', which is a parameter; only buffers are state")
    return methods[method][fqn]


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def _words(one: Held) -> str:
    dtype, sizes = one.shape()
    return f"{str(dtype).removeprefix('torch.')} {list(sizes)}"


def _refuse_what_is_not_written(targets: dict[str, Held], methods: dict[str, dict[str, Held]], written: set[str]) -> None:
    for source, target in targets.items():
        if target.fqn not in written:
            raise ExportError(
                f"shared_state maps '{source}' to '{target.name}', and no method writes either: a buffer that is only read is shared by its bytes"
            )


def _check_state(key: str, group: list[Held]) -> None:
    """The buffers of one state."""
    first, *others = group
    if len({one.method for one in group}) != len(group):
        raise ExportError(f"{_list(one.name for one in group)} would all be the state '{key}': one method has one buffer of a state")
    for one in others:
        if one.shape() != first.shape():
            raise ExportError(
                f"the state '{key}' is {_words(first)} in '{first.name}' and {_words(one)} in '{one.name}': buffers of one name are one state; "
                "rename one of them, or give both the same shape"
            )
        if not same_bytes(first.tensor, one.tensor):
            raise ExportError(f"the state '{key}' starts with other values in '{first.name}' than in '{one.name}': one state starts once")


def _check_weights(fqn: str, group: list[Held]) -> None:
    """What methods call by one name, and none of them writes."""
    first, *others = group
    for one in others:
        if one.shape() != first.shape() or not same_bytes(first.tensor, one.tensor):
            raise ExportError(
                f"'{fqn}' has other values in method '{first.method}' ({_words(first)}) than in method '{one.method}' ({_words(one)}): "
                "a name means one weight of a program; export both methods from the same weights, or from modules that name them differently"
            )


def _refuse_bare_reads(programs: dict[str, ExportedProgram], written: list[Held]) -> None:
    """Tensors of a plain attribute or a list that are state elsewhere: no map can name them, and they would keep their first value."""
    places = {_place(one.tensor): one for one in written if one.tensor.numel()}
    for method, program in programs.items():
        for fqn, (kind, value) in _tensors(program).items():
            state = places.get(_place(value)) if kind is InputKind.CONSTANT_TENSOR else None
            if state is not None:
                raise ExportError(
                    f"method '{method}' reads the tensor '{fqn}', which is no buffer, and '{state.name}' is the same memory and is written: "
                    "register it with register_buffer there too"
                )


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same bytes, element by element."""
    if one.stride() == other.stride() and _address(one) == _address(other):
        return True
    return torch.equal(_bytes(one), _bytes(other))


def _address(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset()


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return *_address(tensor), tensor.dtype, tuple(tensor.shape)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Not `equal` of the values: a NaN is itself, and the two zeros are two.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _refuse_separate_state(methods: dict[str, dict[str, Held]], state: dict[str, list[Held]]) -> None:
    """State of two methods that could be one, where nobody has said whether it is."""
    alone = {method: [group[0] for group in state.values() if len(group) == 1 and group[0].method == method] for method in methods}
    shared = [group for group in state.values() if len(group) > 1]
    names = {one.name for group in state.values() for one in group}
    pairs: list[tuple[Held, Held]] = []
    for number, method in enumerate(methods):
        pairs += _pairs([group[0] for group in shared if method not in {one.method for one in group}], alone[method])
        for other in list(methods)[number + 1 :]:
            pairs += _pairs(alone[method], alone[other])
            pairs += _read_elsewhere(alone[method], methods[other], names)
            pairs += _read_elsewhere(alone[other], methods[method], names)
    # As a map that can be given as it stands: each name once on the left.
    asked: dict[str, str] = {}
    for one, other in pairs:
        asked.setdefault(other.name, one.name)
    if asked:
        shown = ", ".join(f'"{source}": "{target}"' for source, target in list(asked.items())[:_SHOWN])
        more = f" ({len(asked) - _SHOWN} more pairs are not shown)" if len(asked) > _SHOWN else ""
        raise ExportError(
            "methods have state of equal shape under different names, so that nothing tells whether it is one: pass "
            f"shared_state={{{shown}}}{more} if each pair is one state, or shared_state={{}} if each method keeps its own"
        )


def _pairs(ones: list[Held], others: list[Held]) -> list[tuple[Held, Held]]:
    """Buffers of equal shape, each with the one whose name ends most alike."""
    found, left = [], list(others)
    for one in ones:
        alike = [other for other in left if other.shape() == one.shape()]
        if alike:
            best = max(alike, key=lambda other: _common_end(one.fqn, other.fqn))
            left.remove(best)
            found.append((one, best))
    return found


def _common_end(one: str, other: str) -> int:
    count = 0
    for a, b in zip(reversed(one.split(".")), reversed(other.split("."))):
        if a != b:
            break
        count += 1
    return count


def _read_elsewhere(written: list[Held], others: dict[str, Held], state: set[str]) -> list[tuple[Held, Held]]:
    """Buffers that one method writes, and that another one only reads: under another name, in the same memory."""
    places = {_place(one.tensor): one for one in written if one.tensor.numel()}
    found = []
    for other in others.values():
        one = places.get(_place(other.tensor))
        if one is not None and other.buffer and other.name not in state:
            found.append((one, other))
    return found


def keys_of(methods: dict[str, list[Stored]], state: State) -> dict[str, list[str]]:
    """The key of each constant of each method.

    State has its key already. Other constants have the name of the first that is equal, methods by name; where a name of torch.export's
    or the compiler's is taken by other bytes, the method stands before it.
    """
    taken: set[str] = {key for keys in state.values() for key in keys.values()}
    known: dict[tuple[object, ...], str] = {}
    found = {}
    for method in sorted(methods):
        own = state.get(method, {})
        found[method] = [own[one.fqn] if one.kind == MUTABLE else _key(method, one, known, taken) for one in methods[method]]
    return found


def _key(method: str, one: Stored, known: dict[tuple[object, ...], str], taken: set[str]) -> str:
    # What the runtime says of one weight is not what it says of another, though both begin alike.
    identity = (one.fqn, *one.identity()) if is_places(one.fqn) else one.identity()
    if identity not in known:
        known[identity] = _free_name(one.fqn, method, taken)
        taken.add(known[identity])
    return known[identity]


def _free_name(fqn: str, method: str, taken: set[str]) -> str:
    name, number = fqn, 1
    while name in taken:
        name = f"{method}/{fqn}" if number == 1 else f"{method}/{fqn}/{number}"
        number += 1
    return name
