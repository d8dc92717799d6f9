"""The zoo's results as a table and as docs/models.md."""

from __future__ import annotations

import importlib.metadata
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HEADINGS = ["model", "library", "called with", "weights, MB", "floor, %", "copied per pass at 50 %", "largest error", "result"]
PACKAGES = ("torch", "executorch", "transformers", "timm", "torchvision", "diffusers", "torchao")
#: Share of the models that must be right.
ENOUGH = 0.95
RESULTS = ("right", "refused", "failed", "wrong")
HEAD = """# Models of public libraries

<!-- Written by `make zoo`. Do not edit. -->

Each model is built from its configuration class with random weights, a few layers and small sizes.
It is exported for the CPU and runs at three budgets: the floor, 50 % and 100 % of its weights.

- **right**: every output equals eager PyTorch's within a tolerance of 1e-4, and all budgets give
  the same bits.
- **refused**: the export ends with an error that names the operator.
- **failed**: any other error. **wrong**: another output.

Errors are `|ours - eager| / (1 + |eager|)`. Copied bytes are those of one pass, as a share of the
weights. A budget below the floor is raised to the floor. A floor holds the largest weight twice at
least, so it is high where one weight is a large part of a small model. Tables whose rows are read
in place are not copied.
"""


def cells(row: Row) -> list[str]:
    plain = [row["name"].removeprefix(row["library"] + "_"), row["library"], row["deployed"]]
    if "copied_50" not in row:
        return plain + ["", "", "", "", row["result"]]
    whole = row["weight_bytes"]
    shares = [f"{100 * row[key] / whole:.0f}" for key in ("floor_bytes", "copied_50")]
    return plain + [f"{whole / 1e6:.2f}", shares[0], f"{shares[1]} %", f"{row['error']:.0e}", row["result"]]


def table(rows: list[Row]) -> str:
    """Columns as wide as what they hold; numbers to the right."""
    lines = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    aligned = [[(c.rjust if 3 <= i <= 6 else c.ljust)(widths[i]) for i, c in enumerate(line)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def summary(rows: list[Row]) -> str:
    counts = Counter(row["result"] for row in rows)
    return f"{len(rows)} models: " + ", ".join(f"{counts[result]} {result}" for result in RESULTS)


def enough(rows: list[Row]) -> bool:
    """Whether no model is wrong and nearly all are right."""
    right = sum(row["result"] == "right" for row in rows)
    return all(row["result"] != "wrong" for row in rows) and right >= ENOUGH * len(rows)


def write_page(path: Path, rows: list[Row]) -> None:
    versions = ", ".join(f"{package} {importlib.metadata.version(package).split('+')[0]}" for package in PACKAGES)
    lines = [HEAD, f"**{summary(rows)}.**", textwrap.fill(f"Versions: {versions}.", 100), ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|---|---|---|--:|--:|--:|--:|---|"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    notes = [f"- `{row['name']}`, {row['result']}: {row['detail'].splitlines()[0]}" for row in rows if row["detail"]]
    if notes:
        lines += ["", "## What the others say", *notes]
    path.write_text("\n".join(lines) + "\n")
