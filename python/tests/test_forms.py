"""Programs in the forms in which people export them are right at every budget, and what they assume is checked at every call."""

from __future__ import annotations

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from doctor import Pte
from executorch.exir import to_edge_transform_and_lower
from form_models import FORMS
from models import ZOO
from support import budget_of, error_of, open_module, program_of, run_passes
from torch import nn
from torch.export import Dim
from weightstream._export.passes import prepare
from weightstream._torch.snapshot import SNAPSHOT
from zoo import bits, largest_error


@pytest.mark.parametrize("budget", ["floor", 50, 100])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_right(name, budget, exported, resident_bits):
    program, own = program_of(name, exported)
    spec, files = ZOO[name], exported(program)
    passes = ZOO[program].passes(8)
    module = open_module(files, budget_of(files, budget))
    for number, (outputs, expected) in enumerate(zip(run_passes(module, passes), ZOO[program].eager(passes), strict=True)):
        found = outputs[own]
        error = largest_error(found, expected[own])
        assert error <= spec.tolerance, f"{spec.shows}: pass {number} is off by {error}"
        assert bits(found) == resident_bits(program)[number][own]


@pytest.mark.models("form_layouts")
@pytest.mark.cpu_only("torch makes tensors of a GPU dense before they are given")
def test_inputs_in_another_layout_are_copied_once_and_counted(exported):
    examples, dense, other = ZOO["form_layouts"].passes(3)
    module = open_module(exported("form_layouts"))
    module.forward(*dense)
    assert module.stats()["inputs_copied"] == 0
    module.forward(*examples)
    # The last example is dense, and starts later in its storage.
    assert module.stats()["inputs_copied"] == 6
    module.forward(*other)
    assert module.stats()["inputs_copied"] == 13


@pytest.mark.models("form_sizes")
@pytest.mark.parametrize(
    ("which", "size", "words"),
    [
        (1, 7, ["'longer'", "= 6", "found 7", "length = 5"]),
        (2, 41, ["'groups'", "= 40", "found 41"]),
        (3, 10, ["'both'", "= 11", "found 10"]),
    ],
)
def test_sizes_that_break_a_relation_are_refused(which, size, words, exported):
    inputs = list(ZOO["form_sizes"].passes(1)[0])
    inputs[which] = torch.randn(size, *inputs[which].shape[1:])
    module = open_module(exported("form_sizes"))
    message = error_of(lambda: module.forward(*inputs))
    assert all(word in message for word in words), message
    run_passes(module, ZOO["form_sizes"].passes(1))


@pytest.mark.models("form_sizes")
@pytest.mark.no_runtime
def test_ranges_are_those_of_the_exported_program(exported):
    record = Pte(exported("form_sizes").pte).payload
    assert record["symbols"] == ["length"]
    # dtype and number of dimensions, then a minimum, a maximum and a symbol for each: the second dimension of the first input.
    assert record["input_names"][0] != "x" or record["inputs"][5:8] == [1, 31, 0]
    place = {name: number for number, name in enumerate(record["input_names"])}
    wanted = {f"i{place['longer']}.0 1 s0 +", f"i{place['groups']}.0 8 s0 *", f"i{place['both']}.0 1 2 s0 * +"}
    assert wanted <= set(record["relations"])


# --- what is refused at export


def refused(model: nn.Module, *inputs: torch.Tensor, dynamic_shapes=None) -> str:
    program = torch.export.export(model.eval(), inputs, dynamic_shapes=dynamic_shapes)
    with pytest.raises(ws.ExportError) as caught:
        to_edge_transform_and_lower(program, partitioner=[ws.WeightStreamPartitioner()], compile_config=ws.edge_compile_config())
    return str(caught.value)


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (1, 4)))

    def forward(self, x):
        return self.inner(x).squeeze(0)


class WritesInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x, history):
        history.add_(1)
        return self.mix(x) + history


class SharedState(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("whole", torch.zeros(2, 4))
        self.register_buffer("first", self.whole[0])

    def forward(self, x):
        self.whole.add_(1)
        return self.mix(x) + self.first


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        return self.mix(x) + x.as_strided((3, 4), (8, 1))


@pytest.mark.no_runtime
@pytest.mark.skipif(ON_GPU, reason="nothing is compiled")
def test_an_operator_that_a_size_of_one_would_change_is_named():
    message = refused(Squeezed(), torch.randn(3, 4), dynamic_shapes=({0: Dim("rows", min=1, max=8)},))
    assert "aten.squeeze" in message
    assert "rows = 1" in message


@pytest.mark.no_runtime
@pytest.mark.skipif(ON_GPU, reason="nothing is compiled")
@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (WritesInput, (torch.randn(3, 4), torch.randn(3, 4)), ["'history'", "read only"]),
        (SharedState, (torch.randn(3, 4),), ["'first'", "'whole'"]),
        (Strided, (torch.randn(3, 8)[:, :4],), ["as_strided", "'x'"]),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(model, inputs, words):
    message = refused(model(), *inputs)
    assert all(word in message for word in words), message


# --- the caller's program


@pytest.mark.no_runtime
@pytest.mark.skipif(ON_GPU, reason="nothing is compiled")
def test_the_callers_program_is_left_as_it_is():
    spec = ZOO["form_names"]
    program = spec.export()
    before = sorted({**program.state_dict, **program.constants}), program.graph_module.code, str(program.graph_signature)
    prepared = ws.apply_weight_offload(program)
    assert (sorted({**program.state_dict, **program.constants}), program.graph_module.code, str(program.graph_signature)) == before
    (inputs,) = spec.passes(1)
    for one in (program, prepared):
        assert largest_error(list(one.module()(*inputs)), spec.eager([inputs])[0]) <= 1e-5


@pytest.mark.no_runtime
@pytest.mark.skipif(ON_GPU, reason="nothing is compiled")
@pytest.mark.parametrize("name", ["form_state", "form_overlap", "form_layouts", "form_sizes"])
def test_preparing_twice_changes_nothing(name):
    once = prepare.prepare(ZOO[name].export())
    twice = prepare.prepare(once)
    assert len(twice.graph.nodes) == len(once.graph.nodes)
    assert snapshots(twice) == snapshots(once)


def snapshots(program: torch.export.ExportedProgram) -> int:
    return sum(node.target is SNAPSHOT for node in program.graph.nodes)
