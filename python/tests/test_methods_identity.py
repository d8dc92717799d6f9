"""Which constants of a program's methods are one weight or one state; all refusals come before the first compilation."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
import weightstream as ws
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.lowered_backend_module import get_lowered_submodules
from methods_support import DIRECT, MUTABLE, WEIGHT, Net, Norms, Reads, Scaled, Wrapped, lower, refused, refused_map, weight_entries
from support import error_of
from torch import nn
from weightstream._export.compile import identity, spool
from weightstream._export.compile.describe import Stored

pytestmark = [pytest.mark.no_runtime, pytest.mark.cpu_only("names and bytes are the same for every device")]

# Which weights are one


def test_a_wrapper_changes_names_and_no_weight(write):
    net = Net()
    files = write([ws.WeightStreamPartitioner(shared_state={"b.inner.cache": "a.cache"})], a=net, b=Wrapped(net))
    assert files.keys("b") == {"inner.weight": "weight", "inner.bias": "bias", "inner.cache": "cache"}
    assert files.keys("a") == {"weight": "weight", "bias": "bias", "cache": "cache"}
    assert set(weight_entries(files.ptd)) == {"weight", "bias", "cache"}


def test_the_first_method_by_name_gives_the_key(write):
    net = Net()
    files = write([ws.WeightStreamPartitioner(shared_state={"a.inner.cache": "b.cache"})], b=net, a=Wrapped(net))
    assert files.keys("b") == {"weight": "inner.weight", "bias": "inner.bias", "cache": "cache"}


def test_a_tied_weight_is_one_in_two_methods(write):
    table = nn.Embedding(8, 8)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm_head = nn.Linear(8, 8, bias=False)
            self.lm_head.weight = table.weight

        def forward(self, x):
            return self.lm_head(x)

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def forward(self, x):
            return self.table(x.to(torch.int64).abs())

    files = write(embed=Look(), head=Head())
    assert files.keys("embed") == {"table.weight": "table.weight"}
    assert files.keys("head") == {"lm_head.weight": "table.weight"}


def test_equal_weights_are_one_and_equal_states_are_not(write):
    norms = Norms()
    files = write(prefill=norms, decode=norms)
    assert files.keys("decode") == {"one": "one", "two": "one", "keys": "keys", "values": "values"}
    # All that a pass reads is one weight of 64 bytes, beside two states.
    assert files.records["decode"]["floor"] == [3 * 64]


def test_names_of_one_library_are_never_one_by_name(write):
    files = write(prefill=Scaled(1.0, 2.0), decode=Scaled(3.0, 4.0))
    (one,) = [key for fqn, key in files.keys("decode").items() if "tensor_constant" in fqn]
    (other,) = [key for fqn, key in files.keys("prefill").items() if "tensor_constant" in fqn]
    assert one == "_tensor_constant0"
    assert other == "prefill/_tensor_constant0"
    entries = weight_entries(files.ptd)
    assert entries[one] == struct.pack("<8f", *(3.0, 4.0) * 4)
    assert entries[other] == struct.pack("<8f", *(1.0, 2.0) * 4)


class Times(Net):
    """ExecuTorch makes a buffer of the number, `_lifted_tensor_constantN`."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x):
        return super().forward(x) * self.number


def test_numbers_that_executorch_makes_buffers_of_have_no_name(write):
    files = write(prefill=Times(1.5), decode=Times(2.5))
    values = {}
    for method in ("prefill", "decode"):
        keys = [key for key in files.keys(method).values() if "tensor_constant" in key]
        values[method] = {struct.unpack("<f", weight_entries(files.ptd)[key]) for key in keys if len(weight_entries(files.ptd)[key]) == 4}
    assert (1.5,) in values["prefill"] - values["decode"]
    assert (2.5,) in values["decode"] - values["prefill"]


def test_names_of_one_library_are_one_by_bytes(write):
    files = write(prefill=Scaled(1.0, 2.0), decode=Scaled(1.0, 2.0))
    assert files.keys("prefill") == files.keys("decode")


def test_a_weight_of_one_method_may_be_direct_in_another(write):
    class Bare(nn.Module):
        def __init__(self, table: torch.Tensor) -> None:
            super().__init__()
            self.table = table

        def forward(self, x):
            return x + self.table

    class Owned(nn.Module):
        def __init__(self, table: torch.Tensor) -> None:
            super().__init__()
            self.owned = nn.Parameter(table, requires_grad=False)

        def forward(self, x):
            return x * self.owned

    table = torch.arange(8.0)
    files = write(bare=Bare(table), owned=Owned(table.clone()))
    (fqn,) = files.keys("bare")
    assert files.keys("owned") == {"owned": files.keys("bare")[fqn]}
    assert (files.kinds("bare")[fqn], files.kinds("owned")["owned"]) == (DIRECT, WEIGHT)
    assert len(weight_entries(files.ptd)) == 1
    assert files.records["bare"]["floor"] == [64]
    assert files.records["owned"]["floor"] == [64 + 64]


def test_without_offloading_all_is_direct_and_shared(write):
    net = Net()
    files = write([ws.WeightStreamPartitioner(offload=False)], prefill=net, decode=net)
    for method in files.records:
        assert files.kinds(method) == {"weight": DIRECT, "bias": DIRECT, "cache": MUTABLE}
        assert files.records[method]["floor"] == [256 + 64 + 64]
    assert set(weight_entries(files.ptd)) == {"weight", "bias", "cache"}


def stored(fqn: str, data: bytes, sizes: tuple[int, ...], strides: tuple[int, ...], kind: int = WEIGHT) -> Stored:
    return Stored(fqn, kind, torch.float32, sizes, strides, 0, spool.Spool().put(memoryview(data)))


def test_equal_bytes_in_another_order_or_shape_are_another_weight():
    methods = {
        "a": [stored("w", b"1234" * 4, (2, 2), (2, 1)), stored("v", b"1234" * 4, (2, 2), (1, 2)), stored("u", b"1234" * 4, (4,), (1,))],
        "b": [stored("x", b"1234" * 4, (2, 2), (2, 1)), stored("w", b"1234" * 4, (4, 1), (1, 1))],
    }
    assert identity.keys_of(methods, {}) == {"a": ["w", "v", "u"], "b": ["w", "b/w"]}


def test_a_key_never_means_two_things():
    """A name that a state has, and one that looks like a key that was made."""
    data = [bytes([n]) * 4 for n in range(4)]
    methods = {
        "a": [stored("cache", data[0], (1,), (1,)), stored("b/w", data[1], (1,), (1,)), stored("w", data[1], (1,), (1,))],
        "b": [stored("cache", data[2], (1,), (1,), MUTABLE), stored("w", data[3], (1,), (1,)), stored("b/w", data[2], (1,), (1,))],
    }
    keys = identity.keys_of(methods, {"b": {"cache": "cache"}})
    assert keys == {"a": ["a/cache", "b/w", "b/w"], "b": ["cache", "w", "b/b/w"]}


@pytest.mark.parametrize("change", ["bytes", "shape", "dtype"])
def test_one_name_with_other_values_is_refused(change, quick):
    other = Net(seed=1) if change == "bytes" else Net()
    if change == "shape":
        other.bias = nn.Parameter(other.bias[:1].clone(), requires_grad=False)
    if change == "dtype":
        other.bias = nn.Parameter(other.bias.double(), requires_grad=False)
    text = refused(prefill=Net(), decode=other)
    assert "'weight'" in text if change == "bytes" else "'bias'" in text
    assert "method 'decode'" in text
    assert "method 'prefill'" in text
    assert quick == []


def test_not_a_number_is_itself(quick):
    one, other = Net(), Net()
    for net in (one, other):
        net.bias.fill_(float("nan"))
    lower(prefill=one, decode=other)
    other.bias[0] = -float("nan")
    other.bias.view(torch.int32)[0] ^= 1
    assert "'bias'" in refused(prefill=one, decode=other)


# State


def test_a_buffer_that_another_method_writes_is_state(write, quick):
    net = Net(state=(4, 8))
    files = write(write=net, read=Reads(net.cache))
    assert files.kinds("read") == {"own": WEIGHT, "cache": MUTABLE}
    assert files.keys("read")["cache"] == "cache"
    (read,) = [call for call in quick if "own" in call["probes"]]
    assert read["probes"] == ["own"]
    assert read["mutable"] == {"cache"}
    # Alone it is a weight.
    assert files.__class__(files.pte.parent, lower(read=Reads(net.cache))).kinds("read") == {"own": WEIGHT, "cache": WEIGHT}


def test_a_map_makes_state_of_a_buffer_that_is_only_read(write):
    net = Net(state=(4, 8))
    files = write([ws.WeightStreamPartitioner(shared_state={"read.seen": "write.cache"})], write=net, read=Reads(net.cache, "seen"))
    assert files.kinds("read") == {"own": WEIGHT, "seen": MUTABLE}
    assert files.keys("read")["seen"] == "cache"
    assert set(weight_entries(files.ptd)) == {"weight", "bias", "cache", "own"}


def test_a_map_can_tell_states_of_one_name_apart(write):
    class Two(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("other", torch.zeros(1, 8))

        def forward(self, x):
            self.other.add_(1)
            return super().forward(x) + self.other

    files = write([ws.WeightStreamPartitioner(shared_state={"b.cache": "a.other"})], a=Two(), b=Net())
    assert files.keys("a")["cache"] == "cache"
    assert files.keys("b")["cache"] == "other"


def test_the_map_stays_out_of_the_program_and_out_of_the_partitioner(quick):
    net = Net()
    partitioner = ws.WeightStreamPartitioner(shared_state={"b.inner.cache": "a.cache"})
    for _ in range(2):
        edge = lower([partitioner], a=net, b=Wrapped(net))
        for method in ("a", "b"):
            ((_, delegate, _),) = get_lowered_submodules(edge.exported_program(method).graph_module)
            assert [spec.key for spec in delegate.compile_specs] == ["method_name", "offload", "device", "isa", "attention", "sm"]
            assert delegate.compile_specs[0].value == method.encode()


REFUSED_MAPS = {
    "no method": ({"decode.inner.cache": "b.cache"}, ["'b.cache'", "no method", "'decode', 'prefill'"]),
    "no buffer": ({"decode.inner.cash": "prefill.cache"}, ["'decode'", "no buffer 'inner.cash'", "'inner.cache'"]),
    "parameter": ({"decode.inner.weight": "prefill.weight"}, ["'decode.inner.weight'", "parameter"]),
    "chain": ({"decode.inner.cache": "prefill.cache", "prefill.cache": "decode.inner.cache"}, ["'prefill.cache'", "'decode.inner.cache'"]),
    "itself": ({"prefill.cache": "prefill.cache"}, ["'prefill.cache'"]),
}


@pytest.mark.parametrize("case", REFUSED_MAPS)
def test_maps_that_name_the_wrong_thing_are_refused(case, quick):
    shared, words = REFUSED_MAPS[case]
    net = Net()
    text = refused_map(shared, prefill=net, decode=Wrapped(net))
    assert "shared_state" in text
    for word in words:
        assert word in text
    assert quick == []


def test_a_map_of_buffers_that_nobody_writes_is_refused(quick):
    text = refused_map({"b.seen": "a.cache"}, a=Reads(torch.ones(4, 8)), b=Reads(torch.ones(4, 8), "seen"))
    assert "'b.seen'" in text
    assert "no method writes" in text
    assert quick == []


def test_a_map_of_other_shapes_is_refused(quick):
    text = refused_map({"b.inner.cache": "a.cache"}, a=Net(), b=Wrapped(Net(state=(2, 8))))
    assert "'b.inner.cache' (float32 [2, 8])" in text
    assert "'a.cache' (float32 [1, 8])" in text
    assert quick == []


def test_two_buffers_of_one_method_are_not_one_state(quick):
    norms = Norms()
    text = refused_map({"b.inner.keys": "a.keys", "b.inner.values": "a.keys"}, a=norms, b=Wrapped(norms))
    assert "'b.inner.keys'" in text
    assert "'b.inner.values'" in text
    # By a name that is there anyway, too.
    assert "'b.keys'" in refused_map({"b.values": "a.keys"}, a=norms, b=norms)
    assert quick == []


@pytest.mark.parametrize("mapped", [False, True])
def test_a_state_that_starts_with_other_values_is_refused(mapped, quick):
    one, other = Net(), Net()
    other.cache.fill_(1)
    text = refused_map({"b.inner.cache": "a.cache"}, a=one, b=Wrapped(other)) if mapped else refused(a=one, b=other)
    assert "'cache'" in text
    assert "'a.cache'" in text
    assert ("'b.inner.cache'" if mapped else "'b.cache'") in text
    assert "other values" in text
    assert quick == []


def test_a_state_of_another_shape_is_refused(quick):
    text = refused(a=Net(), b=Net(state=(2, 8)))
    for word in ("'a.cache'", "'b.cache'", "[1, 8]", "[2, 8]"):
        assert word in text
    assert quick == []


def test_equal_state_under_other_names_is_asked_about(write, quick):
    norms = Norms()
    text = refused(prefill=norms, decode=Wrapped(norms))
    assert "shared_state={" in text
    assert '"prefill.keys": "decode.inner.keys"' in text
    assert '"prefill.values": "decode.inner.values"' in text
    assert "shared_state={}" in text
    assert quick == []
    # What it says works, and so does the other answer.
    shared = {"prefill.keys": "decode.inner.keys", "prefill.values": "decode.inner.values"}
    files = write([ws.WeightStreamPartitioner(shared_state=shared)], prefill=norms, decode=Wrapped(norms))
    assert files.keys("prefill")["keys"] == "inner.keys"
    files = write([ws.WeightStreamPartitioner(shared_state={})], prefill=norms, decode=Wrapped(norms))
    assert files.keys("prefill")["keys"] == "keys"
    assert {"keys", "values", "inner.keys", "inner.values"} <= set(weight_entries(files.ptd))


def test_a_third_method_with_another_name_is_asked_about(quick):
    net = Net()
    text = refused(a=net, b=net, c=Wrapped(net))
    assert '{"c.inner.cache": "a.cache"}' in text
    assert quick == []
    lower([ws.WeightStreamPartitioner(shared_state={"c.inner.cache": "b.cache"})], a=net, b=net, c=Wrapped(net))
    # What the error shows for three names can be given as it stands.
    modules = {"a": net, "b": Wrapped(net), "c": Wrapped(Wrapped(net))}
    text = refused(**modules)
    shown = {"b.inner.cache": "a.cache", "c.inner.inner.cache": "a.cache"}
    assert str(shown).replace("'", '"') in text
    lower([ws.WeightStreamPartitioner(shared_state=shown)], **modules)


def test_state_of_other_shapes_is_not_asked_about(quick):
    small = Net(state=(3, 8))
    lower(prefill=Net(), decode=Wrapped(small))
    assert len(quick) == 2


def test_many_pairs_are_counted(quick):
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number in range(12):
                self.register_buffer(f"cache{number}", torch.zeros(8))

        def forward(self, x):
            for number in range(12):
                getattr(self, f"cache{number}").add_(x[0])
            return x + self.cache11

    many = Many()
    text = refused(prefill=many, decode=Wrapped(many))
    assert text.count("prefill.cache") == 8
    assert "4 more" in text


def test_a_state_that_is_read_elsewhere_under_another_name_is_asked_about(quick):
    """The same memory: a decoder would read what the encoder's buffer held at export, for ever."""
    net = Net(state=(4, 8))
    text = refused(encoder=net, decoder=Reads(net.cache, "memory"))
    assert '"decoder.memory": "encoder.cache"' in text
    assert quick == []
    lower([ws.WeightStreamPartitioner(shared_state={})], encoder=net, decoder=Reads(net.cache, "memory"))
    # Equal bytes in other memory are nothing to ask about.
    lower(encoder=net, decoder=Reads(net.cache.clone(), "memory"))


def test_a_state_that_is_read_as_a_bare_tensor_is_refused(quick):
    net = Net()

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = [net.cache]

        def forward(self, x):
            return x + self.held[0]

    for partitioner in (None, [ws.WeightStreamPartitioner(shared_state={})]):
        text = refused(partitioner, encoder=net, decoder=Bare())
        assert "register_buffer" in text
        assert "'decoder'" in text
        assert "'encoder.cache'" in text
    assert quick == []


def test_a_map_for_one_method_says_nothing_or_is_refused(quick):
    lower([ws.WeightStreamPartitioner(shared_state={})], forward=Net())
    assert "'decode.cache'" in refused_map({"decode.cache": "forward.cache"}, forward=Net())


def test_two_maps_are_refused(quick):
    net = Net()

    def own(shared: Any) -> list[Partitioner]:
        return [ws.WeightStreamPartitioner(shared_state=shared)]

    text = refused({"a": own({}), "b": own({"b.inner.cache": "a.cache"})}, a=net, b=Wrapped(net))
    assert "'a'" in text
    assert "'b'" in text
    lower({"a": own(None), "b": own({"b.inner.cache": "a.cache"})}, a=net, b=Wrapped(net))


def test_a_map_is_a_dictionary_of_names():
    for wrong in (["a.cache"], {"a.cache": 1}):
        assert "shared_state" in error_of(lambda wrong=wrong: ws.WeightStreamPartitioner(shared_state=wrong), TypeError)
