#!/usr/bin/env python3
"""What the compiler makes of the measured model for a GPU, on a machine that has none: kernels and allocations of a pass.

The model's weights and inputs are fake tensors on a CUDA device that is claimed to be an H200, so that Inductor schedules, fuses and
plans memory as it does there; it is stopped before it compiles anything. Prints one line of JSON for the program without probes, for the one
with them, and for that without `reuse_across_probes`. Attention is written out, and products are not tuned: what is compared is what
stands around them. It replaces functions of torch 2.11 and Triton 3.6 and may need others with later ones.

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
import triton
from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor import graph, utils
from torch._subclasses import fake_tensor
from triton.backends.compiler import GPUTarget

H200 = types.SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=140 << 30,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=60 << 20,
    is_integrated=0,
)
COUNTED = {
    "KernelCallLine": "kernels",
    "ExternKernelOutLine": "products",
    "ExternKernelAllocLine": "probes",
    "AllocateLine": "allocations",
    "ReuseLine": "reused",
}


class Stop(BaseException):
    """Ends a compilation once the wrapper's lines are known."""


class Driver:
    """What Triton asks its driver while kernels are written."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def answer(value: Any) -> Any:
    return lambda *_, **__: value


def imitate(stack: contextlib.ExitStack) -> None:
    """Lets everything that the compiler asks of a GPU be answered without one."""
    asked = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": H200,
        "get_device_capability": (9, 0),
        "is_bf16_supported": True,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "synchronize": None,
        "set_device": None,
        "_lazy_init": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    for name, value in asked.items():
        stack.enter_context(mock.patch.object(torch.cuda, name, answer(value)))
    # The compiler's own table of devices holds some of these functions already.
    device = get_interface_for_device("cuda")
    own = {
        "is_available": True,
        "current_device": 0,
        "set_device": None,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "get_device_properties": H200,
        "get_compute_capability": 90,
        "get_raw_stream": 0,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
    }
    for name, value in own.items():
        stack.enter_context(mock.patch.object(device, name, staticmethod(answer(value))))
    for name, value in {"get_device_properties": H200, "current_device": 0}.items():
        stack.enter_context(mock.patch.object(device.Worker, name, staticmethod(answer(value))))
    stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", answer(None)))
    # Patterns are searched for with tensors that are real.
    stack.enter_context(mock.patch("torch._inductor.fx_passes.fuse_attention._get_sfdp_patterns", answer([])))
    stack.enter_context(mock.patch("torch._inductor.fx_passes.pad_mm._pad_mm_init", answer(None)))
    stack.enter_context(mock.patch("torch._inductor.fx_passes.misc_patterns._misc_patterns_init", answer(None)))
    # Fake tensors have no address by which constants could be told to be the same.
    for module in (graph, utils):
        stack.enter_context(mock.patch.object(module, "is_same_tensor", lambda one, other: one is other))
    triton.runtime.driver.set_active(Driver())


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
    from weightstream import _compile, _offload, _target
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

    options = {**_compile._options(), **_target.Target("cuda", "x86-64-v3", "math").options(), "max_autotune": False}
    del options["aot_inductor.custom_op_libs"]
    passes = {"post_grad_custom_post_pass": _probe.share_storage, "_post_fusion_custom_pass": _probe.pin_before_first_reader}
    with contextlib.ExitStack() as stack:
        stack.enter_context(given.fake_mode)
        if probed:
            _offload.insert_probes(program)
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
    with contextlib.ExitStack() as stack:
        imitate(stack)
        for name, probed, reuse in (("baseline", False, True), ("offload", True, True), ("offload, no reuse across probes", True, False)):
            print(json.dumps({"program": name, **compiled(args.layers, args.tokens, probed, reuse)}), flush=True)


if __name__ == "__main__":
    main()
