"""What happens to a program before it is lowered: it gets the form in which the compiler cannot assume what nobody checks."""

from __future__ import annotations

import copy

import torch
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import PendingUnbackedSymbolNotFound

from ..._native.errors import ExportError
from ..._torch import build, guards, recurrent
from ..._torch.shapes import widen
from . import constants, convolution, every_size, giants, index, layout, masks, numbers, overlap, refusals, state, tensors
from .inline import know_names
from .places import operator_of, place_of

_ATEN = torch.ops.aten
#: Operators that give their input as it is.
_SAME = (_ATEN.detach.default, _ATEN.alias.default, _ATEN.detach_copy.default, _ATEN.alias_copy.default)


def prepare(program: ExportedProgram) -> ExportedProgram:
    """The same program with dense inputs and constants, its own ranges of sizes, and old values of buffers that survive their update.

    ``program`` is left as it is, but for its symbols' ranges: these become what they were when the user exported it.
    Preparing a program twice changes nothing. Raises :class:`ExportError` for what cannot be served.
    """
    refusals.refuse_torchvision(program)
    tensors.refuse_kinds(program)
    widen(program)
    prepared = copy_of(program)
    forget_same(prepared)
    memory = constants.own_constants(prepared)
    state.separate_stores(prepared)
    # Mutation becomes functional first, in the user's layouts: they decide whether a `reshape` shares memory that is written later.
    prepared = _traced(prepared)
    constants.refuse_shared_state(prepared, memory)
    _refuse_written_inputs(prepared)
    tensors.refuse_endless_outputs(prepared)
    changes = layout.make_inputs_dense, constants.make_dense, index.index_by_tensors, numbers.keep_narrow
    if sum(change(prepared) for change in changes):
        prepared = _traced(prepared)
    know_names(prepared.graph)
    if giants.split(prepared):
        prepared.graph_module.recompile()
    layout.make_outputs_dense(prepared)
    overlap.separate(prepared)
    state.keep_old_values(prepared)
    every_size.check(prepared)
    return prepared


def _traced(program: ExportedProgram) -> ExportedProgram:
    """The program traced again: mutation becomes functional, layouts are carried to every node, masks and layers are written out."""
    program.graph_module.recompile()
    # Without gradients: caches that were filled outside of `no_grad` ask for them.
    try:
        with torch.no_grad(), build.without_onednn(), recurrent.shaped_states(), guards.unasserted():
            return program.run_decompositions({**recurrent.unrolled(), **masks.decompositions(), **convolution.written_out()})
    except SpecViolationError as error:
        raise ExportError(
            f"torch {torch.__version__} loses a number that the weights of a quantization bring ({error}): export with torch 2.14"
        ) from None
    except PendingUnbackedSymbolNotFound:
        read = next((node for node in program.graph.nodes if node.target in index.NUMBERS), None)
        if read is None:
            raise
        raise ExportError(
            f"{place_of(read)} tells which part of a written buffer is returned; return a copy of that part: (buffer[index].clone())"
        ) from None


def copy_of(program: ExportedProgram) -> ExportedProgram:
    """A program with a graph and tables of its own. The tensors are the user's."""
    own = copy.copy(program)
    own._graph_module = torch.fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    own._graph_module.meta.update(program.graph_module.meta)
    own._graph_signature = copy.deepcopy(program.graph_signature)
    own._state_dict, own._constants = dict(program.state_dict), dict(program.constants)
    own._range_constraints = dict(program.range_constraints)
    return own


def forget_same(program: ExportedProgram) -> None:
    """Removes operators that give their input as it is. ``to_edge`` adds some: it detaches a tensor whose bytes are seen as another type."""
    for node in list(program.graph.nodes):
        if operator_of(node) in _SAME:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)


def _refuse_written_inputs(program: ExportedProgram) -> None:
    written = sorted(set(program.graph_signature.user_inputs_to_mutate.values()))
    if written:
        raise ExportError(
            f"the program writes to its input {', '.join(repr(name) for name in written)}; the caller's memory is read only: return the new "
            "value, or keep the tensor as a buffer of the module"
        )
