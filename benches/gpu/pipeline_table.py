"""What `pipelines.py` measured: limits, and Markdown tables of its lines."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]
#: What a part is called in lines, and in tables.
NAMES = {"transformer": "flux transformer", "decoder": "qwen3-8b token", "pipeline": "flux pipeline"}
#: Parts of other weights, or of compiled blocks: `transformer-int8`, `decoder-compiled`.
FORMS = ("int8", "int4", "compiled", "int8-compiled", "int4-compiled")
NAMES |= {f"{part}-{form}": f"{NAMES[part]} {form}" for part in ("transformer", "decoder") for form in FORMS}
TITLES = {
    name: name.replace("flux transformer", "Flux").replace("qwen3-8b token", "Qwen3-8B") for name in NAMES.values() if "pipe" not in name
}
#: Columns of a model: the least budget, and budgets in percent of the weights.
COLUMNS = (0, 25, 50, 75)
OURS = "WeightStream"


def read(paths: Iterable[Path]) -> list[Line]:
    return [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines() if line.startswith("{")]


def whole_of(lines: list[Line], part: str) -> Line:
    """The latest line of a part that is on the GPU as a whole."""
    found = [line for line in lines if line["part"] == part and line["system"] == "whole"]
    if not found:
        raise LookupError(f"no line says what {part} takes on the GPU as a whole: run 'ours' of that part first")
    return found[-1]


def limit_ms(whole: Line, held_gb: float) -> float:
    """Of each step the longer time: that of the module on the GPU, and that in which the link carries what exceeds the memory."""
    steps = whole["steps"].values()
    return sum(max(step["ms"], step["times"] * max(0.0, step["gb"] - held_gb) / whole["link_gb_s"] * 1e3) for step in steps)


def compared(whole: Line, ms: float, peak_gb: float) -> Line:
    """A time beside the part as a whole, and beside the limit with the weights' share of the peak."""
    held = max(0.0, peak_gb - whole["activations_gb"])
    return {"ms": ms, "over_eager": ms / whole["ms"], "over_limit": ms / limit_ms(whole, held), "peak_gb": peak_gb, "held_gb": held}


def kept(lines: list[Line], part: str) -> dict[tuple[str, int | None], Line]:
    """The latest line of each system and budget; of pictures one line, with medians of all but the first."""
    found: dict[tuple[str, int | None], Line] = {}
    pictures: list[Line] = []
    for line in lines:
        if line["part"] != part or line["system"] == "whole":
            continue
        if "picture" in line:
            pictures = [line] if line["picture"] == 0 else [*pictures, line]
        key = line["system"], line.get("percent")
        if "problem" not in line or key not in found:
            found[key] = line
    steady = [line for line in pictures if line["picture"] > 0]
    if steady:
        middle = {key: statistics.median(line[key] for line in steady) for key in ("ms", "over_eager", "over_limit")}
        found[OURS, None] = {**steady[-1], **middle, "right": all(line["right"] for line in pictures)}
    return found


def cell(line: Line | None, memory: bool = False) -> str:
    if line is None:
        return ""
    if "problem" in line:
        return "failed"
    held = f", {line['held_gb']:.1f} GB" if memory else ""
    return f"{line['over_eager']:.2f} ({line['over_limit']:.2f}){held}{'' if line['right'] else ' WRONG'}"


def models_table(lines: list[Line]) -> list[str]:
    """Systems, and times of models at each budget; what has no budget says how much it held in the column of the least one."""
    parts = [part for part in TITLES if any(line["part"] == part for line in lines)]
    by_part = {part: kept(lines, part) for part in parts}
    systems = dict.fromkeys(system for found in by_part.values() for system, _ in found)
    heads = [f"{TITLES[part]}, {'least' if percent == 0 else f'{percent} %'}" for part in parts for percent in COLUMNS]
    rows = [f"| time over the resident time (over the limit) | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for system in systems:
        cells = []
        for part in parts:
            found = by_part[part]
            for percent in COLUMNS:
                line, free = found.get((system, percent)), found.get((system, None))
                cells.append(cell(line if line or percent else free, memory=percent == 0))
        rows.append(f"| {system} | {' | '.join(cells)} |")
    return rows


def pipeline_table(lines: list[Line]) -> list[str]:
    part = NAMES["pipeline"]
    found = kept(lines, part)
    if not found:
        return []
    rows = ["| a picture | ms | over the parts, each resident | over the limit | peak, GB |", "|---|---|---|---|---|"]
    for (system, _), line in found.items():
        if "problem" in line:
            rows.append(f"| {system} | failed | | | |")
            continue
        wrong = "" if line["right"] else " WRONG"
        rows.append(
            f"| {system} | {line['ms']:,.0f}{wrong} | {line['over_eager']:.2f} | {line['over_limit']:.2f} | {line['peak_gb']:.1f} |"
        )
    return rows


def details(lines: list[Line]) -> list[str]:
    """Every figure."""
    rows = [
        "| part | system | budget | ms | over resident | over the limit | weights held, GB | peak, GB | same outputs |",
        "|---" * 9 + "|",
    ]
    for part in NAMES.values():
        for (system, percent), line in kept(lines, part).items():
            budget = "" if percent is None else "least" if percent == 0 else f"{percent} %"
            if "problem" in line:
                rows.append(f"| {part} | {system} | {budget} | {line['problem'].replace('|', '/')} | | | | | |")
                continue
            ratios = f"{line['over_eager']:.3f} | {line['over_limit']:.3f}"
            same = "yes" if line["right"] else "NO"
            rows.append(
                f"| {part} | {system} | {budget} | {line['ms']:.1f} | {ratios} | {line['held_gb']:.2f} | {line['peak_gb']:.2f} | {same} |"
            )
    return rows


def resident(lines: list[Line]) -> list[str]:
    """What everything is compared with."""
    rows = []
    for part in NAMES.values():
        wholes = [line for line in lines if line["part"] == part and line["system"] == "whole"]
        if wholes:
            one = wholes[-1]
            gb = sum(step["gb"] for step in one["steps"].values())
            said = f"{part}: {gb:.1f} GB, {one['ms']:.1f} ms on the GPU as a whole, {one['activations_gb']:.2f} GB of activations"
            rows.append(f"- {said}; link {one['link_gb_s']:.1f} GB/s; {one['gpu']}")
    return rows


def table(lines: list[Line]) -> str:
    blocks = [resident(lines), models_table(lines), pipeline_table(lines), details(lines)]
    return "\n\n".join("\n".join(block) for block in blocks if block)
