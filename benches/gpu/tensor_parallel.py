#!/usr/bin/env python3
"""A decoder of Qwen3-8B's sizes on several GPUs, tensor-parallel (`tp_plan="auto"` of transformers), offloaded on each of them.

    torchrun --nproc-per-node 2 benches/gpu/tensor_parallel.py --out results.jsonl        # two minutes on two H100

Each process has a GPU, its shards of the weights in host memory, and a link of its own. The limit of a token is the longer of two times:
that of the same tensor-parallel model resident on the GPUs, and that in which the link carries the shards that exceed the budget, while all
links are busy. Tokens are compared with those of the resident model. Random weights, saved to a folder first, since only `from_pretrained`
splits a model.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import weightstream as ws
from measure import GB, Results, back_to_back_ms, link
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

TOKENS, PASSES = 24, 12


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--percent", type=int, nargs="+", default=[0, 50], help="budgets, of a rank's weights; 0 is the least one")
    parser.add_argument("--out", type=Path, default=Path("tensor_parallel.jsonl"))
    return parser.parse_args()


def save(folder: str, layers: int) -> None:
    """A checkpoint of random weights."""
    sizes = {"num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config = Qwen3Config(vocab_size=151936, hidden_size=4096, intermediate_size=12288, eos_token_id=None, **sizes)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.cpu().save_pretrained(folder)


def shard_bytes(model: torch.nn.Module) -> int:
    return sum(getattr(one, "_local_tensor", one).nbytes for one in model.parameters())


def step(model: torch.nn.Module) -> torch.Tensor:
    """One token at the end of a cache, which grows."""
    cache = model.bench_cache
    return model(torch.full((1, 1), 7, device=model.device), past_key_values=cache, use_cache=True).logits[:, -1].cpu()


def begin(model: torch.nn.Module) -> None:
    model.bench_cache = model(torch.arange(1, 65, device=model.device)[None], use_cache=True).past_key_values


def link_of_all(size: int) -> float:
    """GB/s of this rank's link while all are busy."""
    dist.barrier()
    found = link([1 << 30] * max(1, min(6, size >> 30)), runs=5)["64_mib_median"]
    dist.barrier()
    return found


@torch.no_grad()
def main() -> None:
    args = parse()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    if rank == 0:
        save(folder[0], args.layers)
        torch.cuda.empty_cache()
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained(folder[0], dtype=torch.bfloat16, tp_plan="auto").eval().requires_grad_(False)
    results = Results(args.out.with_suffix(f".{rank}.jsonl"), rank=rank, world=world, gpu=torch.cuda.get_device_name())
    kinds = sorted({type(one).__name__ for one in model.parameters()})
    whole, ids = shard_bytes(model), torch.arange(1, 65, device=device)[None]
    wanted = model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    begin(model)
    resident = back_to_back_ms(lambda: step(model), PASSES)
    began = time.monotonic()
    handle = ws.torch.offload(model, device=device)
    found = model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    results.write(what="loaded", seconds=time.monotonic() - began, kinds=kinds, shard_gb=whole / GB, resident_ms=resident)
    floor = handle.stats()["floor_bytes"]
    for percent in args.percent:
        budget = max(floor, whole * percent // 100)
        handle.set_budget(budget)
        found = model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
        begin(model)
        speed = link_of_all(whole)
        # As many passes on each rank: they wait for each other.
        ms = back_to_back_ms(lambda: step(model), PASSES, seconds=600)
        limit = max(resident, (whole - budget) / speed / 1e6)
        about = {"percent": percent, "budget_gb": budget / GB, "link_gb_s": speed, "astray": handle.stats()["astray"]}
        results.write(what="token", ms=ms, over_resident=ms / resident, over_limit=ms / limit, right=torch.equal(found, wanted), **about)
    handle.remove()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
