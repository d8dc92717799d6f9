#!/usr/bin/env python3
"""What the compiler makes of the measured model for a GPU, on a machine that has none: kernels and allocations of a pass.

The model's weights and inputs are fake tensors on a CUDA device that is claimed to be an H100, as in an export with `sm="90"`, so that
Inductor schedules, fuses and plans memory as it does there; it is stopped before it compiles anything. Prints one line of JSON for the program without probes, for the one
with them, and for that without `reuse_across_probes`. Attention is written out, and products are not tuned: what is compared is what
stands around them.

    python benches/gpu/without_gpu.py --layers 4 --tokens 1
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._inductor.codegen.wrapper as lines
import torch._inductor.config as inductor_config
from torch._subclasses import fake_tensor
from weightstream._torch import cross

SM = "90"
COUNTED = {
    "KernelCallLine": "kernels",
    "ExternKernelOutLine": "products",
    "ExternKernelAllocLine": "probes",
    "AllocateLine": "allocations",
    "ReuseLine": "reused",
}


class Stop(BaseException):
    """Ends a compilation once the wrapper's lines are known."""


def model_of(layers: int) -> torch.nn.Module:
    """The model, with what needs a device written another way: attention, and the choice of the last token."""
    import llama

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
        return torch.softmax((q @ k.transpose(-1, -2)).float() * 0.1, -1).to(q.dtype) @ v

    class Plain(llama.Llama):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    llama.F = types.SimpleNamespace(silu=torch.nn.functional.silu, scaled_dot_product_attention=attention)
    with torch.device("meta"):
        return Plain(layers).to(torch.bfloat16).eval().requires_grad_(False)


def compiled(layers: int, count: int, probed: bool, reuse: bool) -> dict[str, int]:
    """How many lines of each kind the wrapper has."""
    from weightstream._export.compile import inductor, target
    from weightstream._export.passes import weight_reads
    from weightstream._torch import embedding as _embedding
    from weightstream._torch import names as _names
    from weightstream._torch import probe as _probe

    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    meta = model_of(layers)
    with mode, torch.no_grad():
        model = meta.to_empty(device="cuda")
        given = torch.zeros(1, count, dtype=torch.int64, device="cuda")
        program = torch.export.export(model, (given,)).run_decompositions({})
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    for name, fqn in program.graph_signature.inputs_to_parameters.items():
        program._state_dict[fqn] = torch.nn.Parameter(values[name], requires_grad=False)
    (given,) = [values[name] for name in program.graph_signature.user_inputs]
    found: collections.Counter[str] = collections.Counter()
    original = lines.PythonWrapperCodegen.run_wrapper_ir_passes

    def count_and_stop(self: Any, is_inference: bool) -> None:
        original(self, is_inference)
        found.update(COUNTED.get(type(line).__name__, "other lines") for line in self.lines)
        raise Stop

    options = {**inductor._options(), **target.Target("cuda", "x86-64-v3", "math", SM).options(), "max_autotune_gemm": False}
    del options["aot_inductor.custom_op_libs"]
    passes = {"post_grad_custom_post_pass": _probe.share_storage, "_post_fusion_custom_pass": _probe.pin_before_first_reader}
    with contextlib.ExitStack() as stack:
        stack.enter_context(given.fake_mode)
        if probed:
            weight_reads.insert_probes(program)
        for context in (_names.prefixed_constants(), _embedding.realized_embedding(), torch.no_grad(), inductor_config.patch(passes)):
            stack.enter_context(context)
        if reuse:
            stack.enter_context(_probe.reuse_across_probes())
        stack.enter_context(mock.patch.object(lines.PythonWrapperCodegen, "run_wrapper_ir_passes", count_and_stop))
        with contextlib.suppress(Stop):
            torch._inductor.aot_compile(program.module(), (given,), options=options)
    return {name: found[name] for name in COUNTED.values()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    cross.imitate_device(SM)
    for name, probed, reuse in (("baseline", False, True), ("offload", True, True), ("offload, no reuse across probes", True, False)):
        print(json.dumps({"program": name, **compiled(args.layers, args.tokens, probed, reuse)}), flush=True)


if __name__ == "__main__":
    main()
