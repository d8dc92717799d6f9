"""The Python interface: what `stats` and `required_budget` say, and what the export side refuses."""

from __future__ import annotations

import pytest
import torch
from doctor import Pte, counted_bytes
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from models import ZOO
from support import STATS_KEYS, error_of, open_module, run_passes
from torch import nn
from zoo import as_list

import weightstream as ws

REFUSALS = (ws.ExportError,)


def lower(program, *first, path=None, **options):
    """The export from the pass on; `first` are partitioners in front of ours."""
    edge = to_edge_transform_and_lower(
        program,
        partitioner=[*first, ws.WeightStreamPartitioner(device="cpu")],
        compile_config=ws.edge_compile_config(),
        **options,
    )
    ws.save(edge, str(path / "model.pte"), str(path / "model.ptd"))


def program_of(model, *inputs):
    return torch.export.export(model.eval().requires_grad_(False), inputs)


@pytest.mark.models("mlp")
def test_stats_and_required_budget_agree(exported):
    files = exported("mlp")
    record = Pte(files.pte).payload
    module = open_module(files)
    stats = module.stats()
    assert set(stats) == STATS_KEYS
    assert all(isinstance(value, int) for value in stats.values())
    floor = ws.required_budget(str(files.pte), method="forward")
    assert stats["budget_bytes"] == stats["floor_bytes"] == record["floor"][0] == floor
    assert stats["hard_minimum_bytes"] == record["hard_minimum"][0] <= floor
    assert 0 < stats["total_weight_bytes"] <= counted_bytes(record)
    assert stats["passes"] == 0
    run_passes(module, ZOO["mlp"].passes(2))
    assert module.stats()["passes"] == 2


@pytest.mark.models("mlp")
def test_a_budget_in_megabytes_is_that_many_bytes(exported):
    module = open_module(exported("mlp"), weight_offload_budget_mb=2)
    assert module.stats()["budget_bytes"] == 2 * 1024 * 1024


@pytest.mark.models("mlp")
def test_budget_may_grow_without_costing_copies(exported):
    """More budget never copies more; measured over passes 2 to 4 of each."""
    files = exported("mlp")
    floor, whole = ws.required_budget(str(files.pte), method="forward"), counted_bytes(Pte(files.pte).payload)
    copied = []
    for budget in (floor, (floor + whole) // 2, whole):
        module = open_module(files, budget)
        run_passes(module, ZOO["mlp"].passes(4))
        copied.append(module.stats()["bytes_copied_last_pass"])
    assert copied == sorted(copied, reverse=True)
    assert copied[-1] == 0 < copied[0]


@pytest.mark.models("mlp")
def test_forward_takes_tensors_as_they_come(exported):
    """Not contiguous, and a view with an offset: copied or refused, never misread."""
    spec, module = ZOO["mlp"], open_module(exported("mlp"))
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1)).t()
    padded = torch.zeros(10, 256)
    padded[2:] = x
    (expected,) = spec.eager([(x.contiguous(),)])
    for view in (x, padded[2:]):
        assert torch.allclose(as_list(module.forward(view))[0], expected[0], atol=1e-4)


@pytest.mark.no_runtime
def test_the_pass_applied_twice():
    once = ws.apply_weight_offload(ZOO["mlp"].export())
    message = error_of(lambda: ws.apply_weight_offload(once), *REFUSALS)
    assert "apply_weight_offload" in message
    assert "twice" in message or "already" in message


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda t: self.a(t), lambda t: self.b(t), (x,))


@pytest.mark.no_runtime
def test_control_flow(tmp_path):
    program = program_of(Branch(), torch.randn(2, 8))
    message = error_of(lambda: lower(ws.apply_weight_offload(program), path=tmp_path), *REFUSALS)
    assert "cond" in message


class SineBackend(BackendDetails):
    """Somebody else's backend."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(processed_bytes=b"sine")


class SinePartitioner(Partitioner):
    """Takes every sine, so that what is left falls apart."""

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.op == "call_function" and "sin" in str(node.target):
                node.meta["delegation_tag"] = node.name
                tags[node.name] = DelegationSpec(SineBackend.__name__, [])
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


class SineBetween(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.b(torch.sin(self.a(x)))


@pytest.mark.no_runtime
def test_a_method_that_splits_names_the_operator(tmp_path):
    program = ws.apply_weight_offload(program_of(SineBetween(), torch.randn(2, 8)))
    message = error_of(lambda: lower(program, SinePartitioner(), path=tmp_path), *REFUSALS)
    assert "sin" in message.lower()
    assert "delegate" in message


@pytest.mark.no_runtime
def test_a_second_method(tmp_path):
    programs = {
        name: ws.apply_weight_offload(program_of(SineBetween(), torch.randn(2, 8))) for name in ("forward", "again")
    }
    partitioners = {name: [ws.WeightStreamPartitioner(device="cpu")] for name in programs}

    def export():
        edge = to_edge_transform_and_lower(programs, partitioner=partitioners, compile_config=ws.edge_compile_config())
        ws.save(edge, str(tmp_path / "model.pte"), str(tmp_path / "model.ptd"))

    message = error_of(export, *REFUSALS)
    assert "method" in message
    assert "again" in message


@pytest.mark.no_runtime
def test_constants_on_another_device(tmp_path):
    model = SineBetween()
    program = program_of(model, torch.randn(2, 8))
    weight = program.state_dict["a.weight"]
    program.state_dict["a.weight"] = nn.Parameter(weight.to("meta"), requires_grad=False)
    message = error_of(lambda: lower(ws.apply_weight_offload(program), path=tmp_path), *REFUSALS)
    assert "a.weight" in message
    assert "meta" in message
    assert "cpu" in message


@pytest.mark.no_runtime
def test_an_unknown_device():
    message = error_of(lambda: ws.WeightStreamPartitioner(device="tpu"), *REFUSALS)
    assert "tpu" in message
    assert "cpu" in message


@pytest.mark.no_runtime
def test_folded_constants_are_refused_or_not_folded(tmp_path):
    """Folding may be asked for behind the exporter's back; it must not reach the files."""
    program = ws.apply_weight_offload(program_of(SineBetween(), torch.randn(2, 8)))
    with torch._inductor.config.patch({"aot_inductor.use_runtime_constant_folding": True}):
        try:
            lower(program, path=tmp_path)
            message = None
        except REFUSALS as refusal:
            message = str(refusal)
    if message is not None:
        assert "fold" in message
    else:
        record = Pte(tmp_path / "model.pte").payload
        assert sorted(record["fqns"]) == ["a.bias", "a.weight", "b.bias", "b.weight"]


class Transform(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        return torch.fft.rfft(self.a(x)).abs()


@pytest.mark.no_runtime
def test_an_operator_that_the_runtime_lacks_is_an_error_at_export(tmp_path):
    program = ws.apply_weight_offload(program_of(Transform(), torch.randn(2, 8)))
    message = error_of(lambda: lower(program, path=tmp_path), *REFUSALS)
    assert "fft" in message
