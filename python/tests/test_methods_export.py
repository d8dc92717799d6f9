"""Programs of several methods: what the files hold, how they are lowered, and what is refused."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import pytest
import torch
import weightstream as ws
from doctor import INFIX, Ptd, decode_others, decode_payload, payloads
from executorch.exir import EdgeProgramManager
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.lowered_backend_module import get_lowered_submodules
from methods_support import DIRECT, MUTABLE, WEIGHT, Net, Scaled, Wrapped, Written, X, exported, lower, refused, weight_entries
from support import error_of
from torch import nn
from weightstream._export.compile.backend import WeightStreamBackend
from weightstream._export.compile.spool import Slice, Spool
from weightstream._export.passes import prepare

pytestmark = [pytest.mark.no_runtime, pytest.mark.cpu_only("names and bytes are the same for every device")]


def test_methods_of_one_module_share_all_that_it_holds(write):
    net = Net()
    files = write(prefill=net, decode=net)
    for method in ("prefill", "decode"):
        assert files.records[method]["format_version"] == [5]
        assert files.keys(method) == {"weight": "weight", "bias": "bias", "cache": "cache"}
        assert files.kinds(method) == {"weight": WEIGHT, "bias": WEIGHT, "cache": MUTABLE}
        # The state counts once.
        assert files.records[method]["floor"] == [64 + 256 + 64]
    assert set(weight_entries(files.ptd)) == {"weight", "bias", "cache"}
    assert weight_entries(files.ptd)["weight"] == net.weight.numpy().tobytes()


def test_each_payload_holds_the_records_of_all_others_by_name(write):
    net = Net()
    files = write(prefill=net, decode=net, again=net)
    for method, payload in files.payloads.items():
        others = [files.records[name] for name in sorted(files.records) if name != method]
        assert decode_others(payload) == others
    assert [record["method"] for record in files.records.values()] == [[name] for name in files.payloads]


def test_constant_methods_and_checksums_are_those_of_every_method(write):
    from executorch.exir._serialize._program import deserialize_pte_binary

    net = Net()
    files = write(prefill=net, decode=net)
    plans = {plan.name for plan in deserialize_pte_binary(files.pte.read_bytes()).program.execution_plan}
    for method, record in files.records.items():
        assert {f"{method}{INFIX}{field}" for field in record} <= plans
    entries = Ptd(files.ptd)
    head = files.pte.read_bytes()
    crc = entries.bytes_of("weightstream_program_crc32_prefill")
    assert crc[4:] == bytes(28)
    assert crc == entries.bytes_of("weightstream_program_crc32_decode")
    assert crc[:4] == struct.pack("<I", zlib.crc32(head[: int.from_bytes(head[24:32], "little")]))
    for method in files.records:
        assert entries.bytes_of(f"weightstream_build_id_{method}").hex() == files.records[method]["build_id"][0]


def test_the_build_id_is_one_and_follows_every_method(write):
    one, other, own = Net(), Net(seed=1), [ws.WeightStreamPartitioner(shared_state={})]
    ids = [
        {record["build_id"][0] for record in write(own, prefill=first, decode=second).records.values()}
        for first, second in ((one, one), (Wrapped(one), one), (one, Wrapped(one)), (other, other), (one, one))
    ]
    assert all(len(each) == 1 for each in ids)
    assert ids[0] == ids[-1]
    assert len(set.union(*ids)) == 4


def test_a_single_method_is_written_as_before(write):
    files = write(forward=Net())
    (record,) = files.records.values()
    assert record["format_version"] == [4]
    assert "keys" not in record
    # Nor is there a slot for other methods in the table.
    payload = files.payloads["forward"]
    table = struct.unpack_from("<I", payload)[0]
    vtable = table - struct.unpack_from("<i", payload, table)[0]
    assert struct.unpack_from("<H", payload, vtable) == (6,)
    assert decode_others(payload) == []


def test_a_single_method_has_the_name_of_the_dictionary(write):
    files = write(decode=Net())
    assert files.records["decode"]["method"] == ["decode"]


def test_floors_count_the_direct_bytes_of_the_whole_program(write):
    class Literal(Net):
        def forward(self, x):
            return super().forward(x) * torch.tensor([1.0, 2.0, 3.0, 4.0] * 2)

    net, literal = Net(), Literal(state=(40, 8))
    literal.weight, literal.bias = net.weight, net.bias
    files = write([ws.WeightStreamPartitioner(shared_state={})], prefill=net, decode=Wrapped(literal))
    # Two states of 32 and 1280 bytes, and a literal of 32, in pieces of 64.
    direct = 64 + 1280 + 64
    assert sorted((kind for kind in files.records["decode"]["kinds"] if kind), reverse=True) == [MUTABLE, DIRECT]
    for record in files.records.values():
        # One kernel per probe: the pair of kernels holds both weights, and everything is all that there is.
        assert record["hard_minimum"] == [direct + 256]
        assert record["floor"] == [direct + 256 + 64]


class Nothing(Partitioner):
    """A partitioner that takes nothing."""

    def partition(self, exported_program):
        return PartitionResult(exported_program, {})


def test_partitioners_at_different_places_are_refused(quick):
    net = Net()
    places = {"a": [Nothing(), ws.WeightStreamPartitioner()], "b": [ws.WeightStreamPartitioner()]}
    text = refused(places, a=net, b=net)
    for word in ("'a'", "'b'", "same place"):
        assert word in text
    # One partitioner for both, and a lowering afterwards.
    shared = ws.WeightStreamPartitioner()
    assert "same place" in refused({"a": [Nothing(), shared], "b": [shared]}, a=net, b=net)
    lower({"a": [Nothing(), shared], "b": [Nothing(), shared]}, a=net, b=net)


def test_a_lowering_that_failed_leaves_nothing_behind(quick):
    """A program that was prepared and never lowered belongs to no later lowering."""
    shared, net = ws.WeightStreamPartitioner(), Net()
    shared.transform_for_pre_decomposition(exported(a=net)["a"])
    lower(a=net, b=net)
    lower([shared], a=net, b=net)
    lower([shared], a=net)


def test_methods_that_were_lowered_apart_are_refused_when_they_are_saved(quick, tmp_path):
    net = Net()
    apart = EdgeProgramManager({name: lower(**{name: net}).exported_program(name) for name in ("a", "b")})
    text = error_of(lambda: ws.save(apart, tmp_path / "m.pte", tmp_path / "m.ptd"), ws.ExportError)
    assert "'a'" in text
    assert "'b'" in text
    assert "same place" in text
    both = lower(a=net, b=net)
    half = EdgeProgramManager({"a": both.exported_program("a")})
    assert "'b'" in error_of(lambda: ws.save(half, tmp_path / "m.pte", tmp_path / "m.ptd"), ws.ExportError)
    other = lower(a=net, b=Scaled(1.0, 2.0))
    mixed = EdgeProgramManager({"a": both.exported_program("a"), "b": other.exported_program("b")})
    assert "together" in error_of(lambda: ws.save(mixed, tmp_path / "m.pte", tmp_path / "m.ptd"), ws.ExportError)
    assert list(tmp_path.iterdir()) == []


def test_a_method_without_a_partitioner_is_not_lowered_and_named(quick, tmp_path, capsys):
    class Plain(nn.Module):
        def forward(self, x):
            return torch.relu(x)

    net = Net()
    own = {name: [ws.WeightStreamPartitioner()] for name in ("a", "b")}
    files = Written(tmp_path, lower(own, a=net, b=net, plain=Plain()))
    assert set(files.records) == {"a", "b"}
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "'plain'" in line]
    assert "WeightStreamPartitioner" in line


def test_names_are_those_of_the_dictionary(write):
    """One partitioner of a script that names a method, and one for each method."""
    net, specs = Net(), {name: [CompileSpec("method_name", name.encode())] for name in ("a", "b")}
    for partitioner in ([ws.WeightStreamPartitioner(specs["a"])], {name: [ws.WeightStreamPartitioner(specs[name])] for name in specs}):
        files = write(partitioner, a=net, b=net)
        assert {name: record["method"] for name, record in files.records.items()} == {"a": ["a"], "b": ["b"]}


def test_offloading_on_and_off_is_refused(quick):
    net = Net()
    text = refused({"a": [ws.WeightStreamPartitioner(offload=False)], "b": [ws.WeightStreamPartitioner()]}, a=net, b=net)
    for word in ("offload", "'a'", "'b'", "False", "True"):
        assert word in text
    assert quick == []


def test_two_devices_are_refused(quick, monkeypatch):
    monkeypatch.setattr("weightstream._export.compile.target.Target._check_gpu", lambda self: None)
    net = Net()
    text = refused({"a": [ws.WeightStreamPartitioner(device="cuda")], "b": [ws.WeightStreamPartitioner()]}, a=net, b=net)
    for word in ("device", "cuda for 'a'", "cpu for 'b'"):
        assert word in text
    both = {name: [ws.WeightStreamPartitioner(device="cuda", sm=sm)] for name, sm in (("a", "80"), ("b", "90"))}
    assert "80 for 'a'" in refused(both, a=net, b=net)
    assert quick == []


def test_defaults_are_those_of_the_program(quick):
    def with_budget(value: bytes) -> list[Partitioner]:
        return [ws.WeightStreamPartitioner([CompileSpec("weight_offload_budget_mb", value)])]

    net = Net()
    edge = lower({"a": with_budget(b"5"), "b": [ws.WeightStreamPartitioner()]}, a=net, b=net)
    for method in ("a", "b"):
        ((_, delegate, _),) = get_lowered_submodules(edge.exported_program(method).graph_module)
        assert ("weight_offload_budget_mb", b"5") in [(spec.key, spec.value) for spec in delegate.compile_specs]
    text = refused({"a": with_budget(b"5"), "b": with_budget(b"6")}, a=net, b=net)
    for word in ("weight_offload_budget_mb", "'5' for 'a'", "'6' for 'b'"):
        assert word in text


# Writing


def test_stock_writers_write_the_same_weights(quick, tmp_path):
    net = Net()
    partitioner = {name: [ws.WeightStreamPartitioner()] for name in ("prefill", "decode")}
    edge = lower(partitioner, constant_methods={"get_max_seq_len": 64}, prefill=net, decode=net)
    program = edge.to_executorch()
    with (tmp_path / "stock.pte").open("wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(tmp_path))
    found = weight_entries(tmp_path / "weightstream_weights.ptd")
    ours = Written(tmp_path, edge)
    assert found == weight_entries(ours.ptd)
    assert payloads(tmp_path / "stock.pte") == ours.payloads
    assert bytes(program.buffer) == (tmp_path / "stock.pte").read_bytes()


def test_saving_twice_writes_the_same_bytes(quick, tmp_path):
    net = Net()
    edge = lower(constant_methods={"get_max_seq_len": 64}, prefill=net, decode=net)
    first = Written(tmp_path, edge)
    bytes_of_first = first.pte.read_bytes(), first.ptd.read_bytes()
    second = Written(tmp_path, edge)
    assert (second.pte.read_bytes(), second.ptd.read_bytes()) == bytes_of_first
    assert b"get_max_seq_len" in bytes_of_first[0]


def test_inputs_on_the_device_are_asked_for_once_for_all_methods(quick, tmp_path):
    net = Net()
    text = error_of(lambda: ws.save(lower(a=net, b=net), tmp_path / "m.pte", tmp_path / "m.ptd", device_io=True), ws.ExportError)
    assert "device_io" in text


def test_all_delegates_get_the_mark_of_the_device_and_the_defaults(quick):
    from weightstream._export import save

    net = Net()
    found = save._records_of(lower(a=net, b=net))
    for _, delegate in found.values():
        save._mark_device(delegate, "cuda:1")
        assert ("target_device", b"cuda:1") in [(spec.key, spec.value) for spec in delegate.compile_specs]


def test_nothing_is_copied_before_it_is_compiled():
    program = exported(a=Net())["a"]
    copied = WeightStreamBackend.copy_exported_program_for_preprocess(program, [])
    assert copied is not program
    assert copied.graph is not program.graph
    for name, value in program.state_dict.items():
        assert copied.state_dict[name].data_ptr() == value.data_ptr()
    copied._state_dict.clear()
    copied.graph_signature.input_specs.clear()
    assert program.state_dict
    assert program.graph_signature.input_specs


def test_the_models_weights_stay_as_they_are(quick, tmp_path):
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    edge = lower(a=net, b=net)
    after = net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    # What is written is what was lowered.
    net.weight.zero_()
    edge.to_executorch().write_tensor_data_to_file(str(tmp_path))
    assert before["weight"].numpy().tobytes() in (tmp_path / "weightstream_weights.ptd").read_bytes()


# The temporary file


def test_equal_bytes_are_kept_once_and_read_in_parts(monkeypatch):
    monkeypatch.setattr(Slice, "_COPY_CHUNK_SIZE", 3)
    spool = Spool()
    slices = [spool.put(memoryview(data)) for data in (b"0123456789", b"", b"abc", b"0123456789")]
    assert slices[0] is slices[3]
    assert spool._end == 13
    assert [each.to_bytes() for each in slices] == [b"0123456789", b"", b"abc", b"0123456789"]
    assert [len(each) for each in slices] == [10, 0, 3, 10]
    assert slices[2].prefix(32) == b"abc"
    assert slices[0].prefix(4) == b"0123"
    out = io.BytesIO()
    slices[0].write_to_file(out)
    assert out.getvalue() == b"0123456789"


def test_nothing_is_left_of_the_temporary_file(monkeypatch, tmp_path):

    def held() -> list[str]:
        links = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        return [name for name in (os.readlink(link) for link in links if link.is_symlink()) if name.startswith(str(tmp_path))]

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool()
    part = spool.put(memoryview(b"bytes"))
    del spool
    assert part.to_bytes() == b"bytes"
    assert list(tmp_path.iterdir()) == []
    assert held()
    del part
    assert held() == []


def test_a_full_disk_is_named(monkeypatch):
    spool = Spool()
    spool._file.close()
    spool._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 (the spool's)
    text = error_of(lambda: spool.put(memoryview(b"bytes")), ws.ExportError)
    assert "TMPDIR" in text
    assert "No space left" in text


# One call


def test_a_dictionary_in_one_call(quick, tmp_path):
    net, names = Net(), (tmp_path / "m.pte", tmp_path / "m.ptd")
    rows = torch.export.Dim("rows", min=2, max=16)
    many = torch.export.export(net.eval(), (X.repeat(3, 1),), dynamic_shapes={"x": {0: rows}})
    ws.export(
        {"prefill": many, "decode": net}, {"prefill": None, "decode": X}, *names, constant_methods={"get_max_seq_len": 16}, check=False
    )
    found = {name: decode_payload(payload) for name, payload in payloads(names[0]).items()}
    assert set(found) == {"prefill", "decode"}
    assert b"get_max_seq_len" in names[0].read_bytes()
    ws.export(
        {"prefill": net, "decode": net},
        {"prefill": X.repeat(3, 1), "decode": (X,)},
        *names,
        dynamic_shapes={"prefill": {"x": {0: rows}}},
        check=False,
    )
    again = {name: decode_payload(payload) for name, payload in payloads(names[0]).items()}
    assert again["prefill"]["inputs"] == found["prefill"]["inputs"]
    assert again["decode"]["inputs"] != again["prefill"]["inputs"]
    ws.export({"a": net, "b": Wrapped(net)}, {"a": X, "b": X}, *names, shared_state={"b.inner.cache": "a.cache"}, check=False)
    ws.export({"a": net, "b": net}, {"a": (), "b": ()}, *names, kwargs={"a": {"x": X}, "b": {"x": X}}, check=False)


WRONG_DICTIONARIES = {
    "no examples": ({"inputs": {"prefill": X}}, "'decode'"),
    "one tensor": ({"inputs": X}, "dictionary"),
    "unknown inputs": ({"inputs": {"prefill": X, "decode": X, "decoder": X}}, "decoder"),
    "unknown shapes": ({"dynamic_shapes": {"decoder": {}}}, "decoder"),
    "shapes of one": ({"dynamic_shapes": [None]}, "dynamic_shapes is a list"),
    "kwargs of one": ({"kwargs": {"x": X}}, "kwargs has entries for x"),
    "method": ({"method": "prefill"}, "keys of the dictionary"),
}


@pytest.mark.parametrize("case", WRONG_DICTIONARIES)
def test_dictionaries_that_do_not_agree_are_refused(case, quick, tmp_path):
    given, words = WRONG_DICTIONARIES[case]
    net = Net()
    arguments = {"inputs": {"prefill": X, "decode": X}, **given}
    call = lambda: ws.export({"prefill": net, "decode": net}, arguments.pop("inputs"), tmp_path / "p", tmp_path / "d", **arguments)  # noqa: E731
    assert words in error_of(call, TypeError)
    assert quick == []


def test_examples_of_an_exported_method_are_refused(quick, tmp_path):
    programs = exported(a=Net(), b=Net())
    text = error_of(lambda: ws.export(programs, {"b": X}, tmp_path / "p", tmp_path / "d"), TypeError)
    assert "method 'b'" in text
    assert "inputs" in text
    text = error_of(lambda: ws.export(programs, None, tmp_path / "p", tmp_path / "d", strict=True), TypeError)
    assert "strict" in text
    assert "empty" in error_of(lambda: ws.export({}, {}, tmp_path / "p", tmp_path / "d"), TypeError)


def test_preparing_shares_tensors_too():
    program = exported(a=Net())["a"]
    prepared = prepare.prepare(program)
    assert prepared.state_dict["weight"].data_ptr() == program.state_dict["weight"].data_ptr()
