"""The weights of an eager module: which bytes of the host they are, and tensors over the device's copy of these bytes."""

from __future__ import annotations

import bisect
import ctypes
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import nn

from .._native.dlpack import consume
from .._native.errors import Error
from .compiled import compiled_as
from .giants import Giant, Giants
from .mapping import files_of, maybe_written, writable
from .subclasses import Inner, Outer, flattens, holders_of, inner_of, is_plain
from .watch import Lending, Writes, get_data, ours, set_data


class Weight(NamedTuple):
    """Bytes of the host of which the device holds one copy. Parameters and buffers that overlap there share one."""

    name: str
    start: int
    bytes: int


class Shown(NamedTuple):
    """A parameter, a tensor that one consists of, or a buffer that streams: what it shows between passes, and where that lies. Without
    elements it has no weight."""

    name: str
    tensor: torch.Tensor
    host: torch.Tensor
    weight: int | None
    offset: int
    #: Passes may write to buffers, and to nothing else.
    is_buffer: bool

    def mode(self) -> torch.inference_mode:
        """In which tensors are made that the parameter can show: PyTorch tells inference tensors from others."""
        return torch.inference_mode(self.host.is_inference())

    def is_on_host(self) -> bool:
        """Whether the tensor shows its host bytes now, and not those of a pass."""
        return self.tensor.data_ptr() == self.host.data_ptr() and self.tensor.device == self.host.device


class Written:
    """Whether a pass has written to some weights since their writes were counted. PyTorch counts none of tensors of inference mode."""

    __slots__ = ("_parts", "_shown", "_writes")

    def __init__(self, shown: list[Shown], weights: Weights):
        self._shown, outer = shown, weights.outer(shown)
        self._parts = [*([one] for one in shown), *(weights.of(one.tensor) for one in outer)]
        self._writes = Writes([*([one.tensor] for one in shown), *(one.counted for one in outer)])

    def count(self) -> None:
        """What was written so far is known."""
        self._writes.count()

    def found(self) -> list[Shown]:
        """Those that were written, as PyTorch counts it."""
        return [one for index in self._writes.found() for one in self._parts[index]]

    def to_host(self, lending: Lending) -> list[Shown]:
        """Those that were written while they showed the device's bytes, which the host has from now on."""
        found = self.found()
        if lending.in_use:
            found += [one for one in self._shown if lending.was_written(one.tensor)]
        for one in found:
            with one.mode(), torch.no_grad():
                writable(one.host).copy_(get_data(one.tensor))
        return found


class Weights:
    """All parameters of a module, and buffers of it, by the identity of their objects; but for parameters that are on ``device``
    already, which are their owner's. One of a tensor subclass is the tensors that it consists of."""

    def __init__(self, module: nn.Module, buffers: list[tuple[str, torch.Tensor]], giants: Giants, device: torch.device | None = None):
        self.giants = giants
        here = device if device is not None and device.type != "cpu" else None
        with torch._C.DisableTorchFunctionSubclass():
            self._take(module, buffers, here)
            # Somebody may have written to them while nobody looked.
            written = [range(file.address, file.address + len(file)) for file in maybe_written(files_of(one.start for one in self.all))]
            if self.leave_files([index for index, one in enumerate(self.all) if any(one.start in those for those in written)]):
                self.lending.end()
                self._take(module, buffers, here)

    def _take(self, module: nn.Module, buffers: list[tuple[str, torch.Tensor]], here: torch.device | None) -> None:
        self._holders = holders = holders_of(module)
        self._inner: dict[int, list[Inner]] = {}
        self._outer: list[Outer] = []
        self._outer_of: dict[int, list[Outer]] = {}
        named: list[tuple[str, torch.Tensor]] = []
        for name, parameter in module.named_parameters():
            if giant := self.giants.all.get(id(parameter)):
                found = [(rows, piece.weight) for rows, piece in giant.rows()]
            elif is_plain(parameter):
                found = [(name, parameter)]
            else:
                found = self._take_apart(name, parameter, holders[id(parameter)])
            for part, tensor in found:
                if tensor.device != here:
                    _check(part, tensor)
                    named.append((part, tensor))
        of_buffers = {id(buffer) for _, buffer in buffers}
        named += buffers
        spans = sorted((tensor.data_ptr(), span(tensor), name) for name, tensor in named if tensor.numel())
        self.all: list[Weight] = []
        for start, size, name in spans:
            last = self.all[-1] if self.all else None
            if last and start < last.start + last.bytes:
                self.all[-1] = last._replace(bytes=max(last.bytes, start + size - last.start))
            else:
                self.all.append(Weight(name, start, size))
        self._starts = [weight.start for weight in self.all]
        self.shown = {id(tensor): self._shown(name, tensor, id(tensor) in of_buffers) for name, tensor in named}
        self._note_addresses()
        self._counted = [*(tensor for _, tensor in named), *(outer.tensor for outer in self._outer)]
        self._writes = Writes([*([tensor] for _, tensor in named), *(outer.counted for outer in self._outer)])
        wholes = [*((outer.name, outer.tensor) for outer in self._outer), *((one.name, one.weight) for one in self.giants.all.values())]
        self.lending = Lending([*named, *wholes])

    def _take_apart(self, name: str, parameter: torch.Tensor, holders: list[nn.Module]) -> list[tuple[str, torch.Tensor]]:
        """A parameter of a tensor subclass: the tensors that it consists of."""
        inner = self._inner[id(parameter)] = inner_of(name, parameter, holders)
        if flattens(parameter):
            outer = Outer(name, parameter, holders)
            self._outer.append(outer)
            for one in inner:
                self._outer_of.setdefault(id(one.tensor), []).append(outer)
        return [(one.name, one.tensor) for one in inner]

    def _shown(self, name: str, tensor: torch.Tensor, is_buffer: bool) -> Shown:
        host = ours(get_data(tensor))
        if not host.numel():
            return Shown(name, tensor, host, None, 0, is_buffer)
        at = host.data_ptr()
        index = bisect.bisect_right(self._starts, at) - 1
        return Shown(name, tensor, host, index, at - self.all[index].start, is_buffer)

    def leave_files(self, changed: Iterable[int]) -> bool:
        """Weights that do not have the bytes of their files any more get memory of their own. Whether any has."""
        changed, own = set(changed), {}
        cut = [giant for giant in self.giants.all.values() if any(one.weight in changed for one in self.of(giant.weight))]
        moved = [giant for giant in cut if self._leave_file(giant)]
        for index in changed - {one.weight for giant in cut for one in self.of(giant.weight)}:
            weight = self.all[index]
            for file in files_of([weight.start]):
                copy = file.own(weight.start, weight.bytes)
                if copy is not None:
                    own[index] = copy.untyped_storage()
        for one in self.shown.values() if own else ():
            if one.weight in own:
                with one.mode(), torch.no_grad():
                    place = one.offset // one.host.element_size(), one.tensor.size(), one.tensor.stride()
                    set_data(one.tensor, torch.empty(0, dtype=one.host.dtype).set_(own[one.weight], *place))
        return bool(own or moved)

    def _leave_file(self, giant: Giant) -> bool:
        """The parameter as a whole, which is cut again then."""
        with torch.no_grad():
            for file in files_of([giant.weight.data_ptr()]):
                copy = file.own(giant.weight.data_ptr(), giant.weight.nbytes)
                if copy is not None:
                    set_data(giant.weight, ours(copy.view(giant.weight.dtype).view(giant.weight.size())))
                    return True
        return False

    def settle(self) -> set[int]:
        """A pass was recorded. Tensors in attributes may be in other ones since; those that are gone are no weights, but what the forward
        puts there each time, and are forgotten."""
        gone: set[int] = set()
        moved = [parts for parts in self._inner.values() if not all(one.is_there() for one in parts)]
        for parts in moved:
            name, parameter, *_ = parts[0]
            if id(parameter) not in self._inner:
                # Of a subclass that flattens: what it consists of now is looked at before the next pass.
                continue
            now = {id(one.tensor): one for one in inner_of(name, parameter, self._holders[id(parameter)])}
            gone |= {id(one.tensor) for one in parts} - now.keys()
            self._inner[id(parameter)] = [now[id(one.tensor)] for one in parts if id(one.tensor) in now]
        for key in gone:
            self.shown.pop(key, None)
        self._note_addresses()
        return gone

    def _note_addresses(self) -> None:
        self._tensors = [one.tensor for one in self.shown.values()]
        self._addresses = list(map(torch.Tensor.data_ptr, self._tensors))

    def of(self, tensor: torch.Tensor) -> list[Shown]:
        """What a parameter or a buffer consists of; nothing of others."""
        if giant := self.giants.all.get(id(tensor)):
            keys = [id(piece.weight) for piece in giant.pieces]
        else:
            keys = [id(one.tensor) for one in self._inner[id(tensor)]] if id(tensor) in self._inner else [id(tensor)]
        return [self.shown[key] for key in keys if key in self.shown]

    def outer(self, shown: Iterable[Shown]) -> list[Outer]:
        """The parameters of subclasses that consist of some of these. They are shown as wholes."""
        return list({id(outer): outer for one in shown for outer in self._outer_of.get(id(one.tensor), ())}.values())

    def own(self, module: nn.Module) -> Iterator[Shown]:
        """The tensors that a module has itself, each once. A giant's pieces are those of their own modules."""
        mine = {id(one): one for held in (module._parameters, module._buffers) for one in held.values() if one is not None}
        yield from {id(one.tensor): one for tensor in mine.values() if tensor not in self.giants for one in self.of(tensor)}.values()

    def below(self, module: nn.Module) -> Iterator[Shown]:
        """Those of the module and of all modules in it."""
        below = itertools.chain(module.parameters(), module.buffers())
        yield from {id(one.tensor): one for tensor in below for one in self.of(tensor)}.values()

    def of_call(self, module: nn.Module) -> Iterator[Shown]:
        """Those that a call of the module reads: its own, or of one that is compiled all below it."""
        return self.own(module) if compiled_as(module) is None else self.below(module)

    def are_elsewhere(self) -> bool:
        """Whether one shows other memory than it did, or a subclass consists of other tensors."""
        with torch._C.DisableTorchFunctionSubclass():
            if list(map(torch.Tensor.data_ptr, self._tensors)) != self._addresses:
                return True
            return not all(one.is_there() for parts in self._inner.values() for one in parts)

    def has_other_form(self, tensor: torch.Tensor) -> bool:
        """Whether it has other sizes or strides than it had: ``weight.t_()``."""
        host = self.shown[id(tensor)].host
        return (tensor.size(), tensor.stride()) != (host.size(), host.stride())

    def written(self) -> list[torch.Tensor]:
        """Those that may have been written since the last call: as PyTorch counts it, or through ``.data``."""
        changed = self.lending.may_be_written() if self.lending.noted else []
        written = self._writes.found()
        if written:
            changed += [self._counted[index] for index in written]
            self._writes.count()
        return changed


def _check(name: str, parameter: torch.Tensor) -> None:
    def refuse(what: str) -> None:
        raise Error(f"offload: parameter '{name}' {what}")

    if isinstance(parameter, nn.parameter.UninitializedTensorMixin):
        refuse("has no sizes yet; run the module once before")
    if parameter.device.type == "meta":
        refuse("is on meta and has no bytes; give weights=, the safetensors files that have them")
    if parameter.device.type != "cpu":
        refuse(f"is on {parameter.device}; offload a module whose weights are in host memory")
    if parameter.layout is not torch.strided or parameter.is_quantized or parameter.is_conj() or parameter.is_neg():
        refuse("is sparse, quantized by PyTorch's own type, or a lazy conjugate; give a dense tensor")


def span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the last one, in whatever order they lie."""
    steps = ((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    return (sum(steps) + 1) * tensor.element_size()


class _View(ctypes.Structure):
    """``DLManagedTensor`` of one dimension over memory that somebody else keeps, and its size."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("size", ctypes.c_int64),
    ]


_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_FREE = ctypes.cast(_libc.free, ctypes.c_void_p).value


def tensor_at(address: int, size: int, like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor with the dtype, sizes and strides of another one over so many bytes of a device. It keeps nothing alive."""
    # As DLPack has them: 1 is the CPU, 2 is CUDA.
    kind = (1, 0) if device.type == "cpu" else (2, device.index or 0)
    # The tensor frees the structure when it ends, on whatever thread.
    at = _libc.malloc(ctypes.sizeof(_View))
    shape = at + _View.size.offset
    view = _View(address, (ctypes.c_int32 * 2)(*kind), 1, (ctypes.c_uint8 * 4)(1, 8, 1, 0), shape, None, 0, None, _FREE, size)
    ctypes.memmove(at, ctypes.byref(view), ctypes.sizeof(view))
    whole = consume(ctypes.c_void_p(at), torch.utils.dlpack.from_dlpack)
    return ours(whole.view(like.dtype).as_strided(like.size(), like.stride()))
