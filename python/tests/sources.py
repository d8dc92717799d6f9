"""Which source files decide how an export comes out: its model's, and those that the export imports. Read from the imports, so that a
change elsewhere leaves exported programs as they are."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Where an export begins, and what it reads that is no module.
ROOTS = ("_export/export.py", "_export/compile/backend.py", "_export/save.py")
DATA = {".txt", ".fbs", ".c", ".cpp", ".h", ".S"}


@functools.cache
def imported(path: Path) -> frozenset[Path]:
    """The files beside `path` from which it takes names. `import module` alone is how models register, and takes none."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else HERE
            base = folder.joinpath(*(node.module or "").split("."))
            found.update(candidate for candidate in candidates(base, [alias.name for alias in node.names]) if candidate.is_file())
    return frozenset(found)


def candidates(base: Path, names: list[str]) -> Iterator[Path]:
    """What `from base import names` may mean."""
    yield base.with_suffix(".py")
    yield base / "__init__.py"
    for name in names:
        yield base / f"{name}.py"
        yield base / name / "__init__.py"


def closure(paths: list[Path]) -> list[Path]:
    """These files and all that they import, of the package or of the tests."""
    found, waiting = set(), list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported(path)
    return sorted(found)


@functools.cache
def of_the_export(*more: str) -> tuple[Path, ...]:
    """The files of the package that an export uses; ``more``: where else it begins."""
    spec = importlib.util.find_spec("weightstream")
    if spec is None or spec.origin is None:
        return ()
    package = Path(spec.origin).parent
    data = [path for path in package.rglob("*") if path.suffix in DATA and "include" not in path.parts]
    return (*closure([package / name for name in (*ROOTS, *more) if (package / name).is_file()]), *sorted(data))


def of_a_model(module: str) -> list[Path]:
    """The files of the tests that a model uses which is defined in `module`."""
    folder = HERE / module.split(".")[0]
    files = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return [HERE / "exports.py", *closure([*files, HERE / "zoo.py"])]
