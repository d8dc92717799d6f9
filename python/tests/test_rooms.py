"""The rooms of the package: a module imports its own room, and those that this table gives it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import sources

pytestmark = [pytest.mark.no_runtime, pytest.mark.no_export, pytest.mark.cpu_only("the package is the same for every device")]

PACKAGE = Path(importlib.util.find_spec("weightstream").origin).parent
#: A room: the rooms that it imports, all of them above it in this table.
ROOMS = {
    "_native": set(),
    "_run": {"_native"},
    "_eager": {"_native"},
    "_torch": {"_native"},
    "_export/passes": {"_native", "_torch"},
    "_export/compile": {"_native", "_torch", "_export/passes"},
    "_export": {"_native", "_run", "_torch", "_export/passes", "_export/compile"},
    "_llm": {"_native", "_run", "_export"},
}
#: What users and the commands name. These import any room.
PUBLIC = {"__init__.py", "_command.py", "llm.py", "torch.py"}


def room_of(path: Path) -> str | None:
    """The innermost room that a file lies in; None if it lies in none."""
    folders = [folder.as_posix() for folder in path.relative_to(PACKAGE).parents]
    return next((folder for folder in folders if folder in ROOMS), None)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in PUBLIC or path.parent != PACKAGE)


def test_every_file_has_a_room():
    assert [path for path in FILES if room_of(path) is None] == []


def test_arrows_go_one_way():
    rooms = list(ROOMS)
    assert all(rooms.index(other) < rooms.index(room) for room, others in ROOMS.items() for other in others)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_the_table_says(room):
    inside = [path for path in FILES if room_of(path) == room]
    found = {path: {room_of(other) for other in sources.imported(path)} for path in inside}
    assert {path.name: others - ROOMS[room] - {room} for path, others in found.items() if others - ROOMS[room] - {room}} == {}
    assert set().union(*found.values()) >= ROOMS[room], "the table has an arrow that nothing uses"
