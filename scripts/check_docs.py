#!/usr/bin/env python3
"""Fails where README.md, SECURITY.md or docs/*.md name what does not exist, or break a rule of layout.

Looked for: files, symbols, options, environment variables, `make` targets, commands and flags of `weightstream` and of
the tools in C++, relative links and their anchors; README.md and docs/architecture.md within their lengths; prose within 100
columns. A symbol is any name in the project's code, comments left out.

    scripts/check_docs.py [ROOT]
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

LONGEST = {"README.md": 120, "docs/architecture.md": 250}
COLUMNS = 100
CODE = {".rs", ".py", ".h", ".c", ".cpp", ".cu", ".txt", ".toml", ".fbs", ".cmake", ".in", ".map", ""}
DOCS = {"README.md", "SECURITY.md"}
SUFFIXES = r"\.(?:rs|py|md|h|cpp|cu|c|toml|fbs|cmake|svg|json|sh)"
#: Names of other projects that no code here uses.
FOREIGN = {"lifted_tensor_2"}
#: Files that exports write.
USERS = {"tokenizer.json"}
FENCE = re.compile(r"^ *```.*?^ *```[^\S\n]*$", re.MULTILINE | re.DOTALL)
SYMBOL = re.compile(r"[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*(?:\(.*\)|!|=\S*)?")
#: Programs in C++, and the file of their own flags.
TOOLS = {"weightstream-run": "runner", "weightstream-generate": "generate"}
#: Commands of `weightstream` in Python, and the file of their flags.
PYTHON_COMMANDS = {"export": "python/weightstream/_command.py", "llm": "python/weightstream/_llm/command.py"}
COMMAND = re.compile(rf"^(?:make|weightstream|{'|'.join(TOOLS)})(?: .*)?$", re.MULTILINE)
Found = Iterator[tuple[int, str]]


def without_comments(path: Path, text: str) -> str:
    """The code of a file. Python's docstrings are comments too."""
    if path.suffix == ".py":
        return " ".join(_python(text))
    marker = r"//.*$|/\*.*?\*/" if path.suffix in {".rs", ".h", ".c", ".cpp", ".cu", ".fbs"} else r"#.*$"
    flags = re.MULTILINE | (re.DOTALL if "/" in marker else 0)
    return re.sub(marker.replace(".*$", r"[^\n]*$"), "", text, flags=flags)


def _python(text: str) -> Iterator[str]:
    starts = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NL, tokenize.COMMENT):
            continue
        if not (starts and token.type == tokenize.STRING):
            yield token.string
        starts = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


class Project:
    """What exists."""

    def __init__(self, root: Path):
        self.root = root
        listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
        self.files = [name for name in listed.stdout.splitlines() if (root / name).is_file()]
        self.docs = [name for name in self.files if name in DOCS or re.fullmatch(r"docs/[^/]+\.md", name)]

    def text(self, name: str) -> str:
        path = self.root / name
        return path.read_text(errors="replace") if path.is_file() else ""

    @cached_property
    def words(self) -> set[str]:
        found: set[str] = set()
        for name in self.files:
            path = Path(name)
            if path.suffix in CODE and "check_docs" not in name:
                found.update(re.findall(r"[A-Za-z_]\w*", without_comments(path, self.text(name))))
                found.add(path.stem)
        return found

    @cached_property
    def folders(self) -> set[str]:
        return {str(parent) for name in self.files for parent in PurePosixPath(name).parents}

    @cached_property
    def ignored(self) -> list[str]:
        """Folders that builds make."""
        return [line.strip("/ ") for line in self.text(".gitignore").splitlines() if line.startswith("/")]

    @cached_property
    def options(self) -> set[str]:
        rust = "".join(self.text(name) for name in self.files if name.startswith("src/config/") and "test" not in name)
        return set(re.findall(r'"(weight_offload(?:_[a-z0-9]+)+)"', rust))

    @cached_property
    def variables(self) -> set[str]:
        return self.words | self.options | {option.replace("weight_offload", "WEIGHTSTREAM").upper() for option in self.options}

    @cached_property
    def targets(self) -> set[str]:
        return set(re.findall(r"^([a-z][a-z-]*):", self.text("Makefile"), re.MULTILINE))

    @cached_property
    def flags(self) -> dict[str, set[str]]:
        """Of each command, by what it is called with first."""
        rust = "".join(self.text(name) for name in self.files if name.startswith("src/command/"))
        fields = re.findall(r"#\[arg\([^\]]*\blong\b[^\]]*\)\]\s*(?:pub )?(\w+):", rust)
        own = {"--" + field.replace("_", "-") for field in fields} | {"--help", "--version"}
        variants = "".join(re.findall(r"enum Command \{(.*?)^\}", rust, re.MULTILINE | re.DOTALL))
        commands = {name.lower(): own for name in re.findall(r"^    ([A-Z]\w*)", variants, re.MULTILINE)}
        quoted = r'"\s*(--[a-z][a-z0-9-]*)'
        for name, source in PYTHON_COMMANDS.items():
            commands[name] = {*re.findall(quoted, self.text(source)), "--help"}
        for tool, source in TOOLS.items():
            text = self.text("cpp/tools/arguments.cpp") + self.text(f"cpp/tools/{source}.cpp")
            commands[tool] = {"--" + flag for flag in re.findall(r'\{"([a-z][a-z0-9-]*)", (?:"|nullptr)', text)}
        return commands

    def has_path(self, path: str) -> bool:
        """Whether it is the end of a file's path, a folder, a pattern that fits one, or what a build makes."""
        path = path.removeprefix("./").rstrip("/")
        if any(path == made or path.startswith(made + "/") for made in self.ignored):
            return True
        if path in self.folders or any(folder.endswith("/" + path) for folder in self.folders):
            return True
        return any(PurePosixPath(name).match(path) for name in self.files)

    def anchors(self, name: str) -> set[str]:
        return {slug(heading) for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", self.text(name)), re.MULTILINE)}


class Page:
    """One document."""

    def __init__(self, project: Project, name: str):
        self.project, self.name = project, name
        self.text = project.text(name)
        # Blocks of code are blank in it, so that lines keep their numbers.
        self.prose = FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), self.text)

    def problems(self) -> list[str]:
        found = [*self.layout(), *self.links(), *self.anywhere(), *self.spans(), *self.blocks()]
        return [f"{self.name}:{line}: {what}" for line, what in sorted(set(found))]

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    def layout(self) -> Found:
        lines = self.prose.splitlines()
        if len(lines) > (most := LONGEST.get(self.name, len(lines))):
            yield len(lines), f"{len(lines)} lines, at most {most}"
        for number, line in enumerate(lines, 1):
            if len(line.rstrip()) > COLUMNS and not line.startswith("|"):
                yield number, f"{len(line.rstrip())} columns, at most {COLUMNS}"

    def links(self) -> Found:
        for match in re.finditer(r"\]\(([^)\s]+)\)", self.prose):
            target, _, anchor = match[1].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            path = (self.project.root / self.name).parent / target if target else self.project.root / self.name
            name = path.resolve().relative_to(self.project.root.resolve()).as_posix()
            if not path.exists():
                yield self.line(match.start()), f"link to {target}: there is no such file"
            elif anchor and anchor not in self.project.anchors(name):
                yield self.line(match.start()), f"link to {match[1]}: there is no such heading"

    def anywhere(self) -> Found:
        """Options and environment variables, in blocks of code too."""
        for match in re.finditer(r"\bweight_offload_[a-z0-9_]*[a-z0-9]\b(?!\*|_\*)", self.text):
            if match[0] not in self.project.options:
                yield self.line(match.start()), f"option {match[0]}: there is no such option"
        for match in re.finditer(r"\bWEIGHTSTREAM_[A-Z0-9_]*[A-Z0-9]\b(?!\*|_\*)", self.text):
            if match[0] not in self.project.variables:
                yield self.line(match.start()), f"variable {match[0]}: nothing reads it"

    def spans(self) -> Found:
        for match in re.finditer(r"`([^`]+)`", self.prose):
            for what in self.span(" ".join(match[1].split())):
                yield self.line(match.start()), what

    def span(self, code: str) -> Iterator[str]:
        if COMMAND.match(code):
            yield from self.command(code)
        elif re.fullmatch(r"--[a-z][a-z-]*", code):
            if not any(code in flags for flags in self.project.flags.values()):
                yield f"flag {code}: no command has it"
        elif re.search(r"\w", code) and re.fullmatch(r"[\w.*/-]+/[\w.*/-]*|[\w-]+" + SUFFIXES, code):
            if not self.project.has_path(code) and code not in USERS:
                yield f"file {code}: there is no such file"
        elif SYMBOL.fullmatch(code) and re.search(r"[_.(!=]|::|[a-z][A-Z]|^[A-Z][a-z]", code):
            yield from self.symbol(code)

    def symbol(self, code: str) -> Iterator[str]:
        name = re.split(r"[(!=]", code)[0]
        # Files of users, such as model.pte; options and variables, which are looked at elsewhere.
        if re.search(r"\.(?:pte|ptd|pt2|txt|so|bin)$|^weight_offload_|^WEIGHTSTREAM_", name):
            return
        for part in [*re.split(r"::|\.", name), *re.findall(r"(\w+)=", code)]:
            if part not in self.project.variables | FOREIGN:
                yield f"symbol {code}: no code has '{part}'"

    def blocks(self) -> Found:
        for block in FENCE.finditer(self.text):
            for match in COMMAND.finditer(block[0]):
                for what in self.command(match[0].partition(" #")[0]):
                    yield self.line(block.start() + match.start()), what

    def command(self, code: str) -> Iterator[str]:
        program, *arguments = code.split()
        named = arguments[0] if arguments else ""
        if program == "make":
            if named and named not in self.project.targets:
                yield f"make {named}: there is no such target"
            return
        flags = self.project.flags.get(program if program in TOOLS else named, set())
        if program == "weightstream" and re.match(r"[a-z]", named) and not flags:
            yield f"weightstream {named}: there is no such command"
            return
        for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
            if flag not in flags | {"--help", "--version"}:
                yield f"{program} {flag}: there is no such flag"


def main() -> int:
    project = Project(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]))
    found = [problem for name in project.docs for problem in Page(project, name).problems()]
    print("\n".join(found) if found else f"{len(project.docs)} documents name only what exists")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
