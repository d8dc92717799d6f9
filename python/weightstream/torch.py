"""WeightStream for PyTorch's own code: see the names' documentation."""

from __future__ import annotations

from ._graph_pool import GraphPool, pool

__all__ = ["GraphPool", "pool"]
