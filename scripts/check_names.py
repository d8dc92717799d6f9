#!/usr/bin/env python3
"""Fails where two types of src/ that other files see have one name. A name means one thing.

A type that only its own file sees may have any name. Exceptions stand in docs/architecture.md, in the row that begins `| same name |`.

    scripts/check_names.py [FOLDER]
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

TYPE = re.compile(r"^pub(?:\([^)]*\))? (?:unsafe )?(?:struct|enum|trait|type|union) (\w+)", re.MULTILINE)
TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{.*", re.MULTILINE | re.DOTALL)
EXCEPTIONS = re.compile(r"^\| same name \|(.*)\|", re.MULTILINE)


def visible(folder: Path) -> dict[str, list[str]]:
    """For each name of a type that other files see the files that define one."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.rs")):
        if "generated" in path.parts or path.stem.endswith("tests") or path.stem == "test_support":
            continue
        for name in TYPE.findall(TESTS.sub("", path.read_text())):
            found[name].append(str(path.relative_to(folder)))
    return found


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    folder = Path(sys.argv[1]) if sys.argv[1:] else root / "src"
    rows = EXCEPTIONS.findall((root / "docs/architecture.md").read_text())
    allowed = set(re.findall(r"`(\w+)`", " ".join(rows)))
    twice = {name: files for name, files in visible(folder).items() if len(files) > 1}
    for name in sorted(twice.keys() - allowed):
        print(f"check_names: {name} is defined in {' and '.join(twice[name])}: rename one of them")
    for name in sorted(allowed - twice.keys()):
        print(f"check_names: docs/architecture.md lists {name}, which is defined once")
    return int(twice.keys() != allowed)


if __name__ == "__main__":
    sys.exit(main())
