"""Compiles small models for tests/aoti_container.rs: `python aoti_models.py OUT_DIR`.

One directory per model with `model.so`, raw bytes of constants, inputs and eager outputs, and a
`manifest.txt` of plain lines. The probes are inserted by a few lines of this script: the tests are about
the runtime's side, not about the exporter.
"""

import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor import ir
from torch._inductor.lowering import fallback_handler, register_lowering
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
from weightstream._export.compile import trampolines

SCALAR_TYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}


@torch.library.custom_op("weightstream_test::probe", mutates_args=())
def probe(weight: torch.Tensor, probe_id: int) -> torch.Tensor:
    return weight.clone()


@probe.register_fake
def _(weight, probe_id):
    return torch.empty_like(weight)


PROBE = torch.ops.weightstream_test.probe.default
_plain = fallback_handler(PROBE, add_to_fallback_set=False)


@register_lowering(PROBE, type_promotion_kind=None)
def _lower_probe(weight, probe_id):
    """The kernel claims to alias its input, so that nothing is written into a probe's output."""
    result = kernel = _plain(weight, probe_id)
    result.realize()
    while not isinstance(kernel, ir.FallbackKernel):
        kernel = kernel.inputs[0] if isinstance(kernel, ir.MultiOutput) else kernel.data
    kernel.alias_names.append(weight.get_name())
    return result


OPTIONS = {
    "aot_inductor.link_libtorch": False,
    "aot_inductor.package": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.custom_op_libs": [trampolines.LINK_NAME],
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "always_keep_tensor_constants": True,
    "cpp.threads": 1,
    "cpp.vec_isa_ok": False,
    "aot_inductor.custom_ops_to_c_shims": {PROBE: ["AOTITorchError aoti_torch_cpu_probe(AtenTensorHandle, int64_t, AtenTensorHandle*)"]},
}


class Mlp(nn.Module):
    def __init__(self, act=F.gelu):
        super().__init__()
        self.up, self.down = nn.Linear(12, 40), nn.Linear(40, 7, bias=False)
        self.act = act

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.group = nn.Conv2d(8, 12, 3, stride=2, groups=4, dilation=2, padding=2)
        self.back = nn.ConvTranspose2d(12, 6, 3, stride=2, output_padding=1, padding=1, groups=2)
        self.line = nn.Conv1d(6, 4, 5, padding=2)
        self.space = nn.Conv3d(1, 2, 2)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)))
        y = self.back(F.relu(self.group(F.max_pool2d(y, 9, stride=1, padding=4))))
        z = self.line(y.flatten(2)) + self.space(y[:, None]).sum() * 0.01
        return self.head(y.mean((2, 3))), z, F.avg_pool2d(y, 7, 2, 3), F.adaptive_avg_pool2d(y, 5)


class Decoder(nn.Module):
    """Embedding, attention over a cache that is written in place, and outputs that are no activations."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.qkv = nn.Linear(32, 96, bias=False)
        self.out = nn.Linear(32, 50)
        self.register_buffer("cache", torch.zeros(1, 2, 16, 32))

    def forward(self, ids, pos):
        h = self.embed(ids)
        q, k, v = (t.view(1, -1, 2, 16).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        self.cache.index_copy_(2, pos, torch.cat([k, v], -1))
        kk, vv = self.cache.chunk(2, -1)
        a = F.scaled_dot_product_attention(q, kk, vv).transpose(1, 2).reshape(1, -1, 32)
        return self.out(a), self.embed.weight, ids, self.qkv.weight.t(), pos[:1]


class Same(nn.Module):
    """Outputs that become one buffer, with each other, with an input, with a weight's."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x, i):
        v = x @ self.w
        return v * 1, v, v.chunk(2, 1)[-1], v, x, x * 1, x, i, i, self.w, self.w


class Ops(nn.Module):
    """The functions that are called for what Inductor does not compile itself."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16))
        self.b = nn.Parameter(torch.randn(16, 16, dtype=torch.bfloat16))
        self.h = nn.Parameter(torch.randn(16, 16, dtype=torch.float16))
        self.d = nn.Parameter(torch.randn(16, 16, dtype=torch.float64))
        self.bag = nn.EmbeddingBag(20, 16, mode="mean")

    def forward(self, x, i, n):
        y = x @ self.w
        top, where = torch.topk(y, 3)
        ordered, places = torch.sort(y, dim=0, descending=True, stable=True)
        most, at = torch.cummax(y, 1)
        half = torch.addmm(x.half(), x.half(), self.h, beta=0.5, alpha=2.0)
        return (
            top, where, ordered, places, most, at,
            torch.cumsum(y, 1), torch.cumprod(y, 0), torch.logcumsumexp(y, -1),
            torch.cumsum(i, 0), y.scatter_reduce(1, i, x, "amax"), y.scatter_reduce(1, i, x, "mean"),
            x.bfloat16() @ self.b, half, x.double() @ self.d, i @ i.t(),
            torch.baddbmm(x[None], x[None], self.w[None], beta=0.5),
            torch.searchsorted(ordered[:, 0].flip(0), x), self.bag(i), y * n.item(),
            torch._int_mm((i % 7).to(torch.int8), (i % 5).t().to(torch.int8)),
        )  # fmt: skip


def _dense(tensor):
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _store(folder, name, tensor):
    data = _dense(tensor).reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    (folder / name).write_bytes(data)


def _line(kind, name, file, tensor):
    dims = " ".join(str(s) for s in tensor.shape)
    return f"{kind} {name} {file} {SCALAR_TYPES[tensor.dtype]} {tensor.dim()} {dims}".rstrip()


def _insert_probes(program):
    mutated = set(program.graph_signature.buffers_to_mutate.values())
    specs = program.graph_signature.input_specs
    weights = {s.arg.name: s.target for s in specs if s.target and s.target not in mutated}
    fqns = []
    for node in list(program.graph.nodes):
        for source in list(node.all_input_nodes) if node.op in ("call_function", "output") else []:
            if source.name in weights and source.meta["val"].dim() > 0:
                with program.graph.inserting_before(node):
                    call = program.graph.call_function(PROBE, (source, len(fqns)))
                call.meta["val"] = source.meta["val"]
                node.replace_input_with(source, call)
                fqns.append(weights[source.name])
    program.graph_module.recompile()
    return fqns, {s.target for s in specs if s.target} - set(fqns)


def compile_model(root, name, model, calls):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    lines, model = [], model.eval()
    with torch.no_grad(), sdpa_kernel([SDPBackend.MATH]):
        program = torch.export.export(model, calls[0]).run_decompositions({})
        fqns, direct = _insert_probes(program)
        constants = {**program.state_dict, **program.constants}
        for index, (fqn, tensor) in enumerate(sorted(constants.items())):
            _store(folder, f"constant{index}", tensor)
            lines.append(_line("direct" if fqn in direct else "weight", fqn, f"constant{index}", tensor))
        files = torch._inductor.aot_compile(program.module(), calls[0], options={**OPTIONS, "aot_inductor.output_path": f"{folder}/build/"})
        lines += [f"probe {fqn}" for fqn in fqns]
        for number, call in enumerate(calls):
            for kind, tensors in (("input", call), ("output", model(*call))):
                for index, tensor in enumerate([tensors] if torch.is_tensor(tensors) else tensors):
                    file = f"{kind}{number}_{index}"
                    _store(folder, file, tensor)
                    lines.append(_line(kind, str(number), file, tensor))
    (library,) = (f for f in files if str(f).endswith(".so"))
    missing = trampolines.check_library(library)
    if missing or not trampolines.is_bindable(library):
        raise SystemExit(f"{name}: not bindable, or functions are missing: {missing}")
    os.replace(library, folder / "model.so")
    (folder / "manifest.txt").write_text("\n".join(lines) + "\n")


def main():
    root = Path(sys.argv[1])
    trampolines.build(root)
    os.environ["LIBRARY_PATH"] = os.pathsep.join([str(root), os.environ.get("LIBRARY_PATH", "")])
    torch.manual_seed(1)
    x = torch.randn(5, 12)
    compile_model(root, "mlp", Mlp(), [(x,), (x * 2,)])
    compile_model(root, "mlp_relu", Mlp(F.relu), [(x,), (x * 2,)])
    image = torch.randn(2, 3, 12, 10)
    compile_model(root, "conv", Conv(), [(image,), (image - 1,)])
    steps = [(torch.tensor([[n, 49 - n]]), torch.tensor([2 * n, 2 * n + 1])) for n in range(3)]
    compile_model(root, "decoder", Decoder(), steps)
    i = torch.randint(0, 16, (16, 16))
    x = torch.randn(16, 16)
    compile_model(root, "ops", Ops(), [(x, i, torch.tensor(3.0)), (-x, i.t().contiguous(), torch.tensor(0.5))])
    x = torch.randn(3, 4)
    compile_model(root, "same", Same(), [(x, torch.arange(3)), (-x, torch.arange(3) + 5)])
    (root / "done").write_text("")


if __name__ == "__main__":
    main()
