"""Two models share one budget: what each holds follows how often it runs.

    python python/examples/two_models.py FOLDER    # exports both into FOLDER, then runs them under 70 MB

A small model drafts and a large one checks, 4 to 1, as in speculative decoding; then they run in turn, and then the large one alone.
Both have random weights. Every output is compared with eager PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

MB = 1 << 20
CAP = 70 * MB
#: The passes of a round, and how often it is played.
PHASES: Sequence[tuple[str, str, int]] = (
    ("4 drafts, 1 check", "DDDDC", 8),
    ("in turn", "DC", 20),
    ("checks alone", "C", 40),
)


class Layers(nn.Module):
    """Linear layers of one width, each added to what came before."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) / 2 + x / 2
        return x


def build() -> dict[str, nn.Module]:
    """The models, by the letter of their passes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return {"D": Layers(640, 20), "C": Layers(800, 24)}


NAMES = {"D": "draft", "C": "check"}


def export(models: dict[str, nn.Module], folder: Path) -> None:
    import weightstream as ws

    for letter, model in models.items():
        width = model.layers[0].in_features
        ws.export(model, (torch.randn(4, width),), folder / f"{NAMES[letter]}.pte", folder / f"{NAMES[letter]}.ptd")


def play(models: dict[str, nn.Module], folder: Path, rows: list[list[str]]) -> float:
    """Plays all phases; a row for each. The largest error."""
    import weightstream as ws

    ws.set_device_budget("cpu", CAP)
    worst = 0.0
    opened = {
        letter: ws.Module(folder / f"{name}.pte", folder / f"{name}.ptd", weight_offload_budget="shared") for letter, name in NAMES.items()
    }
    inputs = {letter: torch.randn(4, model.layers[0].in_features) for letter, model in models.items()}
    expected = {letter: model(inputs[letter]) for letter, model in models.items()}
    for phase, turns, rounds in PHASES:
        before = {letter: module.stats()["bytes_copied"] for letter, module in opened.items()}
        for letter in turns * rounds:
            found = opened[letter](inputs[letter])
            worst = max(worst, float((found - expected[letter]).abs().max()))
        report = ws.device_report("cpu")
        row = [phase, report["rule"]]
        for letter, tenant in zip(opened, report["tenants"], strict=True):
            copied = opened[letter].stats()["bytes_copied"] - before[letter]
            passes = (turns * rounds).count(letter)
            row += [f"{tenant['held_bytes'] / MB:.1f}", f"{copied / passes / MB:.1f}" if passes else "-"]
        rows.append([*row, f"{report['held_bytes'] / MB:.1f}"])
    for module in opened.values():
        module.close()
    ws.set_device_budget("cpu", "auto")
    return worst


HEADER = ["phase", "rule", "draft holds", "copied/pass", "check holds", "copied/pass", "together"]


def table(rows: list[list[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(HEADER, *rows, strict=True)]
    lines = [HEADER, *rows]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


@torch.no_grad()
def run(folder: Path, *, reuse: bool = False) -> tuple[str, float]:
    """Exports both, unless that is to be left out, and plays all phases: the table, and the largest error."""
    folder.mkdir(parents=True, exist_ok=True)
    models: dict[str, Any] = build()
    if not (reuse and (folder / "check.ptd").exists()):
        export(models, folder)
    rows: list[list[str]] = []
    worst = play(models, folder, rows)
    return table(rows), worst


def main() -> None:
    text, worst = run(Path(sys.argv[1]))
    print(f"MB under a cap of {CAP // MB} MB\n\n{text}\n\nlargest difference from eager PyTorch {worst:.1e}")


if __name__ == "__main__":
    main()
