"""`ws.torch.offload`: a head that is much larger than the other weights does not set the least budget.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import weightstream as ws
from checkpoint_files import save
from device_under_test import ON_GPU
from test_offload import DEVICE, PAGE, WIDTH, _inference, everything, least  # noqa: F401
from torch import nn
from weightstream._native import rows as cutting

pytestmark = pytest.mark.no_export
#: With sixteen pages a piece, and sixteen pieces.
ROWS = 16 * 16 * PAGE // (4 * WIDTH)


class Scaled(nn.Embedding):
    """As Gemma has it."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return super().forward(words) * 3


class Words(nn.Module):
    def __init__(self, table: type[nn.Embedding] = nn.Embedding, tied: bool = True, bias: bool = False, read: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = table(ROWS, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, ROWS, bias)
        self.read = read
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.embed(words))
        # Whole rows, of which no piece has all.
        more = self.head.weight[::100].sum() if self.read else 0.0
        return self.head(hidden) + more


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are giants from 64 pages on."""
    monkeypatch.setattr(cutting, "_LARGE", 64 * PAGE)
    monkeypatch.setattr(cutting, "_LEAST_PIECE", 16 * PAGE)
    monkeypatch.setattr(cutting, "_TILE", 1)


def words(count: int = 7) -> torch.Tensor:
    found = torch.randint(0, ROWS, (2, count), generator=torch.Generator().manual_seed(count))
    # The first and the last word of a piece, and of all.
    found[0, :4] = torch.tensor([0, ROWS // 16 - 1, ROWS // 16, ROWS - 1])
    return found.to(DEVICE)


def in_pieces(model: Words) -> torch.Tensor:
    """What a model computes on the device whose head multiplies by some rows at a time."""
    other = copy.deepcopy(model).to(DEVICE)

    def product(given: torch.Tensor) -> torch.Tensor:
        weight, bias = other.head.weight, other.head.bias
        ends = list(itertools.pairwise(cutting.cuts(weight)))
        assert len(ends) == 16
        return torch.cat([F.linear(given, weight[a:b], None if bias is None else bias[a:b]) for a, b in ends], -1)

    other.head.forward = product
    return other(words())


CASES = {
    "tied": {},
    "untied": {"tied": False},
    "a bias": {"tied": False, "bias": True},
    "a table that scales": {"table": Scaled},
}


@pytest.mark.parametrize("case", CASES)
def test_a_head_is_computed_in_pieces_at_every_budget(case):
    model = Words(**CASES[case]).eval()
    expected, names = in_pieces(model), list(model.state_dict())
    floor, whole = least(model, words()), everything(model)
    # Three pieces, what the table's rows take, and the layers: not the head.
    assert floor < model.head.weight.nbytes // 2
    for budget in (floor, (floor + whole) // 2, whole + 64 * PAGE):
        with ws.torch.offload(model, budget=budget, device=DEVICE) as handle:
            for _ in range(3):
                assert torch.equal(model(words()), expected)
            assert list(model.state_dict()) == names
            assert list(dict(model.named_modules())) == ["", "embed", "layers", "layers.0", "layers.1", "layers.2", "head"]
            stats = handle.stats()
            assert (stats["recorded"], stats["astray"], stats["peak_bytes"] <= budget) == (1, 0, True)
            assert stats["resident"] or budget < whole
            assert model.head(torch.ones(1, WIDTH, device=DEVICE)).shape == (1, ROWS), "an entry of its own"
    assert list(model.state_dict()) == names
    assert "forward" not in model.head.__dict__


@pytest.mark.skipif(ON_GPU, reason="a GPU says so in a later call, and is of no use afterwards")
@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_a_word_that_the_table_has_not_is_an_error(wrong):
    model = Words().eval()
    expected = in_pieces(model)
    with ws.torch.offload(model, device=DEVICE, example=(words(),)):
        with pytest.raises(IndexError):
            model(torch.tensor([[wrong]]))
        assert torch.equal(model(words()), expected)


@pytest.mark.parametrize("whole", [False, True])
def test_what_reads_a_giant_otherwise_has_it_whole(whole):
    model = Words(read=True).eval()
    expected = copy.deepcopy(model).to(DEVICE)(words())
    with ws.torch.offload(model, budget=2 * everything(model) if whole else None, device=DEVICE) as handle:
        found = [model(words()) for _ in range(4)]
        # The pass that finds it out computes the product in pieces.
        assert torch.allclose(found[0], expected, atol=1e-4)
        assert all(torch.equal(one, expected) for one in found[1:])
        stats = handle.stats()
        assert (stats["recorded"], stats["astray"]) == (2, 0)
        assert whole or stats["floor_bytes"] > model.head.weight.nbytes


def _first_column(model: Words) -> None:
    model.head.weight.data[:, 0] = 1


CHANGES: dict[str, Callable[[Words], object]] = {
    "a write": lambda model: model.head.weight.mul_(3),
    "a write through data": _first_column,
    "a parameter is replaced": lambda model: setattr(model.head, "weight", nn.Parameter(model.head.weight.detach().cpu() * 2)),
    "memory is replaced": lambda model: setattr(model.head.weight, "data", model.head.weight.detach().cpu() + 1),
    "a layer is replaced": lambda model: setattr(model, "head", nn.Linear(WIDTH, ROWS)),
    "both are tied again": lambda model: setattr(model.embed, "weight", model.head.weight),
    "a state is copied": lambda model: model.load_state_dict({key: value.cpu() / 2 for key, value in model.state_dict().items()}),
}


@pytest.mark.parametrize("whole", [False, True])
def test_what_owners_change_is_seen_before_the_next_pass(whole):
    model = Words().eval()
    with ws.torch.offload(model, budget=3 * everything(model) if whole else None, device=DEVICE) as handle:
        model(words())
        for name, change in CHANGES.items():
            change(model)
            # The same, tied where this one is.
            other = Words(tied=model.head.weight is model.embed.weight, bias=model.head.bias is not None).eval()
            other.load_state_dict(model.state_dict())
            expected = in_pieces(other)
            for _ in range(3):
                assert torch.equal(model(words()), expected), name
        assert handle.stats()["resident"] == whole


def test_a_head_of_a_file_that_is_written_to(tmp_path):
    real = Words().eval()
    file = save(
        tmp_path / "model.safetensors", {key: value.contiguous() for key, value in real.state_dict().items() if key != "head.weight"}
    )
    with torch.device("meta"):
        model = Words().eval()
    with ws.torch.offload(model, weights=file, device=DEVICE):
        for _ in range(2):
            assert torch.equal(model(words()), in_pieces(real))
        for one in (model, real):
            one.head.weight[5:7] *= 2
        for _ in range(2):
            assert torch.equal(model(words()), in_pieces(real))


def test_a_head_that_is_compiled_stays_whole():
    model = Words(tied=False).eval()
    expected = copy.deepcopy(model).to(DEVICE)(words())
    model.head.compile(backend="eager")
    with ws.torch.offload(model, device=DEVICE) as handle:
        for _ in range(3):
            assert torch.equal(model(words()), expected)
        assert handle.stats()["floor_bytes"] >= model.head.weight.nbytes
