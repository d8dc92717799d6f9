"""Inputs and outputs on a GPU: what `save(device_io=...)` writes, what is refused, and, where there is a GPU, that it is right.

`pytest test_device_io.py` runs everything on a machine with a GPU; without one the tests that need it are skipped.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path

import pytest
import torch
import weightstream as ws
from executorch.exir import to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import DeviceType
from support import error_of
from torch import nn
from weightstream._export import save
from weightstream._native import bindings
from weightstream._run import values

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
TOKENS, WIDTH = 48, 256


class Net(nn.Module):
    """A few weights; one output that is dense and one that is strided."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, y):
        h = x + y
        for layer in self.layers:
            h = torch.relu(layer(h))
        return h, (h * 2).t()


def edge_program(device: str):
    torch.manual_seed(3)
    model = Net().eval().requires_grad_(False)
    program = ws.apply_weight_offload(torch.export.export(model, (torch.ones(TOKENS, WIDTH), torch.ones(TOKENS, WIDTH))))
    partitioner = ws.WeightStreamPartitioner(device=device)
    return to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=ws.edge_compile_config())


@pytest.fixture(scope="module")
def cpu_edge():
    return edge_program("cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """`files[name]`: paths of the program for CUDA; `cpu_io` as it is, `cuda:0` and `cuda:1` with device_io."""
    folder = tmp_path_factory.mktemp("device_io")
    edge = edge_program("cuda")
    paths = {name: (str(folder / f"{name}.pte"), str(folder / f"{name}.ptd")) for name in ("cpu_io", "cuda:0", "cuda:1")}
    for name, (pte, ptd) in paths.items():
        ws.save(edge, pte, ptd, device_io=False if name == "cpu_io" else name)
    return paths


@functools.cache
def inputs(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(TOKENS, WIDTH, generator=generator) for _ in range(2))


def forward_plan(pte: Path):
    program = deserialize_pte_binary(pte.read_bytes())
    program = getattr(program, "program", program)
    return next(plan for plan in program.execution_plan if plan.name == "forward")


def devices(plan, indices):
    infos = [plan.values[index].val.extra_tensor_info for index in indices]
    return [(info.device_type, info.device_index) if info else (DeviceType.CPU, 0) for info in infos]


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.no_runtime
def test_device_io_needs_a_program_for_cuda_and_a_device_of_that_kind(cpu_edge, tmp_path):
    def save_it(device_io):
        ws.save(cpu_edge, tmp_path / "model.pte", tmp_path / "model.ptd", device_io=device_io, check=False)

    assert "was exported for the device 'cpu'" in error_of(lambda: save_it(True), ws.ExportError)
    for wrong in ("cpu", "cuda:", "cuda:-1", "gpu", 1, None, ""):
        assert 'device_io takes True, "cuda" or "cuda:N"' in error_of(functools.partial(save_it, wrong), ws.ExportError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.no_runtime
def test_the_file_says_where_inputs_and_outputs_lie(cpu_edge, tmp_path, monkeypatch):
    """On a program for the CPU, since that is what can be compiled anywhere: the placement is ExecuTorch's."""
    device_of_io = save._device_of_io

    def as_for_cuda(found, device_io):
        return device_of_io({name: ({**fields, "device": ["cuda"]}, delegate) for name, (fields, delegate) in found.items()}, device_io)

    monkeypatch.setattr(save, "_device_of_io", as_for_cuda)
    # Saved again and again: nothing of one save is left in the next.
    for device_io, expected in ((True, (DeviceType.CUDA, 0)), (False, (DeviceType.CPU, 0)), ("cuda:1", (DeviceType.CUDA, 1))):
        ws.save(cpu_edge, tmp_path / "model.pte", tmp_path / "model.ptd", device_io=device_io, check=False)
        plan = forward_plan(tmp_path / "model.pte")
        assert devices(plan, [*plan.inputs, *plan.outputs]) == [expected] * 4
        planned = [(buffer.device_type, buffer.device_index) for buffer in plan.non_const_buffer_device or []]
        assert planned == ([] if device_io is False else [expected])
        # On a device an input has no place of its own, or ExecuTorch would copy there from the host's memory.
        assert all((plan.values[at].val.allocation_info is None) == (device_io is not False) for at in plan.inputs)
        assert all(plan.values[at].val.allocation_info is not None for at in plan.outputs)
        assert [operator.name for operator in plan.operators] == []


@no_gpu
def test_a_program_with_device_io_says_what_this_machine_lacks(cpu_edge, tmp_path, monkeypatch):
    monkeypatch.setattr(save, "_device_of_io", lambda *_: "cuda:0")
    ws.save(cpu_edge, tmp_path / "model.pte", tmp_path / "model.ptd", device_io=True, check=False)
    text = error_of(lambda: ws.Module(tmp_path / "model.pte", tmp_path / "model.ptd"))
    assert "'libcuda.so.1' is missing" in text or "GPU" in text


def test_a_gpu_cannot_be_chosen_for_a_program_of_the_cpu(cpu_edge, tmp_path):
    ws.save(cpu_edge, tmp_path / "model.pte", tmp_path / "model.ptd")
    text = error_of(lambda: ws.Module(tmp_path / "model.pte", tmp_path / "model.ptd", weight_offload_device=0))
    assert "option 'weight_offload_device': method 'forward' was exported for the device 'cpu'" in text
    with ws.Module(tmp_path / "model.pte", tmp_path / "model.ptd") as module:
        meta = torch.empty(TOKENS, WIDTH, device="meta")
        assert "expected a tensor on the cpu or on an NVIDIA GPU, found it on meta" in error_of(lambda: module.forward(meta, meta))


# --- the C interface, with torch's tensors --------------------------------------------------------


class Program(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("path", ctypes.c_char_p)]


class Options(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(bindings.Option)), ("count", ctypes.c_size_t)]


OK, INVALID_INPUT, BUSY, UNSUPPORTED = 0, 3, 11, 9
NO_STREAM = object()


def view(tensor: torch.Tensor):
    """A tensor for the C interface, with its strides; contiguous ones as they are."""
    sizes = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
    strides = (ctypes.c_int64 * tensor.dim())(*tensor.stride())
    number = values.dtypes()[tensor.dtype]
    device = (1, tensor.device.index) if tensor.is_cuda else (0, 0)
    return bindings.Tensor(tensor.data_ptr(), tensor.numel() * tensor.element_size(), number, tensor.dim(), sizes, strides, *device)


def views(tensors):
    return (bindings.Tensor * len(tensors))(*map(view, tensors))


class Native:
    """A model of the C interface."""

    def __init__(self, paths, stream=NO_STREAM, **options):
        self.lib = bindings.library()
        items = [bindings.option(key, value) for key, value in options.items()]
        given = Options((bindings.Option * len(items))(*items), len(items))
        program = Program(None, 0, paths[0].encode())
        self.model = ctypes.c_void_p()
        start = [ctypes.byref(program), paths[1].encode(), b"forward", ctypes.byref(given)]
        if stream is NO_STREAM:
            self.status = self.lib.ws_init(*start, ctypes.byref(self.model))
        else:
            self.status = self.lib.ws_init_on_stream(*start, ctypes.c_void_p(stream), ctypes.byref(self.model))

    def execute_into(self, inputs, outputs):
        return self.execute_views(views(inputs), views(outputs))

    def execute_views(self, inputs, outputs):
        return self.lib.ws_execute_into(self.model, inputs, ctypes.c_size_t(len(inputs)), outputs, ctypes.c_size_t(len(outputs)))

    def run(self, inputs, device):
        """Outputs on this device, from inputs wherever they are."""
        outputs = [torch.empty(TOKENS, WIDTH, device=device), torch.empty(WIDTH, TOKENS, device=device)]
        torch.cuda.synchronize()
        assert self.execute_into(inputs, outputs) == OK, self.error()
        return [output.cpu() for output in outputs]

    def error(self):
        return self.lib.ws_last_error().decode()

    def close(self):
        self.lib.ws_destroy(self.model)


@pytest.fixture
def native(files):
    opened = []

    def open_one(*arguments, name="cpu_io", **options):
        opened.append(Native(files[name], *arguments, **options))
        assert opened[-1].status == OK, opened[-1].error()
        return opened[-1]

    yield open_one
    for model in opened:
        model.close()


def on(device, seed=0):
    return [tensor.to(device) for tensor in inputs(seed)]


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@gpu
def test_every_mix_of_places_gives_the_same_bits(native):
    model = native()
    expected = model.run(inputs(), "cpu")
    torch.manual_seed(3)
    eager = Net().eval()(*inputs())
    assert all(torch.allclose(a, b, atol=2e-3) for a, b in zip(expected, eager, strict=True))
    x, y = on("cuda")
    for given in ([x, y], [x, inputs()[1]], [inputs()[0], y]):
        for device in ("cpu", "cuda"):
            assert same(model.run(given, device), expected), (given[0].device, given[1].device, device)


@gpu
def test_inputs_at_odd_addresses_are_copied_and_right(native):
    model = native()
    expected = model.run(inputs(), "cpu")
    for shift in (1, 2, 3):
        shifted = []
        for tensor in inputs():
            memory = torch.empty(tensor.numel() + shift, device="cuda")
            memory[shift:] = tensor.flatten().cuda()
            shifted.append(memory[shift:].view(tensor.shape))
        assert shifted[0].data_ptr() % 16 != 0
        assert same(model.run(shifted, "cuda"), expected)


@gpu
def test_what_is_not_memory_of_the_gpu_is_refused_and_the_model_goes_on(native):
    model = native()
    expected = model.run(inputs(), "cpu")
    host = list(inputs())
    outputs = [torch.empty(TOKENS, WIDTH), torch.empty(WIDTH, TOKENS)]
    lie = views(host)
    lie[0].device_type = 1
    assert model.execute_views(lie, views(outputs)) == INVALID_INPUT
    assert "input 0" in model.error()
    assert "address of the host" in model.error()
    lie = views(outputs)
    lie[1].device_type = 1
    assert model.execute_views(views(host), lie) == INVALID_INPUT
    assert "output 1" in model.error()
    assert "address of the host" in model.error()
    assert same(model.run(on("cuda"), "cuda"), expected)


@gpu
def test_an_input_made_on_the_callers_stream_needs_no_wait(native):
    expected = native().run(inputs(1), "cpu")
    stream = torch.cuda.Stream()
    model = native(stream.cuda_stream)
    # Once before: kernels are loaded at their first use, which may wait for the whole device.
    model.run(inputs(), "cuda")
    made, source = on("cuda", 0), on("cuda", 1)
    outputs = [torch.zeros(TOKENS, WIDTH, device="cuda"), torch.zeros(WIDTH, TOKENS, device="cuda")]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        for tensor, new in zip(made, source, strict=True):
            tensor.copy_(new)
        assert not stream.query(), "the producer is too fast for this test"
        assert model.execute_into(made, outputs) == OK, model.error()
    assert stream.query(), "the work of the call is done when it returns"
    assert same([output.cpu() for output in outputs], expected)


@gpu
def test_an_input_made_on_the_default_stream_needs_no_wait_without_a_stream_of_the_callers(native):
    expected = native().run(inputs(1), "cpu")
    for model in (native(), native(None)):
        model.run(inputs(), "cuda")
        made, source = on("cuda", 0), on("cuda", 1)
        outputs = [torch.zeros(TOKENS, WIDTH, device="cuda"), torch.zeros(WIDTH, TOKENS, device="cuda")]
        torch.cuda.synchronize()
        torch.cuda._sleep(400_000_000)
        for tensor, new in zip(made, source, strict=True):
            tensor.copy_(new)
        assert model.execute_into(made, outputs) == OK, model.error()
        assert same([output.cpu() for output in outputs], expected)


@gpu
def test_streams_of_other_contexts_are_refused_and_the_current_context_is_kept(files, native):
    cuda = ctypes.CDLL("libcuda.so.1")
    torch.cuda.synchronize()
    other, stream, current = (ctypes.c_void_p() for _ in range(3))
    assert cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0) == 0
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    refused = Native(files["cpu_io"], stream.value)
    assert refused.status == INVALID_INPUT
    assert "does not belong to the primary context" in refused.error()
    per_thread = Native(files["cpu_io"], 2)
    assert per_thread.status == INVALID_INPUT
    assert "per-thread default stream" in per_thread.error()
    model = native()
    outputs = [torch.empty(TOKENS, WIDTH), torch.empty(WIDTH, TOKENS)]
    assert model.execute_into(list(inputs()), outputs) == OK, model.error()
    model.lib.ws_stats_json(model.model, ctypes.byref(ctypes.c_char_p()))
    assert cuda.cuCtxGetCurrent(ctypes.byref(current)) == 0
    assert current.value == other.value
    assert cuda.cuStreamDestroy_v2(stream) == 0
    assert cuda.cuCtxDestroy_v2(other) == 0


@gpu
def test_a_second_call_while_one_runs_is_busy(native):
    model = native()
    expected = model.run(inputs(), "cpu")
    seen, lock = [], threading.Lock()

    def work():
        x = on("cuda")
        outputs = [torch.zeros(TOKENS, WIDTH, device="cuda"), torch.zeros(WIDTH, TOKENS, device="cuda")]
        torch.cuda.synchronize()
        for _ in range(200):
            status = model.execute_into(x, outputs)
            with lock:
                seen.append(status)
            if status == OK:
                assert same([output.cpu() for output in outputs], expected)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {OK, BUSY}


@gpu
def test_a_gpu_that_is_not_there_is_named(files):
    count = torch.cuda.device_count()
    missing = Native(files["cpu_io"], weight_offload_device=count)
    assert missing.status == UNSUPPORTED
    assert f"'cuda:{count}' is missing" in missing.error()
    assert f"shows {count} device" in missing.error()


@gpu
def test_another_index_runs_on_that_gpu(native):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    expected = native().run(inputs(), "cpu")
    before = torch.cuda.mem_get_info(1)[0]
    model = native(weight_offload_device=1)
    assert torch.cuda.mem_get_info(1)[0] < before, "the model is on the second GPU"
    for given in (inputs(), on("cuda:1")):
        for device in ("cpu", "cuda:1"):
            assert same(model.run(given, device), expected)
    outputs = [torch.empty(TOKENS, WIDTH), torch.empty(WIDTH, TOKENS)]
    assert model.execute_into(on("cuda:0"), outputs) == INVALID_INPUT
    assert "its memory is said to be on cuda:0, and this method is on cuda:1" in model.error()
    torch.cuda.synchronize(1)
    stream = torch.cuda.Stream(1)
    assert same(native(stream.cuda_stream, weight_offload_device=1).run(on("cuda:1"), "cuda:1"), expected)


# --- ExecuTorch's Module --------------------------------------------------------------------------


@gpu
def test_the_module_takes_and_gives_tensors_on_the_gpu(files, native):
    expected = native().run(inputs(), "cpu")
    with ws.Module(*files["cuda:0"]) as module:
        stream = torch.cuda.Stream()
        for seed, wanted in ((0, expected), (1, native().run(inputs(1), "cpu")), (0, expected)):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                found = module.forward(*on("cuda", seed))
            assert all(output.is_cuda for output in found)
            assert same([output.cpu().contiguous() for output in found], wanted)
        assert "input 0: expected a tensor on cuda:0, found it on the cpu" in error_of(
            lambda: module.forward(inputs()[0], inputs()[1].cuda())
        )
        assert "input 0: expected a tensor on cuda:0" in error_of(lambda: module.forward(*inputs()))
        assert same([output.cpu().contiguous() for output in module.forward(*on("cuda"))], expected)
    with ws.Module(*files["cuda:0"]) as module:
        # Nothing is on a GPU here, so nobody has asked ExecuTorch where its inputs are: the driver tells.
        assert "address of the host" in error_of(lambda: module.forward(*inputs()))


@gpu
def test_a_program_without_device_io_names_the_cure(files, native):
    expected = native().run(inputs(), "cpu")
    with ws.Module(*files["cpu_io"]) as module:
        text = error_of(lambda: module.forward(*on("cuda")))
        assert "input 0: expected a tensor on the cpu, found it on cuda:0" in text
        assert "device_io" in text
        found = module.forward(*inputs())
        assert not found[0].is_cuda
        assert same([output.contiguous() for output in found], expected)


@gpu
def test_a_program_for_one_gpu_is_refused_on_another(files):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with ws.Module(*files["cuda:1"], weight_offload_device=1) as module:
        assert module.forward(*on("cuda:1"))[0].device == torch.device("cuda:1")
    with ws.Module(*files["cuda:1"]) as module:
        assert "said to be on cuda:1, and this method is on cuda:0" in error_of(lambda: module.forward(*on("cuda:1")))
