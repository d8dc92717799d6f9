"""Quantized weights: stored, streamed and multiplied with the bits that they have."""

from __future__ import annotations

import copy
import itertools
import os
import re

import pytest
import torch
import weightstream as ws
from device_under_test import DEVICE, ON_GPU, exact_products
from support import error_of
from torch import nn
from torch.export import Dim
from weightstream._command import main
from weightstream._export.passes import quantized as products
from weightstream._export.quantize import quantized
from weightstream._native import rows as cutting

torchao = pytest.importorskip("torchao.quantization")

WIDTH, HIDDEN = 256, 512
#: The kernel on a GPU is for this type.
DTYPE = torch.bfloat16 if ON_GPU else torch.float32


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Mlp(), Mlp(), Mlp()).eval().to(DTYPE)


def rows(count: int) -> torch.Tensor:
    return torch.randn(2, count, WIDTH, generator=torch.Generator().manual_seed(count)).to(DTYPE)


def intx(dtype: torch.dtype = torch.int4, **options) -> torchao.IntxWeightOnlyConfig:
    return torchao.IntxWeightOnlyConfig(weight_dtype=dtype, **options)


def mixed(layer: nn.Linear):
    """Four bits for what is wide, eight for the rest, and some as they are."""
    if layer.in_features == WIDTH:
        return "int4"
    return "int8" if layer.bias is None and layer.out_features == WIDTH else None


RECIPES = ("int4", "zero points", "per channel", "int8", "int8 with zero points", "fp8", "nvfp4", "mixed")


def recipes() -> dict:
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.quantization.quant_primitives import MappingType

    return {
        "int4": ("int4", 4 + 8 * DTYPE.itemsize / 32),
        "zero points": (intx(granularity=PerGroup(64), mapping_type=MappingType.ASYMMETRIC), 4 + 2 * 8 * DTYPE.itemsize / 64),
        "per channel": (intx(granularity=PerAxis(0)), 4 + 8 * DTYPE.itemsize / 384),
        "int8": ("int8", 8 + 8 * DTYPE.itemsize / 384),
        "int8 with zero points": (
            intx(torch.int8, granularity=PerAxis(0), mapping_type=MappingType.ASYMMETRIC),
            8 + 2 * 8 * DTYPE.itemsize / 384,
        ),
        "int8 with activations": (torchao.Int8DynamicActivationInt8WeightConfig(), 8 + 8 * 4 / 384),
        "fp8": ("fp8", 8 + 8 * 4 / 384),
        "nvfp4": (NVFP4WeightOnlyConfig(), 4 + 8 / 16),
        "mixed": (mixed, (4 + 8 * DTYPE.itemsize / 32 + 8 + 8 * DTYPE.itemsize / HIDDEN) / 2),
    }


@pytest.mark.parametrize("name", [*RECIPES, *(() if ON_GPU else ("int8 with activations",))])
def test_a_recipe_is_right_at_every_budget_and_takes_its_bits(name, tmp_path, capfd):
    if name == "nvfp4" and torch.__version__ < "2.14":
        pytest.skip("torch before 2.14 loses numbers of these weights, and the export says so")
    how, bits = recipes()[name]
    exact_products()
    plain = model()
    wanted = quantized(plain, how)
    pte, ptd = tmp_path / "model.pte", tmp_path / "model.ptd"
    ws.export(plain, (rows(5),), pte, ptd, device=DEVICE, quantize=how, dynamic_shapes=({1: Dim("length", min=1, max=64)},))
    assert type(plain[0].up.weight) is nn.Parameter
    assert plain[0].up.weight.dtype is DTYPE
    floor, outputs = ws.required_budget(pte), []
    for share in (0.0, 0.5, 1.0):
        with ws.Module(str(pte), str(ptd)) as module:
            total = module.stats()["total_weight_bytes"]
        with ws.Module(str(pte), str(ptd), weight_offload_budget_bytes=max(floor, int(2 * share * total))) as module:
            outputs.append([module.forward(rows(count)).cpu() for count in (5, 1, 64, 5)])
            copied = module.stats()["bytes_copied"]
    for least, half, most in zip(*outputs, strict=True):
        assert torch.equal(least, most)
        assert torch.equal(half, most)
    for count, found in zip((5, 1, 64), outputs[0], strict=False):
        with torch.no_grad():
            expected = wanted(rows(count)).float()
        assert (found.float() - expected).norm() <= 1e-2 * expected.norm()
    # Weights as their bits and scales; biases beside them.
    if name == "int4":
        capfd.readouterr()
        assert main(["inspect", str(pte)]) == 0
        assert f"0.up.weight.int4 int4 [{HIDDEN}, {WIDTH}], two to a byte" in capfd.readouterr().out
    parameters = 3 * 2 * WIDTH * HIDDEN
    assert abs(total - 3 * HIDDEN * DTYPE.itemsize - parameters * bits / 8) <= 0.02 * total
    assert total <= os.path.getsize(ptd) <= total * 1.02 + (64 << 10)  # Entries begin at pages.
    assert copied <= total * 1.02


@pytest.mark.parametrize("cut", [False, True])
def test_a_tied_table_of_eight_bits_has_one_copy(cut, tmp_path, monkeypatch):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layer = nn.Embedding(4096, 64), nn.Linear(64, 64)
            self.head = nn.Linear(64, 4096, bias=False)
            self.head.weight = self.table.weight

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.layer(self.table(t))))

    if cut:
        monkeypatch.setattr(cutting, "_LARGE", 1 << 16)
        monkeypatch.setattr(cutting, "_LEAST_PIECE", 1 << 15)
    exact_products()
    torch.manual_seed(3)
    plain = Tied().eval().to(DTYPE)
    wanted = quantized(plain, "int8")
    assert type(plain.table) is nn.Embedding
    pte, ptd = tmp_path / "model.pte", tmp_path / "model.ptd"
    tokens = torch.arange(0, 4096, 171)[None]
    ws.export(plain, (tokens,), pte, ptd, device=DEVICE, quantize="int8")
    outputs = []
    for budget in (ws.required_budget(pte), 1 << 20):
        with ws.Module(str(pte), str(ptd), weight_offload_budget_bytes=budget) as module:
            outputs.append(module.forward(tokens).cpu())
    assert torch.equal(*outputs)
    with torch.no_grad():
        expected = wanted(tokens).float()
    assert (outputs[0].float() - expected).norm() <= 1e-2 * expected.norm()
    # One table, with scales and what aligns the pieces.
    assert os.path.getsize(ptd) < 1.5 * 4096 * 64


@pytest.mark.no_runtime
@pytest.mark.parametrize("group", [4, 7, 16])
def test_halves_are_those_of_the_definition(group):
    columns = 2 * 7 * 16
    values = torch.randint(0, 16, (3, columns), generator=torch.Generator().manual_seed(1))
    scales = torch.rand(3, columns // group) + 0.5
    weight = (values - 8) * scales.repeat_interleave(group, 1)
    x = torch.randn(2, 5, columns)
    assert torch.allclose(products.quantized_mm(x, products.pack_halves(values), scales, group), x @ weight.t(), atol=1e-4)


@pytest.mark.no_runtime
@pytest.mark.parametrize("how", ["int4", "int8", "fp8"])
def test_a_giant_head_is_cut(how, monkeypatch):
    from weightstream._export.passes.prepare import prepare

    monkeypatch.setattr(cutting, "_LARGE", 1 << 16)
    monkeypatch.setattr(cutting, "_LEAST_PIECE", 1 << 15)
    head = quantized(nn.Sequential(nn.Linear(64, 4096)).eval(), how)
    x = torch.randn(3, 64)
    program = prepare(torch.export.export(head, (x,)))
    assert products.pack(program, "cpu") == 1
    names = [spec.target for spec in program.graph_signature.input_specs if spec.target]
    pieces = 4 if how == "int4" else 8
    assert sum(name.endswith(f".{how}") for name in names) == sum(name.endswith(".scales") for name in names) == pieces
    assert all(name.startswith("0.weight.rows_") for name in names if name != "0.bias")
    with torch.no_grad():
        assert torch.allclose(program.module()(x), head(x), atol=1e-4)


@pytest.mark.no_runtime
def test_a_weight_that_others_read_too_stays_as_it_is():
    from weightstream._export.passes.prepare import prepare

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randint(-128, 128, (32, 16), dtype=torch.int8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.table.to(torch.float32).t()) + self.table.sum()

    program = prepare(torch.export.export(Tied(), (torch.randn(3, 16),)))
    assert products.pack(program, "cpu") == 0


@pytest.mark.no_runtime
@pytest.mark.parametrize("sm", [80, 89, 90])
def test_the_kernels_of_a_gpu_end_each_product_in_its_block(sm):
    """A product that runs on into the next block reads operands that are written again: Triton 3.6 gave wrong sums so."""
    pytest.importorskip("triton.backends.nvidia")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from weightstream._export.passes import quantized_triton as kernels

    shared = 163 << 10 if sm in (80, 90) else 99 << 10
    block = 1 if shared > products.MUCH_SHARED else 2
    four = {"HALF": 2048, "GROUP": 32, "GROUPS": 128, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK": 64 // block}
    eight = {"K": 4096, "STEP_N": 4096, "STEP_K": 1, "BLOCK_M": 128, "BLOCK_N": 64, "BLOCK": 128 // block}
    sixteen = {**eight, "BLOCK": 64 // block}
    each = [(kernels._many_rows_of_4, four, "*i8"), (kernels._many_rows_of_8, eight, "*i8"), (kernels._many_rows_of_8, sixteen, "*bf16")]
    for (kernel, sizes, weight), experts in itertools.product(each, (0, 8)):
        sizes = {"N": 8320, "EACH": experts, **sizes, **({"BLOCK_M": 64} if experts else {})}
        types = {"X": "*bf16", "W": weight, "S": "*bf16", "Y": "*bf16", "M": "i32", "ORDER": "*i32", "OWNER": "*i32"}
        types |= dict.fromkeys(sizes, "constexpr")
        names = [one.name for one in kernel.params]
        source = ASTSource(
            fn=kernel,
            signature={name: types[name] for name in names},
            constexprs={(names.index(name),): size for name, size in sizes.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in "XWSY"},
        )
        made = compile(source, target=GPUTarget("cuda", sm, 32), options={"num_warps": sizes["BLOCK_N"] // 16, "num_stages": 3})
        assert made.metadata.shared <= shared
        loop = made.asm["ttgir"].partition("scf.for")[2].partition("scf.yield")[0]
        waits = re.findall(r"warp_group_dot_wait.*?pendings = (\d+)", loop)
        assert loop
        assert waits == (["0"] * len(re.findall(r"warp_group_dot ", loop)) if sm == 90 else [])


@pytest.mark.no_export
@pytest.mark.no_runtime
@pytest.mark.parametrize("sm", [80, 89, 90])
def test_the_kernels_of_a_gpu_load_matrices_16_bytes_at_once(sm):
    """Also where the runtime says where a matrix is, which the compiler does not know."""
    pytest.importorskip("triton.backends.nvidia")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from weightstream._export.passes import quantized_triton as kernels

    four, eight = {"HALF": 1024, "GROUP": 32, "GROUPS": 64}, {"K": 2048, "STEP_N": 2048, "STEP_K": 1}
    each = [(kernels._few_rows_of_4, four, "*u8"), (kernels._few_rows_of_8, eight, "*bf16"), (kernels._few_rows_of_8, eight, "*i8")]
    for kernel, sizes, weight in each:
        found = set()
        for told in (False, True):
            chosen = {"COUNT": 128, "EACH": 8, "N": 1536, "TOLD": told, "SCALES_TOLD": told, "BLOCK_N": 4, "BLOCK": 1024, **sizes}
            types = dict.fromkeys("XSY", "*bf16") | {"W": weight} | dict.fromkeys(("NUMBERS", "PLACES", "SCALE_PLACES"), "*i64")
            types |= dict.fromkeys(chosen, "constexpr")
            names = [one.name for one in kernel.params]
            source = ASTSource(
                fn=kernel,
                signature={name: types[name] for name in names},
                constexprs={(names.index(name),): size for name, size in chosen.items()},
                attrs={(names.index(name),): [["tt.divisibility", 16]] for name in names if types[name][0] == "*"},
            )
            text = compile(source, target=GPUTarget("cuda", sm, 32), options={"num_warps": 2}).asm["ptx"]
            found.add((len(re.findall(r"ld\.global\S*v4", text)), len(re.findall(r"ld\.global\S*b8", text))))
        ((wide, single),) = found
        assert wide > 0
        assert single == 0


@pytest.mark.no_runtime
@pytest.mark.skipif(not ON_GPU, reason="kernels in Triton")
@pytest.mark.parametrize(
    ("n", "k", "group"),
    [(256, 512, 32), (100, 576, 64), (72, 96, 32), (8320, 1024, 128), (64, 20, 20), (33, 288, 288), (8200, 4096, 32)],
)
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_the_kernels_of_a_gpu(kind, n, k, group):
    """Against the definition, and the same bits each time."""
    import weightstream._export.passes.quantized_triton  # noqa: F401 - its operators

    generator = torch.Generator().manual_seed(n + k)
    values = torch.randint(0, 16, (n, k), generator=generator) if kind == "int4" else torch.randint(-128, 128, (n, k), generator=generator)
    stored = {
        "int4": lambda: products.pack_halves(values),
        "int8": lambda: values.to(torch.int8),
        "fp8": lambda: (values / 16).to(torch.float8_e4m3fn),
    }
    packed = stored[kind]().to(DEVICE)
    group = group if kind == "int4" else k
    scales = (torch.rand(n, k // group, generator=generator) / 64 + 0.01).to(torch.bfloat16).to(DEVICE)
    dense = (values - 8 if kind == "int4" else packed.float().cpu()).float().to(DEVICE)
    dense = dense * scales.float().repeat_interleave(group, 1)
    operators = torch.ops.weightstream
    for count in (1, 3, 4, 5, 16, 17, 64, 200, 513):
        x = torch.randn(count, k, generator=generator).to(torch.bfloat16).to(DEVICE)
        wanted, found = x.float() @ dense.t(), []
        for _ in range(5):
            if count <= 4:
                found.append(operators.quantized_few_rows(x, packed, scales, group))
            else:
                found.append(operators.quantized_many_rows(x, packed, scales, group, products._tile(count), False))
        assert all(torch.equal(one, found[0]) for one in found[1:])
        error = (found[0].float() - wanted).norm() / wanted.norm()
        assert error < 6e-3, (count, error)


@pytest.mark.no_runtime
def test_what_keeps_eight_bits_is_said(capfd):
    from weightstream._export.passes.prepare import prepare

    program = prepare(torch.export.export(quantized(nn.Sequential(nn.Linear(64, 8)).eval(), "int4"), (torch.randn(3, 64),)))
    assert products.pack(program, "cuda") == 0
    assert "'0.weight' keeps its integers of four bits in eight: the kernel on a GPU is for bfloat16, not float32" in capfd.readouterr().err


@pytest.mark.no_runtime
def test_words_configs_and_functions():
    plain = model()
    before = {name: value.clone() for name, value in plain.state_dict().items()}

    def kinds(how) -> list[str]:
        return [type(layer.weight).__name__ for layer in quantized(plain, how).modules() if isinstance(layer, nn.Linear)]

    assert len(set(kinds("int4"))) == 1
    assert kinds(torchao.Int8WeightOnlyConfig()) == kinds("int8")
    mixed = kinds(lambda layer: "int8" if layer.in_features == HIDDEN else None)
    assert mixed == ["Parameter", kinds("int8")[0]] * 3
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    # Tensors that stay are no copies, and methods share layers.
    both = quantized({"a": plain, "b": nn.Sequential(plain)}, lambda layer: "int8" if layer.in_features == HIDDEN else None)
    assert both["a"] is both["b"][0]
    assert both["a"][0].up.weight is plain[0].up.weight

    assert "'int4', 'int8', 'fp8'" in error_of(lambda: quantized(plain, "int3"), ws.ExportError)
    assert "no linear layer" in error_of(lambda: quantized(nn.ReLU(), "int4"), ws.ExportError)
    program = torch.export.export(copy.deepcopy(plain), (rows(2),))
    assert "takes modules" in error_of(lambda: quantized({"a": program}, "int4"), TypeError)


def gptq_like(bits: int) -> tuple[ws.QuantizedLinear, nn.Linear]:
    """A layer of random integers as GPTQ packs them, and the same with a weight of floats."""
    made = torch.Generator().manual_seed(bits)
    count, groups = 32 // bits, WIDTH // 64
    packed = torch.randint(-(2**31), 2**31 - 1, (WIDTH // count, HIDDEN), generator=made, dtype=torch.int32)
    values = (packed.unsqueeze(1) >> torch.arange(0, 32, bits)[:, None]) & ((1 << bits) - 1)
    values = values.reshape(WIDTH, HIDDEN).t().contiguous()
    zeros = torch.randint(0, 1 << bits, (HIDDEN, groups), generator=made)
    scales = (torch.rand(HIDDEN, groups, generator=made) / 256 + 1e-3).to(DTYPE)
    plain = nn.Linear(WIDTH, HIDDEN).to(DTYPE).requires_grad_(False)
    weight = (values.unflatten(1, (groups, -1)) - zeros.unsqueeze(-1)) * scales.float().unsqueeze(-1)
    plain.weight.copy_(weight.flatten(1))
    return ws.QuantizedLinear.from_integers(values, scales, zeros, plain.bias, bits=bits), plain


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_of_a_checkpoint_become_layers(bits, tmp_path):
    exact_products()
    layer, plain = gptq_like(bits)
    pte, ptd = tmp_path / "model.pte", tmp_path / "model.ptd"
    ws.export(layer, (rows(5),), pte, ptd, device=DEVICE)
    with ws.Module(str(pte), str(ptd), weight_offload_budget_bytes=ws.required_budget(pte)) as module:
        found = module.forward(rows(5)).cpu().float()
        assert module.stats()["total_weight_bytes"] <= WIDTH * HIDDEN * bits / 8 * 1.3
    wanted = plain(rows(5)).float()
    assert (found - wanted).norm() <= 1e-2 * wanted.norm()


@pytest.mark.no_runtime
def test_integers_that_make_no_weight_are_refused():
    make, values, scales = ws.QuantizedLinear.from_integers, torch.zeros(4, 8, dtype=torch.int32), torch.ones(4, 2)
    assert "values are integers [N, K] from 0 to 15, K even; found int32 [4, 8]" in error_of(lambda: make(values + 16, scales), ValueError)
    assert "found int32 [4, 7]" in error_of(lambda: make(values[:, :7], scales), ValueError)
    assert "scales are floats [N, K / group], N = 4 and K = 8; found float32 [4, 3]" in error_of(
        lambda: make(values, torch.ones(4, 3)), ValueError
    )
    assert "zero_points have the shape of the scales, [4, 2]; found float32 [4]" in error_of(
        lambda: make(values, scales, torch.ones(4)), ValueError
    )
    assert "bias has a number for each of 4 rows; found float32 [8]" in error_of(
        lambda: make(values, scales, None, torch.ones(8)), ValueError
    )
    assert "bits is 4 or 8, not 3" in error_of(lambda: make(values, scales, bits=3), ValueError)
