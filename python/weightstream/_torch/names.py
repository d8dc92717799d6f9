"""Names of constants in the compiled code."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator

from torch._inductor import graph
from torch._inductor.codegen import cpp_wrapper_cpu

_PREFIX = "weight_"


@contextlib.contextmanager
def prefixed_constants() -> Iterator[None]:
    """Gives every constant's C++ variable a prefix of ours.

    The compiler makes the variable's name from the user's: a parameter called ``template`` would not compile, and one called
    ``buf0`` would shadow a buffer. FQNs are untouched.
    """
    original = graph.normalize_name

    def prefixed(name: str) -> str:
        return _PREFIX + original(name)

    with (
        unittest.mock.patch.object(graph, "normalize_name", prefixed),
        unittest.mock.patch.object(cpp_wrapper_cpu, "normalize_name", prefixed),
    ):
        yield
