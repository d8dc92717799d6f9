"""What kernels get when they are tuned: the lines that the compiler writes for it, run on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from weightstream._torch.probe import PROBE, _lower_probe
from weightstream._torch.tuning import held_integers

pytestmark = pytest.mark.no_runtime


def _example(held: torch.Tensor, probed: bool) -> torch.Tensor:
    """What a kernel gets for a constant, or for the result of a probe of it."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    traced = make_fx(lambda x: PROBE(x, 0))(mode.from_tensor(held))
    node = next(node for node in traced.graph.nodes if node.target is PROBE)
    graph = GraphLowering(traced)
    with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_current_node(node), graph.set_current_node(node):
        made = graph.add_tensor_constant(held, name="held")
        if probed:
            made = _lower_probe(made, 0)
        buffer = ir.InputsKernel.unwrap_storage_for_input(made)
        name, lines = buffer.get_name(), IndentedBuffer()
        wrapper = PythonWrapperCodegen.__new__(PythonWrapperCodegen)
        wrapper.args_to_buffers, wrapper.kernel_autotune_calls = {name: buffer}, lines
        wrapper.kernel_autotune_tmp_arg_idx = wrapper.kernel_autotune_storage_idx = 0
        storage = {}
        if hasattr(wrapper, "_get_autotune_storage_arg"):  # since torch 2.15: arguments with one storage share it
            storage = {"kernel_name": "kernel", "storage_cache": {}, "storage_arg": wrapper._get_autotune_storage_arg(buffer, None)}
        with held_integers():
            result = wrapper.generate_example_arg_value(name, held.dtype, **storage)
        scope = {"torch": torch, "generate_example_value": AlgorithmSelectorCache.generate_example_value}
    with V.set_graph_handler(graph):
        exec(lines.getvalue(), scope)
    return scope[result]


@pytest.mark.parametrize("probed", [False, True])
@pytest.mark.parametrize("held", [torch.tensor(2), torch.tensor([[3, 1], [2, 5]], dtype=torch.int32)], ids=["number", "table"])
def test_integers_are_those_of_the_program(held, probed):
    assert torch.equal(_example(held, probed), held)


def test_other_numbers_are_the_compilers():
    held = torch.full((64,), 3.0)
    assert not torch.equal(_example(held, False), held)
