"""The ExecuTorch side of the export: partitioner and backend."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, final

import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.backends.aoti.passes.replace_view_copy_with_view import ReplaceViewCopyWithViewPass
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.tensor import scalar_type_enum
from executorch.exir.tensor_layout import TensorLayout
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from . import _attention, _convolution, _decompose, _method, _offload, _prepare, _record, _refusals, _specs
from ._compile import Compiled, compile_program
from ._errors import ExportError
from ._progress import note, step
from ._target import Target
from ._torch import cross
from ._torch.shapes import forget_pending
from ._trace import DroppedProbes

BACKEND_ID = "WeightStreamBackend"
WEIGHTS_TAG = "weightstream_weights"


class WeightStreamPartitioner(AotiPartitioner):
    """Gives a whole method to WeightStream.

    * ``device``: where the compiled code runs: ``"cpu"`` (the default) or ``"cuda"``, which needs a GPU at export, or ``sm``.
    * ``isa``: the x86-64 level of the CPU's code: ``x86-64``, ``x86-64-v2``, ``x86-64-v3`` (the default: AVX2, machines since about
      2015) or ``x86-64-v4``. A machine without it refuses the file by name.
    * ``method``: the name of the method, where it is not ``forward``.
    * ``attention``: ``"auto"`` computes scaled-dot-product attention on CUDA with ExecuTorch's fused kernel where that is right; a line
      of progress says where it is not, and why. ``"math"`` always uses separate operators, which hold the scores of all queries and
      keys in memory.
    * ``sm``: the compute capability of a GPU that need not be here: ``"80"``, ``"86"``, ``"89"``, ``"90"``, ``"100"`` or ``"120"``.
      Kernels are compiled for it in a child process, and are not tuned.
    * ``offload=False`` keeps all weights in memory: the baseline for any measurement.
    * ``compile_specs``: specs of ExecuTorch's CUDA backend instead of keywords: ``method_name``, ``target_device``,
      ``triton_kernel_mode``, ``platform``. Options of the runtime (``weight_offload_budget_mb``) become the program's defaults.

    Lower with ``to_edge_transform_and_lower``: it lets the partitioner prepare the program first.

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
    ) -> None:
        stock, options = _specs.read_stock(compile_specs)
        given = {"device": device, "method": method, "attention": attention}
        for name in stock:
            if given[name] not in (None, stock[name]):
                raise ExportError(f"{name} is given twice: '{given[name]}', and '{stock[name]}' by the compile specs")
        chosen = {"device": "cpu", "method": "forward", "attention": "auto", **stock, **{k: v for k, v in given.items() if v is not None}}
        target = Target(chosen["device"], isa, chosen["attention"], sm)
        specs = [
            CompileSpec("method_name", chosen["method"].encode()),
            CompileSpec("offload", b"1" if offload else b"0"),
            *target.specs(),
            *options,
        ]
        super().__init__(BACKEND_ID, specs)
        self.device = target.device
        self.offload = offload
        self._prepared = False

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """The program in the form that is compiled. ``to_edge_transform_and_lower`` calls this first."""
        if not self.offload and _offload.has_probes(exported_program):
            raise ExportError("offload=False was given, and apply_weight_offload was applied to the program: leave one of the two out")
        self._prepared = True
        program = _decompose.decompose(_prepare.prepare(exported_program), self.device)
        _refusals.refuse_on_a_gpu(program, self.device)
        return program

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags all operators for one delegate; raises :class:`ExportError`, naming the operator, if that cannot be."""
        _offload.refuse_control_flow(exported_program)
        if not self._prepared and not _offload.has_probes(exported_program):
            raise ExportError(
                "this program was not prepared by WeightStreamPartitioner: lower it with to_edge_transform_and_lower(program, "
                "partitioner=[...]) instead of to_edge(program).to_backend(...)"
            )
        self._prepared = False
        result = super().partition(exported_program)
        if len(result.partition_tags) == 0:
            raise ExportError("there is nothing to delegate: another partitioner took every operator, or the program has none")
        if len(result.partition_tags) > 1:
            raise ExportError(
                f"the method splits into {len(result.partition_tags)} delegates at {_splitters(exported_program)}; weights are "
                "streamed along one trace per method: let WeightStreamPartitioner take the whole method"
            )
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
    def preprocess_multimethod(
        cls, edge_programs: dict[str, list[ExportedProgram]], compile_specs: dict[str, list[list[CompileSpec]]]
    ) -> dict[str, list[PreprocessResult]]:
        methods = [name for name, programs in edge_programs.items() if programs]
        if len(methods) > 1:
            raise ExportError(
                f"the program has {len(methods)} methods to offload ({', '.join(methods)}); a program can have one until methods can "
                "share a budget: export each into files of its own"
            )
        return super().preprocess_multimethod(edge_programs, compile_specs)

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        specs = {spec.key: spec.value.decode() for spec in compile_specs}
        method, target = specs["method_name"], Target.of(specs)
        _offload.refuse_mixed_devices(edge_program)
        offload = specs["offload"] == "1"

        def compile_here(program: ExportedProgram) -> tuple[Compiled, _method.Facts]:
            return _compile(program, offload, target)

        if target.sm:
            compiled, facts = cross.compile_apart(edge_program, target.sm, compile_here)
        else:
            compiled, facts = compile_here(move_to_device_pass(edge_program, target.device))
        _keep_calls_without_outputs(edge_program)
        return _package(method, compiled, facts, target)


def _compile(program: ExportedProgram, offload: bool, target: Target) -> tuple[Compiled, _method.Facts]:
    """Compiles what ``to_edge`` left, whose values are on the target's device."""
    # Signature, mutation and ties are final here; the user's probes served to show and to mark.
    _offload.remove_probes(program)
    ReplaceViewCopyWithViewPass()(program.graph_module)
    if target.device == "cuda":
        _convolution.widen(program)
    if target.fuses_attention():
        _attention.fuse(program)
    probes = _offload.insert_probes(program) if offload else []
    compiled = _compile_until_probes_stay(program, probes, target)
    return compiled, _method.facts_of(program, offload)


def _keep_calls_without_outputs(program: ExportedProgram) -> None:
    """ExecuTorch removes the call of a method that only changes its state, unless calls of delegates are known to do more than return."""
    if not program.graph_signature.user_outputs:
        torch.fx.node.has_side_effect(executorch_call_delegate)


def _compile_until_probes_stay(program: ExportedProgram, probes: list[str], target: Target) -> Compiled:
    mutable = set(program.graph_signature.buffers_to_mutate.values())
    while True:
        forget_pending(program)
        try:
            return compile_program(program.module(), _example_inputs(program), probes, mutable, target)
        except DroppedProbes as dropped:
            note(f"{dropped}; compiling again without them")
            probes = _offload.drop_probes(program, dropped.ids)
        except Exception:
            if not cross.another_try():
                raise


def _example_inputs(program: ExportedProgram) -> tuple[Any, ...]:
    user_inputs = set(program.graph_signature.user_inputs)
    return tuple(n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name in user_inputs)


def _dim_order(tensor: torch.Tensor) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    return sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))


def _package(method: str, compiled: Compiled, facts: _method.Facts, target: Target) -> PreprocessResult:
    store = NamedDataStore()
    with step("taking the weights out"):
        held = {fqn: _method.dense(constant) for fqn, constant in compiled.trace.constants.items()}
        fields = _method.record_of(method, compiled, facts, target, held)
        for fqn, tensor in held.items():
            layout = TensorLayout(scalar_type_enum(tensor.dtype), list(tensor.shape), _dim_order(tensor))
            store.add_named_data(fqn, bytes(_method.raw_bytes(tensor)), 1, WEIGHTS_TAG, layout)
    build_id = fields["build_id"][0]
    store.add_named_data(_method.BUILD_ID_PREFIX + method, bytes.fromhex(build_id), 1, WEIGHTS_TAG)
    store.add_named_data(_method.CHECKSUM_PREFIX + method, _method.checksum_mark(method), 1, WEIGHTS_TAG)
    store.add_named_data(fields["so_key"][0], compiled.library, 4096, None)
    note(
        f"method '{method}': {len(fields['fqns'])} constants, {sum(fields['nbytes'])} bytes, {len(fields['probes'])} probes, "
        f"floor {fields['floor'][0]} bytes"
    )
    return PreprocessResult(_record.encode(fields), {}, store.get_named_data_store_output())
