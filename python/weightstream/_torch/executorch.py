"""What is corrected in ExecuTorch while it writes a program."""

from __future__ import annotations

import contextlib
import itertools
import unittest.mock
from collections.abc import Iterator
from typing import Any

import executorch.exir.tensor
import torch
from executorch.exir.memory_planning import Verifier
from executorch.exir.passes import ToOutVarPass
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .._native.errors import ExportError
from .probe import is_probe


@contextlib.contextmanager
def corrected() -> Iterator[None]:
    """Outputs may have sizes that depend on data, and a method may have no outputs."""
    with (
        unittest.mock.patch.object(executorch.exir.tensor, "dim_order_from_stride", _dim_order),
        unittest.mock.patch.object(Verifier, "verify_graph_input_output", _verify),
    ):
        yield


def refuse_probes_in_files() -> None:
    """From now on ExecuTorch refuses by name what :func:`apply_weight_offload` marked and no partitioner of ours took."""
    ToOutVarPass.call = _call


def _call(self: ToOutVarPass, graph_module: torch.fx.GraphModule) -> Any:
    """ExecuTorch would say that an operator has no "out variant", which is a word of its own."""
    if left := next((node for node in graph_module.graph.nodes if is_probe(node)), None):
        raise ExportError(
            f"the program was marked by apply_weight_offload (weight '{left.args[0]}' is read through a probe), and WeightStreamPartitioner did "
            "not take it: lower it with to_edge_transform_and_lower(program, partitioner=[WeightStreamPartitioner(...)]), or leave "
            "apply_weight_offload out"
        )
    return _original_call(self, graph_module)


_original_call = ToOutVarPass.call
_original_dim_order = executorch.exir.tensor.dim_order_from_stride
_original_verify = Verifier.verify_graph_input_output


def _dim_order(stride: Any) -> Any:
    """ExecuTorch sorts strides by ``<``, which has no answer where sizes depend on data. In rows, each stride is a multiple of the next,
    whatever the sizes are."""
    if all(statically_known_true(outer % inner == 0) for outer, inner in itertools.pairwise(stride)):
        return tuple(range(len(stride)))
    return _original_dim_order(stride)


def _verify(self: Verifier) -> None:
    """ExecuTorch wants to know whether outputs have memory, and fails where there is none to look at."""
    output = next(node for node in self.graph_module.graph.nodes if node.op == "output")
    if output.all_input_nodes and self.graph_signature.user_outputs:
        _original_verify(self)
