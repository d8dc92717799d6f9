"""One mutation of the sources: what it is, and the check that its pattern still names one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class PatternError(Exception):
    """A mutant's pattern does not name exactly one place."""


@dataclass(frozen=True)
class Mutant:
    """A rule taken out of the code.

    `tests` are the likeliest to notice, in the order in which they are tried: `lib` or `lib:FILTER` for the unit tests,
    else the name of a file in `tests/`.
    """

    name: str
    file: str
    find: str
    replace: str
    breaks: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """The text of the file with the mutation; the file itself stays as it is."""
        text = self.original(root)
        return text.replace(self.find, self.replace)

    def original(self, root: Path) -> str:
        """The text of the file as it is. Errors: the pattern is not there exactly once, or nothing would change."""
        path = root / self.file
        if not path.is_file():
            raise PatternError(f"mutant '{self.name}': there is no file {self.file}")
        text = path.read_text()
        count = text.count(self.find)
        if count != 1:
            raise PatternError(
                f"mutant '{self.name}': its pattern occurs {count} times in {self.file}, expected once; bring "
                f"scripts/mutants up to date with the code:\n{self.find}"
            )
        if self.find == self.replace:
            raise PatternError(f"mutant '{self.name}' changes nothing")
        return text


def problems(mutants: list[Mutant], root: Path) -> list[str]:
    """What is wrong with the list itself."""
    found = []
    names = [mutant.name for mutant in mutants]
    found += [f"two mutants are called '{name}'" for name in sorted({n for n in names if names.count(n) > 1})]
    for mutant in mutants:
        try:
            mutant.original(root)
        except PatternError as problem:
            found.append(str(problem))
        for test in mutant.tests:
            if test.split(":")[0] != "lib" and not (root / "tests" / f"{test}.rs").is_file():
                found.append(f"mutant '{mutant.name}': there is no test tests/{test}.rs")
        if not mutant.tests or not mutant.breaks:
            found.append(f"mutant '{mutant.name}' lacks its tests or its reason")
    return found
