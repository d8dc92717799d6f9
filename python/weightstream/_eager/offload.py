"""``offload``: eager modules whose weights stay in host memory, on the layout of the planner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._native.bindings import as_priority, check_defaults, library, whole
from .._native.errors import Error
from .activations import activations_of
from .checkpoint import load
from .mapping import is_of_file
from .module import device_of, passes_of
from .passes import Passes
from .plan import FLOOR, SHARED, as_arguments


def offload(
    module: Any,
    *,
    budget: int | None = None,
    shared: bool = False,
    priority: int = 0,
    device: Any = None,
    name: str | None = None,
    example: tuple[Any, ...] | None = None,
    weights: Any = None,
    convert: bool = False,
    host: str = "auto",
    staging_mb: float | None = None,
    activations: str | None = None,
    packed: bool | str | os.PathLike = False,
) -> Offloaded:
    """Runs a module whose weights stay in host memory: ``device`` never holds more than ``budget`` bytes of them.

    ``module`` is an ``nn.Module``, best on the CPU (weights on a GPU are brought to host memory first), or what consists of some: a pipeline of diffusers, or any object that has modules as
    ``components`` (a dictionary) or as attributes. Until :meth:`Offloaded.remove`, ``module.device`` is ``device``, and inputs on the CPU are
    moved there. Modules inside may be called too; each that is called from outside has an order of its own.

    ``budget=None`` is the least budget that does. With ``shared=True`` the module shares the device with all that does
    (:func:`weightstream.set_device_budget`); ``priority`` says whose bytes come first, and ``name`` what reports call it. The first pass is
    recorded; with ``example``, a tuple of arguments, that is done here. ``device`` is ``"cuda:0"`` unless there is no GPU, then ``"cpu"``.
    Buffers count in the budget. Those that passes write, and those under 1 MB, are on the device all the time; others stream as parameters
    do. Weights may be tensor subclasses (torchao, GGUF, bitsandbytes, DTensor), and blocks may be compiled by ``torch.compile``, before or
    after.

    ``activations`` says where passes of a module that shares its device take PyTorch's memory from. ``"pool"``: from the device's budget,
    and weights give way to it; ``"pytorch"``: from PyTorch, beside the budget. The default is ``"pool"`` where PyTorch allows it.

    ``weights`` has the bytes of a module that was made on ``meta``: a folder of safetensors files, a file, or a list of files; of a pipeline
    a dictionary of these by the names of its parts. Files are mapped, not read, and must not change. Names, shapes and dtypes have to be the
    module's; ``convert=True`` copies what has another dtype. ``host`` says what a GPU copies such weights from, and ``staging_mb`` the size
    of the ring of ``"staged"``, as ``weight_offload_host`` and ``weight_offload_staging_mb`` do for programs.

    ``packed=True`` makes a packed copy of all floating-point weights in host memory, on all cores, at the end of the first pass: a lossless
    code, of bfloat16 two thirds of the bytes. A GPU copies these and decodes them, with the same bits. The module, and its ``state_dict()``,
    have the raw bytes as without. A weight that changes is raw from then on. ``packed="FILE"`` keeps the copies in a file, which is mapped:
    it is made if it is not there, and otherwise each copy is decoded and compared with its weight.

    Inference only::

        handle = ws.torch.offload(model, budget=4 << 30)
        with torch.inference_mode():
            y = model(x)
    """
    root = module if isinstance(module, nn.Module) else _whole_of(module)
    if shared and budget is not None:
        raise Error("offload: give either a budget or shared=True; what a shared device holds is set by set_device_budget")
    if example is not None and root is not module:
        raise Error(f"offload: an example is the arguments of one module, and {type(module).__name__} consists of several; call it instead")
    as_priority(priority)
    if name is not None and not isinstance(name, str):
        raise Error(f"offload: name is a text, found {name!r}")
    if not isinstance(packed, bool):
        if not isinstance(packed, (str, os.PathLike)) or not isinstance(os.fspath(packed), str) or not os.fspath(packed):
            raise Error(f"offload: packed is True, False or the path of a file, found {packed!r}")
        packed = Path(packed).absolute()
    bytes = SHARED if shared else FLOOR if budget is None else whole("offload: budget", budget)
    if device is None:
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    device = device_of(device)
    called = name or type(module).__name__
    memory = activations_of(activations, shared, device, called)
    of_files = _of_files(device, host, staging_mb)
    with _loaded(module, weights, convert):
        if of_files and not isinstance(packed, Path) and not any(is_of_file(one) for one in [*root.parameters(), *root.buffers()]):
            raise Error("offload: host and staging_mb are about weights of files; give weights=, or packed= a file")
        handle = Offloaded(module, Passes(root, bytes, priority, device, called, of_files, memory, packed))
        if example is not None:
            try:
                with torch.no_grad():
                    root(*example)
            except BaseException:
                handle.remove()
                raise
    return handle


def _of_files(device: torch.device, host: Any, staging_mb: Any) -> dict[str, Any]:
    """How weights of files are held on the host, as options of the runtime. What is wrong is said before a pass is recorded."""
    specs = {"weight_offload_host": host} if host != "auto" else {}
    specs |= {"weight_offload_staging_mb": staging_mb} if staging_mb is not None else {}
    if specs:
        try:
            check_defaults(specs)
        except Error as error:
            raise Error(f"offload: {as_arguments(str(error))}") from None
    if device.type == "cpu" and (host in ("pinned", "staged") or staging_mb is not None):
        raise Error(f"offload: host='pinned', host='staged' and staging_mb prepare copies to a GPU, and the device is '{device}'")
    if staging_mb is not None and host in ("mapped", "pinned"):
        raise Error(f"offload: staging_mb is the size of the ring of 'staged', and host is '{host}'")
    return specs


@contextmanager
def _loaded(module: Any, weights: Any, convert: bool) -> Iterator[None]:
    """The module, or parts of it, with the bytes of files. After an error it is as it was."""
    if weights is None:
        if convert:
            raise Error("offload: convert is about weights of files; give weights=")
        yield
        return
    with ExitStack() as undo:
        if isinstance(module, nn.Module):
            undo.callback(load(module, weights, convert))
        else:
            parts = _modules_of(module)
            if not isinstance(weights, dict) or not weights or weights.keys() - parts.keys():
                raise Error(
                    f"offload: weights of {type(module).__name__} is a dictionary of folders or files by part, of {', '.join(parts)}; "
                    f"found {weights!r}"
                )
            for part, files in weights.items():
                undo.callback(load(parts[part], files, convert))
        yield
        undo.pop_all()


def _modules_of(value: Any) -> dict[str, nn.Module]:
    components = getattr(value, "components", None)
    named = components if isinstance(components, dict) else value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return {str(name): one for name, one in named.items() if isinstance(one, nn.Module)}


def _whole_of(value: Any) -> nn.Module:
    """A module of the modules that an object consists of, by their names there."""
    modules = _modules_of(value)
    if not modules:
        raise Error(
            f"offload: an nn.Module, or an object or dictionary that has some, is expected; found {type(value).__name__} without any"
        )
    root = type(type(value).__name__, (nn.Module,), {})()
    for name, one in modules.items():
        root.add_module(name.replace(".", "_"), one)
    return root


class Offloaded:
    """A module that is offloaded, until :meth:`remove`. As a context manager it is removed at the end."""

    def __init__(self, module: Any, passes: Passes):
        self.module, self.device, self.name = module, passes.device, passes.name
        self._passes = passes
        passes.handle = self

    @staticmethod
    def of(module: Any) -> Offloaded | None:
        """The handle of a module that is offloaded, or of a pipeline whose modules are: for who has not kept it. Of others ``None``."""
        modules = [module] if isinstance(module, nn.Module) else _modules_of(module).values()
        found = next((passes for one in modules if (passes := passes_of(one))), None)
        return found and found.handle

    def __enter__(self) -> Offloaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        plan = self._passes.plan
        if self._passes.left:
            return f"<Offloaded {self.name}: not offloaded any more>"
        now = plan.stats() if plan else {}
        if plan is None or not now:
            return f"<Offloaded {self.name} on {self.device}: no pass was planned yet>"
        stays = "everything stays" if plan.is_resident else f"the last pass copied {_megabytes(now['bytes_copied_last_pass'])}"
        held = now["peak_bytes"] + self._passes.buffers.bytes
        return f"<Offloaded {self.name} on {self.device}: holds {_megabytes(held)} of {_megabytes(now['budget_bytes'])}, {stays}>"

    # -- for the user --

    def stats(self) -> dict[str, Any]:
        """Counters: those of the present plan (see docs/counters.md), and of all passes since ``offload``.

        ``passes``, and those that were ``recorded`` or left the recorded order (``astray``); ``plans``; ``bytes_copied`` by all plans;
        ``resident``: everything stays; ``buffer_bytes``: of the budget, for buffers; ``entries``: of each module that was called from
        outside, by its name, its passes and bytes copied under the present plan; ``largest_call``: the module whose call holds most weights
        at once, and how many bytes: the least budget is about two of them; ``packed_bytes``: of the weights that have a packed copy, and
        ``packed_stored_bytes``: of these copies in host memory.
        """
        # A pass of another thread may end the plan meanwhile.
        passes, plan = self._passes, self._passes.plan
        now = plan.stats() if plan else {}
        copied = passes.counted["bytes_copied"] + now.get("bytes_copied", 0)
        resident = plan is not None and plan.is_resident
        by_index = now.pop("entries", [])
        gave_way = passes.counted["gave_way"] + sum(entry["gave_way"] for entry in by_index)
        entries = {
            entry.name or self.name: by_index[entry.planned.index]
            for entry in list(passes.entries.values())
            if plan is not None and entry.planned in plan.entries and entry.planned.index < len(by_index)
        }
        own = {"bytes_copied": copied, "gave_way": gave_way, "resident": resident, "buffer_bytes": passes.buffers.bytes, "entries": entries}
        own |= {"packed_bytes": passes.packed.raw_bytes, "packed_stored_bytes": passes.packed.stored_bytes}
        if plan is not None:
            module, held = plan.largest_call()
            own["largest_call"] = {"module": passes.tree.names.get(module) or self.name, "bytes": held}
        return now | passes.counted | own

    def set_budget(self, bytes: int) -> None:
        """Another budget, from the next pass on. One below the least budget is an error that names it, and changes nothing."""
        passes = self._passes
        if passes.budget == SHARED:
            raise Error(f"offload: {self.name} shares its device; set_device_budget changes what all that share it may hold")
        passes.check_here()
        with passes.alone:
            bytes = whole("set_budget: bytes", bytes)
            if passes.plan:
                passes.plan.set_budget(bytes)
            passes.budget = bytes

    def set_priority(self, priority: int) -> None:
        """The module's place among those that share its device: memory of a lower number goes first. From the next pass of any on."""
        self._passes.set_place(as_priority(priority), 0)

    def prioritize(self) -> None:
        """Comes first of its priority from now on: before all modules and ranges that were not prioritized later."""
        self._passes.set_place(None, library().ws_next_turn())

    def deprioritize(self) -> None:
        """Comes last of its priority from now on."""
        self._passes.set_place(None, -library().ws_next_turn())

    def invalidate(self, *changed: str | torch.Tensor) -> None:
        """The bytes of weights on the host have changed in a way that nobody sees: they are copied again before they are read.

        Names, parameters, or buffers that stream; without any, all of them. What PyTorch counts as a write, what is written through ``parameter.data``, other memory
        (``parameter.data = …``) and other parameters are seen without this call. A write to mapped memory, or to a NumPy array that shares
        the parameter's, is not.
        """
        passes = self._passes
        passes.check_here()
        with passes.alone:
            present: dict[str, torch.Tensor] = dict(passes.root.named_parameters(remove_duplicate=False))
            present |= passes.buffers.streaming(passes.root, every_name=True)
            # Of a tensor subclass its inner tensors too.
            present |= {one.name: one.tensor for one in passes.weights.shown.values() if one.name not in present}
            weights = list(present.values())
            for one in changed:
                if isinstance(one, str) and one not in present:
                    raise Error(f"invalidate: {self.name} has no parameter '{one}', and no buffer of this name that streams")
                if not isinstance(one, str) and all(one is not weight for weight in weights):
                    raise Error(
                        f"invalidate: the name of a parameter of {self.name} or of a buffer that streams, or one of these, is expected"
                    )
            named = [present[one] if isinstance(one, str) else one for one in changed]
            passes.notice_changes(named or weights)

    def remove(self) -> None:
        """Gives the device's memory back, and the module as it was: weights on the host, buffers where they were."""
        with self._passes.alone:
            self._passes.leave()


def _megabytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MB"
