"""The Python interface: what `stats` and `required_budget` say, and what the export side refuses."""

from __future__ import annotations

import re

import pytest
import torch
import weightstream as ws
from doctor import Pte, changed_record, counted_bytes, sealed
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from models import ZOO
from support import error_of, open_module, run_passes
from torch import nn
from weightstream._run import runtime
from zoo import as_list

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
    options = stats.pop("options")
    assert options["weight_offload_policy"] == {"value": "planned", "from": "default"}
    status, page = runtime.command(["counters", "--markdown"])
    assert status == 0
    assert list(stats) == re.findall(r"^\| `(\w+)`", page, re.MULTILINE)
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
def test_the_automatic_budget_covers_everything_where_there_is_room(exported):
    """Any machine that runs these tests has room for a small model; less is the business of the Rust tests."""
    files = exported("mlp")
    module = open_module(files, weight_offload_budget="auto")
    stats = module.stats()
    assert stats["budget_bytes"] == counted_bytes(Pte(files.pte).payload) == stats["direct_bytes"] + stats["total_weight_bytes"]
    (found,), (expected,) = run_passes(module, ZOO["mlp"].passes(1)), ZOO["mlp"].eager(ZOO["mlp"].passes(1))
    assert torch.allclose(found[0], expected[0], atol=1e-4)


@pytest.mark.models("mlp")
def test_inputs_take_device_memory_only_where_they_are_copied(exported):
    files = exported("mlp")
    (device,) = Pte(files.pte).payload["device"]
    module = open_module(files)
    assert module.stats()["io_bytes"] == 0
    (inputs,) = ZOO["mlp"].passes(1)
    run_passes(module, [inputs])
    assert module.stats()["io_bytes"] == (0 if device == "cpu" else sum(-(-x.nbytes // 512) * 512 for x in inputs))


@pytest.mark.models("mlp")
def test_the_automatic_budget_needs_bounded_shapes_and_probes(exported, tmp_path):
    files = exported("mlp")

    def change(**fields):
        return lambda record: record.update(fields)

    unbounded = changed_record(files.pte, tmp_path / "a.pte", change(activations=[-1]))
    sealed(unbounded, files.ptd, tmp_path / "a.ptd")
    message = error_of(lambda: ws.Module(str(unbounded), str(tmp_path / "a.ptd"), weight_offload_budget="auto"))
    assert "an upper bound" in message
    huge = changed_record(files.pte, tmp_path / "b.pte", change(activations=[2**61]))
    sealed(huge, files.ptd, tmp_path / "b.ptd")
    message = error_of(lambda: ws.Module(str(huge), str(tmp_path / "b.ptd"), weight_offload_budget="auto"))
    floor = ws.required_budget(str(files.pte), method="forward")
    assert f"weight budget of 0 bytes is too small: this program needs at least {floor} bytes" in message
    assert f"activations {2**61} bytes" in message
    assert "free on the device" in message


@pytest.mark.models("mlp")
@pytest.mark.parametrize("budget", ["most", "", "1000000", 3])
def test_the_budget_in_words_is_auto_or_nothing(exported, budget):
    message = error_of(lambda: open_module(exported("mlp"), weight_offload_budget=budget))
    assert "weight_offload_budget" in message
    assert "'auto'" in message


@pytest.mark.models("mlp", "mlp_baseline")
def test_an_automatic_budget_is_refused_where_it_has_no_effect_or_is_not_alone(exported):
    message = error_of(lambda: open_module(exported("mlp_baseline"), weight_offload_budget="auto"))
    assert "offload=True" in message
    message = error_of(lambda: open_module(exported("mlp"), 10**6, weight_offload_budget="auto"))
    assert "not two" in message


@pytest.mark.no_runtime
def test_what_was_compiled_for_this_machine_before_changes_no_export(tmp_path):
    """The compiler remembers which vector units there are, and with them come functions that no runtime has."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()).eval().requires_grad_(False)
    x = torch.randn(4, 64)
    expected = torch.compile(model)(x)
    ws.export(model, (x,), tmp_path / "m.pte", tmp_path / "m.ptd", device="cpu")
    with ws.Module(tmp_path / "m.pte", tmp_path / "m.ptd") as module:
        assert torch.allclose(module(x), expected, atol=1e-5)


def test_sizes_without_an_upper_bound_are_recorded_as_such(tmp_path):
    length = torch.export.Dim("length", min=2)
    program = torch.export.export(
        nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).requires_grad_(False),
        (torch.randn(4, 8),),
        dynamic_shapes=({0: length},),
    )
    lower(ws.apply_weight_offload(program), path=tmp_path)
    record = Pte(tmp_path / "model.pte").payload
    assert record["activations"] == [-1]
    assert record["inputs"] == [6, 2, 2, 2**62, 0, 8, 8, -1]


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
    """Transposed, with gaps, expanded, and a view with an offset: the library copies what is not row-major, and counts it."""
    spec, module = ZOO["mlp"], open_module(exported("mlp"))
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1)).t()
    padded = torch.zeros(10, 256)
    padded[2:] = x
    (expected,) = spec.eager([(x.contiguous(),)])
    wide = torch.zeros(8, 512)
    wide[:, ::2] = x
    for view, copied in ((x, 1), (padded[2:], 1), (wide[:, ::2], 2), (x.contiguous(), 2)):
        assert torch.allclose(as_list(module.forward(view))[0], expected[0], atol=1e-4)
        assert module.stats()["inputs_copied"] == copied
    row = torch.randn(1, 256, generator=torch.Generator().manual_seed(2))
    (expected,) = spec.eager([(row.expand(8, 256).contiguous(),)])
    assert torch.allclose(as_list(module.forward(row.expand(8, 256)))[0], expected[0], atol=1e-4)
    assert module.stats()["inputs_copied"] == 3


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
def test_a_second_method_of_other_weights(tmp_path):
    """Two modules of one class: their names agree, and their values do not."""
    programs = {name: ws.apply_weight_offload(program_of(SineBetween(), torch.randn(2, 8))) for name in ("forward", "again")}
    partitioners = {name: [ws.WeightStreamPartitioner(device="cpu")] for name in programs}

    def export():
        to_edge_transform_and_lower(programs, partitioner=partitioners, compile_config=ws.edge_compile_config())

    message = error_of(export, *REFUSALS)
    for word in ("'a.weight'", "'again'", "'forward'"):
        assert word in message


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
