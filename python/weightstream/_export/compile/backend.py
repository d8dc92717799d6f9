"""The ExecuTorch side of the export: partitioner and backend."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import final

import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, PartitionResult
from executorch.exir.delegate import executorch_call_delegate
from torch.export import ExportedProgram

from ..._native.errors import ExportError
from ..passes import decompose, experts, prepare, quantized, refusals, weight_reads
from . import backend_runs, call_names, identity, settings
from .program import lower_one, lower_several
from .target import Target

BACKEND_ID = "WeightStreamBackend"


class WeightStreamPartitioner(AotiPartitioner):
    """Gives a whole method to WeightStream.

    * ``device``: where the compiled code runs: ``"cpu"`` (the default) or ``"cuda"``, which needs a GPU at export, or ``sm``.
    * ``isa``: the x86-64 level of the CPU's code: ``x86-64``, ``x86-64-v2``, ``x86-64-v3`` (the default: AVX2, machines since about
      2015) or ``x86-64-v4``. A machine without it refuses the file by name.
    * ``method``: the name of the method, where it is not ``forward``. Names of several methods are those of the dictionary of programs.
    * ``attention``: ``"auto"`` computes scaled-dot-product attention on CUDA with ExecuTorch's fused kernel where that is right; a line
      of progress says where it is not, and why. ``"math"`` always uses separate operators, which hold the scores of all queries and
      keys in memory.
    * ``sm``: the compute capability of a GPU that need not be here: ``"80"``, ``"86"``, ``"89"``, ``"90"``, ``"100"`` or ``"120"``.
      Kernels are compiled for it in a child process, and are not tuned. Several (``"86,89,90"``) make one program for all of them,
      whose kernels the driver compiles when it is loaded.
    * ``offload=False`` keeps all weights in memory: the baseline for any measurement.
    * ``shared_state``: which buffers of different names are one, in a program of several methods:
      ``{"decode.cache.k": "prefill.cache.k"}``. ``{}`` says that each method keeps its own. Buffers of one name are one anyway.
    * ``compile_specs``: specs of ExecuTorch's CUDA backend instead of keywords: ``method_name``, ``target_device``,
      ``triton_kernel_mode``, ``platform``. Options of the runtime (``weight_offload_budget_mb``) become the program's defaults.

    Lower with ``to_edge_transform_and_lower``: it lets the partitioner prepare the program first. One partitioner serves all methods of
    a dictionary; or give each its own, at the same place of their lists.

    Export from one thread at a time: ``torch.export`` and the compiler keep their state per process. While the compiler runs, this
    process's ``TORCHINDUCTOR_CACHE_DIR`` and ``LIBRARY_PATH`` name a folder that is removed afterwards. If other threads start child
    processes during that time, give them an environment of their own.
    """

    def __init__(
        self,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        device: str | None = None,
        isa: str = "x86-64-v3",
        method: str | None = None,
        attention: str | None = None,
        sm: str = "",
        offload: bool = True,
        shared_state: dict[str, str] | None = None,
    ) -> None:
        stock, options = settings.read_stock(compile_specs)
        given = {"device": device, "method": method, "attention": attention}
        for name in stock:
            if given[name] not in (None, stock[name]):
                raise ExportError(f"{name} is given twice: '{given[name]}', and '{stock[name]}' by the compile specs")
        chosen = {
            "device": "cpu",
            "method": settings.DEFAULT_METHOD,
            "attention": "auto",
            **stock,
            **{k: v for k, v in given.items() if v is not None},
        }
        target = Target(chosen["device"], isa, chosen["attention"], sm)
        specs = [
            CompileSpec("method_name", chosen["method"].encode()),
            CompileSpec("offload", b"1" if offload else b"0"),
            *target.specs(),
            *options,
        ]
        super().__init__(BACKEND_ID, specs)
        self.device, self._target = target.device, target
        self.offload = offload
        self.shared_state = settings.checked_state(shared_state)
        #: For each program that was prepared and not partitioned yet: how many runs of the backend there were.
        self._prepared: list[int] = []

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """The program in the form that is compiled. ``to_edge_transform_and_lower`` calls this first."""
        if not self.offload and weight_reads.has_probes(exported_program):
            raise ExportError("offload=False was given, and apply_weight_offload was applied to the program: leave one of the two out")
        self._prepared = [run for run in self._prepared if run == backend_runs.now()] + [backend_runs.now()]
        program = prepare.prepare(exported_program)
        quantized.pack(program, self.device, self._target.sms)
        experts.place(program)
        program = decompose.decompose(program, self.device)
        refusals.refuse_on_a_gpu(program, self.device)
        return program

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags all operators for one delegate; raises :class:`ExportError`, naming the operator, if that cannot be."""
        weight_reads.refuse_control_flow(exported_program)
        if not self._prepared and not weight_reads.has_probes(exported_program):
            raise ExportError(
                "this program was not prepared by WeightStreamPartitioner: lower it with to_edge_transform_and_lower(program, "
                "partitioner=[...]) instead of to_edge(program).to_backend(...)"
            )
        late = bool(self._prepared) and self._prepared.pop() != backend_runs.now()
        result = super().partition(exported_program)
        if len(result.partition_tags) == 0:
            raise ExportError("there is nothing to delegate: another partitioner took every operator, or the program has none")
        if len(result.partition_tags) > 1:
            raise ExportError(
                f"the method splits into {len(result.partition_tags)} delegates at {_splitters(exported_program)}; weights are "
                "streamed along one trace per method: let WeightStreamPartitioner take the whole method"
            )
        # Lists of its own: what is lowered changes them.
        specs = [*self.delegation_spec.compile_specs, *settings.internal(self.shared_state, late, call_names.call_of(exported_program))]
        result.partition_tags = {tag: DelegationSpec(BACKEND_ID, specs) for tag in result.partition_tags}
        return result


def _splitters(program: ExportedProgram) -> str:
    found = [node for node in program.graph.nodes if node.op == "call_function" and "delegation_tag" not in node.meta]
    names = [_operator(program, node) for node in found if node.target is not operator.getitem]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "an unknown operator"


def _operator(program: ExportedProgram, node: torch.fx.Node) -> str:
    if node.target is not executorch_call_delegate:
        return f"operator '{node.target}' (node '{node.name}')"
    lowered = getattr(program.graph_module, node.args[0].target)
    inside = [str(n.target) for n in lowered.original_module.graph.nodes if n.op == "call_function"]
    return f"a delegate of '{lowered.backend_id}' that took {', '.join(inside[:3])}"


@final
class WeightStreamBackend(BackendDetails):
    """Compiles a delegated program with AOTInductor and takes its weights out. ExecuTorch finds it by its class name."""

    @classmethod
    def copy_exported_program_for_preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> ExportedProgram:
        """With the same tensors: nothing here writes to them."""
        return prepare.copy_of(edge_program)

    @classmethod
    def preprocess_multimethod(
        cls, edge_programs: dict[str, list[ExportedProgram]], compile_specs: dict[str, list[list[CompileSpec]]]
    ) -> dict[str, list[PreprocessResult]]:
        # One delegate per method: `partition` saw to it.
        programs = {method: found[0] for method, found in edge_programs.items() if found}
        specs = {method: compile_specs[method][0] for method in programs}
        told = settings.take_internal(specs)
        if told.late:
            backend_runs.refuse_places(programs)
        backend_runs.begin_run(programs)
        settings.name_methods(specs)
        if len(programs) == 1:
            identity.refuse_alone(programs, told.shared_state)
            results = {method: lower_one(program, specs[method], told.calls.get(method)) for method, program in programs.items()}
        else:
            settings.agree_on_options(specs)
            results = lower_several(programs, specs, told)
        return {method: [results[method]] if method in results else [] for method in edge_programs}

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        # Where ExecuTorch lowers one program without `preprocess_multimethod`.
        method = settings.method_of(compile_specs)
        told = settings.take_internal({method: compile_specs})
        identity.refuse_alone({method: edge_program}, told.shared_state)
        return lower_one(edge_program, compile_specs, told.calls.get(method))
