"""Blocks that ``torch.compile`` has compiled: ``block.compile()``, ``compile_repeated_blocks()``, ``torch.compile(block)``.

A compiled block is one call, which holds all weights below it. They are shown and hidden outside of the compiled code, which sees the same
tensors in every pass, at other addresses.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from .._native.errors import Error
from .subclasses import bytes_of

#: A module that has such a part of all weights, and blocks to compile instead, is compiled as a whole.
_MOST = 0.8
#: Options of the compiler under which it keeps weights, or their addresses.
_KEEPS = {
    "triton.cudagraphs": "keeps the addresses of weights in CUDA graphs (mode='reduce-overhead' or 'max-autotune')",
    "freezing": "keeps weights as constants (freezing)",
}


def compiled_as(module: nn.Module) -> str | None:
    """The attribute whose call runs compiled code, if the module has one."""
    if module.__dict__.get("_compiled_call_impl") is not None:
        return "_compiled_call_impl"
    return "forward" if hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable") else None


def inside_compiled(modules: Collection[nn.Module]) -> set[nn.Module]:
    """The modules that compiled code calls: those in compiled ones."""
    return {one for module in modules if compiled_as(module) for one in module.modules() if one is not module}


def beside_compiled(root: nn.Module) -> set[nn.Module]:
    """The modules that code which is not compiled calls. Shared ones may be called by both."""
    found, todo = set(), [root]
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += [] if compiled_as(module) else module.children()
    return found


def check_compiled(root: nn.Module, names: dict[nn.Module, str]) -> None:
    """Refuses what is compiled as a whole, and compilers that keep addresses."""
    for module in names:
        attribute = compiled_as(module)
        if attribute is None:
            continue
        where = f"module '{names[module]}' of {type(root).__name__}" if names[module] else type(module).__name__
        if _is_whole(root, module):
            raise Error(
                f"offload: {where} is compiled as a whole by torch.compile, and would hold all its weights at once; {_instead(names[module], module)}"
            )
        keeps = _keeps(module.__dict__[attribute])
        if keeps:
            raise Error(
                f"offload: {where} is compiled by torch.compile in a way that {keeps}; compile it without: block.compile(), or "
                "mode='max-autotune-no-cudagraphs'"
            )


def _is_whole(root: nn.Module, module: nn.Module) -> bool:
    if module is root or (type(root).forward is nn.Module.forward and module in root.children()):
        return True
    return _blocks(module) is not None and _bytes(module) > _MOST * _bytes(root)


def _bytes(module: nn.Module) -> int:
    return sum(map(bytes_of, module.parameters()))


def _blocks(module: nn.Module) -> str | None:
    """The name of the list in a module that has most of its weights in blocks of one class."""
    lists = [
        (_bytes(one), name)
        for name, one in module.named_modules()
        if isinstance(one, (nn.ModuleList, nn.Sequential)) and len({type(block) for block in one}) < len(one)
    ]
    return max(lists)[1] if lists else None


def _instead(place: str, module: nn.Module) -> str:
    if hasattr(module, "compile_repeated_blocks"):
        return "call compile_repeated_blocks() of it instead"
    name = _blocks(getattr(module, "_orig_mod", module))
    if name is None:
        return "compile the blocks that it consists of instead: block.compile()"
    blocks = ".".join(one for one in ("model", place, name) if one)
    return f"compile its blocks instead: for block in {blocks}: block.compile()"


def _keeps(compiled: Any) -> str | None:
    """How compiled code keeps weights, or where they are."""
    config = compiled.get_compiler_config() if hasattr(compiled, "get_compiler_config") else None
    found = next((what for option, what in _KEEPS.items() if (config or {}).get(option)), None)
    return found or (_KEEPS["triton.cudagraphs"] if _backend(compiled) == "cudagraphs" else None)


def _backend(compiled: Any) -> str:
    """The name of the backend, which wrappers of torch's compiler keep inside each other."""
    code, cells = getattr(compiled, "__code__", None), getattr(compiled, "__closure__", None) or ()
    found = dict(zip(code.co_freevars, cells)) if code else {}
    inner = found["callback"].cell_contents if "callback" in found else None
    while (next_one := getattr(inner, "_torchdynamo_orig_backend", None) or getattr(inner, "_torchdynamo_orig_callable", None)) is not None:
        inner = next_one
    return getattr(inner, "compiler_name", None) or getattr(inner, "__name__", "")


def is_compiling() -> bool:
    """While torch.compile traces a module, and after it has given that up and runs the code as it is."""
    return torch.compiler.is_compiling() or compiler_at_work() is not None


#: What torch.compile has set while its code runs; None without it.
compiler_at_work = torch._C._dynamo.eval_frame.get_eval_frame_callback
