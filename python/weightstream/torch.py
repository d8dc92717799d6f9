"""WeightStream for PyTorch's own code.

``offload`` runs an ``nn.Module`` whose weights do not fit on the device. ``GraphPool``, ``GraphInputs`` and ``pool`` are memory for PyTorch's
CUDA graphs, their inputs, and activations.
"""

from ._eager.offload import Offloaded, offload
from ._native.allocator import pool
from ._run.graph_inputs import GraphInputs
from ._run.graph_pool import GraphPool

__all__ = ["GraphInputs", "GraphPool", "Offloaded", "offload", "pool"]
