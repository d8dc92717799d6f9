"""A module that is offloaded: the wrappers of its forwards, its buffers, and what cannot be offloaded."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from .._native.errors import Error
from .._native.gpus import gpu
from .compiled import compiled_as, compiler_at_work, is_compiling
from .mapping import is_of_file, writable
from .subclasses import Outer, bytes_of, flattens, holders_of, plain_of
from .watch import ours, set_data
from .weights import span

if TYPE_CHECKING:
    from .passes import Passes
    from .weights import Shown

#: Buffers of so many bytes stream: quantized layers keep their weights in them.
_LARGE = 1 << 20


class Forward:
    """What stands in the place of a module's forward, or of the compiled code that is called instead. A model calls a thousand of them in a
    pass: a partial function is called three times as fast as an object."""

    def __init__(self, passes: Passes, module: nn.Module, is_inside: bool):
        self.passes, self.module = passes, module
        #: Somebody may have kept it, and have compiled it.
        self.is_over = False
        #: Compiled code calls it too, which has shown its weights.
        self.is_inside = is_inside
        self._attribute = compiled_as(module) or "forward"
        self.code = getattr(module, self._attribute)
        self.is_cut = module in passes.giants.holders
        self.forward = functools.partial(passes.run_compiled, self.code) if compiled_as(module) else self.code
        if self.is_cut:
            self.forward = passes.giants.wrap(self.code)
        self._before = module.__dict__.get(self._attribute)
        self._run = functools.update_wrapper(functools.partial(_run, self), self.code)

    def __reduce_ex__(self, _protocol: object) -> Any:
        """A copy of the module would call this one."""
        if self.passes.left:
            raise Error(
                f"offload: a module of {self.passes.name} has kept the forward that it had while it was offloaded; delete it (del module.forward)"
            )
        raise Error(
            f"offload: {self.passes.name} is offloaded, and cannot be copied or pickled so; save its state_dict(), or remove() the handle first"
        )

    def wrap(self, module: nn.Module) -> None:
        """The module's forward is this from now on."""
        module.__dict__[self._attribute] = self._run

    def wraps(self, module: nn.Module) -> bool:
        """Whether nobody has given the module another forward, or compiled it, or a weight that is cut."""
        is_run = module.__dict__.get(self._attribute) is self._run and self._attribute == (compiled_as(module) or "forward")
        return is_run and self.is_cut == (module in self.passes.giants.holders)

    def unwrap(self, module: nn.Module) -> None:
        """It is what it was."""
        self.is_over = True
        if module.__dict__.get(self._attribute) is not self._run:
            return
        del module.__dict__[self._attribute]
        if self._before is not None:
            module.__dict__[self._attribute] = self._before


def _run(of: Forward, *args: Any, **kwargs: Any) -> Any:
    passes = of.passes
    if of.is_over or (of.is_inside and passes.in_compiled):
        return of.code(*args, **kwargs)
    if of.module in passes.through and passes.thread == get_ident() and compiler_at_work() is None:
        return of.forward(*args, **kwargs)
    return passes.enter(of.module, of.forward, args, kwargs)


def passes_of(module: nn.Module) -> Passes | None:
    """Those of a module that is offloaded."""
    found = (module.__dict__.get(name) for name in ("forward", "_compiled_call_impl"))
    wrapper = next((one.args[0] for one in found if getattr(one, "func", None) is _run), None)
    return None if wrapper is None or wrapper.passes.left else wrapper.passes


def refuse_compiler(name: str, module: str) -> None:
    """Of the whole module, or of a function that calls modules which are offloaded by themselves."""
    if is_compiling():
        called = f"its module '{module}'" if module else "it"
        raise Error(
            f"offload: {name} is offloaded, and what torch.compile has compiled calls {called}: a model cannot be compiled as a whole, nor a "
            "function that calls modules of it; compile blocks, block.compile(), and run the module that has them"
        )


def refuse_gradients(name: str, values: Any, root: nn.Module | None = None) -> None:
    """What a backward pass would read of weights is not there: inputs or outputs that need gradients, and parameters of ``root``."""
    what = None
    if any(isinstance(one, torch.Tensor) and one.requires_grad for one in tree_flatten(values)[0]):
        what = "an input needs gradients" if root else "an output needs gradients"
    else:
        of = next((of for of, parameter in root.named_parameters() if parameter.requires_grad), None) if root else None
        what = of and f"gradients of '{of}' would be computed"
    if what:
        raise Error(
            f"offload: {name} is for inference, and {what}; run it under torch.inference_mode() or torch.no_grad(), or call "
            "module.requires_grad_(False), and detach() what it is given"
        )


class Buffers:
    """The buffers of a module. Large ones that no pass writes stream as weights do. The others are on the device until they are given back,
    with what passes wrote to them."""

    def __init__(self, device: torch.device):
        self._device, self.bytes = device, 0
        self._moved: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: Those of subclasses, and what stands in their places.
        self._outer: list[Outer] = []
        self._seen: list[int] = []
        #: Modules that were looked at, and the buffers of them that stream.
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._streaming: dict[int, torch.Tensor] = {}

    def look(self, module: nn.Module) -> None:
        """Which ones of modules that were not there before will stream."""
        shared = overlapping(module)
        for one in module.modules():
            if one in self._known:
                continue
            self._known.add(one)
            # The kernel of a norm that trains writes its statistics, and no version counts that.
            own = () if isinstance(one, nn.modules.batchnorm._NormBase) else one._buffers.values()
            self._streaming |= {id(buffer): buffer for buffer in own if _may_stream(buffer) and id(buffer) not in shared}

    def streaming(self, module: nn.Module, every_name: bool = False) -> list[tuple[str, torch.Tensor]]:
        """Those that stream, with their names."""
        named = module.named_buffers(remove_duplicate=not every_name)
        return [(name, buffer) for name, buffer in named if id(buffer) in self._streaming]

    def is_streaming(self, buffer: torch.Tensor) -> bool:
        """Whether it streams, and is still there."""
        return id(buffer) in self._streaming

    def keep(self, shown: Iterable[Shown]) -> None:
        """These do not stream any more. They show the device's bytes already, or do so from now on."""
        for one in shown:
            del self._streaming[id(one.tensor)]
            self._moved.append((one.tensor, one.host))
            if one.is_on_host():
                set_data(one.tensor, ours(one.host.to(self._device, copy=is_of_file(one.host))))
            self.bytes += one.tensor.nbytes

    def take(self, module: nn.Module) -> None:
        """Those that the module has now, and had not before. One that takes the place of another does not stream: who knows for how long it
        is there."""
        self.look(module)
        all_named = list(module.named_buffers())
        present = {id(buffer) for _, buffer in all_named}
        self._streaming = {key: buffer for key, buffer in self._streaming.items() if key in present}
        named = [(name, buffer) for name, buffer in all_named if id(buffer) not in self._streaming]
        for name, buffer in named:
            if buffer.device.type == "meta":
                raise Error(f"offload: buffer '{name}' is on meta and has no bytes; give weights=, or make the module with real buffers")
            if buffer.device.type != "cpu" and buffer.device != self._device:
                raise Error(f"offload: buffer '{name}' is on {buffer.device}; offload a module that is in host memory (module.cpu())")
        holders = holders_of(module) if any(flattens(buffer) for _, buffer in named) else {}
        for name, buffer in named:
            if is_of_file(buffer) and buffer.device == self._device:
                # Passes may write it.
                with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                    set_data(buffer, buffer.clone())
            if buffer.device == self._device:
                continue
            for one in plain_of(buffer):
                with torch.inference_mode(one.is_inference()), torch.no_grad():
                    self._moved.append((one, one.data))
                    one.data = one.data.to(self._device)
            if flattens(buffer):
                self._outer.append(Outer(name, buffer, holders[id(buffer)]))
                self._outer[-1].show()
        self.bytes = sum(bytes_of(buffer) for _, buffer in named)
        self._seen = _buffers_of(module.modules())

    def are_others(self, modules: Iterable[nn.Module]) -> bool:
        """Whether the module has other buffers than it had."""
        return _buffers_of(modules) != self._seen

    def give_back(self) -> None:
        """They are on the host again."""
        for outer in self._outer:
            outer.hide()
        for buffer, host in self._moved:
            with torch.inference_mode(host.is_inference()), torch.no_grad():
                buffer.data = writable(host).copy_(buffer.data) if host.shape == buffer.shape else buffer.data.to(host.device)
        self._moved, self._outer = [], []


def _may_stream(buffer: torch.Tensor | None) -> bool:
    """Whether it is large, and nothing but memory with sizes. Of tensors that were made in inference mode nobody counts the writes."""
    if type(buffer) is not torch.Tensor or buffer.layout is not torch.strided or buffer.is_inference():
        return False
    if buffer.is_quantized or buffer.is_conj() or buffer.is_neg() or buffer.requires_grad or buffer.device.type != "cpu":
        return False
    return buffer.nbytes >= _LARGE and not _has_views(buffer)


def _has_views(buffer: torch.Tensor) -> bool:
    """Whether somebody has another tensor over its memory. Of a part of a larger storage, as of a file, nobody knows."""
    storage = buffer.untyped_storage()
    # The tensor's own reference, and that of `storage`.
    return storage.nbytes() == buffer.nbytes and torch._C._storage_Use_Count(storage._cdata) > 2


def overlapping(module: nn.Module) -> set[int]:
    """Parameters and buffers that share memory with other ones."""
    found: set[int] = set()
    tensors = {id(one): one for one in itertools.chain(module.parameters(), module.buffers()) if one.layout is torch.strided}
    spans = sorted((one.data_ptr(), one.data_ptr() + span(one), key) for key, one in tensors.items() if _is_memory(one))
    last, end = 0, 0
    for start, until, key in spans:
        if start < end:
            found |= {last, key}
        if until > end:
            last, end = key, until
    return found


def _is_memory(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.numel() > 0


def _buffers_of(modules: Iterable[nn.Module]) -> list[int]:
    return [id(buffer) for module in modules for buffer in module._buffers.values()]


def device_of(device: Any) -> torch.device:
    """The device that is meant, with its index. It is there."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise Error(f"offload: the device is 'cpu', 'cuda:0', 'cuda:1' and so on, found {device!r}")
    return gpu(found.index, "offload") if found.type == "cuda" else torch.device("cpu")


def check_module(module: nn.Module, names: dict[nn.Module, str]) -> None:
    """Refuses modules whose calls cannot be followed."""
    for one, name in names.items():
        what = None
        if passes_of(one) is not None:
            what = "is offloaded already; remove() its handle first, which ws.torch.Offloaded.of(module) finds"
        elif isinstance(one, torch.jit.ScriptModule):
            what = "is a ScriptModule, whose calls cannot be seen; offload the module that it was made of"
        if what:
            where = f"module '{name}' of {type(module).__name__}" if name else type(module).__name__
            raise Error(f"offload: {where} {what}")
