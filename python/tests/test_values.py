"""Inputs and outputs that are no tensors: None and numbers are part of the program, and a tensor may be handed through."""

from __future__ import annotations

import ctypes

import pytest
import torch
import weightstream as ws
from executorch.exir import to_edge_transform_and_lower
from support import error_of
from torch import nn
from weightstream._native import bindings
from weightstream._run import values

pytestmark = pytest.mark.cpu_only("what ExecuTorch makes of a call is the same for every device")


class Mixed(nn.Module):
    """Takes and gives None, numbers and tensors, one of them as it came and one of them twice."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x, mask, n, y, f, flag):
        out = self.linear(x) * n + f
        return out, None, n, y, out, flag


def arguments(seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(4, 32, generator=made), None, 3, torch.randn(2, generator=made), 2.5, True


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return Mixed().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    program = ws.apply_weight_offload(torch.export.export(model, arguments()))
    partitioner = [ws.WeightStreamPartitioner(device="cpu")]
    edge = to_edge_transform_and_lower(program, partitioner=partitioner, compile_config=ws.edge_compile_config())
    paths = str(folder / "model.pte"), str(folder / "model.ptd")
    ws.save(edge, *paths)
    return paths


def test_values_are_taken_and_given_in_their_places(model, files):
    with ws.Module(*files) as module:
        for seed in range(3):
            given = arguments(seed)
            found, expected = module.forward(*given), model(*given)
            assert [type(one) for one in found] == [type(one) for one in expected]
            for here, there in zip(found, expected):
                if isinstance(there, torch.Tensor):
                    assert torch.allclose(here, there, atol=1e-5)
                else:
                    assert here == there


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (2, 4, "input 2: expected 3, as at export, found 4"),
        (2, 3.0, "input 2: expected 3, as at export, found 3 (a float)"),
        (1, 7, "input 1: expected None, as at export, found 7"),
        (1, torch.ones(2), "input 1: expected None, as at export, found a tensor"),
        # Near enough for ExecuTorch.
        (4, 2.50001, "input 4: expected 2.5 (a float), as at export, found 2.50001 (a float)"),
        (5, False, "input 5: expected True, as at export, found False"),
        (0, None, "input 0: expected a tensor, as at export, found None"),
        (1, "text", "input 1: expected None, as at export, found 'text'"),
        (2, 2**64, "input 2 'n': 18446744073709551616 does not fit"),
    ],
)
def test_another_value_is_refused_with_both(files, place, value, expected):
    given = list(arguments())
    given[place] = value
    with ws.Module(*files) as module:
        assert expected in error_of(lambda: module.forward(*given), ws.Error)
        module.forward(*arguments())


def test_all_tensors_are_told_what_the_program_holds(files):
    """ExecuTorch alone says no more than that an argument is invalid."""
    given = [one if isinstance(one, torch.Tensor) else torch.ones(1) for one in arguments()]
    with ws.Module(*files) as module:
        message = error_of(lambda: module.forward(*given), ws.Error)
        assert "input 1: the program was exported with a value of type None there, found a tensor" in message


class Program(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("path", ctypes.c_char_p)]


def test_the_c_interface_takes_and_gives_the_tensors_alone(model, files):
    library = bindings.library()
    program, loaded, outputs = Program(None, 0, files[0].encode()), ctypes.c_void_p(), ctypes.c_void_p()
    status = library.ws_init(ctypes.byref(program), files[1].encode(), b"forward", None, ctypes.byref(loaded))
    assert status == 0, library.ws_last_error()
    given = arguments()
    native = [values.to_native(str(index), tensor) for index, tensor in enumerate((given[0], given[3]))]
    inputs = (bindings.Tensor * 2)(*[view for view, _ in native])
    assert library.ws_execute(loaded, inputs, ctypes.c_size_t(2), ctypes.byref(outputs)) == 0, library.ws_last_error()
    library.ws_outputs_count.restype = ctypes.c_size_t
    found = []
    for index in range(library.ws_outputs_count(outputs)):
        view = bindings.Tensor()
        assert library.ws_outputs_get(outputs, ctypes.c_size_t(index), ctypes.byref(view)) == 0
        found.append(values.to_torch(view))
    expected = [one for one in model(*given) if isinstance(one, torch.Tensor)]
    assert len(found) == len(expected) == 3
    assert all(torch.allclose(here, there, atol=1e-5) for here, there in zip(found, expected))
    library.ws_outputs_destroy(outputs)
    assert library.ws_execute(loaded, inputs, ctypes.c_size_t(1), ctypes.byref(outputs)) != 0
    assert b"takes 2 inputs" in library.ws_last_error()
    library.ws_destroy(loaded)
