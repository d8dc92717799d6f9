"""Tables of which kernels only look rows up are read in place: neither copied nor part of the budget."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from device_under_test import DEVICE, exact_products
from doctor import Pte
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch.export import Dim

ROWS, DIM, LENGTH = 1000, 64, 6


class Lookup(nn.Module):
    """A table, a layer, and the table again if it is tied."""

    def __init__(self, tied: bool):
        super().__init__()
        self.embed = nn.Embedding(ROWS, DIM)
        self.layer = nn.Linear(DIM, DIM)
        self.head = nn.Linear(DIM, ROWS if tied else DIM, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.layer(self.embed(tokens))))


class Program:
    """An exported model, with its inputs and what it should give."""

    def __init__(self, folder, tied: bool, length: Dim | None = None):
        torch.manual_seed(3)
        model = Lookup(tied).eval()
        self.tokens = torch.randint(0, ROWS, (LENGTH,))
        shapes = None if length is None else ({0: length},)
        exact_products()
        program = torch.export.export(model, (self.tokens,), dynamic_shapes=shapes)
        self.pte, self.ptd = str(folder / "model.pte"), str(folder / "model.ptd")
        edge = to_edge_transform_and_lower(
            ws.apply_weight_offload(program),
            partitioner=[ws.WeightStreamPartitioner(device=DEVICE)],
            compile_config=ws.edge_compile_config(),
        )
        ws.save(edge, self.pte, self.ptd)
        self.record = Pte(self.pte).payload
        with torch.no_grad():
            self.expected = model(self.tokens)

    def run(self, **options):
        """Output and counters of the third pass."""
        with ws.Module(self.pte, self.ptd, **options) as module:
            for _ in range(3):
                output = module(self.tokens)
            return output, module.stats()

    def reads(self, fqn: str) -> list[int]:
        """The probes of a weight."""
        names = self.record["fqns"]
        return [probe for probe, weight in enumerate(self.record["probes"]) if names[weight] == fqn]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("plain"), tied=False)


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="module")
def unbounded(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("unbounded"), tied=False, length=Dim("length", min=2))


TABLE = ROWS * DIM * 4


def test_a_lookup_is_neither_copied_nor_part_of_the_budget(plain):
    (probe,) = plain.reads("embed.weight")
    assert plain.record["gathers"] == [probe, LENGTH]
    output, stats = plain.run()
    assert torch.allclose(output, plain.expected, atol=1e-5)
    assert stats["gathered_bytes"] == TABLE
    assert stats["total_weight_bytes"] < TABLE
    assert stats["floor_bytes"] < TABLE
    assert ws.required_budget(plain.pte) == stats["floor_bytes"]
    assert stats["bytes_copied_last_pass"] < TABLE


def test_switched_off_it_is_a_weight_like_others(plain):
    least = ws.required_budget(plain.pte)
    with pytest.raises(RuntimeError, match=r"embed\.weight: 256000"):
        plain.run(weight_offload_budget_bytes=least, weight_offload_gather="off")
    output, stats = plain.run(weight_offload_gather="off", weight_offload_policy="lru")
    assert torch.equal(output, plain.run()[0])
    assert stats["gathered_bytes"] == 0
    assert stats["floor_bytes"] > TABLE
    assert stats["total_weight_bytes"] > TABLE


def test_a_budget_for_everything_holds_the_table_too(plain):
    _, stats = plain.run()
    short = stats["total_weight_bytes"] + stats["direct_bytes"]
    whole = short + -(-TABLE // 512) * 512
    for budget, gathered in ((short, TABLE), (whole - 512, TABLE), (whole, 0)):
        output, stats = plain.run(weight_offload_budget_bytes=budget)
        assert torch.allclose(output, plain.expected, atol=1e-5)
        assert (stats["gathered_bytes"], stats["bytes_copied_last_pass"]) == (gathered, 0)


def test_a_tied_table_is_looked_up_in_place_and_streamed_for_the_product(tied):
    lookup, product = tied.reads("embed.weight") or tied.reads("head.weight")
    assert tied.record["gathers"] == [lookup, LENGTH]
    assert product != lookup
    output, stats = tied.run()
    assert torch.allclose(output, tied.expected, atol=1e-5)
    assert stats["gathered_bytes"] == TABLE
    assert stats["total_weight_bytes"] > TABLE


def test_without_a_bound_of_rows_it_is_asked_for(unbounded):
    (probe,) = unbounded.reads("embed.weight")
    assert unbounded.record["gathers"] == [probe, -1]
    assert unbounded.run()[1]["gathered_bytes"] == 0
    output, stats = unbounded.run(weight_offload_gather="on")
    assert torch.allclose(output, unbounded.expected, atol=1e-5)
    assert stats["gathered_bytes"] == TABLE
    assert stats["floor_bytes"] < TABLE < ws.required_budget(unbounded.pte)


def test_verified_at_every_read(plain):
    output, stats = plain.run(weight_offload_verify="every_read")
    assert torch.allclose(output, plain.expected, atol=1e-5)
    assert stats["gathered_bytes"] == TABLE


def test_an_unknown_word_is_refused(plain):
    with pytest.raises(RuntimeError, match="weight_offload_gather"):
        plain.run(weight_offload_gather="yes")


@pytest.mark.skipif(DEVICE != "cuda", reason="the CPU copies from the mapping")
def test_a_staged_file_need_not_be_in_memory(plain):
    output, stats = plain.run(weight_offload_host="staged", weight_offload_staging_mb=8)
    assert torch.allclose(output, plain.expected, atol=1e-5)
    assert stats["gathered_bytes"] == 0
    with pytest.raises(RuntimeError, match=r"weight_offload_gather.*staged"):
        plain.run(weight_offload_host="staged", weight_offload_staging_mb=8, weight_offload_gather="on")


@pytest.mark.skipif(DEVICE != "cuda", reason="the CPU copies from the mapping")
def test_a_pinned_copy_is_read_in_place_as_well(plain):
    output, stats = plain.run(weight_offload_host="pinned")
    assert torch.allclose(output, plain.expected, atol=1e-5)
    assert stats["gathered_bytes"] == TABLE
