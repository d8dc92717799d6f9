"""`ws.torch.offload` of modules whose parameters are tensor subclasses: torchao, DTensor, GGUF of diffusers, bitsandbytes, and small ones.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weightstream as ws
from device_under_test import ON_GPU, exact_products
from halves import Closed, Copies, Halves, halve
from support import error_of
from test_offload import DEVICE, PAGE, given, stack
from torch import nn
from torch.distributed.tensor import DTensor

pytestmark = pytest.mark.no_export
#: GGUF and bitsandbytes want blocks of 256 elements.
WIDTH = 1024 if ON_GPU else 256


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    exact_products()
    with torch.no_grad():
        yield


def torchao(config: str, room: str = "torchao.quantization", **options: Any) -> Callable[[nn.Module], nn.Module]:
    def quantize(module: nn.Module) -> nn.Module:
        quantization = pytest.importorskip("torchao.quantization")
        quantization.quantize_(module, getattr(pytest.importorskip(room), config)(**options))
        return module

    return quantize


def gguf(module: nn.Module) -> nn.Module:
    gguf = pytest.importorskip("gguf")
    utils = pytest.importorskip("diffusers.quantizers.gguf.utils")
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, one in list(module.named_children()):
        layer = utils.GGUFLinear(one.in_features, one.out_features, bias=True, compute_dtype=torch.float32)
        layer.weight = utils.GGUFParameter(torch.from_numpy(gguf.quants.quantize(one.weight.numpy(), kind)), quant_type=kind)
        layer.bias = one.bias
        setattr(module, name, layer)
    return module


def bitsandbytes(kind: str, **options: Any) -> Callable[[nn.Module], nn.Module]:
    def quantize(module: nn.Module) -> nn.Module:
        bnb = pytest.importorskip("bitsandbytes")
        for name, one in list(module.named_children()):
            layer = getattr(bnb.nn, kind)(one.in_features, one.out_features, **options).requires_grad_(False)
            layer.load_state_dict(one.state_dict())
            # On some processors it changes its weights in the first forward.
            layer.support_avx512bf16_for_cpu = False
            layer.weight = layer.weight.to(DEVICE)
            setattr(module, name, layer)
        return module

    return quantize


def dtensor(module: nn.Module) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = torch.distributed.init_device_mesh(DEVICE.partition(":")[0], (1,))
    return parallelize_module(module, mesh, {name: ColwiseParallel() for name, _ in module.named_children()})


@pytest.fixture(scope="module", autouse=True)
def _process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of this process alone, for DTensor."""
    os.environ.setdefault("LOCAL_RANK", "0")
    where = f"file://{tmp_path_factory.mktemp('group')}/it"
    torch.distributed.init_process_group("nccl" if ON_GPU else "gloo", init_method=where, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


KINDS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "halves": halve,
    "halves of halves": lambda module: halve(halve(module)),
    "int8": torchao("Int8WeightOnlyConfig"),
    "int8 dynamic": torchao("Int8DynamicActivationInt8WeightConfig"),
    "fp8": torchao("Float8WeightOnlyConfig"),
    "nvfp4": torchao("NVFP4WeightOnlyConfig", "torchao.prototype.mx_formats"),
    "int4 in int8": torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4),
    "gguf": gguf,
    "bitsandbytes int8": bitsandbytes("Linear8bitLt", has_fp16_weights=False),
    "bitsandbytes int8, outliers": bitsandbytes("Linear8bitLt", has_fp16_weights=False, threshold=0.5),
    "bitsandbytes nf4": bitsandbytes("Linear4bit", quant_type="nf4", compress_statistics=False),
    "bitsandbytes nf4, nested": bitsandbytes("Linear4bit", quant_type="nf4", compress_statistics=True),
    "dtensor": dtensor,
}


def made(kind: str, layers: int = 5) -> nn.Module:
    """In host memory; some kinds quantize on the device."""
    module = KINDS[kind](stack(layers, WIDTH).requires_grad_(False))
    moved(module, "cpu")
    return module


def moved(module: nn.Module, device: str) -> nn.Module:
    """On a device. A layer of bitsandbytes has to be moved by itself, and its weight by itself before the first pass."""
    for one in module.modules():
        if type(one).__name__ == "Linear8bitLt":
            if one.weight.CB is not None:
                one.weight = one.weight.to(device)
            one.to(device)
    if DTensor not in {type(one) for one in module.parameters()}:
        return module.to(device)
    # A mesh is of one device, and so are the tensors that PyTorch moves.
    for one in module.parameters():
        inner = one._local_tensor if isinstance(one, DTensor) else one
        inner.data = inner.data.to(device)
    return module


def inner_bytes(module: nn.Module) -> int:
    from weightstream._eager.subclasses import bytes_of

    return sum(bytes_of(one) for one in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_they_compute_the_same_at_every_budget(kind: str):
    module, reference = made(kind), moved(made(kind), DEVICE)
    for _ in range(2):
        wanted = reference(given(WIDTH))
    with ws.torch.offload(module, device=DEVICE) as handle:
        before = {name: (type(one), one.shape, one.dtype, one.device) for name, one in module.named_parameters()}
        assert {one.device.type for one in module.parameters()} == {"cpu"}
        for _ in range(3):
            assert torch.equal(module(given(WIDTH)), wanted)
        stats = handle.stats()
        floor = stats["floor_bytes"]
        # Inner bytes, and not those that the outer tensor would have.
        assert stats["total_weight_bytes"] < inner_bytes(module) * 1.2 + 20 * PAGE
        for budget in (floor * 3 // 2, floor * 20, floor):
            handle.set_budget(budget)
            for _ in range(3):
                assert torch.equal(module(given(WIDTH)), wanted)
                assert {name: (type(one), one.shape, one.dtype, one.device) for name, one in module.named_parameters()} == before
            assert all(one.device.type == "cpu" for one in module.state_dict().values() if isinstance(one, torch.Tensor))
        stats = handle.stats()
        assert (stats["recorded"], stats["plans"], stats["astray"]) == (1, 1, 0)
        assert stats["bytes_copied_last_pass"] > 0
    # A DTensor on the host that is of a mesh of GPUs is only a place for bytes.
    if kind != "dtensor" or not ON_GPU:
        assert torch.equal(moved(module, DEVICE)(given(WIDTH)), wanted)


class Reads(nn.Module):
    """Reads a weight of a module inside, and has one twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.tied = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(F.linear(self.one(x), self.two.weight, self.two.bias))


@pytest.mark.parametrize("kind", ["halves", "int8"])
def test_they_are_tied_and_read_elsewhere(kind: str):
    module = nn.Sequential(*(Reads() for _ in range(3))).requires_grad_(False)
    KINDS[kind](module)
    for one in module:
        one.tied.weight = one.one.weight
    wanted = copy.deepcopy(module).to(DEVICE)(given(WIDTH))
    with ws.torch.offload(module, device=DEVICE) as handle:
        for _ in range(3):
            assert torch.equal(module(given(WIDTH)), wanted)
        assert handle.stats()["astray"] == 0


def test_changes_are_seen_before_the_next_pass():
    module = made("halves")
    with ws.torch.offload(module, device=DEVICE) as handle:

        def check() -> None:
            reference = copy.deepcopy({name: one.whole() if isinstance(one, Halves) else one for name, one in module.named_parameters()})
            wanted = stack(5, WIDTH)
            wanted.load_state_dict(reference)
            for _ in range(3):
                assert torch.equal(module(given(WIDTH)), wanted.to(DEVICE)(given(WIDTH)))

        check()
        module[1].weight.high.mul_(2)
        check()
        module[1].weight.high.data.mul_(2)
        check()
        # Other memory: the same outer tensor has another inner one.
        module[2].weight.low = module[2].weight.low * 3
        check()
        module[3].weight = nn.Parameter(Halves.of(torch.randn(WIDTH, WIDTH)), requires_grad=False)
        check()
        module.load_state_dict(made("halves").state_dict())
        check()
        module[0].weight.low.numpy()[:] += 1
        handle.invalidate("0.weight")
        check()


def test_one_that_is_returned_or_viewed():
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = halve(stack(1, WIDTH))[0].weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight if x.sum() < 0 else F.linear(x, self.weight)

    module = Returns().requires_grad_(False)
    with ws.torch.offload(module, device=DEVICE):
        module(given(WIDTH) + 2)
        module(given(WIDTH) + 2)
        found = module(given(WIDTH) - 2)
        for _ in range(2):
            module(given(WIDTH) + 2)
        assert torch.equal(found.whole().cpu(), module.weight.whole())
    error = error_of(lambda: ws.torch.offload(Returns().requires_grad_(False), device=DEVICE, example=(given(WIDTH) - 2,)))
    assert "returns its weight 'weight" in error


def test_one_that_a_pass_writes_is_refused():
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = halve(stack(1, WIDTH))[0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner.weight.high.mul_(2)
            return self.inner(x)

    module = Writes().requires_grad_(False)
    assert "writes to the weight 'inner.weight.high'" in error_of(lambda: ws.torch.offload(module, device=DEVICE, example=(given(WIDTH),)))


def test_a_buffer_of_a_subclass_is_on_the_device():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = stack(4, WIDTH)
            self.register_buffer("by", Halves.of(torch.rand(WIDTH, WIDTH)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.by.device.type == x.device.type
            return F.linear(self.inner(x), self.by)

    module = Scaled().requires_grad_(False)
    before, wanted = module.by, copy.deepcopy(module).to(DEVICE)(given(WIDTH))
    with ws.torch.offload(module, device=DEVICE) as handle:
        for _ in range(3):
            assert torch.equal(module(given(WIDTH)), wanted)
        assert handle.stats()["buffer_bytes"] == 2 * 4 * WIDTH * WIDTH
    assert module.by is before
    assert module.by.device.type == "cpu"


def test_one_without_a_way_in_is_refused_by_name():
    module = stack(2, WIDTH)
    module[1].weight = nn.Parameter(Closed.of(module[1].weight), requires_grad=False)
    text = error_of(lambda: ws.torch.offload(module, device=DEVICE))
    assert "parameter '1.weight' is a Closed" in text
    assert "__tensor_flatten__" in text
    module[1].weight = nn.Parameter(Copies.of(torch.rand(WIDTH, WIDTH)), requires_grad=False)
    with ws.torch.offload(module, device=DEVICE):
        text = error_of(lambda: module(given(WIDTH)))
    assert "'1.weight', a Copies, copies its inner tensor 'high'" in text


def test_what_hangs_on_a_parameter_is_there_in_a_pass():
    class Gain(nn.Module):
        def __init__(self, weight: torch.Tensor):
            super().__init__()
            self.weight = nn.Parameter(weight, requires_grad=False)
            self.weight.gain, self.seen = 3.0, 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.calls = self.seen = getattr(self.weight, "calls", 0) + 1
            return F.linear(x, self.weight) * self.weight.gain

    plain = torch.rand(WIDTH, WIDTH)
    for make in (Halves.of, lambda whole: Halves(Halves.of(whole / 2), Halves.of(whole / 2))):
        module = nn.Sequential(*(Gain(make(plain)) for _ in range(5)))
        wanted = nn.Sequential(*(Gain(make(plain.to(DEVICE))) for _ in range(5)))(given(WIDTH))
        with ws.torch.offload(module, device=DEVICE):
            for number in range(3):
                assert torch.equal(module(given(WIDTH)), wanted)
                assert module[0].seen > number


def test_a_parameter_that_a_hook_replaces_stays():
    module = made("halves")
    wanted = copy.deepcopy(module).to(DEVICE)
    fresh = torch.rand(WIDTH, WIDTH)
    wanted[2].weight = nn.Parameter(Halves.of(fresh).to(DEVICE), requires_grad=False)
    with ws.torch.offload(module, device=DEVICE) as handle:
        for _ in range(2):
            module(given(WIDTH))

        def replace(layer: nn.Module, _inputs: object) -> None:
            layer.weight = nn.Parameter(Halves.of(fresh).to(DEVICE), requires_grad=False)

        with module[2].register_forward_pre_hook(replace):
            found = module(given(WIDTH))
        assert torch.equal(found, wanted(given(WIDTH)))
        assert torch.equal(module[2].weight.whole().cpu(), fresh)
        handle.remove()


def test_a_write_through_data_of_the_outer_tensor_is_seen():
    module, wanted = made("int8"), made("int8")
    with ws.torch.offload(module, device=DEVICE):
        for _ in range(2):
            module(given(WIDTH))
        for one in (module, wanted):
            one[1].weight.data.copy_(one[0].weight)
        reference = moved(wanted, DEVICE)(given(WIDTH))
        for _ in range(2):
            assert torch.equal(module(given(WIDTH)), reference)


def test_an_inner_tensor_can_be_named():
    module = made("halves")
    with ws.torch.offload(module, device=DEVICE) as handle:
        for _ in range(2):
            module(given(WIDTH))
        module[0].weight.low.numpy()[:] += 1
        handle.invalidate("0.weight.low")
        wanted = made("halves")
        wanted[0].weight.low.add_(1)
        assert torch.equal(module(given(WIDTH)), wanted.to(DEVICE)(given(WIDTH)))


@pytest.mark.skipif(not ON_GPU, reason="there is one memory")
@pytest.mark.parametrize("kind", [None, "halves", "int8", "bitsandbytes nf4, nested", "bitsandbytes int8"])
@pytest.mark.parametrize("where", ["on the GPU", "pinned"])
def test_weights_that_are_elsewhere(kind: str | None, where: str):
    module = made(kind) if kind else stack(5, WIDTH)
    wanted = moved(made(kind) if kind else stack(5, WIDTH), DEVICE)(given(WIDTH))
    if where == "pinned":
        for one in module.parameters():
            if type(one) is nn.Parameter:
                one.data = one.data.pin_memory()
    else:
        moved(module, DEVICE)
    torch.cuda.synchronize()
    used = torch.cuda.memory_allocated()
    with ws.torch.offload(module, device=DEVICE) as handle:
        assert all(one.device.type == "cpu" for one in module.parameters())
        if where == "on the GPU":
            assert torch.cuda.memory_allocated() < used - inner_bytes(module) // 2
        for budget in (None, 1 << 30):
            if budget is not None:
                handle.set_budget(budget)
            for _ in range(3):
                assert torch.equal(module(given(WIDTH)), wanted)
        if where == "pinned" and kind is None:
            # Only what lies in ordinary memory is copied or registered: nothing.
            assert handle.stats()["host_pinned_bytes"] == 0


@pytest.mark.skipif(not ON_GPU, reason="there is one memory")
def test_rows_of_a_pinned_table_are_read_in_place():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(65536, WIDTH), *stack(4, WIDTH)).requires_grad_(False)
    ids = torch.tensor([[3, 65535, 17]]).to(DEVICE)
    wanted = copy.deepcopy(module).to(DEVICE)(ids)
    table = module[0].weight
    table.data = table.data.pin_memory()
    with ws.torch.offload(module, device=DEVICE) as handle:
        for _ in range(3):
            assert torch.equal(module(ids), wanted)
        assert handle.stats()["gathered_bytes"] > 0
        assert handle.stats()["floor_bytes"] < table.nbytes
