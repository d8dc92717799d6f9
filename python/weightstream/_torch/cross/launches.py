"""Kernels of a program that is compiled without running one: each is compiled, one configuration is chosen by a rule, and saved.

Where a kernel needs more shared memory than the card has, its tile is refused, and the program is compiled again without it
(:meth:`Launches.another`). Only a compiled kernel says what it needs: what is fused to a product counts too.
"""

from __future__ import annotations

import math
from typing import Any

import triton
from torch._inductor import config, select_algorithm
from torch._inductor.codecache import CudaKernelParamCache
from torch._inductor.codegen import wrapper
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import HeuristicType

from ..._native.errors import ExportError
from .cards import Card
from .tiles import Chooser, Tile, tile_of_kernel

#: How the compiler begins to say that a kernel needs more than the card has.
_NOTHING_FITS = "No valid triton configs"
#: Elements of a tile beyond which a larger one of attention is no better.
_LARGE = 64 * 64

#: Whatever else would be measured, or done by processes that know nothing of what is imitated here.
OPTIONS = {
    # Products by templates, with one tile; element-wise kernels and reductions by the compiler's own rules.
    "max_autotune": False,
    "max_autotune_gemm": True,
    "max_autotune_pointwise": False,
    "triton.autotune_pointwise": False,
    # Decides by measuring whether to pad a product.
    "shape_padding": False,
    "benchmark_fusion": False,
    "benchmark_epilogue_fusion": False,
    # Writes a kernel that does not compile where an operand is a constant; measuring would only have dropped it.
    "prologue_fusion": False,
    "triton.multi_kernel": 0,
    "coordinate_descent_tuning": False,
    # Adds configurations of reductions that only measuring could choose.
    "dynamic_scale_rblock": False,
    "autotune_in_subproc": False,
    "pipeline_max_autotune_gemm": False,
    "compile_threads": 1,
    # Opens cubins with the real driver.
    "use_static_cuda_launcher": False,
}
#: Those whose name another release has changed.
_RENAMED = {"benchmark_epilogue_fusion": "benchmark_template_fusion"}


class Launches:
    """Compiles a program's kernels for ``card`` in the place of tuning them. Nothing is put back: the process ends afterwards.

    ``portable``: the program has their PTX, which the driver compiles for the card that it finds, in the place of machine code."""

    def __init__(self, card: Card, portable: bool = False):
        self.card = card
        if portable:
            _keep_ptx()
        self.chooser = Chooser(card)
        self.failed: list[tuple[Any, Exception]] = []
        select_algorithm.add_preprocessing_fn(self.chooser)
        # Looks for the machine's driver.
        triton_helpers.set_driver_to_gpu = lambda: None
        self._note_failures()
        launches = self

        def compile_only(self: Any) -> None:
            launches._compile(self.kernel_autotune_defs)

        wrapper.PythonWrapperCodegen.generate_and_run_autotune_block = compile_only  # type: ignore[method-assign]

    def another(self) -> list[Tile]:
        """The tiles refused since last asked: the program is to be compiled again. Raises :class:`ExportError` for a kernel without one."""
        failed, self.failed = self.failed, []
        tiles = []
        for kernel, reason in failed:
            tile = _tile(kernel)
            if tile is None or tile in self.chooser.refused:
                name = kernel.inductor_meta.get("kernel_name", kernel.fn.__name__)
                raise ExportError(f"kernel '{name}' cannot be compiled for {self.card.name}: {reason}; please report this") from None
            tiles.append(tile)
        self.chooser.refused.update(tiles)
        return tiles

    def _note_failures(self) -> None:
        original = triton_heuristics.CachingAutotuner.precompile

        def precompile(kernel: Any, *args: Any, **named: Any) -> None:
            if _tile(kernel) is not None:
                # torch 2.14 would give up a template's pipelining instead; a smaller tile is faster.
                kernel.inductor_meta["dynamic_disable_pipelining"] = False
            try:
                original(kernel, *args, **named)
            except RuntimeError as reason:
                if not str(reason).startswith(_NOTHING_FITS):
                    raise
                # The others are compiled first, so that one more attempt suffices for all of them.
                self.failed.append((kernel, reason))

        triton_heuristics.CachingAutotuner.precompile = precompile  # type: ignore[method-assign]

    def _compile(self, definitions: Any) -> None:
        definitions.splice("\nasync_compile.wait(globals())\ndel async_compile\n")
        scope: dict[str, Any] = {}
        exec(definitions.getvalue(), scope)
        kernels = [value for value in scope.values() if isinstance(value, triton_heuristics.CachingAutotuner)]
        for kernel in kernels:
            if not kernel.launchers and all(kernel is not one for one, _ in self.failed):
                kernel.precompile()
        if self.failed:
            raise RuntimeError(f"{len(self.failed)} kernels need more than the card has")
        for kernel in kernels:
            kernel.save_gpu_kernel(0, _chosen(kernel))


def _keep_ptx() -> None:
    """Has the compiler embed PTX where it would embed a cubin. ``cuModuleLoadData`` takes either, text with a zero at its end."""
    original = CudaKernelParamCache.set
    # Lines of source would be paths of this machine.
    triton.knobs.compilation.disable_line_info = True

    def keep(key: str, params: Any, cubin: Any, bin_type: str, asm: str | None = None, asm_type: str | None = None) -> None:
        original(key, params, asm.encode() + b"\0", bin_type, asm, asm_type)

    CudaKernelParamCache.set = keep  # type: ignore[method-assign]


def _tile(kernel: Any) -> Tile | None:
    """The tile of a template's kernel, before it is compiled or afterwards."""
    configs = kernel.configs or [result.config for result in kernel.compile_results]
    return tile_of_kernel(kernel.fn.src, configs[0]) if configs else None


def _chosen(kernel: Any) -> Any:
    """The compiler's first configuration; of a kernel that somebody wrote (attention) the largest tile without spilled registers."""
    if kernel.heuristic_type != HeuristicType.USER_AUTOTUNE or len(kernel.launchers) == 1:
        return kernel.launchers[0]

    def rank(launcher: Any) -> tuple[bool, int, int]:
        values = launcher.config.kwargs
        tile = math.prod(value for name, value in values.items() if name.startswith("BLOCK") and isinstance(value, int))
        return (launcher.n_spills or 0) == 0, min(tile, _LARGE), -(launcher.n_regs or 0)

    return max(kernel.launchers, key=rank)


def options() -> dict[str, Any]:
    """:data:`OPTIONS`; an option that another release lacks would be an error of its own, and is named here."""
    known = config.get_config_copy()
    named = {name if name in known else _RENAMED.get(name, name): value for name, value in OPTIONS.items()}
    if absent := [name for name in named if name not in known]:
        raise ExportError(f"this release of torch has no option {', '.join(absent)}: what it measures at export is not known")
    return named
