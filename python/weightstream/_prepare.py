"""What happens to a program before it is lowered: it gets the form in which the compiler cannot assume what nobody checks."""

from __future__ import annotations

from torch.export import ExportedProgram

from . import _every_size, _layout, _state
from ._torch.shapes import widen


def prepare(program: ExportedProgram) -> ExportedProgram:
    """The same program with dense inputs, its own ranges of sizes, and old values of buffers that survive their update.

    ``program`` is left as it is, but for its symbols' ranges: these become what they were when the user exported it.
    Preparing a program twice changes nothing.
    """
    widen(program)
    # The trace that makes mutation functional, with an empty table, also carries the new layouts to every node.
    prepared = _layout.with_dense_inputs(program).run_decompositions({})
    _layout.make_outputs_dense(prepared)
    _state.keep_old_values(prepared)
    _every_size.check(prepared)
    return prepared
