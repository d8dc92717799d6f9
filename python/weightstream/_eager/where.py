"""Where an offloaded module runs, as its callers see it: ``module.device``, ``module.to``, and inputs that are elsewhere.

The parameters are on the host, and models of transformers and diffusers derive their device from them. So while a module is offloaded
its class is a subclass of its own that says where it runs.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .._native.errors import Error

#: The device of each module that is offloaded. A copy of such a module is not in here: it is what its class was.
_RUNS_ON: weakref.WeakKeyDictionary[nn.Module, torch.device] = weakref.WeakKeyDictionary()


def say_where(modules: Iterable[nn.Module], device: torch.device) -> None:
    """From now on these modules say that they run on ``device``, and are not moved."""
    for module in modules:
        if module not in _RUNS_ON:
            module.__class__ = _placed(type(module))
            _RUNS_ON[module] = device


def forget_where(modules: Iterable[nn.Module]) -> None:
    """They are of their own classes again."""
    for module in modules:
        if _RUNS_ON.pop(module, None) is not None and type(module).__dict__.get("_placed_by_weightstream"):
            module.__class__ = type(module).__base__


def has_device(module: nn.Module) -> bool:
    """Whether it derives its device from its parameters."""
    return isinstance(getattr(type(module), "device", None), property)


@functools.cache
def _placed(cls: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``cls`` for modules that run elsewhere than their parameters are. It is called what ``cls`` is."""
    body: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    body |= {"_placed_by_weightstream": True, "_apply": _apply(cls), "__reduce_ex__": _reduce_ex(cls)}
    if isinstance(getattr(cls, "device", None), property):
        body["device"] = property(lambda self: _RUNS_ON.get(self) or super(placed, self).device)
    if hasattr(cls, "_valid_auto_compile_criteria"):
        # transformers compiles a decoder with a static cache by itself, and compiled code would keep addresses.
        body["_valid_auto_compile_criteria"] = lambda *_, **__: False
    try:
        placed = type(cls)(cls.__name__, (cls,), body)
    except TypeError as error:
        raise Error(f"offload: {cls.__name__} cannot say where it runs, since it has no subclass without arguments ({error})") from None
    return placed


def _apply(cls: type[nn.Module]) -> Callable[..., Any]:
    """What ``to``, ``cuda``, ``half`` and their like do with all parameters and buffers."""

    def apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> nn.Module:
        here = _RUNS_ON.get(self)
        if here is None:
            return cls._apply(self, fn, *args, **kwargs)
        like = next(self.parameters(), torch.empty(0))
        # Of four dimensions, as layouts of pictures have.
        before = torch.ones(1, 2, 2, 2, dtype=like.dtype)
        after = fn(before)
        device = torch.device("cuda", torch.cuda.current_device()) if str(after.device) == "cuda" else after.device
        what = ""
        if device != here:
            what = f"moved to {after.device}"
        elif after.dtype != before.dtype:
            what = f"changed to {after.dtype}"
        elif after.stride() != before.stride() or not torch.equal(after.cpu(), before):
            what = "changed in its layout or its values"
        if what:
            raise Error(
                f"offload: {cls.__name__} is offloaded and runs on {here}; it cannot be {what} meanwhile: remove() its handle first, and offload "
                "it again"
            )
        return self

    return apply


def _reduce_ex(cls: type[nn.Module]) -> Callable[..., Any]:
    """What copies and pickles ask for. They would ask for this class, which has no name of its own."""

    def reduce_ex(self: nn.Module, protocol: Any) -> Any:
        if self not in _RUNS_ON:
            return cls.__reduce_ex__(self, protocol)
        raise Error(
            f"offload: {cls.__name__} is offloaded, and cannot be copied or pickled so; save its state_dict(), or remove() the handle first"
        )

    return reduce_ex


def moved(value: Any, device: torch.device) -> Any:
    """Tensors of the CPU on ``device``, in tuples, lists and dictionaries too. Other objects, as caches, are their owners' to place."""
    if isinstance(value, torch.Tensor):
        return value.to(device) if value.device.type == "cpu" and device.type != "cpu" else value
    if type(value) is dict:
        return {key: moved(one, device) for key, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(moved(one, device) for one in value)
    return value
