"""What a program is compiled for."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec

from ..._native.errors import ExportError
from ..._torch import cross
from ..._torch.cross import cards
from ..._torch.probe import PROBE
from ..passes import operators
from ..passes.attention import MODES

DEVICES = ("cpu", "cuda")
ISA_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")


@dataclasses.dataclass(frozen=True)
class Target:
    """A device, the x86-64 level of the code that runs on the host, and how attention is computed.

    ``sm``: the compute capability of a GPU that need not be here (``90``: 9.0), several with commas between them; empty for the one that
    is."""

    device: str
    isa: str
    attention: str = "auto"
    sm: str = ""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ExportError(f"device '{self.device}' is unknown; use one of {', '.join(DEVICES)}")
        if self.isa not in ISA_LEVELS:
            raise ExportError(f"isa '{self.isa}' is unknown; use one of {', '.join(ISA_LEVELS)}")
        if self.attention not in MODES:
            raise ExportError(f"attention '{self.attention}' is unknown; use one of {', '.join(MODES)}")
        self._check_gpu()

    def _check_gpu(self) -> None:
        if self.sm and self.device != "cuda":
            raise ExportError(f"sm '{self.sm}' could have no effect: the device is '{self.device}'; it is for device 'cuda'")
        if self.sm:
            cross.check(self.sm)
        elif self.device == "cuda" and not torch.cuda.is_available():
            raise ExportError(
                "device 'cuda' needs an NVIDIA GPU and its driver at export: kernels are tuned and compiled on it; "
                f"sm, one of {', '.join(cards.CARDS)}, exports for a GPU that is not here, untuned"
            )

    def specs(self) -> list[CompileSpec]:
        return [CompileSpec(field.name, getattr(self, field.name).encode()) for field in dataclasses.fields(self)]

    @staticmethod
    def of(specs: dict[str, str]) -> Target:
        return Target(specs["device"], specs["isa"], specs["attention"], specs["sm"])

    def fuses_attention(self) -> bool:
        """Whether attention is given to a fused kernel where one can compute it."""
        return self.device == "cuda" and self.attention == "auto"

    def sms(self) -> str:
        """Compute capabilities that the program runs on: ``90`` for 9.0, ``86,90`` for two. Empty on the CPU."""
        if self.sm or self.device != "cuda":
            return self.sm
        major, minor = torch.cuda.get_device_capability()
        return f"{major}{minor}"

    def shared_memory(self) -> int:
        """Bytes that a block of a kernel has in common, on a GPU."""
        card = cards.of(self.sm) if self.sm else torch.cuda.get_device_properties()
        return card.shared_memory_per_block_optin

    def options(self) -> dict[str, Any]:
        """AOTInductor's options for this device."""
        signature = f"AOTITorchError aoti_torch_{self.device}_probe(AtenTensorHandle, int64_t, AtenTensorHandle*)"
        shared = {
            "aot_inductor.custom_ops_to_c_shims": {PROBE: [signature], **operators.c_shims(self.device)},
            # Casts as eager mode does them, so that bf16 results agree.
            "emulate_precision_casts": True,
        }
        return {**shared, **(_CUDA if self.device == "cuda" else _CPU), **(cross.options() if self.sm else {})}


_CPU = {
    # No OpenMP region: a failing check throws, which must not happen inside one. The time goes into our own GEMMs anyway.
    "cpp.threads": 1,
    # The vector-ISA check caches without `link_libtorch` in its key, and vector code needs Sleef, which we do not have.
    "cpp.vec_isa_ok": False,
}

_CUDA = {
    # Kernels in the library itself: nothing to find at run time.
    "aot_inductor.embed_kernel_binary": True,
    # Products and convolutions as Triton kernels: cuBLAS would come with libtorch.
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
}
