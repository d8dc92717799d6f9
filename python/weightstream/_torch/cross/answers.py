"""What torch and its compiler ask of the device, answered for a card that is not there.

Nothing is put back: this runs in a child process, which ends afterwards. A question that is not foreseen here fails the export
("Found no NVIDIA driver"); a wrong answer makes the compiler choose other code, not wrong code.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from .cards import Card

#: Modules whose caches hold answers: of the machine's own card, or that there is none.
_CACHES = (
    "torch.utils._triton",
    "torch._inductor.utils",
    "torch._inductor.kernel.mm",
    "torch._inductor.codegen.cuda.cuda_env",
    "triton.compiler.compiler",
)
#: Calls that happen once and have an effect; they hold no answer.
_ONCE = {"lazy_register_extern_choice"}


def _answer(value: Any) -> Any:
    return lambda *_, **__: value


def give(card: Card) -> None:
    """Lets everything that is asked from now on be answered for ``card``."""
    from torch._dynamo.device_interface import get_interface_for_device
    from torch._subclasses import fake_tensor

    _forget()
    for name, value in _of_torch(card).items():
        setattr(torch.cuda, name, _answer(value))
    interface: Any = get_interface_for_device("cuda")
    for name, value in _of_interface(card).items():
        setattr(interface, name, staticmethod(_answer(value)))
    for name, value in {"get_device_properties": card, "current_device": 0}.items():
        setattr(interface.Worker, name, staticmethod(_answer(value)))
    # Attention that no kernel fuses asks the driver of the machine for its card, which a forked process cannot.
    os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"
    # Puts a real tensor on the device before the first fake one.
    fake_tensor.init_gpu_context = _answer(None)


def _of_torch(card: Card) -> dict[str, Any]:
    return {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": card,
        "get_device_capability": card.capability,
        "get_device_name": card.name,
        "is_bf16_supported": True,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "synchronize": None,
        "set_device": None,
        "_lazy_init": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }


def _of_interface(card: Card) -> dict[str, Any]:
    """The compiler's own table of devices holds some of torch's functions, and others."""
    return {
        "is_available": True,
        "current_device": 0,
        "set_device": None,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "get_device_properties": card,
        "get_compute_capability": card.sm,
        "get_raw_stream": 0,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "synchronize": None,
    }


def _forget() -> None:
    from torch._inductor.runtime.hints import DeviceProperties

    DeviceProperties.create.__func__.cache_clear()  # type: ignore[attr-defined]
    for name in _CACHES:
        module = importlib.import_module(name)
        for key, value in list(vars(module).items()):
            own = not isinstance(value, type) and getattr(value, "__module__", None) == name
            if own and key not in _ONCE and hasattr(value, "cache_clear"):
                value.cache_clear()
