"""`ws.torch.offload(…, packed=True)`: floating-point weights are brought packed, with the same bits; what changes is raw from then on.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import copy
import gc
import itertools
import weakref

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import weightstream as ws
from device_under_test import exact_products
from packed_types import RATIOS, WIDTH, Typed
from support import error_of
from test_offload import DEVICE, everything, expected
from test_offload_changes import CHANGES
from torch import nn
from weightstream._native import rows as cutting

pytestmark = pytest.mark.no_export


@pytest.fixture(autouse=True)
def _inference():
    exact_products()
    with torch.no_grad():
        yield


def stack(layers: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).eval().bfloat16()


def given(rows: int = 2) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH).to(DEVICE, torch.bfloat16)


def test_bits_are_the_same_at_every_budget_and_fewer_bytes_are_copied():
    module = stack(12)
    wanted, whole, floors, copied = expected(module, given()), everything(module), {}, {}
    for packed in (False, True):
        with ws.torch.offload(module, packed=packed, device=DEVICE) as handle:
            for _ in range(3):
                assert torch.equal(module(given()), wanted)
            floors[packed] = handle.stats()["floor_bytes"]
            copied[packed] = handle.stats()["bytes_copied_last_pass"]
        for budget in (floors[packed] + whole // 2, floors[packed] + 2 * whole):
            with ws.torch.offload(module, budget=budget, packed=packed, device=DEVICE) as handle:
                for _ in range(4):
                    assert torch.equal(module(given()), wanted)
                stats = handle.stats()
                assert (stats["passes"], stats["plans"], stats["recorded"], stats["astray"]) == (4, 1, 1, 0)
                if packed:
                    assert stats["packed_bytes"] == 12 * 2 * WIDTH * WIDTH
                    assert stats["packed_stored_bytes"] < 0.70 * stats["packed_bytes"]
                else:
                    assert stats["packed_bytes"] == stats["packed_stored_bytes"] == 0
        assert stats["resident"], "with room for all of it everything stays raw, and no pass asks for it"
    assert copied[True] < 0.75 * copied[False]


@pytest.mark.parametrize("dtype", RATIOS, ids=str)
def test_weights_of_each_type_compute_the_same_bits(dtype):
    torch.manual_seed(9)
    module, x = Typed(dtype).eval(), torch.randn(3, WIDTH, device=DEVICE)
    wanted, whole = expected(module, x), sum(one.nbytes for one in module.parameters())
    with ws.torch.offload(module, packed=True, device=DEVICE) as handle:
        assert all(torch.equal(module(x), wanted) for _ in range(4))
        floor = handle.stats()["floor_bytes"]
        for more in (whole // 3, whole // 2, 2 * whole, 0):
            handle.set_budget(floor + more)
            assert all(torch.equal(module(x), wanted) for _ in range(3)), f"{more} bytes over {floor}"
        stats = handle.stats()
        assert stats["packed_bytes"] == whole
        assert stats["packed_stored_bytes"] == pytest.approx(RATIOS[dtype] * whole, rel=0.02)


def test_one_budget_after_another():
    module = stack(8)
    wanted = expected(module, given())
    with ws.torch.offload(module, packed=True, device=DEVICE) as handle:
        assert torch.equal(module(given()), wanted)
        floor, whole = handle.stats()["floor_bytes"], everything(module)
        for budget in (floor + whole, floor, floor + whole // 3, floor + 2 * whole, floor + whole // 2):
            handle.set_budget(budget)
            for _ in range(2):
                assert torch.equal(module(given()), wanted)


def fresh() -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(WIDTH, WIDTH).bfloat16()


@pytest.mark.parametrize("whole", [False, True])
def test_what_owners_change_is_seen_and_raw_from_then_on(whole):
    module, reference = stack(), stack()
    changes = CHANGES | {"a layer is replaced": lambda m: m.__setitem__(2, fresh()), "a layer is appended": lambda m: m.append(fresh())}
    budget = 4 * everything(module) + (64 << 20) if whole else None
    with ws.torch.offload(module, budget=budget, packed=True, device=DEVICE) as handle:
        for _ in range(2):
            module(given())
        for name, change in changes.items():
            change(module)
            change(reference)
            for _ in range(3):
                assert torch.equal(module(given()), copy.deepcopy(reference).to(DEVICE)(given())), name
        assert handle.stats()["packed_bytes"] == 0, "all of them have changed"
    assert torch.equal(module(given().cpu()), reference(given().cpu()))


def one_raw(handle: ws.torch.Offloaded, change, wanted) -> None:
    """A change that is seen before the next pass, and makes one weight raw."""
    before = handle.stats()["packed_bytes"]
    change()
    for _ in range(3):
        assert torch.equal(handle.module(given()), wanted())
    assert handle.stats()["packed_bytes"] == before - 2 * WIDTH * WIDTH


def test_each_way_to_write_a_weight_makes_that_one_raw():
    module = stack()
    with ws.torch.offload(module, packed=True, device=DEVICE) as handle:

        def wanted():
            return expected(nn.Sequential(*(copy.deepcopy(one) for one in plain)), given())

        plain = [nn.Linear(WIDTH, WIDTH).bfloat16() for _ in range(6)]
        for mine, theirs in zip(plain, module):
            mine.load_state_dict(theirs.state_dict())

        def both(change):
            def run():
                change(module)
                change(plain)

            return run

        module(given())
        one_raw(handle, both(lambda m: m[0].weight.mul_(2)), wanted)
        one_raw(handle, both(lambda m: m[1].weight.data.add_(1)), wanted)
        one_raw(handle, both(lambda m: setattr(m[2].weight, "data", m[2].weight.cpu() + 1)), wanted)
        one_raw(handle, both(lambda m: m[3].load_state_dict({k: v * 2 for k, v in m[3].state_dict().items()})), wanted)

        def of_both_kinds(m):
            # A write and another tree at once: what is rebuilt keeps no copy of what was written.
            m[4].weight.mul_(3)
            if isinstance(m, nn.Module):
                m[5].register_module("more", nn.Linear(2, 2))

        one_raw(handle, both(of_both_kinds), wanted)
        one_raw(
            handle,
            lambda: (
                module[5].weight.view(torch.int16).numpy().__setitem__(0, 0),
                plain[5].weight.view(torch.int16).numpy().__setitem__(0, 0),
                handle.invalidate("5.weight"),
            ),
            wanted,
        )
        assert handle.stats()["packed_bytes"] == 0


class Writes(nn.Module):
    """Writes to its own weight in each pass, after it was read."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.two(self.one(x))
        if self.writes:
            self.one.weight.data.mul_(0.5)
        return y

    writes = False


def test_a_pass_that_writes_a_weight_makes_it_raw():
    torch.manual_seed(0)
    module = Writes().eval().bfloat16()
    reference = copy.deepcopy(module).to(DEVICE)
    with ws.torch.offload(module, packed=True, device=DEVICE) as handle:
        for _ in range(2):
            assert torch.equal(module(given()), reference(given()))
        for writes in (True, False, False):
            module.writes = reference.writes = writes
            assert torch.equal(module(given()), reference(given()))
        assert handle.stats()["packed_bytes"] == 2 * WIDTH * WIDTH


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_call_that_is_refused_forgets_no_write(packed, whole):
    torch.manual_seed(0)
    module = Writes().eval().bfloat16()
    reference = copy.deepcopy(module).to(DEVICE)
    budget = (64 << 20) if whole else None
    with ws.torch.offload(module, budget=budget, packed=packed, device=DEVICE):
        module(given())
        for in_pass in (True, False):
            module.writes = reference.writes = in_pass
            assert torch.equal(module(given()), reference(given()))
            module.writes = reference.writes = False
            if not in_pass:
                module.two.weight.mul_(2)
                reference.two.weight.mul_(2)
            module.more = torch.jit.script(nn.Linear(2, 2))
            assert "ScriptModule" in error_of(lambda: module(given()))
            del module.more
            for _ in range(3):
                assert torch.equal(module(given()), reference(given()))


def test_what_a_pass_wrote_is_known_where_the_module_is_another_one_then():
    torch.manual_seed(0)
    module = Writes().eval().bfloat16()
    reference = copy.deepcopy(module).to(DEVICE)
    with ws.torch.offload(module, packed=True, device=DEVICE):
        module(given())
        module.writes = reference.writes = True
        assert torch.equal(module(given()), reference(given()))
        module.writes = reference.writes = False
        module.more = nn.Linear(2, 2)
        for _ in range(3):
            assert torch.equal(module(given()), reference(given()))


def data_of(weight: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of its own: nobody sees what is written to it."""
    return torch.from_numpy(weight.detach().view(torch.int16).numpy()).view(torch.bfloat16)


def in_new_parameter(module: nn.Linear) -> None:
    memory = data_of(module.weight)
    memory.mul_(2)
    module.weight = nn.Parameter(memory)


def data_of_a_state(module: nn.Linear) -> None:
    state = module.state_dict()
    for value in state.values():
        value.data.mul_(2)
    module.load_state_dict(state, assign=True)


def moved_by_its_owner(module: nn.Linear) -> None:
    # Its old memory may be where the new parameter's comes to lie.
    module.weight.share_memory_()
    module.weight = nn.Parameter(module.weight * 2)


@pytest.mark.parametrize("change", [in_new_parameter, data_of_a_state, moved_by_its_owner])
@pytest.mark.parametrize("whole", [False, True])
def test_another_parameter_over_the_same_memory_has_no_copy(change, whole):
    module, reference = stack(), stack()
    budget = 4 * everything(module) + (64 << 20) if whole else None
    with ws.torch.offload(module, budget=budget, packed=True, device=DEVICE) as handle:
        module(given())
        for layer, other in zip(module, reference, strict=True):
            change(layer)
            change(other)
            for _ in range(2):
                assert torch.equal(module(given()), copy.deepcopy(reference).to(DEVICE)(given()))
        assert handle.stats()["packed_bytes"] == 0


def test_what_is_loaded_before_the_first_pass_is_packed():
    with torch.inference_mode():
        module, other = stack(), stack()
        other[0].weight.mul_(2)
        wanted = expected(other, given())
        with ws.torch.offload(module, packed=True, device=DEVICE) as handle:
            module.load_state_dict(other.state_dict())
            for _ in range(3):
                assert torch.equal(module(given()), wanted)
            assert handle.stats()["packed_bytes"] == 6 * 2 * WIDTH * WIDTH


class Look(nn.Module):
    """A table that is no ``nn.Embedding``."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, words):
        return F.embedding(words, self.table)


class Words(nn.Module):
    """Two tables, and a head that is tied to one of them."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Embedding(600, WIDTH), nn.Linear(WIDTH, 600, bias=False)
        self.look = Look(self.head.weight)

    def forward(self, words):
        return self.head(self.first(words))


def test_tables_stay_raw_and_their_rows_are_read_in_place():
    torch.manual_seed(0)
    module = Words().eval().bfloat16()
    words = torch.tensor([[3, 599, 0]])
    reference = copy.deepcopy(module).to(DEVICE)
    with ws.torch.offload(module, packed=True, device=DEVICE) as handle:
        for _ in range(2):
            assert torch.equal(module(words), reference(words.to(DEVICE)))
        assert handle.stats()["packed_bytes"] == 2 * 600 * WIDTH, "the head, and not the table"
        for _ in range(2):
            assert torch.equal(module.look(words), reference.look(words.to(DEVICE)))
            assert handle.stats()["packed_bytes"] == 0, "its rows are read in place from now on"
            assert torch.equal(module(words), reference(words.to(DEVICE)))


def test_weights_of_files_are_packed_beside_them(tmp_path):
    module, wanted = stack(), expected(stack(), given())
    safetensors.torch.save_file(module.state_dict(), tmp_path / "model.safetensors")
    empty = stack().to("meta")
    with ws.torch.offload(empty, weights=tmp_path, packed=True, device=DEVICE) as handle:
        for _ in range(3):
            assert torch.equal(empty(given()), wanted)
        assert handle.stats()["packed_bytes"] == 6 * 2 * WIDTH * WIDTH
        assert all(torch.equal(one, module.state_dict()[name]) for name, one in empty.state_dict().items())
        empty[1].weight.mul_(2)
        module[1].weight.mul_(2)
        assert torch.equal(empty(given()), expected(module, given()))
        assert handle.stats()["packed_bytes"] == 5 * 2 * WIDTH * WIDTH


def test_several_share_a_device():
    one, other = stack(), stack(8)
    for budget in (64 << 20, 256 << 20):
        ws.set_device_budget(DEVICE, budget + (256 << 20))
        with (
            ws.torch.offload(one, shared=True, packed=True, device=DEVICE),
            ws.torch.offload(other, shared=True, packed=True, device=DEVICE),
        ):
            for _ in range(3):
                assert torch.equal(one(given()), expected(stack(), given()))
                assert torch.equal(other(given()), expected(stack(8), given()))
    ws.set_device_budget(DEVICE, "auto")


def test_copies_end_with_what_was_offloaded():
    module = stack()
    before = {name: one.clone() for name, one in module.state_dict().items()}
    handle = ws.torch.offload(module, packed=True, device=DEVICE)
    module(given())
    copies = [weakref.ref(one) for one in handle._passes.packed._all.values()]
    assert len(copies) == 6
    handle.remove()
    del handle
    gc.collect()
    assert not any(one() for one in copies)
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())


def test_what_cannot_be_packed_is_said():
    said = error_of(lambda: ws.torch.offload(nn.Linear(100, 100), packed=True, device=DEVICE))
    assert "float32 and float8 from 65,536 bytes on that gain 5 %" in said
    assert "leave packed out" in said
    module = nn.Linear(4, 4)
    assert "found 3" in error_of(lambda: ws.torch.offload(module, packed=3, device=DEVICE))
    assert isinstance(ws.torch.offload(module, device=DEVICE), ws.torch.Offloaded), "a refused module is as it was"


def test_any_bits_come_back():
    torch.manual_seed(0)
    module = nn.Linear(WIDTH, WIDTH, bias=False).bfloat16()
    bits = module.weight.view(torch.int16).numpy()
    bits[0, : WIDTH // 2] = np.arange(WIDTH // 2) * 251 - 32768
    with ws.torch.offload(module, packed=True, device=DEVICE) as handle:
        seen = []
        module.register_forward_pre_hook(lambda m, _: seen.append(m.weight.view(torch.int16).cpu()))
        for _ in range(2):
            module(given())
        assert handle.stats()["packed_bytes"] == 2 * WIDTH * WIDTH
    assert len(seen) == 2
    assert all(torch.equal(one, torch.from_numpy(bits)) for one in seen)


def test_a_giant_head_is_packed_in_its_pieces(monkeypatch):
    for name, value in {"_LARGE": 1 << 20, "_LEAST_PIECE": 1 << 17, "_TILE": 1}.items():
        monkeypatch.setattr(cutting, name, value)
    torch.manual_seed(0)
    rows, changes = 8 * WIDTH, [lambda m: m.weight.mul_(3), lambda m: setattr(m.weight, "data", m.weight.cpu() + 1)]
    for change in changes:
        module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, rows, bias=False)).eval().bfloat16()
        reference = copy.deepcopy(module)
        with ws.torch.offload(module, packed=True, device=DEVICE) as handle:
            for _ in range(2):
                assert torch.equal(module(given()), in_pieces(reference))
            assert handle.stats()["packed_bytes"] == 2 * WIDTH * (WIDTH + rows)
            change(module[1])
            change(reference[1])
            for _ in range(3):
                assert torch.equal(module(given()), in_pieces(reference))
            assert handle.stats()["packed_bytes"] == 2 * WIDTH * WIDTH


def in_pieces(module: nn.Sequential) -> torch.Tensor:
    """The head's product in the pieces that it has while it is offloaded: at each budget the bits are those of the pieces."""
    head = module[1].weight.to(DEVICE)
    ends = itertools.pairwise(cutting.cuts(module[1].weight))
    hidden = copy.deepcopy(module[0]).to(DEVICE)(given())
    return torch.cat([F.linear(hidden, head[begin:end]) for begin, end in ends], -1)
