"""Packed weights: the same bits at every budget, in smaller files."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import weightstream as ws
from device_under_test import DEVICE, ON_GPU
from models import MAIN, ZOO
from packed_types import RATIOS, WIDTH, Typed
from support import error_of, run_passes
from torch import nn
from weightstream._run import runtime
from zoo import bits

DEPTH = 6
#: Main models with weights of floating-point numbers.
FLOATS = [name for name in MAIN if not name.startswith("int8")]


class Layers(nn.Module):
    """A table, wide layers with a norm before each, and the table again as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 300, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + torch.relu(layer(norm(x)))
        return self.head(x)


TOKENS = torch.arange(0, 2000, 250)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The program, its raw and its packed weights."""
    folder = tmp_path_factory.mktemp("packed")
    torch.manual_seed(7)
    model = Layers().to(torch.bfloat16).eval()
    pte, raw, packed = (folder / name for name in ("model.pte", "model.ptd", "packed.ptd"))
    ws.export(model, TOKENS, pte, raw, device=DEVICE)
    status, text = runtime.command(["pack", str(raw), "--output", str(packed)])
    assert status == 0, text
    return pte, raw, packed


def run(pte, ptd, budget: int, **options):
    with ws.Module(pte, ptd, weight_offload_budget_bytes=budget, **options) as module:
        outputs = [module(TOKENS) for _ in range(3)]
        assert all(torch.equal(one, outputs[0]) for one in outputs)
        return outputs[0], module.stats()


def test_a_packed_file_is_smaller(files):
    _, raw, packed = files
    whole = DEPTH * WIDTH * WIDTH * 2 + 300 * WIDTH * 2
    saved = raw.stat().st_size - packed.stat().st_size
    assert 0.30 * whole < saved < 0.35 * whole
    status, text = runtime.command(["pack", str(raw), "--output", str(packed), "--force", "--json"])
    assert status == 0
    report = json.loads(text)
    assert report["packed"]["entries"] == DEPTH + 1, report


@pytest.mark.parametrize("policy", ["planned", "lru"])
def test_bits_are_the_same_at_every_budget(files, policy):
    pte, raw, packed = files
    expected, _ = run(pte, raw, 1 << 30)
    least = ws.required_budget(pte, ptd=packed)
    assert least >= ws.required_budget(pte)
    for budget in (least, least + 500_000, least + 1_500_000, 1 << 30):
        found, stats = run(pte, packed, budget, weight_offload_policy=policy, weight_offload_verify="every_read")
        assert torch.equal(found, expected), budget
    assert stats["bytes_copied_last_pass"] == 0


@pytest.mark.parametrize("policy", ["planned", "lru"])
@pytest.mark.parametrize("name", FLOATS)
def test_main_models_compute_the_same_bits(name, policy, exported, resident_bits, tmp_path):
    files, packed = exported(name), tmp_path / "packed.ptd"
    status, text = runtime.command(["pack", str(files.ptd), "--program", str(files.pte), "--output", str(packed), "--least", "0"])
    assert status == 0, text
    least, whole = ws.required_budget(files.pte, ptd=packed), files.ptd.stat().st_size
    for budget in (least, least + whole // 3, least + whole // 2, least + 2 * whole):
        with ws.Module(files.pte, packed, weight_offload_budget_bytes=budget, weight_offload_policy=policy) as module:
            for number, inputs in enumerate(ZOO[name].passes(3)):
                (found,) = run_passes(module, [inputs])
                assert bits(found) == resident_bits(name)[number], f"pass {number} at {budget} bytes"


@pytest.mark.parametrize("dtype", RATIOS, ids=str)
def test_weights_of_each_type_compute_the_same_bits(dtype, tmp_path):
    torch.manual_seed(9)
    model, inputs = Typed(dtype).eval(), torch.randn(3, WIDTH)
    pte, raw, packed = (tmp_path / name for name in ("model.pte", "model.ptd", "packed.ptd"))
    ws.export(model, inputs, pte, raw, device=DEVICE)
    status, text = runtime.command(["pack", str(raw), "--output", str(packed), "--json"])
    assert status == 0, text
    assert json.loads(text)["packed"]["ratio"] == pytest.approx(RATIOS[dtype], abs=0.015)
    with ws.Module(pte, raw, weight_offload_budget_bytes=1 << 30) as module:
        expected = module(inputs)
    least, whole = ws.required_budget(pte, ptd=packed), raw.stat().st_size
    for policy in ("planned", "lru"):
        for budget in (least, least + whole // 3, least + whole // 2, least + 2 * whole):
            with ws.Module(pte, packed, weight_offload_budget_bytes=budget, weight_offload_policy=policy) as module:
                assert all(torch.equal(module(inputs), expected) for _ in range(3)), f"{budget} bytes, {policy}"


def test_a_pass_copies_fewer_bytes(files):
    pte, raw, packed = files
    _, before = run(pte, raw, ws.required_budget(pte))
    _, after = run(pte, packed, ws.required_budget(pte, ptd=packed))
    assert after["bytes_copied_last_pass"] < 0.7 * before["bytes_copied_last_pass"]


def test_a_budget_below_the_least_is_refused(files):
    pte, _, packed = files
    least = ws.required_budget(pte, ptd=packed)
    with pytest.raises(ws.Error, match=str(least)):
        ws.Module(pte, packed, weight_offload_budget_bytes=least - 1)


@pytest.mark.parametrize("held", ["mapped", "pinned", "staged"] if ON_GPU else ["mapped"])
def test_weights_may_be_held_in_any_way(files, held):
    pte, raw, packed = files
    expected, _ = run(pte, raw, 1 << 30)
    found, _ = run(pte, packed, ws.required_budget(pte, ptd=packed) + (1 << 22), weight_offload_host=held, weight_offload_gather="off")
    assert torch.equal(found, expected)


def test_export_and_save_write_packed_weights(files, tmp_path):
    _, _, packed = files
    torch.manual_seed(7)
    model = Layers().to(torch.bfloat16).eval()
    pte, ptd = tmp_path / "model.pte", tmp_path / "model.ptd"
    ws.export(model, TOKENS, pte, ptd, device=DEVICE, packed=True)
    assert abs(ptd.stat().st_size - packed.stat().st_size) < 4096
    found, _ = run(pte, ptd, ws.required_budget(pte, ptd=ptd))
    assert torch.equal(found, run(*files[:2], 1 << 30)[0])


def test_a_program_of_which_nothing_can_be_packed_says_so(tmp_path):
    error = error_of(
        lambda: ws.export(nn.Linear(30, 30), torch.zeros(1, 30), tmp_path / "m.pte", tmp_path / "m.ptd", device=DEVICE, packed=True),
        ws.ExportError,
    )
    assert "nothing of it can be packed" in error
    assert (tmp_path / "m.ptd").exists()


def damaged(packed, folder, at: int, value: bytes):
    """A copy of the packed file with other bytes inside of the first packed weight."""
    path = folder / "damaged.ptd"
    shutil.copy(packed, path)
    with path.open("r+b") as file:
        whole = file.read()
        # Full blocks have their counts at byte 5120, and the first weights of the file begin at a page.
        start = next(page for page in range(4096, len(whole), 4096) if whole[page : page + 64] != bytes(64)) + at
        file.seek(start)
        file.write(value)
    return path


def test_damage_is_found_by_verify(files, tmp_path):
    pte, _, packed = files
    path = damaged(packed, tmp_path, 300_000, b"\x12\x34\x56\x78")
    error = error_of(lambda: ws.Module(pte, path, weight_offload_verify="load"), ws.Error)
    assert "CRC-32" in error
    assert "damaged" in error


def test_plan_and_inspect_take_packed_weights(files):
    pte, raw, packed = files
    for name in ("plan", "inspect"):
        for ptd in (raw, packed):
            status, text = runtime.command([name, str(pte), str(ptd)])
            assert status == 0, text


def test_plan_prices_packed_weights(files):
    pte, raw, packed = files
    found = []
    for ptd in (raw, packed):
        status, text = runtime.command(["plan", str(pte), str(ptd), "--budget", "floor", "--json"])
        assert status == 0, text
        found.append(json.loads(text))
    before, after = ([cost[key] for key in ("limit_bytes_per_pass", "floor_bytes")] for cost in found)
    # What stays packed on a GPU saves more than that.
    assert after[0] < 0.72 * before[0]
    assert ON_GPU or after[0] > 0.6 * before[0]
    assert after[1] >= before[1]


def test_a_packed_file_is_not_packed_again(files):
    pte, _, packed = files
    status, text = runtime.command(["pack", str(packed), "--program", str(pte)])
    assert status != 0
    assert "packed already" in text
