"""Weights that are much larger than the others are cut into rows: one head does not set the least budget."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
import weightstream as ws
from device_under_test import DEVICE, exact_products
from torch import nn
from torch.export import Dim
from weightstream._export.passes.prepare import prepare
from weightstream._native import rows as cutting

ROWS, WIDTH = 6000, 64
MIB = 1 << 20


class Tied(nn.Module):
    """A table, layers, and a head with a bias, which is the table again."""

    def __init__(self, other: bool = False):
        super().__init__()
        self.embed = nn.Embedding(ROWS, WIDTH)
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.head = nn.Linear(WIDTH, ROWS)
        self.head.weight = self.embed.weight
        self.other = other

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        # An input named as an operator is: new nodes get other names.
        y = self.head(torch.relu(self.layers(self.embed(t))))
        return y + self.head.weight.sum() if self.other else y


@pytest.fixture
def small(monkeypatch):
    """Weights are giants from a MB on."""
    monkeypatch.setattr(cutting, "_LARGE", MIB)
    monkeypatch.setattr(cutting, "_LEAST_PIECE", MIB // 4)


def tokens(count: int = 7) -> torch.Tensor:
    return torch.randint(0, ROWS, (2, count), generator=torch.Generator().manual_seed(count))


def fqns(program: torch.export.ExportedProgram) -> list[str]:
    return [spec.target for spec in program.graph_signature.input_specs if spec.target]


@pytest.mark.no_runtime
@pytest.mark.parametrize(
    ("rows", "columns", "pieces"),
    [(49152, 576, 14), (151936, 4096, 19), (14336, 4096, 1), (4096, 14336, 1), (6000, 64, 1), (53248, 16384, 26), (1 << 20, 64, 16)],
)
def test_which_weights_are_cut(rows, columns, pieces):
    """The heads of SmolLM2 and of 8B models, and no other weight of theirs; and what is huge."""
    weight = torch.empty(rows, columns, device="meta", dtype=torch.bfloat16)
    bounds = cutting.cuts(weight)
    assert len(bounds) - 1 == (pieces if pieces > 1 else -1)
    sizes = [(end - begin) * columns * 2 for begin, end in itertools.pairwise(bounds)]
    assert all(size <= 64 * MIB for size in sizes)


@pytest.mark.no_runtime
def test_what_reads_it_otherwise_keeps_it_whole(small):
    program = torch.export.export(Tied(other=True).eval(), (tokens(),))
    assert "embed.weight" in fqns(prepare(program))


@pytest.mark.no_runtime
def test_a_program_is_cut_once_and_the_users_is_left_alone(small):
    model = Tied().eval()
    program = torch.export.export(model, (tokens(),))
    cut = prepare(program)
    names = fqns(cut)
    assert sum(".rows_" in name for name in names) == 6
    assert sorted(fqns(prepare(cut))) == sorted(names)
    assert "embed.weight" in fqns(program)
    with torch.no_grad():
        assert torch.allclose(cut.module()(tokens()), model(tokens()), atol=1e-5)


def test_a_tied_head_at_its_floor_and_with_everything(small, tmp_path):
    torch.manual_seed(1)
    exact_products()
    model = Tied().eval()
    pte, ptd = tmp_path / "model.pte", tmp_path / "model.ptd"
    ws.export(model, (tokens(),), pte, ptd, device=DEVICE, dynamic_shapes=({1: Dim("length", min=2, max=32)},))
    weights = sum(one.nbytes for one in model.parameters())
    # One copy in the file, and a budget for three pieces. The table is read in place: 64 of 6,000 rows in a pass.
    assert os.path.getsize(ptd) < weights * 1.1
    assert ws.required_budget(pte) < weights * 0.7
    outputs = []
    for budget in (ws.required_budget(pte), 2 * weights):
        with ws.Module(str(pte), str(ptd), weight_offload_budget_bytes=budget) as module:
            outputs.append([module.forward(tokens(count)) for count in (7, 2, 32, 7)])
    for count, least, most in zip((7, 2, 32, 7), *outputs):
        assert torch.equal(least, most)
        with torch.no_grad():
            assert torch.allclose(least.cpu(), model(tokens(count)), atol=1e-5)


@pytest.mark.cpu_only("what is read in place is the same for every device")
def test_a_table_in_pieces_is_read_in_place_by_its_rows_as_a_whole(small, tmp_path):
    """A pass takes up to 1,500 of 6,000 rows: more than a piece has, and less than half of the table."""
    model = Tied().eval()
    pte, ptd = tmp_path / "model.pte", tmp_path / "model.ptd"
    ws.export(model, (tokens(),), pte, ptd, dynamic_shapes=({1: Dim("length", min=2, max=750)},))
    given = tokens(750)
    with ws.Module(str(pte), str(ptd), weight_offload_budget_bytes=ws.required_budget(pte)) as module:
        found = module.forward(given)
        assert module.stats()["gathered_bytes"] == model.embed.weight.nbytes
    with torch.no_grad():
        assert torch.allclose(found, model(given), atol=1e-5)
