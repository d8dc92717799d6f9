"""Complex tensors as two real ones each: no compiled code knows complex numbers."""

from __future__ import annotations

import operator

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..._native.errors import ExportError
from ..._torch.probe import is_probe
from .complex_forms import REAL_OF, form_of
from .inline import Tensor, inline, is_complex, node_name, operator_of, touches_complex, values_of

aten = torch.ops.aten

#: They ask for a size, which both parts have.
_SIZES = {aten.sym_size.int, aten.sym_size.default, aten.sym_numel.default}


class Parts:
    """Replaces every complex tensor of a program by two real ones."""

    def __init__(self, program: ExportedProgram):
        self.program = program
        self.graph = program.graph_module.graph
        self.parts: dict[Node, tuple[Node, Node]] = {}
        self.lists: dict[Node, list[tuple[Node, Node]]] = {}

    def split(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "placeholder" and is_complex(node.meta.get("val")):
                self._constant(node)
            elif is_probe(node) and is_complex(node.meta["val"]):
                value, node.meta["val"] = node.meta["val"], node.args[0].meta["val"]
                self._halve(node, value)
            elif node.op == "call_function" and (touches_complex(node) or self._reads_parts(node)):
                self._call(node)
            elif node.op == "output" and self._reads_parts(node):
                raise ExportError("an output of the program is complex; return torch.view_as_real of it")
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and (node in self.parts or node in self.lists) and not is_probe(node):
                self.graph.erase_node(node)

    def _reads_parts(self, node: Node) -> bool:
        return any(n in self.parts or n in self.lists for n in node.all_input_nodes)

    def _call(self, node: Node) -> None:
        if node.target is operator.getitem:
            self.parts[node] = self.lists[node.args[0]][node.args[1]]
            return
        op = operator_of(node)
        if op is aten._assert_tensor_metadata.default:
            self.graph.erase_node(node)
            return
        if op in _SIZES:
            node.replace_input_with(node.args[0], self.parts[node.args[0]][0])
            return
        function = None if op is None else form_of(op)
        if function is None:
            raise _no_form(node)
        results = inline(self.graph, node, function, {}, self.parts)
        expected = values_of(node)
        if len(results) != len(expected) * (1 + is_complex(expected[0])):
            raise _no_form(node)
        if is_complex(expected[0]):
            # A list of complex numbers has a list of real parts and one of imaginary parts.
            halves = list(zip(results[: len(expected)], results[len(expected) :], strict=True))
            for half, value in zip(halves, expected, strict=True):
                _must_agree(node, half[0], value)
                _must_agree(node, half[1], value)
            if isinstance(node.meta["val"], (list, tuple)):
                self.lists[node] = halves
            else:
                self.parts[node] = halves[0]
        else:
            _must_agree(node, results[0], expected[0])
            node.replace_all_uses_with(results[0])
            self.graph.erase_node(node)

    def _constant(self, node: Node) -> None:
        """A complex constant becomes a real one with a last dimension of two."""
        signature = self.program.graph_signature
        spec = next(spec for spec in signature.input_specs if getattr(spec.arg, "name", None) == node.name)
        if spec.target is None:
            raise ExportError(f"input '{node.name}' is complex; take torch.view_as_real of it as the input")
        if spec.target in signature.buffers_to_mutate.values():
            raise ExportError(f"buffer '{spec.target}' is complex, and the program writes it; keep torch.view_as_real of it")
        for table in (self.program._state_dict, self.program._constants):
            value = table.get(spec.target)
            if value is not None and value.is_complex():
                real = torch.view_as_real(value.detach().resolve_conj()).clone().contiguous()
                table[spec.target] = torch.nn.Parameter(real, requires_grad=False) if isinstance(value, torch.nn.Parameter) else real
        value = node.meta["val"]
        with value.fake_mode:
            node.meta["val"] = torch.empty((*value.shape, 2), dtype=REAL_OF[value.dtype], device=value.device)
        self._halve(node, value)

    def _halve(self, node: Node, value: Tensor) -> None:
        """``node``, which was ``value``, has its parts in a last dimension of two."""
        with self.graph.inserting_after(node):
            halves = [self.graph.call_function(aten.select.int, (node, -1, i)) for i in (0, 1)]
        for half in halves:
            half.meta["val"] = torch.empty_like(value, dtype=REAL_OF[value.dtype])
        self.parts[node] = (halves[0], halves[1])


def _no_form(node: Node) -> ExportError:
    return ExportError(f"{node_name(node)}: it has no form for complex numbers here; compute with real ones (torch.view_as_real)")


def _must_agree(node: Node, found: Node, expected: Tensor) -> None:
    value, dtype = found.meta["val"], REAL_OF.get(expected.dtype, expected.dtype)
    fixed = [(a, b) for a, b in zip(value.shape, expected.shape) if isinstance(a, int) and isinstance(b, int)]
    if value.dtype != dtype or value.dim() != expected.dim() or any(a != b for a, b in fixed):
        raise ExportError(
            f"{node_name(node)}: its form for real numbers gives {value.dtype} and sizes {list(value.shape)}, not {dtype} and "
            f"{list(expected.shape)}; please report this"
        )
