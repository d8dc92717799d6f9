"""One mutation of the sources: the rule that it takes out, and where a marker says that the rule stands.

A marker is a comment of its own line, before the rule, or at the end of the rule's first line. Other comments may stand between.

    // rule: lease-before-evict
    if slot.leases > 0 {

One marker may name several rules: `// rule: a-rule, another-rule`. A rule stands in one place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edits import Edit, EditError
from statements import bare, end_of_statement, without_comments

ANY_MARKER = re.compile(r"//\s*rules?\s*:\s*(.*)", re.IGNORECASE)
NAMES = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*(?:, [a-z0-9]+(?:-[a-z0-9]+)*)*")


class RuleError(Exception):
    """A rule has no marker, or more than one, or its edit does not fit the code."""


@dataclass(frozen=True)
class Place:
    """Where a rule stands."""

    path: Path
    #: Of the marker, from 1.
    line: int
    #: Offsets of the statement in the file.
    start: int
    end: int


def markers(root: Path) -> dict[str, list[Place]]:
    """All markers of the sources, by rule. Errors: one that is not written as the others are."""
    found: dict[str, list[Place]] = {}
    for path in sorted((root / "src").rglob("*.rs")):
        text = path.read_text()
        for place, names in markers_of(path, text):
            for name in names:
                found.setdefault(name, []).append(place)
    return found


def markers_of(path: Path, text: str) -> list[tuple[Place, list[str]]]:
    found: list[tuple[Place, list[str]]] = []
    if not ANY_MARKER.search(text):
        return found
    code = without_comments(text)
    lines = text.splitlines(keepends=True)
    at = 0
    for number, line in enumerate(lines, 1):
        marker = ANY_MARKER.search(line)
        if marker and code[at + marker.start() : at + marker.end()].isspace():
            names = marker[1].strip()
            if not NAMES.fullmatch(names):
                raise RuleError(
                    f"{path.name}:{number}: a marker is written `// rule: its-name` or `// rule: one, another`, not\n{line.strip()}"
                )
            # Its own line if there is code before it, else the next code: comments are blanks here.
            start = at + len(code[at:]) - len(code[at:].lstrip())
            if start >= len(code):
                raise RuleError(f"{path.name}:{number}: there is no code after the marker")
            found.append((Place(path, number, start, end_of_statement(text, start)), names.split(", ")))
        at += len(line)
    return found


@dataclass(frozen=True)
class Mutant:
    """A rule taken out of the code.

    `tests` are the likeliest to notice, in the order in which they are tried: `lib` or `lib:FILTER` for the unit tests,
    `session:graph` for the file `tests/session/graph.rs`, or the name of a file in `tests/`.
    """

    name: str
    edit: Edit
    breaks: str
    tests: tuple[str, ...]

    def place(self, found: dict[str, list[Place]]) -> Place:
        """Where its rule stands."""
        places = found.get(self.name, [])
        if not places:
            raise RuleError(f"mutant '{self.name}': no marker `// rule: {self.name}` is in src/")
        if len(places) > 1:
            where = ", ".join(f"{place.path.name}:{place.line}" for place in places)
            raise RuleError(f"mutant '{self.name}': its marker stands in {len(places)} places, expected one: {where}")
        return places[0]

    def apply(self, place: Place) -> str:
        """The text of the file with the mutation; the file itself stays as it is."""
        text = place.path.read_text()
        statement = without_comments(text)[place.start : place.end]
        where = f"mutant '{self.name}' ({place.path.name}:{place.line}): the statement\n{statement.strip()}\n"
        try:
            mutated = self.edit.change(statement)
        except EditError as problem:
            raise RuleError(f"{where}{problem}; edit: {self.edit.words}") from None
        if mutated.split() == statement.split():
            raise RuleError(f"{where}stays as it is under the edit: {self.edit.words}")
        if balance(mutated) != balance(statement):
            raise RuleError(f"{where}has other brackets after the edit: {self.edit.words}")
        return text[: place.start] + mutated + text[place.end :]


def balance(statement: str) -> list[int]:
    """How many brackets of each kind are open at the end."""
    code = bare(statement)
    return [code.count(left) - code.count(right) for left, right in ("()", "[]", "{}")]


def problems(mutants: list[Mutant], root: Path, every: bool = True) -> list[str]:
    """What is wrong with these mutants; with `every`, which are all of them, also which markers nobody takes out."""
    names = [mutant.name for mutant in mutants]
    wrong = [f"two mutants are called '{name}'" for name in sorted({n for n in names if names.count(n) > 1})]
    try:
        found = markers(root)
    except RuleError as problem:
        return [*wrong, str(problem)]
    for mutant in mutants:
        try:
            mutant.apply(mutant.place(found))
        except RuleError as problem:
            wrong.append(str(problem))
        wrong += [f"mutant '{mutant.name}': {what}" for test in mutant.tests if (what := missing(test, root))]
        if not mutant.tests or not mutant.breaks:
            wrong.append(f"mutant '{mutant.name}' lacks its tests or its reason")
    if every:
        for name in sorted(set(found) - set(names)):
            place = found[name][0]
            wrong.append(f"{place.path.relative_to(root)}:{place.line}: no mutant takes the rule '{name}' out")
    return wrong


def missing(test: str, root: Path) -> str:
    """Why there is no such test; nothing if there is."""
    target, _, path = test.partition(":")
    if target != "lib":
        file = f"tests/{target}/{path}.rs" if path else f"tests/{target}.rs"
        return "" if (root / file).is_file() else f"there is no test {file}"
    modules = [str(file.relative_to(root).with_suffix("")) for file in (root / "src").rglob("*.rs")]
    known = any(path.replace("::", "/") in module for module in modules)
    return "" if known else f"no module of src/ is called '{path}'"
