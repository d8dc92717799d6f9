"""What the runtime refuses, one test per refusal: an error with the fact in it, never a crash, never a wrong result.

Files are doctored with `doctor.py`. Everything here but the last part starts from the exported perceptron.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

import pytest
import torch
import weightstream as ws
from doctor import Ptd, Pte, changed_record, sealed, swap_two_probes
from exports import Files
from models import ZOO
from support import error_of, open_module, run_child, run_passes
from zoo import largest_error

pytestmark = pytest.mark.models("mlp", "encoder", "mlp_baseline", "kv_decoder")
VICTIM = "layers.2.weight"


@pytest.fixture
def mlp(exported):
    return exported("mlp")


def doctored_ptd(files: Files, folder: Path, change) -> Files:
    ptd = Ptd(files.ptd)
    change(ptd)
    return Files(files.name, files.pte, ptd.save(folder / "doctored.ptd"))


def doctored_pte(files: Files, folder: Path, change, where: str = "both") -> Files:
    pte = changed_record(files.pte, folder / "doctored.pte", change, where=where)
    return Files(files.name, pte, sealed(pte, files.ptd, folder / "sealed.ptd"))


def loading(files: Files, budget: int | None = None, **specs) -> str:
    return error_of(lambda: run_passes(open_module(files, budget, **specs), ZOO["mlp"].passes(1)))


# --- the doctor itself: an unchanged rewrite still runs, so the refusals below are due to the change


def test_rewritten_files_still_run(mlp, tmp_path, reference):
    files = doctored_ptd(doctored_pte(mlp, tmp_path, lambda record: None), tmp_path, lambda ptd: None)
    (found,) = run_passes(open_module(files, weight_offload_verify="load"), ZOO["mlp"].passes(1))
    assert largest_error(found, reference("mlp")[0]) <= 1e-4


# --- budget


@pytest.mark.parametrize("name", ["mlp", "encoder", "kv_decoder"])
def test_one_byte_under_the_floor(name, exported):
    files = exported(name)
    floor = ws.required_budget(str(files.pte), method="forward")
    message = error_of(lambda: open_module(files, floor - 1))
    assert str(floor) in message
    assert str(floor - 1) in message
    assert f"weight_offload_budget_mb = {math.ceil(floor / 2**20)}" in message
    parts = [int(n) for n in re.findall(r"\d+", message.rsplit("):", 1)[-1].rsplit(": ", 1)[-1])]
    assert len(parts) >= 2, f"the parts of the floor are not in: {message}"
    assert open_module(files, floor).stats()["budget_bytes"] == floor


def test_required_budget_of_an_unknown_method(mlp):
    assert "backward" in error_of(lambda: ws.required_budget(str(mlp.pte), method="backward"))


def test_a_budget_for_a_program_without_offloading(exported):
    message = error_of(lambda: open_module(exported("mlp_baseline"), 1 << 30))
    assert "weight_offload_budget" in message
    assert "offload=True" in message


# --- runtime specs


BAD_SPECS = {
    "unknown key": ({"weight_offload_budgt_mb": 64}, ["weight_offload_budgt_mb"]),
    "unknown policy": ({"weight_offload_policy": "random"}, ["weight_offload_policy", "random", "lru", "planned"]),
    "unknown verify": ({"weight_offload_verify": "always"}, ["weight_offload_verify", "always", "load"]),
    "budget as words": ({"weight_offload_budget_mb": "64 MB"}, ["weight_offload_budget_mb", "64 MB"]),
    "budget negative": ({"weight_offload_budget_mb": -1}, ["weight_offload_budget_mb", "-1"]),
    "bytes not decimal": ({"weight_offload_budget_bytes": "64 MB"}, ["weight_offload_budget_bytes", "64 MB"]),
    "bytes too many": ({"weight_offload_budget_bytes": "9" * 40}, ["weight_offload_budget_bytes"]),
    "both budgets": (
        {"weight_offload_budget_mb": 64, "weight_offload_budget_bytes": "67108864"},
        ["weight_offload_budget_mb", "weight_offload_budget_bytes"],
    ),
    "pin too short": ({"weight_offload_pte_sha256": "ab"}, ["weight_offload_pte_sha256", "64 hexadecimal digits"]),
    "policy as number": ({"weight_offload_policy": 1}, ["weight_offload_policy"]),
    "verify as truth": ({"weight_offload_verify": True}, ["weight_offload_verify"]),
    "255 characters": ({"weight_offload_data": "x" * 255}, ["weight_offload_data", "255"]),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_a_bad_spec(case, mlp):
    specs, expected = BAD_SPECS[case]
    # a foreign type may be refused by Python before it gets to the runtime
    message = error_of(lambda: open_module(mlp, **specs), ws.Error, TypeError, ValueError)
    for text in expected:
        assert text in message


def test_another_program_than_the_pinned_one(mlp):
    digest = hashlib.sha256(Path(mlp.pte).read_bytes()).hexdigest()
    open_module(mlp, weight_offload_pte_sha256=digest)
    message = error_of(lambda: open_module(mlp, weight_offload_pte_sha256="0" * 64))
    assert digest in message
    assert "0" * 64 in message


# --- the .ptd against the record


def test_a_weight_that_is_missing(mlp, tmp_path):
    assert VICTIM in loading(doctored_ptd(mlp, tmp_path, lambda ptd: ptd.entries.pop(VICTIM)))


def test_a_weight_of_another_dtype(mlp, tmp_path):
    def change(ptd):
        layout = ptd.entries[VICTIM].tensor_layout
        layout.scalar_type = type(layout.scalar_type).INT

    message = loading(doctored_ptd(mlp, tmp_path, change))
    assert VICTIM in message
    assert re.search(r"float|\b6\b", message, re.IGNORECASE), message
    assert re.search(r"int|\b3\b", message, re.IGNORECASE), message


def test_a_weight_of_another_shape(mlp, tmp_path):
    def change(ptd):
        ptd.entries[VICTIM].tensor_layout.sizes = [128, 512]

    message = loading(doctored_ptd(mlp, tmp_path, change))
    assert VICTIM in message
    assert re.search(r"256\D+256", message), message
    assert re.search(r"128\D+512", message), message


def test_a_weight_that_is_too_short(mlp, tmp_path):
    message = loading(doctored_ptd(mlp, tmp_path, lambda ptd: ptd.set_bytes(VICTIM, ptd.bytes_of(VICTIM)[:-64])))
    assert VICTIM in message
    assert str(256 * 256 * 4) in message
    assert str(256 * 256 * 4 - 64) in message


def damage(ptd):
    data = bytearray(ptd.bytes_of(VICTIM))
    data[1000] ^= 1
    ptd.set_bytes(VICTIM, bytes(data))


def test_damaged_data_is_found_when_asked_for(mlp, tmp_path):
    files = doctored_ptd(mlp, tmp_path, damage)
    assert VICTIM in loading(files, weight_offload_verify="load")
    open_module(files, weight_offload_verify="off")


def test_swapped_files(exported):
    mlp, encoder = exported("mlp"), exported("encoder")
    message = loading(Files("swapped", mlp.pte, encoder.ptd))
    assert "build" in message or "missing" in message
    assert str(encoder.ptd) in message or encoder.ptd.name in message


def test_files_in_the_wrong_order(mlp):
    message = loading(Files("swapped", mlp.ptd, mlp.pte))
    assert mlp.ptd.name in message


def test_a_ptd_of_the_same_model_exported_another_time(mlp, tmp_path):
    def change(ptd):
        ptd.set_bytes("weightstream_build_id_forward", bytes(16))

    assert "build" in loading(doctored_ptd(mlp, tmp_path, change))


# --- damaged containers


SIZES = [0, 3, 4, 11, 40, 64, 200, "half", "last byte"]


def cut(path: Path, size: int | str, out: Path) -> Path:
    data = path.read_bytes()
    keep = {"half": len(data) // 2, "last byte": len(data) - 1}.get(size, size)
    out.write_bytes(data[:keep])
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", ["pte", "ptd"])
def test_a_truncated_file(which, size, mlp, tmp_path):
    short = cut(getattr(mlp, which), size, tmp_path / f"short.{which}")
    pair = {"pte": mlp.pte, "ptd": mlp.ptd, which: short}
    message = loading(Files("cut", **pair))
    assert short.name in message
    assert re.search(r"byte|offset|empty", message), message


@pytest.mark.parametrize("which", ["pte", "ptd"])
def test_a_file_that_is_not_there(which, mlp, tmp_path):
    pair = {"pte": mlp.pte, "ptd": mlp.ptd, which: tmp_path / "absent.bin"}
    assert "absent.bin" in loading(Files("absent", **pair))


@pytest.mark.parametrize("which", ["pte", "ptd"])
@pytest.mark.parametrize("place", [4, 8, 12, 16, 24, 32, 40])
def test_a_damaged_header(which, place, mlp, tmp_path):
    """Identifier, magic, header length, sizes and offsets: each is checked and named with its file."""
    data = bytearray(getattr(mlp, which).read_bytes())
    data[place : place + 4] = b"\xfe\xff\xff\x7f"
    broken = tmp_path / f"broken.{which}"
    broken.write_bytes(data)
    pair = {"pte": mlp.pte, "ptd": mlp.ptd, which: broken}
    if place == 40 and which == "pte":
        pytest.skip("a .pte's extended header ends at byte 40")
    message = loading(Files("broken", **pair))
    assert broken.name in message
    assert re.search(r"byte|offset", message), message


@pytest.mark.parametrize("which", ["pte", "ptd"])
def test_damaged_tables_never_crash(which, mlp, tmp_path):
    """A few hundred single-byte damages of headers and tables: an error of ours, or the right output."""
    counts = run_child("load_damaged", mlp.pte, mlp.ptd, which, tmp_path)
    assert counts["wrong"] == [], f"damages that changed the output without an error: {counts['wrong']}"
    assert counts["refused"] > 0
    assert counts["refused"] + counts["harmless"] == counts["tried"]


# --- the record


@pytest.mark.parametrize("where", ["payload", "methods"])
def test_a_record_that_says_two_things(where, mlp, tmp_path):
    def change(record):
        record["build_id"] = ["0" * 32]

    assert "build" in loading(doctored_pte(mlp, tmp_path, change, where))


@pytest.mark.parametrize(
    ("field", "value"),
    [("format_version", [1000]), ("kinds", [9]), ("fqns", ["one"]), ("trace", [3]), ("access_order", [0]), ("floor", [0])],
)
def test_a_record_that_contradicts_itself(field, value, mlp, tmp_path):
    message = loading(doctored_pte(mlp, tmp_path, lambda record: record.update({field: value})))
    # All fields of one value per constant are measured by the number of FQNs.
    words = (field, field.replace("_", " "), "one per constant" if field == "fqns" else field)
    assert any(word in message for word in words), message


def test_a_field_that_nobody_knows(mlp, tmp_path):
    assert "surprise" in loading(doctored_pte(mlp, tmp_path, lambda record: record.update(surprise=[1])))


def test_an_unknown_field_with_the_agreed_prefix_is_ignored(mlp, tmp_path, reference):
    files = doctored_pte(mlp, tmp_path, lambda record: record.update(x_surprise=[1]))
    (found,) = run_passes(open_module(files), ZOO["mlp"].passes(1))
    assert largest_error(found, reference("mlp")[0]) <= 1e-4


def test_a_probe_out_of_order(mlp, tmp_path):
    names = []
    files = doctored_pte(mlp, tmp_path, lambda record: names.append(swap_two_probes(record)))
    module = open_module(files)
    expected, found = names[0]
    for _ in range(2):  # the handle says the same again: it does not turn into a wrong result
        message = error_of(lambda: run_passes(module, ZOO["mlp"].passes(1)))
        assert expected in message
        assert found in message


# --- what the code was compiled for


MISSING_ISA = "x86-64-v5"  # no machine has it


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "plan9"), (1, "aarch64"), (2, MISSING_ISA), (3, "1.13.0")],
    ids=["os", "arch", "isa", "torch"],
)
def test_compiled_for_something_else(place, value, mlp, tmp_path):
    def change(record):
        record["target"][place] = value

    assert value in loading(doctored_pte(mlp, tmp_path, change))


def test_an_instruction_set_that_this_machine_lacks(mlp, tmp_path):
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE).group(1).split())
    levels = {"x86-64-v4": "avx512f", "x86-64-v3": "avx2"}
    missing = next((level for level, flag in levels.items() if flag not in flags), None)
    if missing is None:
        pytest.skip("this machine has every level; the level that no machine has is tested above")

    def change(record):
        record["target"][2] = missing

    assert missing in loading(doctored_pte(mlp, tmp_path, change))


def test_an_unknown_device(mlp, tmp_path):
    assert "abacus" in loading(doctored_pte(mlp, tmp_path, lambda record: record.update(device=["abacus"])))


def test_compiled_code_of_another_machine_type(mlp, tmp_path):
    """The library itself, not the record, is for another architecture: its ELF header says so."""

    def elsewhere(data: bytes) -> bytes:
        return data[:18] + (183).to_bytes(2, "little") + data[20:]  # e_machine = AArch64

    assert "weightstream_so" in loading(with_library(mlp, tmp_path, elsewhere))


def test_a_damaged_compiled_library(mlp, tmp_path):
    def flip(data: bytes) -> bytes:
        return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]

    assert "weightstream_so" in loading(with_library(mlp, tmp_path, flip))


def test_a_missing_compiled_library(mlp, tmp_path):
    pte = Pte(mlp.pte)
    key = pte.payload["so_key"][0]
    pte.named_data.pop(key)
    bare = pte.save(tmp_path / "bare.pte")
    assert key in loading(Files("mlp", bare, sealed(bare, mlp.ptd, tmp_path / "sealed.ptd")))


def with_library(files: Files, folder: Path, change) -> Files:
    pte = Pte(files.pte)
    key = pte.payload["so_key"][0]
    pte.set_named_bytes(key, change(pte.named_bytes(key)))
    saved = pte.save(folder / "library.pte")
    return Files(files.name, saved, sealed(saved, files.ptd, folder / "sealed.ptd"))


# --- calls


BAD_INPUTS = {
    "no input": ((), ["'x' is missing", "it takes x"]),
    "two inputs": ((torch.zeros(8, 256), torch.zeros(8, 256)), ["positional argument 1", "it takes x"]),
    "dtype": ((torch.zeros(8, 256, dtype=torch.float64),), ["input 0"]),
    "integers": ((torch.zeros(8, 256, dtype=torch.int64),), ["input 0"]),
    "rank": ((torch.zeros(8 * 256),), ["input 0"]),
    "size": ((torch.zeros(9, 256),), ["9", "8"]),
    "inner size": ((torch.zeros(8, 255),), ["255", "256"]),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs_leave_the_handle_usable(case, mlp, reference):
    module = open_module(mlp)
    inputs, expected = BAD_INPUTS[case]
    message = error_of(lambda: module.forward(*inputs))
    for text in expected:
        assert text in message
    (found,) = run_passes(module, ZOO["mlp"].passes(1))
    assert largest_error(found, reference("mlp")[0]) <= 1e-4


@pytest.mark.models("dynamic")
@pytest.mark.parametrize("length", [1, 65])
def test_a_dynamic_size_out_of_its_range(length, exported):
    module = open_module(exported("dynamic"))
    message = error_of(lambda: module.forward(torch.zeros(1, length, 96)))
    assert str(length) in message
    assert ("64" if length == 65 else "2") in message


def test_every_refusal_above_left_the_process_able_to_run(mlp, reference):
    outputs = run_passes(open_module(mlp), ZOO["mlp"].passes(2))
    assert all(largest_error(f, e) <= 1e-4 for f, e in zip(outputs, reference("mlp"), strict=False))
