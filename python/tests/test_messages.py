"""What errors say, where no program has to be exported: of options, devices, files and arguments of commands."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from support import error_of
from torch import nn
from weightstream._command import main
from weightstream._native.bindings import check_defaults

#: Each option whose value is a number, and one that it takes.
NUMBERS = {
    "weight_offload_budget_mb": 512,
    "weight_offload_budget_bytes": 4096,
    "weight_offload_staging_mb": 64,
    "weight_offload_graph_mb": 64,
    "weight_offload_priority": 3,
    "weight_offload_device": 1,
    "weight_offload_link_gbps": 55,
}


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_taken_in_every_form(key):
    number = NUMBERS[key]
    for value in (number, str(number), float(number), torch.tensor(number)):
        check_defaults({key: value})
    for value in ("many", [number], None, float("nan"), True):
        assert key in error_of(lambda value=value: check_defaults({key: value}))


def test_a_part_of_a_megabyte_is_taken_if_it_is_whole_bytes():
    for value in (0.5, "0.5", 1.25):
        check_defaults({"weight_offload_budget_mb": value})
    message = error_of(lambda: check_defaults({"weight_offload_budget_mb": 0.1}))
    assert "0.1 MB of 1,048,576 bytes are no whole number of bytes; give the bytes, as weight_offload_budget_bytes" in message


def test_a_gpu_is_named_as_torch_names_it():
    for value in (1, "1", "cuda:1", "cuda", torch.device("cuda:1")):
        check_defaults({"weight_offload_device": value})
    assert "'cuda:1'" in error_of(lambda: check_defaults({"weight_offload_device": "cpu"}))


@pytest.mark.parametrize("device", ["cuda:99", "cuda", torch.device("cuda", 99)])
def test_a_gpu_that_is_not_there_is_refused_at_once(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    module = nn.Linear(2, 2)
    message = error_of(lambda: ws.torch.offload(module, device=device))
    assert "is not there: PyTorch" in message
    assert "GPU" in message
    # Nothing was begun.
    assert "forward" not in module.__dict__
    ws.torch.offload(module, device="cpu").remove()


def test_a_device_that_is_none_is_refused_by_name():
    for device in ("gpu", "meta", 3.5):
        message = error_of(lambda device=device: ws.torch.offload(nn.Linear(2, 2), device=device))
        assert f"'cuda:0', 'cuda:1' and so on, found {device!r}" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_graph_pool_needs_a_gpu():
    assert "GraphPool: 'cuda' is not there: PyTorch" in error_of(lambda: ws.torch.GraphPool("cuda"))


def test_a_marked_program_that_nobody_took_is_refused_with_the_way_out():
    from executorch.exir import to_edge

    program = torch.export.export(nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
    marked = to_edge(ws.apply_weight_offload(program))
    with pytest.raises(ws.ExportError, match=r"(?s)weight 'p_weight'.*partitioner=\[WeightStreamPartitioner") as error:
        marked.to_executorch()
    assert "out variants" not in str(error.value)
    # What was not marked is ExecuTorch's alone.
    to_edge(program).to_executorch()


FILES = {
    "empty": (b"", "the file is empty"),
    "cut": (b"\x40\0\0\0ET12eh", "the file is truncated: its header says at least 68 bytes, the file has 10"),
    "short": (b"\x40\0", "the file has 2"),
    "data": (b"\x40\0\0\0FT01" + bytes(64), "which is a .ptd data file: were the two files swapped?"),
    "text": (b"a text of several words\n", "this is not an ExecuTorch program (.pte)"),
    "zip": (b"PK\x03\x04" + bytes(64), "a zip archive, as torch.save and torch.export.save write"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "`git lfs pull` brings the file itself"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_kind_is_told_for_what_it_is(kind, tmp_path):
    path, (data, words) = tmp_path / "model.pte", FILES[kind]
    path.write_bytes(data)
    message = error_of(lambda: ws.required_budget(path))
    assert str(path) in message
    assert words in message


def test_a_folder_is_no_file(tmp_path):
    assert f"{tmp_path}: cannot open: this is a directory" in error_of(lambda: ws.required_budget(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "cpu", "--device", "cuda"], "--device is given twice"),
        (["--no-offload", "--no-offload"], "--no-offload is given twice"),
        (["--default", "weight_offload_policy"], "--default takes KEY=VALUE, not 'weight_offload_policy'"),
        (["--default", "a=1", "--default", "a=2"], "--default gives 'a' twice"),
    ],
)
def test_wrong_arguments_of_the_export_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "model.pt2", "model.pte", "model.ptd", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_commands_know_their_help_and_version(capsys):
    for flag, words in (("-h", "Usage"), ("--help", "Usage"), ("--version", ws.__version__)):
        assert main([flag]) == 0
        assert words in capsys.readouterr().out
    assert main(["plan"]) == main(["nothing"]) == 2
