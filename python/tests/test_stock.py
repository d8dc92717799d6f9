"""Scripts and runners that know nothing of WeightStream but the partitioner's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import weightstream as ws
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from support import error_of
from torch import nn

pytestmark = pytest.mark.cpu_only("the writers are ExecuTorch's own, whatever the device")


class Mixed(nn.Module):
    """Casts, layouts and a state, so that ExecuTorch's default configuration names operators after dimension orders."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv, self.last = nn.Linear(64, 64), nn.Conv2d(3, 4, 3), nn.Linear(64, 8)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, image):
        self.seen.add_(1)
        y = self.last(torch.relu(self.first(x)))
        return y.to(torch.float64) + self.seen, self.conv(image).contiguous(memory_format=torch.channels_last)


def example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 64, generator=generator), torch.randn(1, 3, 8, 8, generator=generator)


def stock_script(folder: Path, partitioner: ws.WeightStreamPartitioner) -> tuple[Path, Path]:
    """A script of upstream's kind: a dictionary with one method, one partitioner for it, stock writers."""
    torch.manual_seed(0)
    programs = {"forward": torch.export.export(Mixed().eval(), example())}
    edge = to_edge_transform_and_lower(
        programs,
        partitioner={"forward": [partitioner]},
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
        constant_methods={"get_max_seq_len": 64},
    )
    program = edge.to_executorch()
    with (folder / "model.pte").open("wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(folder))
    return folder / "model.pte", folder / "weightstream_weights.ptd"


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> tuple[Path, Path]:
    from executorch.backends.cuda.cuda_backend import CudaBackend

    specs = [
        CudaBackend.generate_method_name_compile_spec("forward"),
        CompileSpec("target_device", b"cpu"),
        CompileSpec("weight_offload_policy", b"lru"),
    ]
    return stock_script(tmp_path_factory.mktemp("stock"), ws.WeightStreamPartitioner(specs))


def check_right(module: ws.Module) -> None:
    torch.manual_seed(0)
    model = Mixed().eval()
    for _ in range(3):
        for found, expected in zip(module.forward(*example()), model(*example())):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_stock_script_runs_at_every_budget(stock):
    floor = ws.required_budget(stock[0])
    for budget in (floor, (floor + 60_000) // 2, 60_000):
        with ws.Module(*stock, weight_offload_budget_bytes=budget) as module:
            check_right(module)
            options = module.stats()["options"]
    assert options["weight_offload_policy"] == {"value": "lru", "from": "program"}
    assert options["weight_offload_budget_bytes"]["from"] == "load"
    assert "needs at least" in error_of(lambda: ws.Module(*stock, weight_offload_budget_bytes=floor - 1))


def test_the_commands_read_what_stock_writers_wrote(stock, capsys):
    from weightstream._command import main

    assert main(["plan", *map(str, stock), "--budget", "floor"]) == 0
    assert main(["inspect", *map(str, stock)]) == 0
    text = capsys.readouterr().out
    assert "first.weight" in text
    assert "written by ExecuTorch's own writers" in text
    assert main(["inspect", str(stock[1])]) == 1
    assert str(stock[1]) in capsys.readouterr().err


def test_a_changed_record_is_found_without_constant_methods(stock, tmp_path):
    """Without them the build id in the payload and in the `.ptd` hold the two files together."""
    other = stock_script(tmp_path, ws.WeightStreamPartitioner(offload=False))
    assert "build id" in error_of(lambda: ws.Module(stock[0], other[1]))


@pytest.mark.no_runtime
def test_the_default_configuration_of_edge_programs(tmp_path):
    torch.manual_seed(0)
    program = torch.export.export(Mixed().eval(), example())
    edge = to_edge_transform_and_lower(program, partitioner=[ws.WeightStreamPartitioner()])
    ws.save(edge, tmp_path / "model.pte", tmp_path / "model.ptd", defaults={"weight_offload_verify": "load"})
    with ws.Module(tmp_path / "model.pte", tmp_path / "model.ptd") as module:
        check_right(module)
        assert module.stats()["options"]["weight_offload_verify"] == {"value": "load", "from": "program"}


@pytest.mark.no_runtime
def test_a_program_that_was_not_prepared_is_refused():
    edge = to_edge(torch.export.export(Mixed().eval(), example()))
    message = error_of(lambda: edge.to_backend(ws.WeightStreamPartitioner()), ws.ExportError)
    assert "to_edge_transform_and_lower" in message


@pytest.mark.no_runtime
def test_offloading_is_asked_for_or_not():
    program = ws.apply_weight_offload(torch.export.export(Mixed().eval(), example()))
    partitioner = ws.WeightStreamPartitioner(offload=False)
    message = error_of(lambda: partitioner.transform_for_pre_decomposition(program), ws.ExportError)
    assert "offload=False" in message


SPECS = {
    "unknown": ([CompileSpec("max_autotune", b"ON")], "max_autotune"),
    "device": ([CompileSpec("target_device", b"cuda:1")], "weight_offload_device"),
    "switch": ([CompileSpec("triton_kernel_mode", b"MAYBE")], "ON or OFF"),
    "platform": ([CompileSpec("platform", b"windows")], "platform"),
}


@pytest.mark.no_runtime
@pytest.mark.parametrize("case", SPECS)
def test_compile_specs_that_could_have_no_effect_are_refused(case):
    specs, word = SPECS[case]
    assert word in error_of(lambda: ws.WeightStreamPartitioner(specs), ws.ExportError)


@pytest.mark.no_runtime
def test_what_is_given_twice_is_refused():
    specs = [CompileSpec("method_name", b"forward")]
    assert "method is given twice" in error_of(lambda: ws.WeightStreamPartitioner(specs, method="decode"), ws.ExportError)
    assert "CompileSpec" in error_of(lambda: ws.WeightStreamPartitioner("cpu"), TypeError)


BAD_DEFAULTS = {
    "unknown key": ({"weight_offload_budgt": 1}, "weight_offload_budgt"),
    "no option": ({"budget_mb": 1}, "budget_mb"),
    "wrong value": ({"weight_offload_policy": "mru"}, "'planned'"),
    "wrong type": ({"weight_offload_policy": 1.5}, "takes a string, one of 'planned', 'lru'"),
    "two budgets": ({"weight_offload_budget_mb": 1, "weight_offload_budget": "auto"}, "not two"),
    "of one program": ({"weight_offload_pte_sha256": "0" * 64}, "one program"),
}


@pytest.mark.parametrize("case", BAD_DEFAULTS)
def test_defaults_are_checked_when_they_are_saved(case):
    from weightstream._export.compile import settings

    defaults, word = BAD_DEFAULTS[case]
    assert word in error_of(lambda: settings.option_specs(defaults), ws.ExportError)


def test_one_line_and_its_command(tmp_path, capsys):
    torch.manual_seed(0)
    model = Mixed().train()
    names = [str(tmp_path / name) for name in ("m.pt2", "m.pte", "m.ptd")]
    ws.export(model, example(), *names[1:], defaults={"weight_offload_budget_mb": 1})
    assert model.training
    with ws.Module(*names[1:]) as module:
        check_right(module)
        assert module.stats()["budget_bytes"] == 1 << 20
    torch.save({}, names[0])
    from weightstream._command import main

    assert main(["export", *names]) == 1
    assert names[0] in capsys.readouterr().err


def test_a_default_budget_that_is_too_small_is_refused_when_it_is_saved(tmp_path):
    names = tmp_path / "m.pte", tmp_path / "m.ptd"
    message = error_of(lambda: ws.export(Mixed(), example(), *names, defaults={"weight_offload_budget_bytes": 1000}), ws.ExportError)
    assert "1000 bytes" in message
    assert "needs at least" in message


def test_export_of_a_program_takes_nothing_that_could_have_no_effect(tmp_path):
    program = torch.export.export(Mixed().eval(), example())
    names = tmp_path / "m.pte", tmp_path / "m.ptd"
    assert "inputs" in error_of(lambda: ws.export(program, example(), *names), TypeError)
    assert "Module" in error_of(lambda: ws.export(example, example(), *names), TypeError)


def test_a_switch_among_the_defaults_is_stored_as_a_word():
    from weightstream._export.compile import settings

    specs = settings.option_specs({"weight_offload_sync": True, "weight_offload_cuda_graph": False, "weight_offload_device": 1})
    assert [spec.value for spec in specs] == [b"true", b"false", b"1"]


def test_defaults_of_the_process_and_of_the_environment(stock):
    script = (
        "import sys, weightstream as ws\n"
        "ws.set_options(weight_offload_verify='load')\n"
        "print(ws.Module(*sys.argv[1:]).stats()['options'])\n"
        "try: ws.set_options(weight_offload_verified='load')\n"
        "except ws.Error as error: print(error)\n"
    )
    import os

    environment = {**os.environ, "WEIGHTSTREAM_POLICY": "planned", "WEIGHTSTREAM_CUDA_GRAPH": "true"}
    command = [sys.executable, "-c", script, *map(str, stock)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "'weight_offload_verify': {'value': 'load', 'from': 'set_option'}" in ran.stdout
    assert "'weight_offload_policy': {'value': 'planned', 'from': 'environment'}" in ran.stdout
    assert "'weight_offload_verified': is unknown" in ran.stdout
    assert "'weight_offload_cuda_graph' of the environment is left out" in ran.stderr


RUNNER = """
import sys, torch
import weightstream as ws
ws.register()
from executorch.extension.pybindings import portable_lib
module = portable_lib._load_for_executorch(*sys.argv[1:3])
torch.save([module.forward(inputs) for inputs in torch.load(sys.argv[3])], sys.argv[4])
"""


@pytest.mark.parametrize("short", [0, 1])
def test_executorchs_own_python_runner_gets_its_budget_from_the_environment(stock, tmp_path, short):
    import os

    floor = ws.required_budget(stock[0])
    torch.save([example()] * 3, tmp_path / "inputs.pt")
    files = [str(tmp_path / name) for name in ("inputs.pt", "outputs.pt")]
    environment = {**os.environ, "WEIGHTSTREAM_BUDGET_BYTES": str(floor - short)}
    command = [sys.executable, "-c", RUNNER, *map(str, stock), *files]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if short:
        assert f"needs at least {floor} bytes" in ran.stderr
        return
    assert ran.returncode == 0, ran.stderr
    torch.manual_seed(0)
    model = Mixed().eval()
    for outputs in torch.load(files[1]):
        for found, expected in zip(outputs, model(*example())):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_executorchs_own_python_runner_without_the_weights_says_where_they_are(stock, tmp_path):
    import os

    torch.save([example()], tmp_path / "inputs.pt")
    script = RUNNER.replace("sys.argv[1:3]", "sys.argv[1:2]")
    command = [sys.executable, "-c", script, *map(str, stock), str(tmp_path / "inputs.pt"), str(tmp_path / "outputs.pt")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "they are in the .ptd that was saved with the .pte" in ran.stderr
    ran = subprocess.run(command, env={**os.environ, "WEIGHTSTREAM_DATA": str(stock[1])}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
