"""The inputs of a call, from arguments as the model's ``forward`` takes them to the order of the method.

A program holds the path of each of its inputs: ``x``, ``state[0]``, ``cache['k']``. The same paths are found in the arguments of a call, by
position or keyword, so that the order of keywords and of a dictionary's keys decides nothing.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from .._native.errors import Error

#: A path whose order a caller knows: an argument, and places in its tuples and lists.
_OF_SEQUENCES = re.compile(r"[^.\[]+(\[\d+\])*")


@dataclasses.dataclass(frozen=True)
class Argument:
    """One input of a method."""

    path: str
    #: Of the argument that it stands in; None if that is a keyword.
    place: int | None
    #: The value that is part of the program, as Python writes it; empty for a tensor.
    constant: str

    @property
    def root(self) -> str:
        """The name of the argument that it stands in."""
        return re.split(r"[.\[]", self.path, maxsplit=1)[0]


class Call:
    """How a method is called. ``arguments`` are empty where the program does not name its inputs."""

    def __init__(self, method: str, arguments: list[Argument]):
        self.method = method
        self.arguments = arguments
        self._at = {argument.path: index for index, argument in enumerate(arguments)}
        self._roots = {argument.place: argument.root for argument in arguments if argument.place is not None}
        #: Whether positional arguments are the inputs as they are.
        self._is_flat = all(argument.place == index and argument.path == argument.root for index, argument in enumerate(arguments))

    def inputs(self, given: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
        """The method's inputs in its order. Raises :class:`Error` for arguments that are missing, unknown or given twice."""
        if not self.arguments and keywords:
            raise self._refusal(
                f"{_quoted(keywords)} cannot be given by name: the program does not name its inputs (it takes none, or an older exporter "
                "wrote it); give them by position"
            )
        if not self.arguments or (self._is_flat and not keywords and len(given) == len(self.arguments)):
            inputs = list(given)
        else:
            inputs = self._by_path(given, keywords)
        return [self._value(index, value) for index, value in enumerate(inputs)]

    def name(self, index: int) -> str:
        """What messages call an input."""
        return f"input {index} '{self.arguments[index].path}'" if index < len(self.arguments) else f"input {index}"

    def _value(self, index: int, value: Any) -> Any:
        """ExecuTorch's programs hold None in the place of a text."""
        constant = self.arguments[index].constant if index < len(self.arguments) else ""
        if not constant.startswith(("'", '"')):
            return value
        if isinstance(value, str) and repr(str(value)) == constant:
            return None
        found = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
        raise Error(f"invalid input: {self.name(index)}: expected {constant}, as at export, found {found}")

    def _by_path(self, given: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
        found: dict[str, Any] = {}
        for place, value in enumerate(given):
            found.update(_leaves(self._roots.get(place, f"positional argument {place}"), value))
        twice = [name for name in keywords if name in self._roots.values() and list(self._roots.values()).index(name) < len(given)]
        if twice:
            raise self._refusal(f"{_quoted(twice)} is given by position and by name")
        for name, value in keywords.items():
            found.update(_leaves(name, value))
        missing, unknown = [path for path in self._at if path not in found], [path for path in found if path not in self._at]
        if not missing and not unknown:
            return [found[argument.path] for argument in self.arguments]
        if not keywords and len(given) == len(self.arguments) and self._takes_a_list(given):
            return list(given)
        raise self._refusal("; ".join([*self._words("is missing", missing), *self._words("is unknown", unknown)]))

    def _takes_a_list(self, given: tuple[Any, ...]) -> bool:
        """Whether all inputs may come one after the other, without the tuples and lists that they stood in: no name orders them."""
        orderly = all(argument.place is not None and _OF_SEQUENCES.fullmatch(argument.path) for argument in self.arguments)
        return orderly and all(_is_leaf(value) for value in given)

    def _words(self, what: str, paths: list[str]) -> list[str]:
        return [f"{_quoted(paths)} {what if len(paths) == 1 else what.replace('is', 'are', 1)}"] if paths else []

    def _refusal(self, what: str) -> Error:
        named = [argument.path for argument in self.arguments if argument.place is not None]
        by_keyword = [argument.path for argument in self.arguments if argument.place is None]
        takes = ", ".join(named) if named else ""
        if by_keyword:
            takes += f"{', and ' if named else ''}by keyword, as at export, {', '.join(by_keyword)}"
        return Error(f"invalid input: method '{self.method}': {what}" + (f"; it takes {takes}" if takes else ""))


def _quoted(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _is_leaf(value: Any) -> bool:
    return list(_leaves("", value)) == [""]


def _leaves(root: str, value: Any) -> dict[str, Any]:
    """What an argument holds, by path."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return {root: value}
    from torch import Tensor
    from torch.utils import _pytree

    if isinstance(value, Tensor):
        return {root: value}
    leaves, _ = _pytree.tree_flatten_with_path(value)
    return {root + _pytree.keystr(path): leaf for path, leaf in leaves}
