"""`ws.torch.offload(…, packed="FILE")`: packed copies are kept in a file, and are those of the module's weights or an error.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import gc
import json
import os
from types import SimpleNamespace

import pytest
import safetensors
import safetensors.torch
import torch
import weightstream as ws
from device_under_test import ON_GPU, exact_products
from packed_types import RATIOS, WIDTH, Typed
from support import error_of
from test_offload import DEVICE, everything, expected
from torch import nn
from weightstream._eager import packed, packed_file
from weightstream._eager.mapping import Mapping
from weightstream._eager.weights import Weight
from weightstream._native import rows as cutting

pytestmark = pytest.mark.no_export
LAYERS = 6


@pytest.fixture(autouse=True)
def _inference():
    exact_products()
    with torch.no_grad():
        yield


def stack(seed: int = 0, layers: int = LAYERS) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).eval().bfloat16()


def given() -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH).to(DEVICE, torch.bfloat16)


def run(module: nn.Module, path, x=None, **options) -> dict:
    """Passes at several budgets have the module's own bits. What it counted at last."""
    x = given() if x is None else x
    wanted = expected(module, x)
    with ws.torch.offload(module, packed=path, device=DEVICE, **options) as handle:
        assert torch.equal(module(x), wanted)
        floor, whole = handle.stats()["floor_bytes"], everything(module)
        for budget in (floor, floor + whole // 3, floor + 2 * whole):
            handle.set_budget(budget)
            assert all(torch.equal(module(x), wanted) for _ in range(2)), budget
        return handle.stats()


@pytest.fixture
def kept(tmp_path):
    """A file of the stack's copies."""
    path = tmp_path / "stack.packed"
    run(stack(), path)
    return path


def test_a_file_is_made_once_and_read_from_then_on(kept):
    whole = LAYERS * 2 * WIDTH * WIDTH
    assert 0.65 * whole < kept.stat().st_size < 0.70 * whole
    assert os.listdir(kept.parent) == [kept.name]
    facts = os.stat(kept)
    stats = run(stack(), str(kept))
    assert (stats["packed_bytes"], os.stat(kept).st_mtime_ns) == (whole, facts.st_mtime_ns)
    assert stats["packed_stored_bytes"] < kept.stat().st_size


def test_other_programs_see_a_safetensors_file_of_bytes(kept):
    with safetensors.safe_open(kept, "pt") as file:
        assert sorted(file.keys()) == [f"{at}.weight" for at in range(LAYERS)]
        assert file.get_tensor("0.weight").dtype is torch.uint8


@pytest.mark.parametrize("dtype", RATIOS, ids=str)
def test_copies_of_each_type_are_kept(dtype, tmp_path):
    for _ in range(2):
        torch.manual_seed(9)
        module = Typed(dtype).eval()
        stats = run(module, tmp_path / "typed.packed", torch.randn(3, WIDTH, device=DEVICE))
        assert stats["packed_bytes"] == sum(one.nbytes for one in module.parameters())


@pytest.mark.parametrize("host", ["mapped", "pinned", "staged"] if ON_GPU else ["auto"])
def test_a_checkpoint_and_a_file_of_its_copies(kept, host, tmp_path):
    made = stack()
    wanted = expected(made, given())
    safetensors.torch.save_file(made.state_dict(), tmp_path / "stack.safetensors")
    with torch.device("meta"):
        module = stack()
    with ws.torch.offload(module, weights=tmp_path / "stack.safetensors", packed=kept, host=host, device=DEVICE) as handle:
        assert all(torch.equal(module(given()), wanted) for _ in range(3))
        assert handle.stats()["packed_bytes"] == LAYERS * 2 * WIDTH * WIDTH
        assert all(torch.equal(one, made.state_dict()[name]) for name, one in module.state_dict().items())


def test_a_weight_that_changes_is_raw_and_the_file_stays(kept):
    module, reference = stack(), stack()
    before = kept.read_bytes()
    with ws.torch.offload(module, packed=kept, device=DEVICE) as handle:
        module(given())
        for one in (module, reference):
            one[2].weight.mul_(2)
        wanted = reference.to(DEVICE)(given())
        assert all(torch.equal(module(given()), wanted) for _ in range(3))
        assert handle.stats()["packed_bytes"] == (LAYERS - 1) * 2 * WIDTH * WIDTH
    assert kept.read_bytes() == before


def refused(module: nn.Module, path) -> str:
    """The error of the first pass or before, after which the module is as it was."""
    before = {name: one.clone() for name, one in module.state_dict().items()}

    def offloaded() -> None:
        ws.torch.offload(module, packed=path, device=DEVICE)
        module(given())

    said = error_of(offloaded)
    gc.collect()
    assert str(path) in said or repr(str(path)) in said
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    wanted = expected(module, given())
    with ws.torch.offload(module, device=DEVICE):
        assert torch.equal(module(given()), wanted), "it can be offloaded without"
    return said


def test_copies_of_other_weights_are_refused_by_name(kept):
    module = stack()
    module[4].weight.view(torch.int16)[-1, -1] ^= 1
    said = refused(module, kept)
    assert "'4.weight'" in said
    assert "others from byte 0 on: it was made of another weight, or is damaged; name another file, or remove this one" in said


def test_copies_of_another_module_are_refused(kept):
    said = refused(stack(layers=LAYERS + 1), kept)
    assert f"{kept} is of another module: '6.weight' is 524288 bytes of bfloat16, and it has none" in said
    said = error_of(lambda: ws.torch.offload(stack().half(), packed=kept, device=DEVICE))
    assert f"{kept} is of another module: it has none of the 6 weights that may be packed" in said


def damaged(path, change) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def with_metadata(path, change) -> None:
    """Other metadata before the same bytes."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def other_weights(change):
    def changed(metadata) -> None:
        written = json.loads(metadata["weightstream_packed"])
        change(written)
        metadata["weightstream_packed"] = json.dumps(written)

    return changed


def test_damage_is_found_before_a_byte_is_used(kept):
    whole = kept.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for at in (start + 3, start + 4200, start + 5121, start + 5200, len(whole) - 5000, len(whole) - 40_000):
        kept.write_bytes(whole)
        damaged(kept, lambda data, at=at: data.__setitem__(at, data[at] ^ 4))
        said = refused(stack(), kept)
        assert ".weight" in said
        assert "remove this one" in said
    kept.write_bytes(whole[:-16])
    assert "is truncated: tensor '" in refused(stack(), kept)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.pop("weightstream_packed"), "is no file of packed copies, and is left as it is"),
        (lambda one: one.__setitem__("weightstream_packed", "[]"), "is no file of packed copies"),
        (other_weights(lambda one: one.__setitem__("version", 1)), "has packed copies of version 1, and this release has 2"),
        (other_weights(lambda one: one["weights"]["1.weight"].__setitem__(2, "00")), "does not say what the copy of '1.weight' is"),
        (other_weights(lambda one: one["weights"]["1.weight"].pop()), "does not say what the copy of '1.weight' is"),
        (
            other_weights(lambda one: one["weights"].__setitem__("1.weight", 7)),
            "'1.weight' is 524288 bytes of bfloat16, and it has another one",
        ),
        (other_weights(lambda one: one["weights"]["1.weight"].__setitem__(3, "07" * 13)), "'1.weight'"),
        (other_weights(lambda one: one["weights"]["1.weight"].__setitem__(2, 1e400)), "does not say what the copy of '1.weight' is"),
        (other_weights(lambda one: one["weights"]["1.weight"].__setitem__(2, 1 << 40)), "does not say what the copy of '1.weight' is"),
    ],
)
def test_what_the_file_says_is_checked(kept, change, words):
    with_metadata(kept, change)
    assert words in refused(stack(), kept)


def test_a_file_of_something_else_is_left_as_it_is(tmp_path):
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(stack().state_dict(), path)
    before = path.read_bytes()
    assert "is no file of packed copies, and is left as it is" in refused(stack(), path)
    assert path.read_bytes() == before
    (tmp_path / "note").write_bytes(b"hi")
    assert "is no safetensors file" in refused(stack(), tmp_path / "note")


def test_places_where_no_file_can_be(tmp_path):
    assert "no file can be made in" in refused(stack(), tmp_path / "no" / "stack.packed")
    assert "this is no file" in refused(stack(), tmp_path)
    assert "found 3" in error_of(lambda: ws.torch.offload(stack(), packed=3, device=DEVICE))


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = refused(stack(), tmp_path / "stack.packed")
    assert "bytes of packed copies to" in said
    assert "No space left on device" in said
    assert os.listdir(tmp_path) == []


def test_who_may_not_read_the_weights_may_not_read_their_copies(tmp_path):
    files, path = tmp_path / "stack.safetensors", tmp_path / "stack.packed"
    safetensors.torch.save_file(stack().state_dict(), files)
    files.chmod(0o600)
    with torch.device("meta"):
        module = stack()
    with ws.torch.offload(module, weights=files, packed=path, device=DEVICE):
        module(given())
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_appears_before_the_end_of_the_first_pass_stays(tmp_path):
    path, module = tmp_path / "stack.packed", stack()
    handle = ws.torch.offload(module, packed=path, device=DEVICE)
    safetensors.torch.save_file(stack(1).state_dict(), path)
    before = path.read_bytes()
    assert "is no file of packed copies, and is left as it is" in error_of(lambda: module(given()))
    assert path.read_bytes() == before
    handle.remove()


def test_two_that_make_a_file_share_it(tmp_path):
    path, modules = tmp_path / "stack.packed", [stack(), stack()]
    wanted = expected(stack(), given())
    handles = [ws.torch.offload(one, packed=path, device=DEVICE) for one in modules]
    assert torch.equal(modules[0](given()), wanted)
    facts = path.stat()
    # As if the second one had written its own meanwhile.
    other = tmp_path / "other"
    other.write_bytes(b"")
    packed_file._publish(other, path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (facts.st_ino, facts.st_mtime_ns)
    assert torch.equal(modules[1](given()), wanted)
    for one in handles:
        one.set_budget(one.stats()["floor_bytes"] + (1 << 20))
    assert all(torch.equal(one(given()), wanted) for one in modules)
    for one in handles:
        one.remove()


def test_a_file_that_goes_while_it_is_in_use_is_named(kept):
    module = stack()
    with ws.torch.offload(module, packed=kept, device=DEVICE):
        module(given())
        kept.unlink()
        module[0].weight.mul_(2)
        said = error_of(lambda: module(given()))
        assert f"{kept} is gone or has changed since it was mapped; offload the module again" in said


class Head(nn.Module):
    """A giant that is cut into pieces, or not, as the first pass uses it."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.body, self.head, self.whole = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8 * WIDTH, bias=False), whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return x @ self.head.weight.t() if self.whole else self.head(x)


@pytest.mark.parametrize("whole", [False, True])
def test_giants_are_kept_as_passes_use_them(whole, tmp_path, monkeypatch):
    for name, value in {"_LARGE": 1 << 20, "_LEAST_PIECE": 1 << 17, "_TILE": 1}.items():
        monkeypatch.setattr(cutting, name, value)
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        module = Head(whole).eval().bfloat16()
        with ws.torch.offload(module, packed=tmp_path / "head.packed", device=DEVICE) as handle:
            outputs += [module(given()) for _ in range(3)]
            assert handle.stats()["packed_bytes"] == 2 * WIDTH * (WIDTH + 8 * WIDTH)
    assert all(torch.equal(one, outputs[0]) for one in outputs)


def test_names_that_files_cannot_have_and_equal_ones(tmp_path):
    for _ in range(2):
        module = stack(layers=1)
        module[0].register_parameter("__metadata__", nn.Parameter(module[0].weight.clone() / 3))
        module[0].register_forward_pre_hook(lambda m, x: (x[0] @ m.get_parameter("__metadata__"),))
        stats = run(module, tmp_path / "names.packed")
        assert stats["packed_bytes"] == 4 * WIDTH * WIDTH
    equal = SimpleNamespace(all=[Weight("a", at, 2) for at in range(3)])
    assert [one.key for one in packed._keyed({at: [] for at in range(3)}, equal)] == ["a", "a (2)", "a (3)"]


@pytest.mark.parametrize("path", ["x" * 300, "x" * 250, "nul\0"])
def test_paths_that_no_system_takes(path, tmp_path):
    refused(stack(), tmp_path / path)


def test_paths_of_bytes_are_no_paths():
    assert "found b'x'" in error_of(lambda: ws.torch.offload(stack(), packed=b"x", device=DEVICE))
    assert "found ''" in error_of(lambda: ws.torch.offload(stack(), packed="", device=DEVICE))


def test_tensors_of_another_shape_are_malformed(kept):
    data = kept.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    begin, _ = header["1.weight"]["data_offsets"]
    header["1.weight"] |= {"shape": [], "data_offsets": [begin, begin + 1]}
    del header["0.weight"]
    text = json.dumps(header).encode()
    kept.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    said = refused(stack(), kept)
    assert "does not say what the copy of '0.weight' is" in said or "does not say what the copy of '1.weight' is" in said


def test_a_file_that_is_replaced_while_the_runtime_opens_it_is_refused(kept, tmp_path, monkeypatch):
    module, other = stack(), tmp_path / "other.packed"
    run(stack(1), other)
    assert other.stat().st_size == kept.stat().st_size
    check = Mapping.check_unchanged
    asked = []

    def replaced_after_the_first_time(file: Mapping) -> None:
        check(file)
        if not asked:
            os.replace(other, kept)
        asked.append(file)

    handle = ws.torch.offload(module, packed=kept, device=DEVICE)
    monkeypatch.setattr(Mapping, "check_unchanged", replaced_after_the_first_time)
    assert f"{kept} is gone or has changed since it was mapped" in error_of(lambda: module(given()))
    assert len(asked) == 1
    handle.remove()
