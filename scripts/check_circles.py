#!/usr/bin/env python3
"""Fails where more than two Rust files of src/ use each other in a circle.

An edge goes from a file to the file that defines a name it uses, through any `pub use` between them. Tests are left out. A `mod.rs`
that only declares and re-exports its children has no edges; a re-export counts where the file's own code uses the name too. Methods are
not looked at: what a file can call without naming its module makes no edge.

    scripts/check_circles.py [--edges] [FOLDER]     # --edges: what makes each edge of a circle
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MOST = 2
#: Comments, strings and characters. Lifetimes stay: no rule looks at them.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\'', re.DOTALL)
TEST = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*")
PATH_ATTRIBUTE = re.compile(r'#\[path = "([^"]+)"\]\s*mod (\w+);')
MODULE = re.compile(r"\bmod (\w+)\s*(;|\{)")
USE = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
DEFINITION = re.compile(r"\b(?:fn|struct|enum|trait|type|const|static|union|macro_rules!)\s+(?:mut\s+)?(\w+)")
ENUM = re.compile(r"\benum \w+[^{;]*\{")
#: The name of a variant, at the begin of its line as rustfmt puts it.
VARIANT = re.compile(r"^\s*\w+(?=\s*[({,=])", re.MULTILINE)
ITEM_END = re.compile(r"[;{]")
QUALIFIED = re.compile(r"(?<![\w:])\w+(?:::\w+)+")


@dataclass
class Module:
    """A file of Rust: what it declares, imports and says."""

    path: Path
    parent: Module | None = None
    children: dict[str, Module] = field(default_factory=dict)
    #: Modules within the file.
    inline: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    #: Name here: its path elsewhere, and whether it is only passed on.
    imports: dict[str, tuple[list[str], bool]] = field(default_factory=dict)
    globs: list[list[str]] = field(default_factory=list)
    code: str = ""


def block_end(code: str, at: int) -> int:
    """Where the block ends whose brace is before `at`."""
    depth = 1
    while depth and at < len(code):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        at += 1
    return at


def without_tests(code: str) -> str:
    """Cuts each item that only tests have."""
    while found := TEST.search(code):
        end = ITEM_END.search(code, found.end())
        stop = end.end() if end else len(code)
        if end and end.group() == "{":
            stop = block_end(code, stop)
        code = code[: found.start()] + code[stop:]
    return code


def words_of(code: str) -> set[str]:
    """All words but the names of variants where they are defined."""
    for found in reversed(list(ENUM.finditer(code))):
        stop = block_end(code, found.end())
        code = code[: found.end()] + VARIANT.sub("", code[found.end() : stop]) + code[stop:]
    return set(re.findall(r"\w+", code))


def split(text: str) -> list[str]:
    """The parts of a list between commas that are not within braces."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def leaves(tree: str, before: list[str]) -> Iterator[tuple[list[str], str]]:
    """The paths of a `use`, each with its name here."""
    head, brace, rest = tree.partition("{")
    if brace:
        begin = [*before, *[word for word in head.strip().split("::") if word]]
        for part in split(rest.rstrip().removesuffix("}")):
            yield from leaves(part, begin)
        return
    path, _, name = tree.partition(" as ")
    words = [*before, *path.strip().split("::")]
    if words[-1] == "self":
        words.pop()
    yield words, name.strip() or words[-1]


def load(path: Path, folder: Path, parent: Module | None = None) -> Module:
    """Reads a file and, below `folder`, the modules that it declares."""
    text = path.read_text()
    module = Module(path, parent)
    code = without_tests(NO_CODE.sub(lambda found: "" if found.group().startswith("/") else '""', text))
    elsewhere = {name: path.parent / file for file, name in PATH_ATTRIBUTE.findall(text)}
    for name, what in MODULE.findall(code):
        if what == "{":
            module.inline.add(name)
            continue
        places = [elsewhere.get(name), folder / f"{name}.rs", folder / name / "mod.rs"]
        file = next((place for place in places if place and place.is_file()), None)
        if file is None:
            raise SystemExit(f"{path}: the file of `mod {name};` was not found")
        if "generated" not in file.parts:
            module.children[name] = load(file, folder / name, module)
    for public, tree in USE.findall(code):
        for words, name in leaves(" ".join(tree.split()), []):
            if words[-1] == "*":
                module.globs.append(words[:-1])
            else:
                module.imports[name] = words, bool(public)
    module.code = MODULE.sub("", USE.sub("", code))
    module.defined = set(DEFINITION.findall(module.code)) | module.inline
    return module


def root_of(module: Module) -> Module:
    return module if module.parent is None else root_of(module.parent)


def start(module: Module, word: str) -> Module | None:
    """What a path's first word says, where that is a place."""
    return {"crate": root_of(module), "super": module.parent or module, "self": module}.get(word)


def find(module: Module, words: list[str], seen: frozenset = frozenset()) -> tuple[Module, bool] | None:
    """The module that defines what a path leads to, and whether it is that module itself; none where that is not in this crate."""
    if not words:
        return module, True
    key = (module.path, *words)
    if key in seen:
        return None
    seen |= {key}
    first, rest = words[0], words[1:]
    if (place := start(module, first) or module.children.get(first)) is not None:
        # What a macro defines is found nowhere, but belongs to the last module of its path.
        return find(place, rest, seen) or (place, False)
    if first in module.defined:
        return module, False
    # `use gemm::gemm` is of a crate called gemm.
    if first in module.imports and module.imports[first][0][0] != first:
        origin = module.imports[first][0]
        known = {*module.children, *module.defined, *module.imports}
        if start(module, origin[0]) is None and origin[0] not in known:
            return module, True  # of another crate
        return find(module, [*origin, *rest], seen)
    for glob in module.globs:
        source = find(module, glob, seen)
        if source and source[0] is not module and (found := find(source[0], words, seen)):
            return found
    return None


def uses(module: Module) -> Iterator[tuple[str, Module]]:
    """What a file uses, and who defines it."""
    words_here = words_of(module.code)
    paths = [words for name, (words, public) in module.imports.items() if not public or name in words_here]
    paths += [found.split("::") for found in sorted(set(QUALIFIED.findall(module.code)))]
    for glob in module.globs:
        if source := find(module, glob):
            names = words_here & (source[0].defined | set(source[0].imports)) - module.defined
            paths += [[*glob, name] for name in sorted(names)]
    for words in paths:
        found, itself = find(module, words) or (module, True)
        # What is used of a module shows where it is used.
        if found is not module and not itself:
            yield "::".join(words), found


def all_modules(module: Module) -> Iterator[Module]:
    yield module
    for child in module.children.values():
        yield from all_modules(child)


def circles(graph: dict[Path, set[Path]]) -> list[list[Path]]:
    """The strongly connected components of more than one file, the largest first (Tarjan)."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    found: list[list[Path]] = []

    def visit(at: Path) -> None:
        index[at] = low[at] = len(index)
        stack.append(at)
        for other in sorted(graph[at]):
            if other not in index:
                visit(other)
            if other in stack:
                low[at] = min(low[at], low[other])
        if low[at] == index[at]:
            cut = stack.index(at)
            found.append(sorted(stack[cut:]))
            del stack[cut:]

    for path in sorted(graph):
        if path not in index:
            visit(path)
    return sorted((circle for circle in found if len(circle) > 1), key=len, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--edges", action="store_true", help="say what makes each edge of a circle")
    arguments = parser.parse_args()
    modules = list(all_modules(load(arguments.folder / "lib.rs", arguments.folder)))
    reasons: dict[tuple[Path, Path], list[str]] = {}
    for module in modules:
        for name, other in uses(module):
            reasons.setdefault((module.path, other.path), []).append(name)
    graph = {module.path: {other for own, other in reasons if own == module.path} for module in modules}
    found = circles(graph)
    for circle in found:
        print(f"{len(circle)} files: {' '.join(str(path.relative_to(arguments.folder)) for path in circle)}")
        edges = ((own, other, names) for (own, other), names in sorted(reasons.items()) if own in circle and other in circle)
        for own, other, names in edges if arguments.edges else ():
            print(f"  {own.relative_to(arguments.folder)} -> {other.relative_to(arguments.folder)}: {', '.join(names)}")
    too_many = sum(len(circle) > MOST for circle in found)
    print(f"{len(modules)} files, {len(found)} circles, {too_many} of more than {MOST} files")
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(main())
