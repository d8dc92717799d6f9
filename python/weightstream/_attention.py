"""Scaled-dot-product attention on CUDA: ExecuTorch's fused Triton kernel where it can, operators of its own otherwise.

Decomposed, attention writes and reads scores of `heads x queries x keys`: from some thousand tokens on it takes longer than all
products together. The compiled code has no libtorch, so PyTorch's own fused kernels are not there; ExecuTorch's CUDA backend has
one in Triton, which becomes part of the library as any other kernel does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from ._offload import rename_outputs
from ._progress import note

MODES = ("auto", "math")

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
#: The kernel's offsets have 32 bits; half of what these count, as the compiler may put room between rows.
_MOST_ELEMENTS = 2**30
#: The shortest head that its products take, and the longest whose accumulators it was made for.
_HEADS = (16, 256)
#: The longest of its tiles along the keys.
_TILE = 128
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def fuse(program: ExportedProgram) -> int:
    """Replaces what the kernel can do, tells what it cannot, and returns how many it does. The program's values are on the GPU."""
    found = [node for node in program.graph.nodes if is_attention(node)]
    reasons = {node: unsuited(node) for node in found}
    fused = [node for node, reason in reasons.items() if reason is None]
    for node in fused:
        _replace(program.graph, node)
    if fused:
        program.graph_module.recompile()
        rename_outputs(program)
    if found:
        note(f"attention: {len(fused)} of {len(found)} by a fused kernel")
    for reason in dict.fromkeys(reason for reason in reasons.values() if reason is not None):
        same = [node.name for node, other in reasons.items() if other == reason]
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        note(f"attention '{same[0]}'{more} is computed by separate operators, in memory for all scores: {reason}")
    return len(fused)


def is_attention(node: torch.fx.Node) -> bool:
    """Whether an FX node is scaled-dot-product attention, in the ATen or in the edge dialect."""
    return node.op == "call_function" and _ATTENTION in (node.target, getattr(node.target, "_op", None))


def unsuited(node: torch.fx.Node) -> str | None:
    """Why the kernel cannot compute this attention; None if it can."""
    arguments = _arguments(node)
    values = [arguments[name].meta["val"] for name in ("query", "key", "value")]
    query, key, value = values
    mask = arguments.get("attn_mask")
    if any(one.dtype != torch.bfloat16 for one in values):
        return f"the kernel is for bfloat16, not {_word(query.dtype)}"
    if any(one.dim() != 4 for one in values):
        return f"the kernel takes queries of four dimensions, not {query.dim()}"
    if not all(isinstance(size, int) for one in values for size in one.shape):
        return f"the kernel is used for shapes that are fixed, not {_shape(query.shape)}"
    if arguments.get("dropout_p", 0.0) != 0.0:
        return "the kernel has no dropout"
    if arguments.get("scale") == 0.0:
        return "a scale of 0 is the kernel's word for none given"
    if reason := _unsuited_shapes(query, key, value, arguments.get("enable_gqa", False)):
        return reason
    if arguments.get("is_causal", False) and (mask is not None or query.shape[2] != key.shape[2]):
        return f"the kernel's causal mask is for as many queries as keys, not {query.shape[2]} and {key.shape[2]}"
    if mask is not None and (reason := _unsuited_mask(mask.meta["val"], query, key)):
        return reason
    if any(_extent(one) > _MOST_ELEMENTS for one in values):
        return "queries or keys have more elements than the kernel's 32 bits can count"
    if mask is None and not arguments.get("is_causal", False) and not _is_whole(node, query.shape[-1], key.shape[2]):
        return f"without a mask the kernel counts what it pads keys with: it takes a multiple of {_TILE}, not {key.shape[2]}"
    return None


def _is_whole(node: torch.fx.Node, length: int, keys: int) -> bool:
    """Whether no key is padding, or padding does not count. The kernel for heads of a power of two takes padded keys for zeros, which
    have weight in the softmax, unless a mask hides them; those for other heads, and for one query of many keys, hide them themselves."""
    return length & (length - 1) != 0 or keys % _TILE == 0 or _kernel(node) is torch.ops.triton.sdpa_decode_splitk


def _kernel(node: torch.fx.Node) -> Any:
    """The operator of the kernel that ExecuTorch takes for this attention."""
    # Needs Triton, which comes with PyTorch for CUDA only.
    from executorch.backends.cuda.triton.replacement_pass import ReplaceEdgeOpWithTritonOpPass

    return ReplaceEdgeOpWithTritonOpPass._pick_sdpa_kernel(node)


def _unsuited_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool) -> str | None:
    length = query.shape[-1]
    if not _HEADS[0] <= length <= _HEADS[1]:
        return f"the kernel takes heads of {_HEADS[0]} to {_HEADS[1]} elements, not {length}"
    if length != value.shape[-1]:
        return f"the kernel takes values as long as queries ({length}), not {value.shape[-1]}"
    if key.shape[:3] != value.shape[:3] or query.shape[0] != key.shape[0]:
        shapes = ", ".join(_shape(one.shape) for one in (query, key, value))
        return f"the kernel does not broadcast queries, keys and values of shapes {shapes}"
    if query.shape[1] != key.shape[1] and not (grouped and query.shape[1] % key.shape[1] == 0):
        return (
            f"the kernel takes as many heads of queries as of keys, or enable_gqa and a multiple, not {query.shape[1]} and {key.shape[1]}"
        )
    return None


def _unsuited_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> str | None:
    if mask.dtype != torch.bool:
        return f"the kernel takes masks of bool, not {_word(mask.dtype)}"
    # One for all heads, and whole: the kernel has not been seen with masks that are shown several times.
    wanted = [query.shape[0], 1, query.shape[2], key.shape[2]]
    if list(mask.shape) != wanted:
        return f"the kernel takes masks of shape {_shape(wanted)}, not {_shape(mask.shape)}"
    if _extent(mask) > _MOST_ELEMENTS:
        return "the mask has more elements than the kernel's 32 bits can count"
    return None


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    return {**dict(zip(_NAMES, node.args)), **node.kwargs}


def _replace(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """The kernel's operator in the attention's place."""
    given = {name: value for name, value in _arguments(node).items() if value is not None}
    with graph.inserting_before(node):
        fused = graph.call_function(_kernel(node).default, (), given)
    fused.meta = dict(node.meta)
    node.replace_all_uses_with(fused)
    graph.erase_node(node)


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last, with those between them."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(sizes: Any) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]"
