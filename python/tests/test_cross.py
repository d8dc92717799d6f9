"""Programs for an NVIDIA GPU that is not here: exported, inspected, planned, and refused where they cannot run.

Whether they run right is for a machine with the GPU: `benches/gpu/untuned.py`.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import signal
import struct
from pathlib import Path

import pytest
import torch
import weightstream as ws
from doctor import Pte
from executorch.exir import to_edge_transform_and_lower
from exports import Files
from models import CachedDecoder
from support import error_of
from torch import nn
from torch._inductor.runtime.hints import DeviceProperties
from weightstream._run import runtime
from weightstream._torch import cross
from weightstream._torch.cross import cards, child, tiles
from weightstream._torch.cross.cards import CARDS
from weightstream._torch.cross.launches import Launches
from weightstream._torch.cross.tiles import Product, Tile, seconds

pytestmark = pytest.mark.cpu_only("for machines without a GPU")
ROOT = Path(__file__).resolve().parents[2]
#: `e_machine` of a cubin.
CUDA = 190


class Mixed(nn.Module):
    """What a template cannot serve, or served wrongly: a transposed convolution, a sum of two small products, a product of zeros; and a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(16, 16)) for _ in range(3))
        self.literal = [torch.randn(16, 16)]

    def forward(self, x: torch.Tensor, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x @ self.a + x @ self.b + torch.zeros_like(x) @ self.c
        return rows + x @ self.literal[0], self.back(picture)


def mixed() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Mixed().eval(), (torch.randn(8, 16), torch.randn(1, 4, 6, 6))


def decoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = CachedDecoder(vocabulary=64, dim=64, heads=4, layers=1, length=128)
    return model.to(torch.bfloat16).eval(), (torch.tensor([[7]]), torch.tensor([0]))


MODELS = {"mixed": mixed, "decoder": decoder}


def export(model: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path | None = None, **options: str) -> Files | None:
    marked = ws.apply_weight_offload(torch.export.export(model, inputs))
    partitioner = ws.WeightStreamPartitioner(**options)
    edge = to_edge_transform_and_lower(marked, partitioner=[partitioner], compile_config=ws.edge_compile_config())
    if folder is None:
        return None
    ws.save(edge, folder / "model.pte", folder / "model.ptd")
    return Files("model", folder / "model.pte", folder / "model.ptd")


@pytest.fixture(scope="module", params=["mixed-80", "decoder-90"])
def program(request, tmp_path_factory) -> tuple[str, Files]:
    """An SM, and the files of a program for it. The parent's pool of threads has been at work, which its child must not wait for."""
    name, sm = request.param.split("-")
    _ = torch.randn(512, 512) @ torch.randn(512, 512)
    return sm, export(*MODELS[name](), tmp_path_factory.mktemp(request.param), device="cuda", sm=sm)


def told(*arguments: object) -> str:
    """What the command `weightstream` says."""
    status, text = runtime.command([str(argument) for argument in arguments])
    assert status == 0, text
    return text


def cubins(program: bytes) -> collections.Counter[int]:
    """How many kernels are embedded for each SM."""
    found: collections.Counter[int] = collections.Counter()
    at = program.find(b"\x7fELF")
    while at >= 0:
        (machine,), (flags,) = struct.unpack_from("<H", program, at + 18), struct.unpack_from("<I", program, at + 48)
        if machine == CUDA:
            # The SM's place depends on the version of NVIDIA's ABI.
            found[flags >> 8 & 0xFF if program[at + 8] >= 8 else flags & 0xFF] += 1
        at = program.find(b"\x7fELF", at + 1)
    return found


def test_every_kernel_is_compiled_for_the_sm(program):
    sm, files = program
    found = cubins(files.pte.read_bytes())
    assert set(found) == {int(sm)}
    assert found.total() >= 2


def test_the_record_says_sm_and_that_nothing_was_tuned(program):
    sm, files = program
    record = Pte(files.pte).payload
    assert record["device"] == ["cuda"]
    assert record["target"][4] == sm
    assert record["x_tuned"] == [0]
    assert record["probes"], "weights are read through probes as on a machine with a GPU"


def test_inspect_and_plan_read_the_files(program):
    sm, files = program
    text = told("inspect", files.pte, files.ptd)
    assert f"GPU: compute capability {sm[:-1]}.{sm[-1]}, not tuned" in text
    assert "belongs to it and holds every constant" in text
    assert "floor" in told("plan", files.pte)


def test_loading_without_a_driver_is_refused_by_its_name(program):
    _, files = program
    assert ws.required_budget(str(files.pte), method="forward") > 0
    message = error_of(lambda: ws.Module(str(files.pte), str(files.ptd)))
    assert "'libcuda.so.1' is missing" in message


def test_the_weights_are_the_models_own(program):
    """The compiler saw others, which hold no bytes."""
    _, files = program
    model, _ = decoder() if "keys0" in Pte(files.pte).payload["fqns"] else mixed()
    data = files.ptd.read_bytes()
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            assert weight.detach().contiguous().view(torch.uint8).numpy().tobytes() in data, name


def test_nothing_of_the_card_stays_in_this_process(program, tmp_path):
    assert not torch.cuda.is_available()
    assert "weightstream" not in torch.cuda.is_available.__module__
    assert cross._launches is None
    assert not cross.another_try()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.empty(1, device="cuda")
    # Inductor caches what it asked of each device. The CPU's answer may be there, as other exports ask for it.
    for device in (torch.device("cuda"), torch.device("cuda", 0)):
        with pytest.raises((RuntimeError, AssertionError)):
            DeviceProperties.create(device)


@pytest.mark.parametrize("program", ["decoder-90"], indirect=True)
def test_a_program_for_the_cpu_is_right_afterwards(program, tmp_path):
    model, inputs = mixed()
    files = export(model, inputs, tmp_path, device="cpu")
    module = ws.Module(str(files.pte), str(files.ptd))
    torch.testing.assert_close(module.forward(*inputs), model(*inputs))
    module.close()


def test_a_program_for_several_cards_has_ptx_for_the_oldest(tmp_path, capsys):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).to(torch.bfloat16).eval()
    files = export(model, (torch.randn(4, 64, dtype=torch.bfloat16),), tmp_path, device="cuda", sm="90,86")
    program = files.pte.read_bytes()
    assert not cubins(program)
    assert program.count(b".target sm_86") >= 1
    assert b".loc" not in program, "lines of source would have paths of this machine"
    assert "the driver compiles them for SM 90,86 at load" in capsys.readouterr().err
    assert "GPU: compute capability 9.0, 8.6, not tuned" in told("inspect", files.pte, files.ptd)


@pytest.mark.no_runtime
def test_code_for_several_cards_fits_the_least_and_runs_on_the_oldest():
    both = cards.of("100,86,120")
    assert (both.sm, both.shared_memory_per_block_optin) == (86, CARDS["120"].shared_memory_per_block_optin)
    # PTX for 9.0 and later may be for one card alone.
    assert cards.of("90,100").sm == 89
    assert cards.of("80,90").shared_memory_per_block_optin == CARDS["80"].shared_memory_per_block_optin
    assert cards.of("90") is CARDS["90"]


class Enough(Exception):
    """Ends an export once the kernels are compiled."""


def test_a_tile_that_does_not_fit_makes_room_for_the_next_one(monkeypatch, capsys):
    """The estimate is taken away, and most of the card's shared memory: only compiled kernels say what they need."""
    compile_kernels = Launches._compile

    def compile_and_stop(self, definitions):
        compile_kernels(self, definitions)
        raise Enough(f"tiles refused: {len(self.chooser.refused)}")

    monkeypatch.setattr(tiles, "_shared", lambda product, tile: 1024)
    monkeypatch.setitem(CARDS, "86", dataclasses.replace(CARDS["86"], shared_memory_per_block_optin=48 << 10))
    monkeypatch.setattr(Launches, "_compile", compile_and_stop)
    with pytest.raises(Exception, match=r"tiles refused: [1-9]"):
        export(nn.Linear(512, 512).to(torch.bfloat16).eval(), (torch.randn(256, 512, dtype=torch.bfloat16),), device="cuda", sm="86")
    assert "too much shared memory for" in capsys.readouterr().err


@pytest.mark.no_runtime
@pytest.mark.parametrize("sm", list(CARDS))
def test_the_model_prefers_tiles_that_fit_and_fill_the_card(sm):
    card = CARDS[sm]
    large = Product(1, 4096, 4096, 4096, 2)
    assert seconds(card, large, Tile(128, 128, 32, 8, 3)) < seconds(card, large, Tile(16, 32, 16, 1, 2))
    assert seconds(card, large, Tile(128, 256, 128, 8, 5)) == float("inf")
    # One token: many small tiles, as there is one row.
    single = Product(1, 1, 4096, 4096, 2)
    assert seconds(card, single, Tile(16, 32, 128, 4, 4)) < seconds(card, single, Tile(128, 128, 32, 8, 3))


@pytest.mark.no_runtime
@pytest.mark.parametrize("sm", ["91", "9.0", "sm_90", "90a", "75", " 90", "86,", "86;90"])
def test_an_unknown_sm_is_refused_with_the_list(sm):
    with pytest.raises(ws.ExportError, match=f"sm '{sm}' is unknown; use one of 80, 86, 89, 90, 100, 120"):
        ws.WeightStreamPartitioner(device="cuda", sm=sm)


@pytest.mark.no_runtime
def test_an_sm_named_twice_is_refused():
    with pytest.raises(ws.ExportError, match="sm '86,90,86' names one twice"):
        ws.WeightStreamPartitioner(device="cuda", sm="86,90,86")


@pytest.mark.no_runtime
def test_an_sm_for_the_cpu_is_refused():
    with pytest.raises(ws.ExportError, match="sm '90' could have no effect"):
        ws.WeightStreamPartitioner(device="cpu", sm="90")


@pytest.mark.no_runtime
def test_a_gpu_that_is_not_here_needs_an_sm():
    with pytest.raises(ws.ExportError, match=r"needs an NVIDIA GPU .* sm, one of 80, 86, 89, 90, 100, 120"):
        ws.WeightStreamPartitioner(device="cuda")


@pytest.mark.no_runtime
def test_a_torch_without_triton_is_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ws.ExportError, match=r"needs Triton.*install torch's wheel for CUDA"):
        ws.WeightStreamPartitioner(device="cuda", sm="90")


@pytest.mark.no_runtime
class TestChild:
    """What comes back from a child process."""

    def test_its_result_and_its_lines(self, capsys):
        def work():
            from weightstream._native.progress import note

            note("from the child")
            return os.getpid(), b"x" * (1 << 20)

        pid, data = child.run(work, "working")
        assert pid != os.getpid()
        assert len(data) == 1 << 20
        assert "weightstream: from the child\n" in capsys.readouterr().err

    def test_a_refusal_as_it_is(self):
        def work():
            raise ws.ExportError("no")

        with pytest.raises(ws.ExportError, match=r"^no$") as caught:
            child.run(work, "working")
        assert caught.value.__cause__ is None

    def test_another_error_with_its_place(self):
        with pytest.raises(ZeroDivisionError) as caught:
            child.run(lambda: 1 // 0, "working")
        assert "test_cross.py" in str(caught.value.__cause__)

    def test_an_error_that_cannot_be_sent(self):
        class Local(Exception):
            pass

        def work():
            raise Local("here only")

        with pytest.raises(ws.ExportError, match="Local: here only"):
            child.run(work, "working")

    def test_a_result_that_cannot_be_sent(self):
        with pytest.raises(Exception, match="pickle"):
            child.run(lambda: lambda: None, "working")

    def test_the_signal_that_ended_it(self):
        with pytest.raises(ws.ExportError, match=r"working: the child process was ended by SIGKILL \(.*memory runs out"):
            child.run(lambda: os.kill(os.getpid(), signal.SIGKILL), "working")

    def test_an_end_without_a_result(self):
        with pytest.raises(ws.ExportError, match="ended with status 3 and without a result"):
            child.run(lambda: os._exit(3), "working")
