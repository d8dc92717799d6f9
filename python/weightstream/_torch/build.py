"""How the compiler is called: its caches, the flags of the C++ compiler, and the libraries that it may use."""

from __future__ import annotations

import contextlib
import os
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._inductor import cpp_builder, cpu_vec_isa


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def fresh_vector_units() -> Iterator[None]:
    """Which vector units the compiler may use is asked anew: what `torch.compile` found for this process holds for its machine alone."""
    _forget_vector_units()
    try:
        yield
    finally:
        _forget_vector_units()


def _forget_vector_units() -> None:
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    for kind in {type(one) for one in cpu_vec_isa.supported_vec_isa_list}:
        getattr(kind.__bool__, "cache_clear", lambda: None)()


@contextlib.contextmanager
def cache_directory(work: str) -> Iterator[None]:
    """Inductor's caches do not know our passes: a cache of one compilation's own cannot serve something stale."""
    with environment("TORCHINDUCTOR_CACHE_DIR", os.path.join(work, "cache")):
        with inductor_config.patch(force_disable_caches=True):
            yield


@contextlib.contextmanager
def compiler_flags(isa: str) -> Iterator[None]:
    """Replaces ``-march=native``: a library for the exporting machine's exact CPU runs on few others, and says so by a crash.

    The rest keeps the library to itself. Where the compiler links libstdc++ statically, its unique symbols (the ids of locale facets)
    would bind to the process's own libstdc++. Another version of it then calls the wrong facet: a crash in `std::regex`. The same goes
    for weak symbols of PyTorch's headers in a process that has libtorch.
    """
    original = cpp_builder._get_optimization_cflags

    def ours(*args: Any, **kwargs: Any) -> Any:
        cflags, ldflags = original(*args, **kwargs)
        cflags = [f"march={isa}" if flag == "march=native" else flag for flag in cflags]
        own = ["Wl,-Bsymbolic", "Wl,--exclude-libs,libstdc++.a:libgcc.a:libgcc_eh.a"]
        return [*cflags, "fno-gnu-unique"], [*ldflags, *own]

    with unittest.mock.patch.object(cpp_builder, "_get_optimization_cflags", ours):
        yield


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Operators of oneDNN (an LSTM layer) have no function in the runtime; without it they decompose.

    `torch.backends.mkldnn.flags` sets other switches too, and one of them warns on every CPU.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
