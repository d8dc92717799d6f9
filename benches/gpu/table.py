"""The Markdown table of what was measured: ratios, since absolute times belong to one machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GB = 1e9
Line = dict[str, Any]
HEAD = "| system | time / link time of all weights | time / link time of the bytes copied | time / limit | ms |"


def read(paths: Iterable[Path]) -> list[Line]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines() if line.startswith("{")]


def link_speed(lines: list[Line]) -> float:
    """GB/s: the fastest median, of before and after, of even pieces and the weights' own. A slower one would flatter everybody."""
    return max(line[key] for line in lines if line["section"] == "link" for key in line if key.endswith("_median"))


def table(lines: list[Line], count: int) -> str:
    """All systems at one number of tokens."""
    mine = [line for line in lines if line["tokens"] == count]
    links = [line for line in mine if line["section"] == "link" and "problem" not in line]
    if not links:
        return f"({count} tokens: the link was not measured)"
    speed, weights = link_speed(mine), links[0]["weights"]
    whole_ms = weights / speed / 1e6
    said = ", ".join(f"{line['64_mib_median']:.2f} and {line['weights_median']:.2f}" for line in links)
    rows = [
        f"**{links[0]['name']}, {weights / GB:.1f} GB bf16, {mine[0]['layers']} Llama-like layers, {count} token{'s' if count > 1 else ''}**",
        "",
        f"Link: {speed:.2f} GB/s (medians with pieces of 64 MiB and of the weights' sizes: {said}); all weights in {whole_ms:.1f} ms.",
        "",
        HEAD,
        "|---|---|---|---|---|",
    ]
    pairs = latest(mine, "pairs")
    resident = baseline_ms(pairs) if pairs else None
    for line in by_system(mine).values():
        rows.append(row(line, whole_ms, speed, weights, resident))
    if pairs:
        rows += [
            "",
            f"Everything resident against the non-offloaded baseline (the same program exported with `offload=False`, interleaved "
            f"pairs): {pairs['ratio_of_medians']:.3f} (median of ratios {pairs['median_of_ratios']:.3f}).",
        ]
    return "\n".join(rows)


def baseline_ms(pairs: Line) -> float:
    """As the passes that are held against it were timed: back to back, in files that have that."""
    return pairs.get("baseline_back_to_back_ms", pairs["baseline_ms"])


def latest(lines: list[Line], system: str) -> Line | None:
    return next((line for line in reversed(lines) if line["system"] == system and "problem" not in line), None)


def by_system(lines: list[Line]) -> dict[tuple, Line]:
    """One line per row of the table: the latest, and a problem only if its section did not succeed since."""
    kept, last = {}, {line["section"]: line for line in lines}
    for line in lines:
        if line["system"] == "pairs" and "problem" not in line:
            kept["baseline",] = {**line, "system": "WeightStream without offloading (the baseline)", "ms": baseline_ms(line)}
        elif "ms" in line or ("problem" in line and line is last[line["section"]]):
            kept[line["system"], line.get("budget")] = line
    return dict(sorted(kept.items(), key=lambda item: place(item[1])))


def place(line: Line) -> tuple[int, str, int]:
    """Where a line stands in the table: systems in this order, then policies, budgets ascending."""
    systems = {"eager": 0, "pairs": 1, "ours": 2}
    budget = line.get("budget", "floor")
    return systems.get(line["section"], 3), line["system"] if line["section"] == "ours" else "", 0 if budget == "floor" else int(budget)


def row(line: Line, whole_ms: float, speed: float, weights: int, resident: float | None) -> str:
    system, _, policy = line["system"].partition(" ")
    name = {"eager": "PyTorch eager, everything resident", "weightstream": f"WeightStream `{policy}`"}.get(system, line["system"])
    if "budget" in line:
        name += f", {line['budget']}{'' if line['budget'] == 'floor' else ' %'}"
    if "problem" in line:
        return f"| {name} | {line['problem']} | | | |"
    copied = limit = ""
    if "copied" in line and system == "weightstream":
        spent = line["copied"] / speed / 1e6
        copied = f"{line['ms'] / spent:.3f}" if spent > 0.01 * whole_ms else "nothing copied"
        # Tables that are read in place are no part of what streams.
        streamed = weights - line["stats"].get("gathered_bytes", 0)
        missing = max(0.0, streamed - line["stats"]["budget_bytes"]) / speed / 1e6
    else:
        missing = weights * (1 - line["share"] / 100) / speed / 1e6 if "share" in line else None
    if missing is not None and resident is not None:
        limit = f"{line['ms'] / max(missing, resident):.3f}"
    return f"| {name} | {line['ms'] / whole_ms:.3f} | {copied} | {limit} | {line['ms']:.2f} |"
