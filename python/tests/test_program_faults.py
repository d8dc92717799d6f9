"""Programs that `program_fuzz.py` found wrong, as small as they get. All of them share one export."""

from __future__ import annotations

import copy

import pytest
import torch
import weightstream as ws
from device_under_test import DEVICE
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from zoo import largest_error


class CopyingReshape(nn.Module):
    """A reshape copies in the example's layout, and what it was made of is written later. Of dense rows it would be a view."""

    def forward(self, x):
        y = x.clone()
        kept = y.reshape(-1)
        y.copy_(x * 2)
        return kept, y


class CopyingReshapeOfState(nn.Module):
    """The same of a buffer with gaps."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4, 6)[:, :4], persistent=False)

    def forward(self, x):
        kept = self.state.reshape(-1)
        self.state.add_(x)
        return kept, self.state.sum()


class Transposed(nn.Module):
    """Buffers that are not persistent, dense in another order of dimensions; one is not read."""

    def __init__(self):
        super().__init__()
        self.register_buffer("unread", torch.ones(3, 4).t(), persistent=False)
        self.register_buffer("table", torch.randn(4, 4).t(), persistent=False)

    def forward(self, x):
        return (x + self.table,)


class NewState(nn.Module):
    """A buffer's new value that was computed by something which is never the buffer itself: stored, stored again and returned."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(4, 4))
        self.register_buffer("second", torch.zeros(4, 4))

    def forward(self, x):
        new = torch.tanh(x + self.first)
        self.first.copy_(new)
        self.second.copy_(new)
        return new, self.first, self.second


class IndexOfOne(nn.Module):
    """A row that is read and written where a tensor of one number says, negative too."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(3, 4))
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("place", torch.tensor(-3))

    def forward(self, x):
        self.cache[:, self.place] = x[0]
        row = self.rows[self.place] * 2
        self.place.add_(1)
        return row, self.cache


class NarrowNumbers(nn.Module):
    """Tensors of one number whose dtype a Python number beside them must not change."""

    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.tensor(1, dtype=torch.int32))
        self.register_buffer("scale", torch.tensor(3, dtype=torch.bfloat16))

    def forward(self, x):
        self.step.add_(1)
        return self.step * 2, self.step, self.scale * 0.5, self.step + 0.5


class CastAndBroadcast(nn.Module):
    """Stores of another dtype, and of fewer elements than the buffer has; one of a part of a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.zeros(4, 4, dtype=torch.int64))
        self.register_buffer("wide", torch.zeros(2, 4, 4))
        self.register_buffer("part", torch.zeros(4, 4, dtype=torch.int64))

    def forward(self, x):
        self.counts.copy_(x * 3 + self.counts)
        self.wide.copy_(x)
        self.part[:2] = x[0] * 5
        return self.counts, self.wide, self.part


class OldStateIntoState(nn.Module):
    """A buffer takes the old value of another one that is written too; one has gaps, so that the program is traced again."""

    def __init__(self):
        super().__init__()
        self.register_buffer("gaps", torch.arange(24.0).view(4, 6)[:, :4])
        self.register_buffer("other", torch.ones(4, 4))

    def forward(self, x):
        self.other.copy_(self.gaps)
        self.gaps.copy_(self.gaps.flip(0) + 1)
        return self.other, self.gaps.sum()


#: torch 2.11 cannot export an index that is a tensor of one number.
INDEX_OF_ONE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)
PROGRAMS = [CopyingReshape, CopyingReshapeOfState, Transposed, NewState, NarrowNumbers, CastAndBroadcast, OldStateIntoState] + [
    IndexOfOne
] * INDEX_OF_ONE


class Programs(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.parts = nn.ModuleList(make() for make in PROGRAMS)

    def forward(self, x):
        return [y for part in self.parts for y in part(x)] + [x @ self.weight]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Found and expected outputs of three passes, by program."""
    folder = tmp_path_factory.mktemp("faults")
    torch.manual_seed(1)
    model, x = Programs().eval().requires_grad_(False), torch.randn(4, 4).t()
    # On the CPU: `to` would close a buffer's gaps, and a copying reshape would become a view.
    eager = copy.deepcopy(model)
    program = torch.export.export(model, (x,))
    edge = to_edge_transform_and_lower(
        ws.apply_weight_offload(program), partitioner=[ws.WeightStreamPartitioner(device=DEVICE)], compile_config=ws.edge_compile_config()
    )
    ws.save(edge, folder / "model.pte", folder / "model.ptd")
    with ws.Module(folder / "model.pte", folder / "model.ptd") as module:
        rounds = [(list(module(x)), [y.clone() for y in eager(x)]) for _ in range(3)]
    sizes = [len(part(x)) for part in copy.deepcopy(model).parts]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return {
        make: [(found[start : start + size], expected[start : start + size]) for found, expected in rounds]
        for make, start, size in zip(PROGRAMS, starts, sizes)
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_equals_eager_pytorch(program, outputs):
    for number, (found, expected) in enumerate(outputs[program]):
        assert largest_error(found, expected) <= 1e-4, f"pass {number}"


class RowOfState(nn.Module):
    """Returns a view of a buffer that it has written: torch itself cannot trace that where a tensor says which row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, 4))

    def forward(self, place):
        self.rows.add_(1)
        return self.rows[place]


@pytest.mark.no_runtime
@pytest.mark.skipif(not INDEX_OF_ONE, reason="torch 2.11 refuses the export itself")
def test_a_row_of_written_state_that_is_returned_as_a_view_is_refused():
    program = torch.export.export(RowOfState(), (torch.tensor(1),))
    with pytest.raises(ws.ExportError, match=r"aten.item.*clone"):
        ws.apply_weight_offload(program)
