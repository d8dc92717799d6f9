"""One pass of an eager module, recorded: which modules were called, and which weights each of them read.

A module's own parameters are on the device while its forward runs. Every operator is looked at: where it takes another module's
parameter, it gets a copy, and the parameter is one of the running module's reads from then on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_map_only

from .._native.errors import Error
from .compiled import compiled_as
from .subclasses import plain_of, rebuilt
from .watch import ours, set_data, show_all
from .weights import Shown, Weights, span

#: What `parameter.data = tensor` asks in inference mode: no operator of the module.
_OF_SHOWING = torch.ops.aten._has_compatible_shallow_copy_type.default


@dataclass
class Call:
    """A call of a module, by its place among all calls; the root's has no parent. It holds its reads until it returns."""

    module: nn.Module
    parent: int | None
    reads: dict[int, Shown] = field(default_factory=dict)
    #: Of its reads, those of which operators take rows, and those that are used otherwise.
    rows: set[int] = field(default_factory=set)
    wholes: set[int] = field(default_factory=set)
    #: While it runs, the copies of what it reads.
    copies: list[tuple[Shown, torch.Tensor]] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Records a pass of a module. The weights are copied to the device for the calls that read them."""

    def __init__(self, weights: Weights, names: dict[nn.Module, str], device: torch.device):
        super().__init__()
        self.calls: list[Call] = []
        self._weights, self._names, self._device = weights, names, device
        self._now: int | None = None
        #: Of the copies that live: the weight of each, by its storage; and the copy, by the identity of the weight's tensor.
        self._copies: dict[int, Shown] = {}
        self._live: dict[int, torch.Tensor] = {}
        #: Buffers that cannot stream, by identity: the pass wrote them, or left a view of them to somebody.
        self.kept: dict[int, Shown] = {}
        #: Weights in pieces that the pass read as wholes, by identity.
        self.whole: dict[int, torch.Tensor] = {}

    def call(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a module's forward, with its own parameters on the device: of one that is compiled, with all below it."""
        is_compiled = compiled_as(module) is not None
        call = Call(module, self._now, {id(one.tensor): one for one in self._weights.of_call(module)})
        self.calls.append(call)
        before, self._now = self._now, len(self.calls) - 1
        mine = [one for one in call.reads.values() if one.is_on_host()]
        show_all([(one.tensor, self._copy(call, one)) for one in mine])
        for outer in self._weights.outer(mine):
            outer.show()
        try:
            if is_compiled:
                args, kwargs = tree_map_only(torch.Tensor, self._on_device, (args, kwargs))
                result = self._run_compiled(call, mine, forward, args, kwargs)
            else:
                result = forward(*args, **kwargs)
            self._keep_returned(call, result)
            return result
        finally:
            show_host(self._weights, [one for one in mine if id(one.tensor) not in self.kept])
            self._drop_copies(call)
            self._now = before

    def _run_compiled(
        self, call: Call, mine: list[Shown], forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Nobody sees the operators of compiled code: whether it has written to weights is found out by comparing bytes."""
        call.wholes |= call.reads.keys()
        before = [(one, self._live[id(one.tensor)].clone()) for one in mine if not one.is_buffer]
        with self._aside():
            result = forward(*args, **kwargs)
        for one, bytes in before:
            if not torch.equal(_flat(self._live[id(one.tensor)]), _flat(bytes)):
                raise Error(f"offload: the compiled forward writes to the weight '{one.name}'; what passes change has to be a buffer")
        return result

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """While operators are looked at, PyTorch does not run compiled code, but what it was compiled of, which computes other bits. And what it
        compiles while a mode is only disabled, it compiles again later."""
        if _get_current_dispatch_mode() is not self:
            with _disable_current_modes():
                yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def _copy(self, call: Call, one: Shown) -> torch.Tensor:
        """The copy that lives, or a new one. It lives as long as the call, so that nothing else lies at its address."""
        copy = self._live.get(id(one.tensor))
        if copy is None:
            copy = copy_of(one, self._device)
            call.copies.append((one, copy))
            self._copies[copy.untyped_storage().data_ptr()] = one
            self._live[id(one.tensor)] = copy
        return copy

    def _keep(self, one: Shown) -> None:
        """A buffer shows its copy from now on."""
        self.kept[id(one.tensor)] = one
        set_data(one.tensor, self._live[id(one.tensor)])

    def _drop_copies(self, call: Call) -> None:
        """The call is over. Buffers may have been written in a way that no operator tells; and of one whose copy lives on somebody has kept
        a view."""
        storages = []
        for one, copy in call.copies:
            if id(one.tensor) in self.kept:
                continue
            del self._copies[copy.untyped_storage().data_ptr()], self._live[id(one.tensor)]
            if not one.is_buffer or torch.equal(_bytes(copy), _bytes(one.host)):
                storages.append((one, StorageWeakRef(copy.untyped_storage())))
            else:
                self.kept[id(one.tensor)] = one
                set_data(one.tensor, copy)
        call.copies.clear()
        copy = None
        self.kept |= {id(one.tensor): one for one, storage in storages if one.is_buffer and not storage.expired()}

    def _keep_returned(self, call: Call, result: Any) -> None:
        """A module that returns a weight, or a view of one, leaves it to its caller, which then holds it."""
        returned = {id(one.tensor): one for tensor in tree_flatten(result)[0] for one in self._of(tensor)}
        for key, one in returned.items():
            if call.parent is None and one.is_buffer:
                continue
            if call.parent is None:
                name = type(call.module).__name__
                raise Error(f"offload: {name} returns its weight '{one.name}', or a view of it, whose memory others take; clone it")
            caller = self.calls[call.parent]
            caller.reads[key] = one
            kept = [pair for pair in call.copies if pair[0] is one]
            caller.copies += kept
            call.copies = [pair for pair in call.copies if pair[0] is not one]

    def _of(self, value: Any) -> Iterator[Shown]:
        """The weights whose copies a tensor shows."""
        for one in plain_of(value) if isinstance(value, torch.Tensor) and self._copies else ():
            if one.layout is torch.strided and one.numel() and (found := self._copies.get(one.untyped_storage().data_ptr())):
                yield found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _OF_SHOWING:
            return func(*args, **kwargs)
        written = self._written(func, args, kwargs) if func._schema.is_mutable else []
        args, kwargs = tree_map_only(torch.Tensor, self._on_device, (args, kwargs))
        for one in written:
            self._keep(one)
        if self._now is not None:
            call = self.calls[self._now]
            used = {id(one.tensor) for tensor in tree_flatten((args, kwargs))[0] for one in self._of(tensor)}
            (call.rows if func is torch.ops.aten.embedding.default else call.wholes).update(used)
        return func(*args, **kwargs)

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        parts = self._weights.of(tensor)
        if not parts or self._now is None:
            return tensor
        if tensor in self._weights.giants:
            # Not as a product of rows: it stays whole from the next pass on.
            self.whole[id(tensor)] = tensor
            return copy_of(Shown("", tensor, ours(tensor.detach()), None, 0, False), self._device)
        copies = {id(one.tensor): self._read(one) for one in parts if one.is_on_host()}
        return copies.get(id(tensor), tensor) if parts[0].tensor is tensor else rebuilt(parts[0].name, tensor, copies)

    def _read(self, one: Shown) -> torch.Tensor:
        """A weight of another module, or what the running one's is a part of. One of a subclass is read with all that this consists of."""
        call = self.calls[self._now or 0]
        whole = [other for outer in self._weights.outer([one]) for other in self._weights.of(outer.tensor)]
        call.reads |= {id(other.tensor): other for other in [one, *whole]}
        return self._copy(call, one)

    def _written(self, func: Any, args: Any, kwargs: Any) -> list[Shown]:
        """The buffers that an operator writes. Parameters may not be written."""
        written = []
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            for one in itertools.chain(*([*self._weights.of(tensor), *self._of(tensor)] for tensor in tree_flatten(value)[0])):
                if not one.is_buffer:
                    raise Error(f"offload: the forward writes to the weight '{one.name}' ({func}); what passes change has to be a buffer")
                if id(one.tensor) not in self.kept and self._now is not None:
                    written.append(one)
        return written


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return _flat(tensor.cpu())


def copy_of(one: Shown, device: torch.device) -> torch.Tensor:
    """A copy of a weight in PyTorch's own memory of the device."""
    host = one.host
    with one.mode(), torch.no_grad():
        copy = host.to(device, copy=True)
        if copy.stride() != host.stride():
            # Kernels may compute other bits over other strides.
            flat = host.as_strided((span(host) // host.element_size(),), (1,)).to(device, copy=True)
            copy = flat.as_strided(host.size(), host.stride())
        return ours(copy)


def show_copies(weights: Weights, shown: list[Shown], device: torch.device) -> None:
    """Weights show copies from now on."""
    copies = [(one.tensor, copy_of(one, device)) for one in shown]
    show_all(copies)
    weights.lending.addresses.update(copy.untyped_storage().data_ptr() for _, copy in copies)
    for outer in weights.outer(shown):
        outer.show()


def show_host(weights: Weights, shown: list[Shown]) -> None:
    """Weights show their host bytes again."""
    for outer in weights.outer(shown):
        outer.hide()
    show_all([(one.tensor, one.host) for one in shown])
