"""Exports the test models for CUDA and checks them on the GPU: right, bit-identical from budget to budget, within the budget.

Run from the repository root on a machine with an NVIDIA GPU, torch and ExecuTorch (WEIGHTSTREAM_LIBRARY names the runtime library, if the
package is not installed). Ends with `N passed, N failed`. Exporting takes 10 to 60 seconds a model.

    python benches/gpu/check_models.py mlp kv_decoder
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

PASSES = 20


def export(spec, folder: Path) -> tuple[str, str]:
    import weightstream as ws
    from executorch.exir import to_edge_transform_and_lower

    pte, ptd = str(folder / f"{spec.name}.pte"), str(folder / f"{spec.name}.ptd")
    with (folder / f"{spec.name}.log").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        program = ws.apply_weight_offload(spec.export()) if spec.offload else spec.export()
        edge = to_edge_transform_and_lower(
            program, partitioner=[ws.WeightStreamPartitioner(device="cuda")], compile_config=ws.edge_compile_config()
        )
        ws.save(edge, pte, ptd)
    return pte, ptd


def run(spec, files: tuple[str, str], budget: int) -> tuple[float, list[list[bytes]], dict]:
    """Largest distance from eager PyTorch over all passes, the outputs' bits, the counters."""
    import weightstream as ws
    from zoo import as_list, bits, largest_error

    passes = spec.passes(PASSES)
    specs = {"weight_offload_budget_bytes": str(budget)} if spec.offload else {}
    with ws.Module(*files, **specs) as module:
        found = [as_list(module.forward(*inputs)) for inputs in passes]
        worst = max(largest_error(out, eager) for out, eager in zip(found, spec.eager(passes)))
        return worst, [bits(out) for out in found], module.stats()


def check(spec, files: tuple[str, str]) -> bool:
    import weightstream as ws

    floor, size = ws.required_budget(files[0]), os.path.getsize(files[1])
    right, first = True, None
    for name, budget in (("floor", floor), ("50 %", max(floor, size // 2)), ("100 %", size + (1 << 20))):
        worst, outputs, stats = run(spec, files, budget)
        first = first or outputs
        good = worst <= spec.tolerance and outputs == first and stats["peak_bytes"] <= stats["budget_bytes"]
        print(f"{'ok ' if good else 'BAD'} {spec.name}, {name}: error {worst:.1e}, same bits {outputs == first}, {stats}", flush=True)
        right = right and good
    return right


def main() -> int:
    import torch
    from models import ZOO

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"one of {', '.join(ZOO)} (default: all)")
    names = parser.parse_args().models or list(ZOO)
    unknown = [name for name in names if name not in ZOO]
    if unknown:
        parser.error(f"unknown models: {', '.join(unknown)}")
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                failed += not check(ZOO[name], export(ZOO[name], Path(folder)))
            except Exception as problem:
                failed += 1
                print(f"BAD {name}: {type(problem).__name__}: {problem}", flush=True)
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
