"""`ws.torch.offload` of modules whose blocks torch.compile has compiled, before or after: the same bits, and nothing is compiled again.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import weightstream as ws
from device_under_test import exact_products
from support import error_of
from test_offload import DEVICE, WIDTH, given
from torch import nn
from torch._dynamo.utils import counters

pytestmark = pytest.mark.no_export
LAYERS = 5


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    exact_products()
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


def in_place(net: Net, backend: str) -> None:
    for layer in net.layers:
        layer.compile(backend=backend)


def replaced(net: Net, backend: str) -> None:
    for index, layer in enumerate(net.layers):
        net.layers[index] = torch.compile(layer, backend=backend)


def its_forward(net: Net, backend: str) -> None:
    for layer in net.layers:
        layer.forward = torch.compile(layer.forward, backend=backend)


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def check(net: Net, wanted: torch.Tensor, handle: ws.torch.Offloaded) -> None:
    """Bits at budgets from the least one to everything, and no graph more than there were after the first passes."""
    for _ in range(3):
        assert torch.equal(net(given()), wanted)
    compiled, floor = graphs(), handle.stats()["floor_bytes"]
    for budget in (floor * 3 // 2, floor * 20, floor):
        handle.set_budget(budget)
        for _ in range(3):
            assert torch.equal(net(given()), wanted)
    assert graphs() == compiled
    stats = handle.stats()
    assert stats["astray"] == 0
    assert stats["bytes_copied_last_pass"] > 0


@pytest.mark.parametrize("compile", [in_place, replaced, its_forward])
@pytest.mark.parametrize("when", ["before", "warm", "after"])
def test_compiled_blocks_compute_the_same_at_every_budget(compile: Callable[[Net, str], None], when: str):
    net, reference = Net(), Net().to(DEVICE)
    compile(reference, "aot_eager")
    wanted = reference(given())
    if when != "after":
        compile(net, "aot_eager")
    if when == "warm" and DEVICE == "cpu":
        net(given())
    with ws.torch.offload(net, device=DEVICE) as handle:
        if when == "after":
            net(given())
            compile(net, "aot_eager")
        check(net, wanted, handle)
    assert torch.equal(net.to(DEVICE)(given()), wanted)


def test_what_inductor_compiles_computes_the_same():
    net, reference = Net(), Net().to(DEVICE)
    in_place(reference, "inductor")
    wanted = reference(given())
    in_place(net, "inductor")
    with ws.torch.offload(net, device=DEVICE) as handle:
        check(net, wanted, handle)


def test_quantized_blocks_that_are_compiled():
    quantization = pytest.importorskip("torchao.quantization")
    net = Net().requires_grad_(False)
    quantization.quantize_(net, quantization.Int8WeightOnlyConfig())
    reference = copy.deepcopy(net).to(DEVICE)
    in_place(reference, "aot_eager")
    wanted = reference(given())
    in_place(net, "aot_eager")
    with ws.torch.offload(net, device=DEVICE) as handle:
        check(net, wanted, handle)


def test_a_compiled_block_is_one_call_of_all_its_weights():
    net = Net()
    block = sum(one.nbytes for one in net.layers[0].parameters())
    in_place(net, "eager")
    with ws.torch.offload(net, device=DEVICE, example=(given(),)) as handle:
        stats = handle.stats()
        held = stats["largest_call"]
        assert held["module"].startswith("layers.")
        assert held["bytes"] == block
        assert 2 * block <= stats["floor_bytes"] < 3 * block + stats["buffer_bytes"] + (32 << 20) * (DEVICE != "cpu")


def test_a_compiled_block_that_is_called_from_outside():
    net = Net()
    wanted = copy.deepcopy(net).to(DEVICE).layers[2](given())
    in_place(net, "eager")
    with ws.torch.offload(net, device=DEVICE):
        for _ in range(3):
            assert torch.equal(net.layers[2](given()), wanted)


def test_a_block_that_is_compiled_no_more():
    net, wanted = Net(), Net().to(DEVICE)(given())
    in_place(net, "eager")
    with ws.torch.offload(net, device=DEVICE) as handle:
        for change in (None, False, True):
            for layer in net.layers if change is not None else ():
                layer._compiled_call_impl = None
                if change:
                    layer.compile(backend="eager")
            for _ in range(3):
                assert torch.equal(net(given()), wanted)
        handle.remove()
        assert all(not hasattr(vars(one).get("forward"), "func") for one in net.modules())


def test_what_is_compiled_as_a_whole_is_refused_with_what_to_write():
    line = "for block in model.layers: block.compile()"
    net = Net()
    net.compile(backend="eager")
    assert line in error_of(lambda: ws.torch.offload(net, device=DEVICE))
    assert line in error_of(lambda: ws.torch.offload(torch.compile(Net(), backend="eager"), device=DEVICE))
    inside = nn.Sequential(nn.Linear(WIDTH, WIDTH), Net())
    inside[1].compile(backend="eager")
    text = error_of(lambda: ws.torch.offload(inside, device=DEVICE))
    assert "module '1' of Sequential is compiled as a whole" in text
    assert "for block in model.1.layers: block.compile()" in text
    pipeline = {"transformer": Net()}
    pipeline["transformer"].compile(backend="eager")
    assert "'transformer'" in error_of(lambda: ws.torch.offload(pipeline, device=DEVICE))


@pytest.mark.parametrize("how", ["in place", "by function"])
def test_what_is_compiled_as_a_whole_afterwards_is_refused(how: str):
    net = Net()
    with ws.torch.offload(net, device=DEVICE):
        wanted = net(given())
        if how == "in place":
            net.compile(backend="eager")
        run = net if how == "in place" else torch.compile(net, backend="eager")
        assert "compile its blocks" in error_of(lambda: run(given())) or "block.compile()" in error_of(lambda: run(given()))
        net._compiled_call_impl = None
        assert torch.equal(net(given()), wanted)


@pytest.mark.parametrize(
    "options",
    [{"mode": "reduce-overhead"}, {"mode": "max-autotune"}, {"options": {"freezing": True}}, {"backend": "cudagraphs"}],
    ids=["reduce-overhead", "max-autotune", "freezing", "cudagraphs"],
)
def test_compilers_that_keep_weights_are_refused_by_name(options: dict[str, object]):
    net = Net()
    net.layers[1].compile(**options)
    text = error_of(lambda: ws.torch.offload(net, device=DEVICE))
    assert "module 'layers.1' of Net is compiled" in text
    assert ("constants (freezing)" if "options" in options else "CUDA graphs") in text
    net = Net()
    with ws.torch.offload(net, device=DEVICE):
        net(given())
        net.layers[1].compile(**options)
        assert "layers.1" in error_of(lambda: net(given()))
