"""Python numbers beside tensors of one number: ``step + 1``.

Lowering makes a tensor of the number, int64 or float32. Beside a tensor with dimensions its dtype does not count. Beside one without
it does: an int32 counter becomes int64, and a bfloat16 scale float32. So such tensors get a dimension for the operation.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

_ATEN = torch.ops.aten
#: What promotion with int64 or float32 changes.
_NARROW = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bfloat16, torch.float16)


def keep_narrow(program: ExportedProgram) -> int:
    """Gives a dimension to what would be promoted, and returns in how many places. Then ``program`` has to be traced again."""
    found = [node for node in program.graph.nodes if _would_be_promoted(node)]
    for node in found:
        with program.graph.inserting_before(node):
            for source in node.all_input_nodes:
                node.replace_input_with(source, program.graph.call_function(_ATEN.reshape.default, (source, [1])))
        with program.graph.inserting_after(node):
            flat = program.graph.call_function(_ATEN.reshape.default, (node, []))
        flat.meta.update(node.meta)
        node.replace_all_uses_with(flat, delete_user_cb=lambda user, flat=flat: user is not flat)
    return len(found)


def _would_be_promoted(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(value, torch.Tensor) or value.dim() or not node.all_input_nodes:
        return False
    sources = [source.meta.get("val") for source in node.all_input_nodes]
    if not all(isinstance(one, torch.Tensor) and one.dim() == 0 for one in sources) or all(one.dtype not in _NARROW for one in sources):
        return False
    given = zip(node.target._schema.arguments, node.args)
    return any(isinstance(argument.type, torch.TensorType) and isinstance(one, int | float) for argument, one in given)
