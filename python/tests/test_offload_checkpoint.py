"""`ws.torch.offload(module, weights=…)`: a module that was made on meta gets the bytes of safetensors files, which are mapped.

Runs on the CPU, and on a GPU with WEIGHTSTREAM_TEST_DEVICE=cuda. What is refused: `test_offload_checkpoint_errors.py`.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import weightstream as ws
from checkpoint_files import DEVICE, NAMES, WIDTH, Model, expected_of, on_meta, save, save_raw, save_sharded, stored, tokens
from device_under_test import ON_GPU, exact_products
from support import error_of
from torch import nn

pytestmark = pytest.mark.no_export
HOSTS = ["auto", "mapped", "pinned", "staged"] if ON_GPU else ["auto", "mapped"]


@pytest.fixture(autouse=True)
def _inference():
    exact_products()
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def real() -> Model:
    return Model().eval()


@pytest.fixture(scope="module")
def expected(real: Model) -> torch.Tensor:
    return expected_of(real)


@pytest.fixture(scope="module")
def folder(real: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sharded(tmp_path_factory.mktemp("sharded"), stored(real))


@pytest.mark.parametrize("host", HOSTS)
def test_the_bits_are_those_of_the_module_loaded_otherwise(host, folder, expected):
    model = on_meta()
    with ws.torch.offload(model, weights=folder, host=host, device=DEVICE) as handle:
        for budget in (None, 2, 1):
            if budget:
                floor = handle.stats()["floor_bytes"]
                handle.set_budget(floor + (64 << 20) // budget)
            for _ in range(3):
                assert torch.equal(model(tokens()), expected)
        assert not ON_GPU or (handle.stats()["host_mapped_bytes"] > 0) == (host in ("auto", "mapped"))
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.to(DEVICE)(tokens()), expected)


def test_a_removed_module_is_offloaded_again_without_weights(folder, expected):
    model = on_meta()
    for options in ({"weights": folder}, {}, {"host": "mapped"}):
        with ws.torch.offload(model, device=DEVICE, **options) as handle:
            for _ in range(2):
                assert torch.equal(model(tokens()), expected)
            handle.invalidate()
            assert torch.equal(model(tokens()), expected)
    model.layers[0].weight.detach().mul_(2)
    with ws.torch.offload(model, device=DEVICE, weights=folder):
        assert torch.equal(model(tokens()), expected)


@pytest.mark.parametrize("form", ["folder", "index", "files", "text", "one file", "without index"])
def test_forms_of_a_checkpoint(form, folder, expected, real, tmp_path):
    files = sorted(folder.glob("*.safetensors"))
    weights = {
        "folder": folder,
        "index": folder / "model.safetensors.index.json",
        "files": files,
        "text": str(folder),
        "one file": save(tmp_path / "all.safetensors", stored(real)),
        "without index": tmp_path,
    }[form]
    model = on_meta()
    with ws.torch.offload(model, weights=weights, device=DEVICE, example=(tokens(),)):
        assert torch.equal(model(tokens()), expected)


def test_what_safetensors_writes_is_read(folder, expected, real, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({name: tensor.clone() for name, tensor in stored(real).items()}, tmp_path / "m.safetensors")
    model = on_meta()
    with ws.torch.offload(model, weights=tmp_path, device=DEVICE):
        assert torch.equal(model(tokens()), expected)


def test_two_modules_of_one_file_and_a_copied_one(folder, expected):
    models = [on_meta(), on_meta()]
    handles = [ws.torch.offload(model, weights=folder, device=DEVICE) for model in models]
    for _ in range(2):
        for model in models:
            assert torch.equal(model(tokens()), expected)
    assert "save its state_dict()" in error_of(lambda: pickle.dumps(models[0]))
    for handle in handles:
        handle.remove()
    again = pickle.loads(pickle.dumps(models[0]))
    assert torch.equal(again.to(DEVICE)(tokens()), expected)


def test_parts_of_one_checkpoint_are_offloaded_apart(folder, real):
    model = on_meta()
    ws.torch.offload(model, weights=folder, device=DEVICE).remove()
    x = torch.linspace(-1, 1, WIDTH, device=DEVICE)
    wanted = copy.deepcopy(real.layers).to(DEVICE)(x)
    halves = [model.layers[:3], model.layers[3:]]
    handles = [ws.torch.offload(half, device=DEVICE) for half in halves]
    for _ in range(3):
        assert torch.equal(halves[1](halves[0](x)), wanted)
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("both", [True, False])
def test_tied_names(both, real, expected, tmp_path):
    """A tied weight is in the files once, under either name, or under both."""
    tensors = stored(real)
    embed = tensors.pop("embed.weight")
    tensors |= {"head.weight": embed} | ({"embed.weight": embed.clone()} if both else {})
    save(tmp_path / "m.safetensors", tensors)
    model = on_meta()
    with ws.torch.offload(model, weights=tmp_path, device=DEVICE):
        assert torch.equal(model(tokens()), expected)
        assert model.head.weight is model.embed.weight
    # A module that does not tie needs both.
    untied = on_meta(tied=False)
    if both:
        with ws.torch.offload(untied, weights=tmp_path, device=DEVICE):
            assert torch.equal(untied(tokens()), expected)
        save(tmp_path / "m.safetensors", tensors | {"embed.weight": embed + 1})
        text = error_of(lambda: ws.torch.offload(on_meta(), weights=tmp_path, device=DEVICE))
        assert "'embed.weight' and 'head.weight' are one tensor of the module, and differ in the files" in text
    else:
        assert "missing in the files: 'embed.weight'" in error_of(lambda: ws.torch.offload(untied, weights=tmp_path, device=DEVICE))


def test_what_the_files_have_is_theirs_and_the_rest_stays(real, expected, tmp_path):
    """A module that was made without weights may have real ones: `nn.Parameter(torch.Tensor(n))` is memory that nobody has written."""
    model = on_meta()
    model.layers[2].weight = nn.Parameter(torch.full((WIDTH, WIDTH), float("nan")))
    model.shift = torch.zeros(WIDTH)
    model.layers[0].gain = mine = nn.Parameter(torch.ones(1))
    # Names of buffers that are not saved are not extra.
    save(tmp_path / "m.safetensors", stored(real) | {"angles": torch.zeros(WIDTH)})
    for host in HOSTS[:1] if not ON_GPU else HOSTS:
        with ws.torch.offload(model, weights=tmp_path, host=host, device=DEVICE) as handle:
            for _ in range(3):
                assert torch.equal(model(tokens()), expected)
            assert model.layers[0].gain is mine
            handle.set_budget(handle.stats()["floor_bytes"] + (64 << 20))
            assert torch.equal(model(tokens()), expected)
        model.layers[1].weight = nn.Parameter(model.layers[1].weight.to("meta"), requires_grad=False)


def test_buffers_that_passes_write(tmp_path):
    """Small ones lie in ordinary memory. A large one of a file gets such memory when it is written."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("sums", torch.zeros(1 << 18))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            self.sums += 1
            return self.layer(x) * self.seen + self.sums[:WIDTH]

    save(tmp_path / "m.safetensors", stored(Counter()))
    with torch.device("meta"):
        model = Counter()
    with ws.torch.offload(model, weights=tmp_path, device=DEVICE):
        for _ in range(3):
            model(torch.zeros(WIDTH, device=DEVICE))
    assert (int(model.seen), float(model.sums.min()), float(model.sums.max())) == (3, 3, 3)
    model.sums += 1


class Writer(nn.Linear):
    """Writes its weight through `.data` when it is told to."""

    writes = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.writes:
            self.weight.data.mul_(2)
        return super().forward(x)


@pytest.mark.parametrize("resident", [True, False])
def test_a_weight_that_a_pass_writes_leaves_its_file(resident, tmp_path):
    """No operator tells of `.data`: the host's bytes are written after the call, and those of a file cannot be."""
    layers = nn.Sequential(*(Writer(WIDTH, WIDTH) for _ in range(6)))
    save(tmp_path / "m.safetensors", stored(layers))
    with torch.device("meta"):
        model = nn.Sequential(*(Writer(WIDTH, WIDTH) for _ in range(6)))
    x = torch.ones(WIDTH, device=DEVICE)
    budget = 1 << 28 if resident else None
    with ws.torch.offload(model, weights=tmp_path, budget=budget, device=DEVICE, example=(x,)) as handle:
        first = model(x)
        assert handle.stats()["resident"] == resident
        model[1].writes = True
        model(x)
        model[1].writes = False
        for _ in range(3):
            assert not torch.equal(model(x), first)
    assert torch.equal(model[1].weight, layers[1].weight * 2)
    assert torch.equal(model[2].weight, layers[2].weight)


def test_dtypes(tmp_path):
    kinds = [one for one in NAMES if one is not torch.float32]

    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            for at, kind in enumerate(kinds):
                self.register_buffer(f"b{at}", torch.zeros(3, 5).to(kind))
            self.register_buffer("none", torch.zeros(0, 4))

    made = Typed()
    for buffer in made.buffers():
        if buffer.numel():
            buffer.view(torch.uint8).copy_(torch.arange(buffer.nbytes).reshape(buffer.view(torch.uint8).shape) % 2)
    save(tmp_path / "m.safetensors", stored(made))
    with torch.device("meta"):
        model = Typed()
    ws.torch.offload(model, weights=tmp_path, device=DEVICE).remove()
    for name, tensor in made.state_dict().items():
        found = model.state_dict()[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_another_dtype_is_converted_where_that_is_asked_for(real, tmp_path):
    save(tmp_path / "m.safetensors", {name: tensor.bfloat16() for name, tensor in stored(real).items()})
    text = error_of(lambda: ws.torch.offload(on_meta(), weights=tmp_path, device=DEVICE))
    assert "'embed.weight' is expected to be torch.float32, and is torch.bfloat16 in" in text
    assert "and 7 more" in text
    assert "convert=True" in text
    model = on_meta()
    with ws.torch.offload(model, weights=tmp_path, convert=True, device=DEVICE) as handle:
        wanted = Model().eval().bfloat16().float()
        wanted.angles = model.angles.cpu()
        wanted = wanted.to(DEVICE)(tokens())
        for _ in range(3):
            assert torch.equal(model(tokens()), wanted)
        assert handle.stats()["passes"] == 3


def test_a_pipeline_takes_a_folder_for_each_part(folder, real, expected, tmp_path):
    pipe = {"first": on_meta(), "second": Model().eval()}
    text = error_of(lambda: ws.torch.offload(pipe, weights=folder, device=DEVICE))
    assert "a dictionary of folders or files by part, of first, second" in text
    assert "of first, second" in error_of(lambda: ws.torch.offload(pipe, weights={"third": folder}, device=DEVICE))
    with ws.torch.offload(pipe, weights={"first": folder}, device=DEVICE):
        for _ in range(2):
            assert torch.equal(pipe["first"](tokens()), expected)
            assert torch.equal(pipe["second"](tokens()), expected)


def test_a_file_that_changed_is_refused(real, tmp_path):
    path = save(tmp_path / "m.safetensors", stored(real))
    model = on_meta()
    with ws.torch.offload(model, weights=path, device=DEVICE):
        other = save(tmp_path / "other.safetensors", stored(real))
        other.rename(path)
        assert f"{path} is gone or has changed since it was mapped" in error_of(lambda: model(tokens()))
    model = on_meta()
    ws.torch.offload(model, weights=path, device=DEVICE).remove()
    path.unlink()
    with ws.torch.offload(model, device=DEVICE):
        assert "is gone" in error_of(lambda: model(tokens()))


def test_a_model_of_transformers(tmp_path):
    """Made as docs/eager.md says. Its rotary embedding has buffers that no checkpoint has."""
    transformers, accelerate = pytest.importorskip("transformers"), pytest.importorskip("accelerate")
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True, dtype="bfloat16")
    real = transformers.AutoModelForCausalLM.from_config(config).eval()
    real.save_pretrained(tmp_path, max_shard_size="100KB")
    ids = torch.tensor([[1, 2, 3]], device=DEVICE)
    wanted = real.to(DEVICE).generate(ids, max_new_tokens=8, do_sample=False)
    with accelerate.init_empty_weights(include_buffers=False):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    model.tie_weights()
    with ws.torch.offload(model.eval(), weights=tmp_path, device=DEVICE) as handle:
        assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), wanted)
        assert handle.stats()["plans"] >= 1


def test_mappings_end_with_their_modules(folder):
    from weightstream._eager.mapping import _MAPPED

    gc.collect()
    before = len(_MAPPED)
    model = on_meta()
    handle = ws.torch.offload(model, weights=folder, device=DEVICE)
    model(tokens())
    assert len(_MAPPED) == before + 3
    handle.remove()
    del model, handle
    gc.collect()
    assert len(_MAPPED) == before


_CHILD = """
import sys, torch, weightstream as ws
from torch import nn

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("RssAnon"))

with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False, dtype=torch.bfloat16) for _ in range(36)))
x = torch.zeros(2048, dtype=torch.bfloat16)
with torch.no_grad():
    nn.Linear(2048, 2048, dtype=torch.bfloat16)(x)
    before = anonymous()
    handle = ws.torch.offload(model, weights=sys.argv[1], device="cpu")
    loaded = anonymous()
    sums = [float(one.view(torch.uint8)[:, ::64].sum()) for one in model.parameters()]
    print(loaded - before, anonymous() - before, len(set(sums)) > 1)
"""


def test_anonymous_memory_does_not_grow_with_the_checkpoint(tmp_path):
    size = 2048 * 2048 * 2
    header = {f"{at}.weight": {"dtype": "BF16", "shape": [2048, 2048], "data_offsets": [at * size, (at + 1) * size]} for at in range(36)}
    path = save_raw(tmp_path / "m.safetensors", header)
    with path.open("ab") as file:
        file.write(os.urandom(size))
        file.truncate(path.stat().st_size + 35 * size)
    ran = subprocess.run([sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    loaded, read, differ = ran.stdout.split()
    assert int(loaded) < 20
    assert int(read) < 50
    assert differ == "True"


def _counted(layer: nn.Linear) -> None:
    layer.weight.mul_(2)


def _through_data(layer: nn.Linear) -> None:
    layer.weight.data.mul_(2)


def _loaded(layer: nn.Linear) -> None:
    layer.load_state_dict({name: value * 2 for name, value in layer.state_dict().items()})


@pytest.mark.parametrize("write", [_counted, _through_data, _loaded])
def test_a_weight_that_is_written_between_passes_leaves_its_file(write, tmp_path):
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    save(tmp_path / "m.safetensors", stored(layers))
    before = (tmp_path / "m.safetensors").read_bytes()
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    x = torch.ones(WIDTH, device=DEVICE)
    with ws.torch.offload(model, weights=tmp_path, device=DEVICE, example=(x,)) as handle:
        for _ in range(2):
            model(x)
        for one in (model, layers):
            write(one[2])
        wanted = copy.deepcopy(layers).to(DEVICE)(x)
        for _ in range(3):
            assert torch.equal(model(x), wanted)
        # What nobody sees, as a write to an array over the weight.
        for one in (model, layers):
            one[4].weight.detach().numpy()[:] += 1
        handle.invalidate("4.weight")
        assert torch.equal(model(x), copy.deepcopy(layers).to(DEVICE)(x))
    assert (tmp_path / "m.safetensors").read_bytes() == before


@pytest.mark.parametrize("write", [_counted, _through_data, _loaded])
def test_a_weight_that_is_written_while_the_module_is_not_offloaded(write, tmp_path):
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    save(tmp_path / "m.safetensors", stored(layers))
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    x = torch.ones(WIDTH, device=DEVICE)
    ws.torch.offload(model, weights=tmp_path, device=DEVICE, example=(x,)).remove()
    for one in (model, layers):
        write(one[2])
    with ws.torch.offload(model, device=DEVICE) as handle:
        for _ in range(3):
            assert torch.equal(model(x), copy.deepcopy(layers).to(DEVICE)(x))
        # The next one sees it when the first has not.
        for one in (model, layers):
            write(one[3])
        handle.remove()
    with ws.torch.offload(model, device=DEVICE):
        for _ in range(3):
            assert torch.equal(model(x), copy.deepcopy(layers).to(DEVICE)(x))


@pytest.mark.parametrize("write", [_counted, _through_data])
def test_weights_of_one_storage_stay_together_when_they_are_written(write, tmp_path):
    def pair(first: nn.Linear) -> nn.Sequential:
        second = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        second.weight = nn.Parameter(first.weight[: WIDTH // 2], requires_grad=False)
        return nn.Sequential(first, second)

    layer = nn.Linear(WIDTH, WIDTH)
    save(tmp_path / "m.safetensors", stored(layer))
    with torch.device("meta"):
        empty = nn.Linear(WIDTH, WIDTH)
    ws.torch.offload(empty, weights=tmp_path, device=DEVICE).remove()
    model, wanted = pair(empty.requires_grad_(False)), pair(layer.requires_grad_(False))
    x = torch.ones(WIDTH, device=DEVICE)
    with ws.torch.offload(model, device=DEVICE):
        for _ in range(3):
            for one in (model, wanted):
                write(one[0])
            assert torch.equal(model(x), copy.deepcopy(wanted).to(DEVICE)(x))
            assert model[1].weight.data_ptr() == model[0].weight.data_ptr()


def test_only_floats_are_converted(tmp_path):
    save(tmp_path / "m.safetensors", {"weight": torch.ones(WIDTH, WIDTH, dtype=torch.uint8), "bias": torch.zeros(WIDTH).half()})
    with torch.device("meta"):
        model = nn.Linear(WIDTH, WIDTH)
    text = error_of(lambda: ws.torch.offload(model, weights=tmp_path, device=DEVICE, convert=True))
    assert "does not convert" in text
    assert "'weight'" in text
    assert "'bias'" not in text
