"""Scaled-dot-product attention on CUDA: ExecuTorch's fused Triton kernel where it can, operators of its own otherwise.

Decomposed, attention writes and reads scores of `heads x queries x keys`: from some thousand tokens on it takes longer than all
products together. The compiled code has no libtorch, so PyTorch's own fused kernels are not there; ExecuTorch's CUDA backend has
one in Triton, which becomes part of the library as any other kernel does.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..._native.progress import note
from .outputs import rename_outputs

MODES = ("auto", "math")

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
#: The kernel's offsets have 32 bits; half of what these count, as the compiler may put room between rows.
_MOST_ELEMENTS = 2**30
#: In the place of a bound.
_UNBOUNDED = 2**62
#: The shortest head that its products take, and the longest whose accumulators it was made for.
_HEADS = (16, 256)
#: The longest of its tiles along the keys.
_TILE = 128
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
#: A number of elements, or of rows: fixed, or a symbol's expression.
Size = int | torch.SymInt


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
    if not all(isinstance(one.shape[dim], int) for one in values for dim in (0, 1, 3)):
        return f"the kernel is used where only lengths vary, not {_shape(query.shape)}"
    if arguments.get("dropout_p", 0.0) != 0.0:
        return "the kernel has no dropout"
    if arguments.get("scale") == 0.0:
        return "a scale of 0 is the kernel's word for none given"
    if reason := _unsuited_shapes(query, key, value, arguments.get("enable_gqa", False)):
        return reason
    if arguments.get("is_causal", False) and (mask is not None or not _same(query.shape[2], key.shape[2])):
        return f"the kernel's causal mask is for as many queries as keys, not {query.shape[2]} and {key.shape[2]}"
    if mask is not None and (reason := _unsuited_mask(mask.meta["val"], query, key)):
        return reason
    return _unsuited_extent(node, query, key, value)


def _unsuited_extent(node: torch.fx.Node, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> str | None:
    if any(_most(one.shape[2]) == _UNBOUNDED for one in (query, key)):
        return f"lengths need an upper bound (Dim(..., max=...)) for the kernel's 32 bits, and {_shape(query.shape)} has none"
    if any(_extent(one) > _MOST_ELEMENTS for one in (query, key, value)):
        return "queries or keys have more elements than the kernel's 32 bits can count"
    # As it is, if that is a part of something larger, and as it is shown to the kernel.
    given = _arguments(node).get("attn_mask")
    mask = 0 if given is None else _extent(given.meta["val"])
    if given is not None or _needs_mask(node):
        mask = max(mask, query.shape[0] * _most(query.shape[2]) * _most(key.shape[2]))
    return "the mask has more elements than the kernel's 32 bits can count" if mask > _MOST_ELEMENTS else None


def _needs_mask(node: torch.fx.Node) -> bool:
    """Whether keys are padded, and padding counts.

    The kernel for heads of a power of two reads padded keys as zeros. Zeros have weight in the softmax unless a mask hides them. The
    kernels for other heads, and for one query of many keys, hide padded keys themselves."""
    arguments = _arguments(node)
    keys, length = arguments["key"].meta["val"].shape[2:]
    hidden = arguments.get("attn_mask") is not None or arguments.get("is_causal", False) or length & (length - 1) != 0
    return not hidden and not _same(keys % _TILE, 0) and _kernel(node) is not torch.ops.triton.sdpa_decode_splitk


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
    if key.shape[:2] != value.shape[:2] or query.shape[0] != key.shape[0] or not _same(key.shape[2], value.shape[2]):
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
    wanted = [query.shape[0], 1, query.shape[2], key.shape[2]]
    sizes = [1] * (4 - mask.dim()) + list(mask.shape)
    if len(sizes) > 4 or not all(_same(have, 1) or _same(have, want) for have, want in zip(sizes, wanted)):
        return f"the kernel takes masks of shape {_shape(wanted)}, or what can be expanded to it, not {_shape(mask.shape)}"
    return None


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    return {**dict(zip(_NAMES, node.args)), **node.kwargs}


def _replace(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """The kernel's operator in the attention's place."""
    given = {name: value for name, value in _arguments(node).items() if value is not None}
    with graph.inserting_before(node):
        if "attn_mask" in given:
            given["attn_mask"] = _expanded(graph, given["attn_mask"], given["query"], given["key"])
        elif _needs_mask(node):
            given["attn_mask"] = _expanded(graph, _true(graph, node), given["query"], given["key"])
        fused = graph.call_function(_kernel(node).default, (), given)
    fused.meta = dict(node.meta)
    node.replace_all_uses_with(fused)
    graph.erase_node(node)


def _true(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """One element that hides nothing. What hides something is what the kernel adds to each mask: that there is no key."""
    value = node.meta["val"]
    with value.fake_mode:
        return _call(graph, torch.ops.aten.full.default, [1, 1, 1, 1], True, dtype=torch.bool, device=value.device)


def _expanded(graph: torch.fx.Graph, mask: torch.fx.Node, query: torch.fx.Node, key: torch.fx.Node) -> torch.fx.Node:
    """The mask in the one shape that the kernel takes, `[batch, 1, queries, keys]`."""
    while mask.meta["val"].dim() < 4:
        mask = _call(graph, torch.ops.aten.unsqueeze.default, mask, 0)
    wanted = [query.meta["val"].shape[0], 1, _length(graph, query), _length(graph, key)]
    sizes = [size.meta["val"] if isinstance(size, torch.fx.Node) else size for size in wanted]
    if all(_same(have, want) for have, want in zip(mask.meta["val"].shape, sizes)):
        return mask
    return _call(graph, torch.ops.aten.expand.default, mask, wanted)


def _length(graph: torch.fx.Graph, node: torch.fx.Node) -> int | torch.fx.Node:
    size = node.meta["val"].shape[2]
    return size if isinstance(size, int) else _call(graph, torch.ops.aten.sym_size.int, node, 2)


def _call(graph: torch.fx.Graph, target: Any, *args: Any, **options: Any) -> torch.fx.Node:
    """A call with its value, as every node of an exported program has."""
    call = graph.call_function(target, args, options)
    values = torch.fx.map_arg((args, options), lambda node: node.meta["val"])
    call.meta["val"] = target(*values[0], **values[1])
    return call


def _same(one: Size, other: Size) -> bool:
    """Whether two sizes are equal for every value of their symbols. Asking leaves no guard."""
    return statically_known_true(one == other)


def _most(size: Size) -> int:
    """The largest value of a size; more than can be where it has no bound."""
    if isinstance(size, int):
        return size
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if isinstance(upper, sympy.Integer) else _UNBOUNDED


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last, with those between them, at most."""
    return 1 + sum((_most(size) - 1) * _most(stride) for size, stride in zip(tensor.shape, tensor.stride()))


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(sizes: Any) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]"
