"""Operators that the runtime has no function for, told by their names and by the modules that called them."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch.export import ExportedProgram

from ..._native.errors import ExportError
from .index import NUMBERS
from .operators import table_of_operators
from .places import module_of, operator_of, packet_of, place_of

#: What the compiled code calls for every operator that has no C function of its own.
_PROXY = "aoti_torch_proxy_executor_call_function"

#: By name, without the overload. All but the last were exported and compared with eager PyTorch.
_INSTEAD = {
    "aten.median": "sort, and take the element in the middle",
    "aten.kthvalue": "sort, and take the element at k - 1",
    "aten._cdist_forward": "(x[:, None] - y[None]).norm(dim=-1)",
    "aten.repeat_interleave": "index with torch.searchsorted(repeats.cumsum(0), torch.arange(total), right=True)",
    "aten.bincount": "(x[:, None] == torch.arange(bins)).sum(0)",
    "aten.nonzero": "torch.where(mask, x, 0) keeps the size",
}


_NUMBER = (
    "a number that the host reads in the middle of a pass would have to wait for the GPU; index with the tensor (index_copy, index_select), "
    "or make it a size of an input"
)
_GROUPED = (
    "the compiler's kernel for grouped products reads outside of its inputs; weightstream.export, given the model itself, has operators "
    "of its own for the experts of transformers; others compute experts one by one, or on the CPU"
)
#: Operators that cannot run on a GPU, by name. All but the second compile for one.
_NOT_ON_A_GPU = {
    # An illegal memory access at the first pass (torch 2.11, H100).
    "aten._grouped_mm": _GROUPED,
    # The same product, as transformers writes it where the example is on the CPU.
    "transformers.grouped_mm_fallback": _GROUPED,
    **dict.fromkeys((str(number.overloadpacket) for number in NUMBERS), _NUMBER),
}


def refuse_torchvision(program: ExportedProgram) -> None:
    """Raises :class:`ExportError` for operators of torchvision's own library that are not rewritten, all of them at once.

    The sizes of some (``nms``) depend on data, and would be refused for that."""
    own = [node for node in program.graph.nodes if (operator := operator_of(node)) and operator.namespace == "torchvision"]
    rewritten = table_of_operators()
    if found := [place_of(node) for node in own if operator_of(node) not in rewritten]:
        raise ExportError(
            f"{'; '.join(dict.fromkeys(found))}: of torchvision's operators only roi_align runs without torchvision's library; "
            "choose boxes (nms) after the program"
        )


def refuse_on_a_gpu(program: ExportedProgram, device: str) -> None:
    """Raises :class:`ExportError` for an operator that cannot run on a GPU."""
    for node in program.graph.nodes:
        if device == "cuda" and (reason := _NOT_ON_A_GPU.get(str(packet_of(node)))):
            raise ExportError(f"{place_of(node)} cannot run on a GPU: {reason}")


def callers(graph: Any) -> dict[str, list[str]]:
    """For each C function that ``graph``, one of the compiler, calls for an operator: the operators, each with the module it is in."""
    found: dict[str, list[str]] = {}
    for node in graph.operations:
        if isinstance(node, ir.ExternKernel) and isinstance(node.op_overload, torch._ops.OpOverload):
            names = found.setdefault(_function(graph, node), [])
            if (told := _told(node)) not in names:
                names.append(told)
    return found


def refusal(missing: list[str], known: dict[str, list[str]]) -> ExportError:
    """What to raise for a compiled program that calls the ``missing`` C functions. Some of them only serve the call of another one."""
    operators = [told for name in missing for told in known.get(name, ())]
    unknown = [f"the function '{name}' (please report this)" for name in missing]
    return ExportError(f"the runtime has no code for {'; '.join(operators or unknown)}")


def _function(graph: Any, node: ir.ExternKernel) -> str:
    kernel = node.cpp_kernel_name or ""
    if getattr(node, "use_runtime_dispatch", False) or "::" not in kernel:
        return _PROXY
    device = node.get_device()
    return graph.wrapper_code.get_c_shim_func_name(node.get_kernel_name(), device.type if device else graph.device_type)


def _told(node: ir.ExternKernel) -> str:
    origins = sorted(node.origins, key=lambda origin: (operator_of(origin) is not node.op_overload, origin.name))
    module = next((path for origin in origins if (path := module_of(origin))), "")
    name = _name(node.op_overload)
    instead = f" ({_INSTEAD[name]})" if name in _INSTEAD else ""
    return f"operator '{name}'" + (f" in {module}" if module else "") + instead


def _name(operator: torch._ops.OpOverload) -> str:
    return f"{operator.namespace}.{operator._schema.name.split('::')[-1]}"
