"""One AOTInductor compilation: options, cures, capture of the trace, and the trampolines that replace libtorch."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._inductor import cpp_builder
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..._native.errors import ExportError
from ..._native.progress import step
from ..._torch import build
from ..._torch.embedding import realized_embedding
from ..._torch.names import prefixed_constants
from ..._torch.probe import pin_before_first_reader, reuse_across_probes, share_storage
from ..._torch.products import by_kernels, one_by_one
from ..._torch.shapes import every_shape
from ..._torch.tuning import held_integers
from ..passes import refusals
from . import trampolines
from .floor import GRANULES
from .target import Target
from .trace import CompiledTrace, capture


@dataclasses.dataclass
class Compiled:
    """A compiled method: the bytes of its library and what it does."""

    library: bytes
    trace: CompiledTrace


def compile_program(module: torch.nn.Module, inputs: tuple[Any, ...], probes: list[str], mutable: set[str], target: Target) -> Compiled:
    """Compiles ``module``; raises :class:`ExportError` if the result breaks a rule of offloading.

    ``probes`` holds the FQN of each probe id in ``module``. Raises ``DroppedProbes`` if the compiler removed some."""
    if inductor_config.aot_inductor.use_runtime_constant_folding or inductor_config.freezing:
        raise ExportError(
            "constant folding is on (torch._inductor.config.aot_inductor.use_runtime_constant_folding or freezing): folded weights "
            "do not pass through probes; switch it off for this export"
        )
    with tempfile.TemporaryDirectory(prefix="weightstream-", ignore_cleanup_errors=True) as work, contextlib.ExitStack() as stack:
        stack.enter_context(_trampoline_library(Path(work)))
        stack.enter_context(build.cache_directory(work))
        stack.enter_context(build.compiler_flags(target.isa))
        stack.enter_context(build.fresh_vector_units())
        stack.enter_context(prefixed_constants())
        stack.enter_context(realized_embedding())
        stack.enter_context(reuse_across_probes())
        stack.enter_context(held_integers())
        stack.enter_context(one_by_one())
        stack.enter_context(by_kernels())
        ranges = stack.enter_context(every_shape(inputs))
        stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        stack.enter_context(build.without_onednn())
        stack.enter_context(torch.no_grad())
        stack.enter_context(
            inductor_config.patch(post_grad_custom_post_pass=share_storage, _post_fusion_custom_pass=pin_before_first_reader)
        )
        traces = stack.enter_context(capture(probes, mutable, GRANULES[target.device], ranges))
        stack.enter_context(step("compiling with AOTInductor and the C++ compiler"))
        options = {**_options(), **target.options(), "aot_inductor.output_path": os.path.join(work, "out", "")}
        torch._inductor.aot_compile(module, inputs, options=options)
        if len(traces) != 1:
            raise ExportError(f"the compiler produced {len(traces)} graphs where one was expected; please report this")
        return Compiled(_read_library(work, traces[0]), traces[0])


def _options() -> dict[str, Any]:
    return {
        "aot_inductor.link_libtorch": False,
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "pickle_weights",
        "aot_inductor.use_runtime_constant_folding": False,
        "aot_inductor.custom_op_libs": ["weightstream_trampolines"],
        # Small constants would otherwise be baked into the code, and read around their probes.
        "always_keep_tensor_constants": True,
        # Folds every constant of one element, written ones too, and drops `state * 1`.
        "joint_graph_constant_folding": False,
        # Hoists small probes to the start of the pass: their leases would last for all of it.
        "reorder_for_peak_memory": False,
        # One compilation, one wrapper: a precompiled header would cost more than it saves.
        "aot_inductor.precompile_headers": False,
        # The wrapper only calls kernels: at -O1 it takes twice the time to compile, and passes take as long.
        "aot_inductor.compile_wrapper_opt_level": "O0",
    }


@contextlib.contextmanager
def _trampoline_library(work: Path) -> Iterator[None]:
    """Puts the trampolines' archive where the linker looks: an option for library folders does not exist."""
    work.joinpath(trampolines.ARCHIVE_NAME).write_bytes(trampolines.archive(cpp_builder.get_cpp_compiler()))
    with build.environment("LIBRARY_PATH", os.pathsep.join(filter(None, [str(work), os.environ.get("LIBRARY_PATH")]))):
        yield


def _read_library(work: str, trace: CompiledTrace) -> bytes:
    libraries = glob.glob(os.path.join(work, "out", "**", "*.so"), recursive=True)
    if len(libraries) != 1:
        raise ExportError(f"the compiler produced {len(libraries)} libraries where one was expected: {libraries}")
    missing = trampolines.check_library(libraries[0])
    if missing:
        raise refusals.refusal(missing, trace.callers)
    return Path(libraries[0]).read_bytes()
