"""Small helpers of the tests: loading at a budget, running passes, reading /proc, running children."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo import SHARED, Inputs, Spec, as_list, largest_error, outputs_in

HERE = Path(__file__).resolve().parent
BUDGETS = ["floor", 25, 50, 75, 100]


@functools.cache
def export_problem() -> str | None:
    """Why nothing can be exported here, or None."""
    try:
        import weightstream as ws

        for name in ("apply_weight_offload", "WeightStreamPartitioner", "edge_compile_config", "save"):
            getattr(ws, name)
    except (ImportError, AttributeError, OSError, RuntimeError) as problem:  # an ExportError is a RuntimeError
        return f"the weightstream package cannot export here: {problem}"
    return None


@functools.cache
def runtime_problem() -> str | None:
    """Why nothing can be run here, or None: a missing native library shows in the first call that needs it."""
    try:
        import weightstream as ws

        try:
            ws.required_budget("/nonexistent/model.pte", method="forward")
        except ws.Error:
            return None
    except (ImportError, AttributeError, OSError) as problem:
        return f"the native library of weightstream is absent: {problem}"
    return "required_budget() of a missing file did not fail"


def open_module(files: Any, budget: int | None = None, **specs: Any) -> Any:
    """Loads an exported model, at a budget in bytes (None: the default, which is the floor)."""
    import weightstream as ws

    if budget is not None:
        specs["weight_offload_budget_bytes"] = str(budget)
    return ws.Module(str(files.pte), str(files.ptd), **specs)


def program_of(name: str, exported: Any) -> tuple[str, slice]:
    """The program that holds a model, and which of its outputs are the model's. Where a shared program cannot be exported, each model
    has its own: then those at fault fail, and no others."""
    from exports import ExportFailed

    program = SHARED.get(name, name)
    try:
        exported(program)
    except ExportFailed:
        program = name
    return program, outputs_in(program, name)


def run_passes(module: Any, passes: list[Inputs], keywords: tuple[str, ...] = ()) -> list[list[torch.Tensor]]:
    """Outputs of these passes, copied out of whatever memory they are in; with `keywords`, inputs are given by these names."""

    def outputs(inputs: Inputs) -> Any:
        return module.forward(**dict(zip(keywords, inputs, strict=True))) if keywords else module.forward(*inputs)

    return [[out.clone() for out in as_list(outputs(inputs))] for inputs in passes]


def budget_of(files: Any, budget: str | int) -> int:
    """Bytes for 'floor' or a percentage of all constants' bytes, never below the floor."""
    import weightstream as ws
    from doctor import Pte, counted_bytes

    floor = ws.required_budget(str(files.pte), method="forward")
    if budget == "floor":
        return floor
    return max(floor, counted_bytes(Pte(files.pte).payload) * int(budget) // 100)


def error_of(action: Any, *kinds: type[BaseException]) -> str:
    """The message of the error that `action` must end with; ours unless told otherwise."""
    import weightstream as ws

    with pytest.raises(kinds or (ws.Error,)) as caught:
        action()
    return str(caught.value)


def held_kib() -> int:
    """Memory of this process that no file holds, anonymous and of memory files, in KiB; what is mapped twice counts once."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(lines[key].split()[0]) for key in ("Pss_Anon", "Pss_Shmem"))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_child(
    function: str, *arguments: Any, timeout: int = 600, environment: dict[str, str] | None = None, script: str = "children.py"
) -> Any:
    """Runs `children.<function>(*arguments)` in a fresh process; returns what it returned. `environment` comes on top of this one's."""
    command = [sys.executable, str(HERE / script), function, json.dumps([str(a) for a in arguments])]
    around = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=around)
    if done.returncode != 0:
        raise AssertionError(f"{function} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Input:
    """One pass of a model with one float32 input and output, for children that have no torch."""

    def __init__(self, spec: Spec, folder: Path):
        (self.inputs,) = spec.passes(1)
        self.spec, self.path, self.shape = spec, folder / "input.bin", json.dumps(list(self.inputs[0].shape))
        self.path.write_bytes(self.inputs[0].numpy().tobytes())

    def error(self, output: str) -> float:
        """How far the output's bytes, in hexadecimal digits, are from eager PyTorch."""
        (expected,) = self.spec.eager([self.inputs])[0]
        found = torch.frombuffer(bytearray.fromhex(output), dtype=torch.float32).reshape(expected.shape)
        return largest_error([found], [expected])


def refused_in_a_child(bad: Any, good: Any, plain: Input, environment: dict[str, str], **specs: Any) -> str:
    """What the load of `bad` says in a process of its own; the same twice, and afterwards `good` is right there."""
    files = (bad.pte, bad.ptd, json.dumps(specs), good.pte, good.ptd)
    seen = run_child("refused", *files, plain.shape, plain.path, environment=environment, script="driver_children.py")
    assert plain.error(seen["output"]) <= plain.spec.tolerance
    first, second = seen["messages"]
    assert first == second
    return first
