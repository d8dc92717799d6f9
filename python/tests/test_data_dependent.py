"""Sizes that depend on data: boolean masks, nonzero, unique. Every case is an output of one program."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from executorch.exir import to_edge_transform_and_lower
from support import error_of
from torch import nn
from weightstream._export import save
from weightstream._native import bindings

pytestmark = pytest.mark.cpu_only("on a GPU nonzero is refused by name")


class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, mask, rows):
        y = self.linear(x)
        number, values, some_rows = y.clone(), y.clone(), y.clone()
        number[mask] = 3.0
        values[mask] = y[mask].flip(0)
        some_rows[rows] = x[rows] * 2
        i, j = torch.where(x > 0)
        levels = (x * 2).round()
        return {
            "mask": y[mask],
            "sum": y[mask].sum(),
            "nonzero": (x > 0).nonzero(),
            "nonzero of floats": x.half().round().nonzero(),
            "argwhere": torch.argwhere(levels),
            "where": i + j,
            "masked_select": torch.masked_select(y, x > 0.5),
            "rows": y[rows],
            "columns": y[:, x[0] > 0],
            "mask and number": y[rows, 1],
            "put number": number,
            "put values": values,
            "put rows": some_rows,
            "accumulate": y.index_put((mask,), torch.ones(()), accumulate=True),
            "product": self.linear(x[rows]),
            "joined": torch.cat([y[rows], y]),
            "unique": torch.unique(levels),
            "inverse and counts": torch.unique(levels, return_inverse=True, return_counts=True)[1:],
        }


def inputs(n, seed=0):
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=made)
    return x, torch.randn(n, 8, generator=made) > 0, torch.randn(n, generator=made) > 0


def lowered(model, example, shapes=None):
    program = ws.apply_weight_offload(torch.export.export(model.eval(), example, dynamic_shapes=shapes))
    partitioner = [ws.WeightStreamPartitioner(device="cpu")]
    return to_edge_transform_and_lower(program, partitioner=partitioner, compile_config=ws.edge_compile_config())


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    model = Masks().requires_grad_(False)
    n = torch.export.Dim("n", min=1, max=32)
    edge = lowered(model, inputs(4), ({0: n}, {0: n}, {0: n}))
    folder = tmp_path_factory.mktemp("masks")
    files = str(folder / "model.pte"), str(folder / "model.ptd")
    ws.save(edge, *files)
    return model, files


@pytest.mark.parametrize("budget", ["floor", "all"])
def test_sizes_follow_the_data(masks, budget):
    model, files = masks
    specs = {"weight_offload_budget_bytes": 1 << 20} if budget == "all" else {}
    everything, nothing = [(inputs(4)[0], *(torch.full_like(m, fill) for m in inputs(4)[1:])) for fill in (True, False)]
    with ws.Module(*files, **specs) as module:
        for given in (inputs(4), inputs(32, 1), inputs(1, 2), everything, nothing, inputs(9, 3), (torch.zeros(4, 8), *inputs(4)[1:])):
            expected = model(*given)
            found = torch.utils._pytree.tree_unflatten(list(module.forward(*given)), torch.utils._pytree.tree_structure(expected))
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")
        # All places of the largest mask, at most.
        assert 0 < module.stats()["activation_peak_bytes"] < 1 << 20


class Silent(nn.Module):
    """Gives nothing: what it does stays in its buffer, and shows when that is an index that the table has no longer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(2))
        self.register_buffer("place", torch.zeros(4, dtype=torch.int64))

    def forward(self, x):
        self.place += (self.table[self.place] * x).to(torch.int64)


@pytest.fixture(scope="module")
def silent():
    return lowered(Silent().requires_grad_(False), (torch.ones(4),))


def test_a_method_without_outputs_keeps_its_state(silent, tmp_path):
    files = str(tmp_path / "model.pte"), str(tmp_path / "model.ptd")
    ws.save(silent, *files)
    with ws.Module(*files) as module:
        assert module.forward(torch.ones(4)) is None
        assert module.forward(torch.ones(4)) is None
        assert "out of bounds" in error_of(lambda: module.forward(torch.ones(4)))


def test_a_program_that_cannot_be_loaded_is_told_at_once(silent, tmp_path, monkeypatch):
    files = tmp_path / "model.pte", tmp_path / "model.ptd"
    write = save._write_with_checksum
    monkeypatch.setattr(save, "_write_with_checksum", lambda weights, method, checksum, file: write(weights, method, checksum ^ 1, file))
    text = error_of(lambda: ws.save(silent, *files), ws.ExportError)
    assert text.startswith("the program was written and cannot be loaded: ")
    assert text.removeprefix("the program was written and cannot be loaded: ") in error_of(lambda: ws.Module(*files))
    ws.save(silent, *files, check=False)


def test_without_the_native_library_nothing_is_loaded(silent, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WEIGHTSTREAM_LIBRARY", str(tmp_path / "absent.so"))
    bindings.library.cache_clear()
    try:
        ws.save(silent, tmp_path / "model.pte", tmp_path / "model.ptd")
    finally:
        bindings.library.cache_clear()
    assert "the files were not loaded to check them" in capfd.readouterr().err
