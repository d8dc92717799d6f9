"""`ws.torch.offload` of modules whose blocks torch.compile has compiled, before or after: the same bits, and nothing is compiled again.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import copy
import threading
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
    compiled, floor, whole = graphs(), handle.stats()["floor_bytes"], handle.stats()["total_weight_bytes"]
    # Of a weight a part may stay while the rest of it streams.
    for budget in (*(max(floor, whole * percent // 100) for percent in (30, 55, 80)), floor * 20, floor):
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


def test_a_module_that_is_compiled_afterwards_is_known_to_be_offloaded():
    net = Net()
    with ws.torch.offload(net, device=DEVICE) as handle:
        in_place(net, "eager")
        assert ws.torch.Offloaded.of(net.layers[0]) is handle
        assert "offloaded already" in error_of(lambda: ws.torch.offload(net.layers[0], device=DEVICE))
        net(given())
        assert ws.torch.Offloaded.of(net.layers[0]) is handle


class Writes(Block):
    """Writes to its weight, when it is told to."""

    how = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "counted":
            self.up.weight.mul_(2)
        elif self.how == "through data":
            self.up.weight.data.mul_(2)
        return super().forward(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", ["counted", "through data"])
def test_compiled_code_that_writes_to_a_weight_is_refused(how: str, backend: str):
    net = Net()
    net.layers[2] = Writes()
    net.layers[2].how = how
    in_place(net, backend)
    before = net.layers[2].up.weight.clone()
    text = error_of(lambda: ws.torch.offload(net, device=DEVICE, example=(given(),)))
    assert "the compiled forward writes to the weight 'layers.2.up.weight'" in text
    assert torch.equal(net.layers[2].up.weight, before)


def test_weights_that_come_into_a_compiled_block_afterwards_are_on_the_device():
    class Lora(nn.Module):
        def __init__(self, base: nn.Module):
            super().__init__()
            self.base, self.more = base, nn.Linear(WIDTH, 2 * WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.more(x)

    net = Net()
    in_place(net, "eager")
    with ws.torch.offload(net, device=DEVICE) as handle:
        net(given())
        for layer in net.layers:
            layer.up = Lora(layer.up)
        wanted = copy.deepcopy(Net().to(DEVICE))
        for layer, other in zip(wanted.layers, net.layers, strict=True):
            layer.up = Lora(layer.up)
            layer.up.more.load_state_dict(other.up.more.state_dict())
        wanted = wanted.to(DEVICE)(given())
        for _ in range(3):
            assert torch.equal(net(given()), wanted)
        stats = handle.stats()
        assert (stats["recorded"], stats["astray"]) == (2, 0)
        # Compiled code that read a weight of the host would find these bytes changed.
        handle.set_budget(1 << 30)
        net(given())
        for layer in net.layers:
            layer.up.more.weight.numpy()[:] = 0
        assert torch.equal(net(given()), wanted)


def test_a_weight_that_a_compiled_block_is_given():
    class Given(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x, self.first.weight)
            return x

    class Taking(Block):
        def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return super().forward(x @ other)

    def made() -> nn.Module:
        net = Given()
        torch.manual_seed(1)
        net.layers = nn.ModuleList(Taking() for _ in range(LAYERS))
        return net

    net, wanted = made(), made().to(DEVICE)(given())
    in_place(net, "eager")
    with ws.torch.offload(net, device=DEVICE) as handle:
        check(net, wanted, handle)


def test_another_thread_compiles_something_else():
    net, wanted = Net(), Net().to(DEVICE)(given())
    began, go_on = threading.Event(), threading.Event()

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        began.set()
        go_on.wait(20)
        return graph.forward

    other = torch.compile(lambda x: x + 1, backend=backend)
    thread = threading.Thread(target=lambda: other(torch.ones(2)))
    with ws.torch.offload(net, device=DEVICE):
        net(given())
        thread.start()
        assert began.wait(20)
        try:
            assert torch.equal(net(given()), wanted)
        finally:
            go_on.set()
            thread.join()


def test_a_class_whose_forward_is_compiled():
    class Decorated(Block):
        forward = torch.compile(Block.forward, backend="eager")

    net, wanted = Net(), Net().to(DEVICE)(given())
    for index, layer in enumerate(net.layers):
        net.layers[index] = Decorated()
        net.layers[index].load_state_dict(layer.state_dict())
    with ws.torch.offload(net, device=DEVICE) as handle:
        check(net, wanted, handle)


def test_a_compiled_function_that_calls_layers_is_refused():
    class Steps(Net):
        def __init__(self) -> None:
            super().__init__()
            self.step = torch.compile(self._step, backend="eager")

        def _step(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.step(x)

    net = Steps()
    with ws.torch.offload(net, device=DEVICE):
        text = error_of(lambda: net(given()))
    assert "calls its module 'layers.0'" in text
    assert "block.compile()" in text


def test_a_list_that_is_compiled_is_none():
    net, wanted = Net(), Net().to(DEVICE)(given())
    net.layers.compile(backend="eager")
    with ws.torch.offload(net, device=DEVICE) as handle:
        check(net, wanted, handle)
        assert handle.stats()["largest_call"]["module"] != "Net"
