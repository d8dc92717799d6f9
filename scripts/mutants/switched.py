"""All mutants in one build, chosen at run time: compiling takes most of the time where each has a build of its own.

The body of a function that holds mutants becomes

    { match NUMBER { 7 => { body of mutant 7 } 8 => { body of mutant 8 } _ => { body } } }

A few cannot stand so: those outside of functions, in a `const fn`, or where the bodies have different types. The compiler
finds them. They are built alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mutant import Mutant, markers
from statements import CLOSING, OPENING, bare

#: Names the mutant that a process runs with, by its number. No name of an option: unknown ones are errors.
VARIABLE = "MUTANT_OF_THE_CRATE"
#: Its number. It stands in each body: some files are a part of tests too, which have another crate's root.
CHOICE = (
    "{ static NUMBER: std::sync::OnceLock<u32> = std::sync::OnceLock::new(); "
    f'*NUMBER.get_or_init(|| std::env::var("{VARIABLE}").map_or(0, |text| text.parse().unwrap_or(0))) }}'
)
FUNCTION = re.compile(r"\bfn\s+\w+")


@dataclass
class Body:
    """The body of one function, and the mutants in it by their numbers."""

    path: Path
    start: int
    end: int
    mutants: dict[int, str] = field(default_factory=dict)

    def written(self) -> str:
        text = self.path.read_text()[self.start : self.end]
        arms = "".join(f"{number} => {mutated}\n" for number, mutated in self.mutants.items())
        return f"{{ match {CHOICE} {{\n{arms}_ => {text}\n}} }}"


def bodies(text: str) -> list[tuple[int, int]]:
    """Where the bodies of the outermost functions stand, brackets included."""
    code = bare(text)
    found: list[tuple[int, int]] = []
    for function in FUNCTION.finditer(code):
        if found and function.start() < found[-1][1]:
            continue
        depth = 0
        for at in range(function.end(), len(code)):
            if depth == 0 and code[at] == ";":
                break
            if depth == 0 and code[at] == "{":
                found.append((at, closing(code, at)))
                break
            depth += (code[at] in OPENING) - (code[at] in CLOSING)
    return found


def closing(code: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] in OPENING) - (code[at] in CLOSING)
        if depth == 0:
            return at + 1
    return len(code)


class Switched:
    """The mutants of a tree that stand in one build. `numbers` has them by name; `alone` are the others."""

    def __init__(self, root: Path, mutants: list[Mutant]):
        self.root = root
        self.bodies: dict[tuple[Path, int], Body] = {}
        self.numbers: dict[str, int] = {}
        found = markers(root)
        for number, mutant in enumerate(mutants, 1):
            place = mutant.place(found)
            text, mutated = place.path.read_text(), mutant.apply(place)
            around = [span for span in bodies(text) if span[0] < place.start and place.end <= span[1]]
            for start, end in around:
                body = self.bodies.setdefault((place.path, start), Body(place.path, start, end))
                body.mutants[number] = mutated[start : end + len(mutated) - len(text)]
                self.numbers[mutant.name] = number

    def write(self, check: Callable[[], str]) -> str:
        """Writes the sources, without those mutants that do not compile so. `check` compiles them and returns cargo's messages.
        Returns what is wrong with the sources apart from mutants; nothing if all is well."""
        originals = {path: path.read_text() for path, _ in self.bodies}
        while True:
            lines = self.rewrite(originals)
            wrong = errors(check(), self.root)
            guilty = {number for where in wrong for number in lines.get(where, ())}
            if not guilty:
                return "\n".join(f"{path}:{line}" for path, line in wrong)
            self.numbers = {name: number for name, number in self.numbers.items() if number not in guilty}
            for body in self.bodies.values():
                body.mutants = {number: text for number, text in body.mutants.items() if number not in guilty}

    def rewrite(self, originals: dict[Path, str]) -> dict[tuple[Path, int], list[int]]:
        """Writes the files. Says for each line of a changed body which mutants are to blame for an error there."""
        for path, text in originals.items():
            path.write_text(text)
        texts, lines = dict(originals), {}
        for body in sorted(self.bodies.values(), key=lambda body: -body.start):
            if body.mutants:
                texts[body.path] = texts[body.path][: body.start] + body.written() + texts[body.path][body.end :]
        for body in self.bodies.values():
            if body.mutants:
                lines |= blame(body, texts[body.path])
        for path, text in texts.items():
            path.write_text(text)
        return lines


def blame(body: Body, text: str) -> dict[tuple[Path, int], list[int]]:
    """An error in the copy of a mutant is its own; one elsewhere in the body is of all of them."""
    written = body.written()
    start = text[: text.index(written)].count("\n") + 1
    lines = {(body.path, start + line): list(body.mutants) for line in range(written.count("\n") + 1)}
    at = start + 1
    for number, mutated in body.mutants.items():
        size = mutated.count("\n") + 1
        lines |= {(body.path, line): [number] for line in range(at, at + size)}
        at += size
    return lines


def error(line: str) -> dict | None:
    """An error of the compiler, by one of cargo's messages."""
    message = json.loads(line).get("message") if line.startswith("{") else None
    return message if message and message["level"] == "error" else None


def told(output: str) -> str:
    """The errors of the compiler in its words."""
    return "\n".join(message["rendered"] for line in output.splitlines() if (message := error(line)))


def errors(output: str, root: Path) -> list[tuple[Path, int]]:
    """Where the compiler found errors, by cargo's messages."""
    found = []
    for line in output.splitlines():
        if message := error(line):
            found += [(root / span["file_name"], span["line_start"]) for span in message["spans"] if span["is_primary"]]
    return found


def executables(output: str) -> dict[str, str]:
    """The test programs that cargo built, by the file of tests, or `lib`."""
    found = {}
    for line in output.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message.get("profile", {}).get("test"):
            target = message["target"]
            found["lib" if "lib" in target["kind"] or "rlib" in target["kind"] else target["name"]] = message["executable"]
    return found
