"""Exports one model of a public library, runs it at three budgets, and writes what came out as JSON.

`python public_judge.py NAME REPORT`. `make zoo` starts it once per model, so that a crash ends one model and not the run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from exports import Files, export_model
from public_models import PUBLIC
from support import budget_of, open_module, run_passes
from zoo import bits, largest_error

BUDGETS = ["floor", 50, 100]
RIGHT, WRONG, REFUSED, FAILED = "right", "wrong", "refused", "failed"


def judge(name: str) -> dict[str, Any]:
    """The result of a model, and the figures of its row."""
    entry, started = PUBLIC[name], time.monotonic()
    row: dict[str, Any] = {"name": name, "library": entry.library, "deployed": entry.deployed, "dynamic": entry.dynamic}
    with tempfile.TemporaryDirectory(prefix="weightstream-zoo-") as folder:
        files = Files(name, Path(folder) / "model.pte", Path(folder) / "model.ptd")
        row.update(outcome(lambda: export_model(name, Path(folder)), "export"))
        row["export_seconds"] = time.monotonic() - started
        if row["result"] == RIGHT:
            row.update(outcome(lambda: row.update(run(name, files)), "run"))
    return {**row, "seconds": time.monotonic() - started}


def outcome(action: Any, stage: str) -> dict[str, str]:
    """What an action's end says about the model."""
    import weightstream as ws

    try:
        action()
    except ws.ExportError as problem:
        return {"result": REFUSED, "detail": str(problem)}
    except AssertionError as problem:
        return {"result": WRONG if stage == "run" else FAILED, "detail": str(problem)}
    except Exception as problem:
        return {"result": FAILED, "detail": f"{stage}: {type(problem).__name__}: {problem}"}
    return {"result": RIGHT, "detail": ""}


def run(name: str, files: Files) -> dict[str, Any]:
    """Every budget against eager PyTorch, and against each other."""
    from doctor import Pte, counted_bytes

    spec = PUBLIC[name].spec
    passes = spec.passes() if spec.stateful else spec.passes(max(3, len(spec.inputs())))
    expected, record = spec.eager(passes), Pte(files.pte).payload
    whole, first = counted_bytes(record), None
    figures: dict[str, Any] = {"weight_bytes": whole, "floor_bytes": budget_of(files, "floor"), "error": 0.0}
    for budget in BUDGETS:
        module = open_module(files, budget_of(files, budget))
        found = run_passes(module, passes, spec.keywords)
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            error = largest_error(ours, theirs)
            assert error <= spec.tolerance, f"pass {number} at {budget} is off by {error:.1e}"
            figures["error"] = max(figures["error"], error)
        seen = [bits(one) for one in found]
        first = first or seen
        assert seen == first, f"other bits at {budget} than at {BUDGETS[0]}"
        stats = module.stats()
        assert stats["peak_bytes"] <= stats["budget_bytes"], f"the peak at {budget} is above the budget"
        figures[f"copied_{budget}"] = stats["bytes_copied_last_pass"]
    assert len({tuple(bits(one)) for one in expected}) == len({id(inputs) for inputs in passes}), "outputs do not depend on inputs"
    return figures


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[2]).write_text(json.dumps(judge(sys.argv[1])))
