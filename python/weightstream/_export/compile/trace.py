"""The trace of a pass, read off the compiled program, and the checks that make it trustworthy.

The trace comes from Inductor's wrapper lines after memory planning: these are objects, in the order in which the compiled code will
run, with the probe's operator and id in them. The FX graph would not do: the scheduler moves and fuses what it shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen import wrapper as lines
from torch._inductor.virtualized import V

from ..._native.errors import ExportError
from ..._torch.probe import is_probe_kernel
from ..._torch.shapes import Ranges
from ..passes.refusals import callers
from .activations import Activations

PROBE, KERNEL, RELEASE = 0, 1, 2

_KERNEL_LINES = (
    lines.KernelCallLine,
    lines.ExternKernelOutLine,
    lines.ExternKernelAllocLine,
    lines.IndexPutFallbackLine,
    lines.ScatterFallbackLine,
)
#: A branch or a loop. The class of a branch has another name in each release.
_CONTROL_LINES = (lines.EnterSubgraphLine, lines.ExitSubgraphLine, getattr(lines, "SwitchLine", None) or lines.ConditionalLine)


@dataclasses.dataclass
class Constant:
    """One constant of the compiled model, as its kernels index it: ``sizes`` and ``strides`` in elements."""

    fqn: str
    tensor: torch.Tensor
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    probed: bool = False
    mutable: bool = False


@dataclasses.dataclass
class CompiledTrace:
    """What the compiled program does, in host issue order. ``probes[i]`` is the FQN of probe ``i``.

    ``activations``: the most bytes of activations at one time, outputs included, or None where a size has no upper bound.
    ``callers``: the operators for which the compiled code calls each C function, for people."""

    events: list[tuple[int, int]]
    probes: list[str]
    constants: dict[str, Constant]
    activations: int | None
    callers: dict[str, list[str]]


class DroppedProbes(Exception):
    """The compiler dropped probes whose results are unused, for instance because only a weight's shape is used.

    Their ids are missing from the compiled code. Compile the program again without these probes."""

    def __init__(self, ids: set[int]):
        super().__init__(f"probes {sorted(ids)} are unused")
        self.ids = ids


@contextlib.contextmanager
def capture(probes: list[str], mutable: set[str], granule: int, ranges: Ranges) -> Iterator[list[CompiledTrace]]:
    """Collects the trace of each graph that is compiled inside the block.

    ``probes`` holds the FQN of each probe id, ``mutable`` the FQNs of the buffers that the program writes. The device rounds
    allocations up to ``granule`` bytes; ``ranges`` are the ranges of the program's symbols. Raises :class:`ExportError` from inside the
    compilation if the compiled program breaks a rule: a write into a weight, a read of a weight around its probe, a probe of something
    that is not a weight.
    """
    found: list[CompiledTrace] = []
    original = lines.PythonWrapperCodegen.run_wrapper_ir_passes

    refusals: list[Exception] = []

    def run_and_read(self: Any, is_inference: bool) -> None:
        original(self, is_inference)
        try:
            found.append(_Reader(self, probes, mutable, Activations(granule, ranges)).read())
        except (ExportError, DroppedProbes) as refusal:
            refusals.append(refusal)
            raise

    try:
        with unittest.mock.patch.object(lines.PythonWrapperCodegen, "run_wrapper_ir_passes", run_and_read):
            yield found
    except Exception:
        # The compiler wraps whatever is raised inside it; the caller wants the refusal itself.
        if refusals:
            raise refusals[0] from None
        raise


class _Reader:
    """Walks the wrapper lines of one graph."""

    def __init__(self, wrapper: Any, probes: list[str], mutable: set[str], activations: Activations):
        self.wrapper = wrapper
        self.graph = V.graph
        self.probes = len(probes)
        self.offloaded = set(probes)
        self.mutable = mutable
        self.fqns = {name: self._fqn(name) for name in self.graph.constants}
        self.buffers: dict[str, int] = {}  # buffer name -> the probe id whose storage it is
        self.names: dict[int, str] = {}  # probe id -> constant name
        self.layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.events: list[tuple[int, int]] = []
        self.kernels = 0
        self.activations = activations

    def read(self) -> CompiledTrace:
        for line in self.wrapper.lines:
            self._line(line)
        self._check_outputs()
        self._check_ids()
        probes = [self.fqns[self.names[i]] for i in range(len(self.names))]
        return CompiledTrace(self.events, probes, self._constants(), self.activations.bound(), callers(self.graph))

    def _fqn(self, name: str) -> str:
        if name in self.graph.folded_constants:
            raise ExportError(f"constant '{name}' was folded by the compiler; offloading needs constant folding disabled")
        flat = self.graph.dynamo_flat_name_to_original_fqn
        return flat[name] if name in flat else self.graph.allocated_constant_name[name]

    def _line(self, line: Any) -> None:
        if isinstance(line, lines.ExternKernelAllocLine) and is_probe_kernel(line.node):
            self._probe(line.node)
            return
        self.activations.line(line)
        if isinstance(line, lines.MultiOutputLine):
            if line.arg_name in self.buffers:
                self.buffers[line.result_name] = self.buffers[line.arg_name]
        elif isinstance(line, (lines.FreeIfNotReusedLine, lines.FreeLine)):
            self._free(line)
        elif isinstance(line, (lines.ReuseLine, lines.ReinterpretLine)):
            self._alias(line)
        elif isinstance(line, _KERNEL_LINES):
            self._kernel(line)
        elif isinstance(line, _CONTROL_LINES):
            raise ExportError("the compiled program has control flow: the order of its weight reads would depend on data")
        elif isinstance(line, str):
            self._text(line)

    def _probe(self, node: Any) -> None:
        source = node.inputs[0].get_name()
        probe_id = int(node.constant_args[0])
        if source not in self.graph.constants:
            raise ExportError(f"probe {probe_id} reads '{source}', which the compiler computed, not a weight; please report this")
        sizes, strides = _static(node)
        known = self.layouts.setdefault(source, (sizes, strides))
        if known != (sizes, strides):
            raise ExportError(f"weight '{self.fqns[source]}' is read with two layouts, {known} and {(sizes, strides)}; please report this")
        for buffer in _results(node):
            self.buffers[buffer.get_name()] = probe_id
        self.names[probe_id] = source
        self.events.append((PROBE, probe_id))

    def _free(self, line: Any) -> None:
        probe_id = self.buffers.get(line.node.get_name())
        if probe_id is None:
            return
        if getattr(line, "is_reused", False):
            self._refuse_write(probe_id, "its buffer was given to an activation")
        self.events.append((RELEASE, probe_id))

    def _alias(self, line: Any) -> None:
        for node in (line.node, line.reused_as):
            probe_id = self.buffers.get(node.get_name())
            if probe_id is not None:
                self._refuse_write(probe_id, f"'{line.reused_as.get_name()}' takes over the buffer of '{line.node.get_name()}'")

    def _kernel(self, line: Any) -> None:
        self.events.append((KERNEL, self.kernels))
        self.kernels += 1
        if isinstance(line, lines.KernelCallLine):
            self._check_call(line)
        else:
            self._check_extern(line.node)

    def _check_call(self, line: Any) -> None:
        written = set((line.inductor_meta or {}).get("mutated_arg_names", ()))
        keys = line.raw_keys or (None,) * len(line.call_args)
        for position, argument in enumerate(line.call_args):
            name = str(argument)
            self._refuse_direct_read(name, f"kernel {line.kernel_name}")
            probe_id = self.buffers.get(name)
            if probe_id is None:
                continue
            kind = str(line.arg_types[position]) if line.arg_types and position < len(line.arg_types) else "const"
            pointer = "*" in kind and not kind.startswith("const")
            key = keys[position] if position < len(keys) else None
            if (pointer and not line.triton) or key in written:
                self._refuse_write(probe_id, f"kernel {line.kernel_name} takes it as '{kind}'")

    def _check_extern(self, node: Any) -> None:
        name = getattr(node, "cpp_kernel_name", None) or getattr(node, "python_kernel_name", None) or type(node).__name__
        for read in node.get_read_names():
            self._refuse_direct_read(read, f"operator {name}")
        targets = {node.get_name(), *node.get_mutation_names()}
        if isinstance(node, ir.ExternKernelOut) and node.output_view is not None:
            targets.add(node.output_view.get_name())
        for target in targets:
            if target in self.buffers:
                self._refuse_write(self.buffers[target], f"operator {name} writes its result there")

    def _text(self, line: str) -> None:
        """Lines that the code generator already wrote as text: none of them may read a weight around its probe."""
        code = line.split("//")[0]
        for word in set(re.findall(r"[A-Za-z_]\w*", code)):
            self._refuse_direct_read(word, f"the line '{code.strip()}'")

    def _refuse_direct_read(self, name: str, reader: str) -> None:
        if name in self.fqns and self.fqns[name] in self.offloaded:
            raise ExportError(
                f"{reader} reads weight '{self.fqns[name]}' around its probe: it would read bytes that are not on the device; "
                "please report this"
            )

    def _refuse_write(self, probe_id: int, how: str) -> None:
        fqn = self.fqns[self.names[probe_id]]
        raise ExportError(f"the compiled program writes into weight '{fqn}' (probe {probe_id}): {how}; please report this")

    def _check_outputs(self) -> None:
        for name in self.graph.get_output_names():
            self._refuse_direct_read(name, "the output")

    def _check_ids(self) -> None:
        issued = [probe_id for op, probe_id in self.events if op == PROBE]
        if len(set(issued)) != len(issued):
            raise ExportError(f"the compiled program calls a probe twice: ids {issued[:20]}; please report this")
        dropped = set(range(self.probes)) - set(issued)
        if dropped:
            raise DroppedProbes(dropped)

    def _constants(self) -> dict[str, Constant]:
        found = {}
        for name, fqn in self.fqns.items():
            value = self.graph.get_original_value_of_constant(name)
            sizes, strides = self.layouts.get(name, (tuple(value.shape), tuple(value.stride())))
            found[fqn] = Constant(fqn, value, sizes, strides, name in self.layouts, fqn in self.mutable)
        return found


def _results(node: Any) -> list[Any]:
    """The buffers that hold the tensors a fallback kernel returns. Its own name stands in no C++ code if it has outputs of its own:
    a free of that name ends no lease."""
    return list(node.outputs) if isinstance(node.layout, ir.MultiOutputLayout) else [node]


def _static(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    layout = _results(node)[0].layout
    return tuple(int(n) for n in layout.size), tuple(int(n) for n in layout.stride)
