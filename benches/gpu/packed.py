#!/usr/bin/env python3
"""Raw and packed weights of one program on a GPU: the time of a pass against the budget, for one token and for 512.

    python benches/gpu/packed.py FOLDER --out packed.jsonl

The model is that of `llama.py`, 7.0 GB in bf16, exported without tuning unless its files are there; `weightstream pack` makes the packed
file. The limit is the longer of the time with everything resident and of what exceeds the budget over the speed of the link, in raw bytes: so
packed weights may be below 1. Times are from the end of one pass to the end of the next. Outputs are compared with those of raw weights that
are all resident.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import llama
import torch
from measure import GB, Results, back_to_back_ms, link

MOST = 512


def export(folder: Path, layers: int) -> tuple[Path, dict[str, Path]]:
    import weightstream as ws
    from weightstream._run import runtime

    pte, raw, packed = (folder / name for name in ("model.pte", "model.ptd", "packed.ptd"))
    if not raw.exists():
        begin = time.monotonic()
        sizes = ({1: torch.export.Dim("tokens", min=1, max=MOST)},)
        ws.export(llama.build(layers), llama.tokens(MOST), pte, raw, device="cuda", dynamic_shapes=sizes, sm="90")
        print(f"exported in {time.monotonic() - begin:.0f} s", flush=True)
    if not packed.exists():
        begin = time.monotonic()
        status, text = runtime.command(["pack", str(raw), "--output", str(packed)])
        if status != 0:
            raise SystemExit(text)
        print(f"packed in {time.monotonic() - begin:.1f} s: {text}", flush=True)
    return pte, {"raw": raw, "packed": packed}


def measure(pte: Path, files: dict[str, Path], kinds: list[str], shares: list[int], options: dict[str, Any], results: Results) -> None:
    import weightstream as ws

    speed = link([1 << 30] * 2, runs=3)["64_mib_median"]
    inputs = {count: llama.tokens(count) for count in (1, MOST)}
    with ws.Module(pte, files["raw"], weight_offload_budget_bytes=100 << 30, **options) as module:
        resident = {count: back_to_back_ms(lambda given=given: module.forward(given), 10) for count, given in inputs.items()}
        expected = {count: module.forward(given).clone() for count, given in inputs.items()}
        whole = module.stats()["total_weight_bytes"]
    results.write(resident_ms=resident, link_gb_s=speed, weights_gb=whole / GB)
    for share in shares:
        for kind in kinds:
            floor = ws.required_budget(pte, ptd=files[kind])
            budget = max(floor, whole * share // 100) if share < 100 else 100 << 30
            begin = time.monotonic()
            with ws.Module(pte, files[kind], weight_offload_budget_bytes=budget, **options) as module:
                loaded = time.monotonic() - begin
                for count, given in inputs.items():
                    ms = back_to_back_ms(lambda given=given: module.forward(given), 16, warm_up=4, seconds=4)
                    same = torch.equal(module.forward(given), expected[count])
                    stats = module.stats()
                    over = max(0, whole - budget) / (speed * GB) * 1e3
                    results.write(
                        kind=kind,
                        percent=share,
                        budget_gb=budget / GB,
                        tokens=count,
                        ms=ms,
                        over_raw_limit=ms / max(resident[count], over),
                        copied_gb=stats["bytes_copied_last_pass"] / GB,
                        over_copied=ms / max(resident[count], stats["bytes_copied_last_pass"] / (speed * GB) * 1e3),
                        same_bits=same,
                        load_s=loaded,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--kinds", nargs="+", default=["raw", "packed"])
    parser.add_argument("--shares", nargs="+", type=int, default=[0, 25, 50, 75, 90, 100])
    parser.add_argument("--graphs", action="store_true", help="passes are captured as graphs")
    parser.add_argument("--residents", choices=["auto", "on", "off"], default="auto", help="weight_offload_packed_residents")
    parser.add_argument("--out", type=Path, default=Path("packed.jsonl"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    pte, files = export(args.folder, args.layers)
    options = {"weight_offload_packed_residents": args.residents, "weight_offload_cuda_graph": args.graphs}
    results = Results(args.out, gpu=torch.cuda.get_device_name(), layers=args.layers, graphs=args.graphs, residents=args.residents)
    measure(pte, files, args.kinds, args.shares, options, results)


if __name__ == "__main__":
    main()
