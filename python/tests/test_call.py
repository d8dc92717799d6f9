"""How a program is called: by position and by name, nested as at export, with texts and with sizes of 0."""

from __future__ import annotations

import itertools

import pytest
import torch
import weightstream as ws
from doctor import changed_record, decode_payload, payloads, sealed
from support import error_of
from torch import nn
from weightstream._export.compile import call_names
from weightstream._run import runtime
from weightstream._run.call import Argument, Call

pytestmark = pytest.mark.cpu_only("what becomes of the arguments of a call is the same for every device")


class Net(nn.Module):
    """Each input has a part of its own in the result, and some are of one type. `past` may be empty."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(2, 8))

    def forward(self, x, state, mode="relu", *, mask, past, cache):
        y = self.linear(x) + 2 * state[0] - 3 * state[1] + 5 * mask - 7 * cache["k"] + 11 * cache["a"][0]
        y = y + 13 * cache["a"][1].to(torch.float32) - 17 * cache["a"][2].to(torch.float32)
        self.seen.add_(1)
        y = torch.relu(y) if mode == "relu" else y
        return torch.cat([past, y]), self.seen.clone()


def arguments(past=3, seed=0):
    made = torch.Generator().manual_seed(seed)
    x, one, other, mask, k, a = (torch.randn(2, 8, generator=made) for _ in range(6))
    past = torch.randn(past, 8, generator=made)
    words = torch.randint(0, 60000, (8,), generator=made, dtype=torch.int32).to(torch.uint16)
    return (x, (one, other), "relu"), {"mask": mask, "past": past, "cache": {"k": k, "a": [a, words, one.to(torch.float8_e4m3fn)]}}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(1)
    return Net().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def files(net, tmp_path_factory):
    folder = tmp_path_factory.mktemp("call")
    paths = str(folder / "model.pte"), str(folder / "model.ptd")
    args, kwargs = arguments()
    past = torch.export.Dim("past", min=0, max=9)
    still = {"x": None, "state": (None, None), "mode": None, "mask": None, "cache": {"k": None, "a": [None, None, None]}}
    ws.export(net, args, *paths, kwargs=kwargs, dynamic_shapes={**still, "past": {0: past}})
    return paths


def expected(net, args, kwargs, calls):
    """What the model computes, and what its state holds after so many calls."""
    past, y = net(*args, **kwargs)[0], torch.full((2, 8), float(calls))
    return past, y


def same(found, wanted):
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-3) for one, other in zip(found, wanted, strict=True))


def test_arguments_are_found_by_their_names_whatever_their_order(net, files):
    args, kwargs = arguments(seed=4)
    x, state, mode = args
    mask, past, cache = kwargs.values()
    calls = (
        ((x, state, mode), {"past": past, "cache": {"a": tuple(cache["a"]), "k": cache["k"]}, "mask": mask}),
        ((x,), {"cache": cache, "mask": mask, "mode": mode, "past": past, "state": list(state)}),
        ((), {"mode": mode, "past": past, "mask": mask, "cache": cache, "state": state, "x": x}),
    )
    with ws.Module(*files) as module, module.new_session() as session:
        for number, (given, named) in enumerate(calls, 1):
            wanted = expected(net, args, kwargs, number)
            assert same(module.forward(*given, **named), wanted)
            assert same(session.execute("forward", *given, **named), wanted)


WRONG = {
    "missing": (lambda a, k: (a, {**k, "cache": {"k": k["cache"]["k"]}}), ["'cache['a'][0]', 'cache['a'][1]'", "are missing"]),
    "unknown": (lambda a, k: (a, {**k, "attention": k["mask"]}), ["'attention' is unknown"]),
    "twice": (lambda a, k: (a, {**k, "state": a[1]}), ["'state' is given by position and by name"]),
    "keywords by position": (
        lambda a, k: ((*a, k["mask"], k["past"], k["cache"]), {}),
        ["'mask', 'past'", "are missing", "'positional argument 3'", "by keyword, as at export, mask, past, cache['k']"],
    ),
    "another text": (lambda a, k: ((*a[:2], "gelu"), k), ["input 3 'mode': expected 'relu', as at export, found 'gelu'"]),
    "no text": (lambda a, k: ((*a[:2], None), k), ["input 3 'mode': expected 'relu', as at export, found None"]),
    "not a tuple": (lambda a, k: ((a[0], a[0], a[2]), k), ["'state[0]', 'state[1]' are missing", "'state' is unknown"]),
    "of another type": (lambda a, k: (a, {**k, "mask": object()}), ["'mask': expected a torch.Tensor, found object"]),
}


def test_what_is_not_an_argument_is_named(net, files):
    args, kwargs = arguments()
    with ws.Module(*files) as module:
        for given, words in WRONG.values():
            wrong_args, wrong_kwargs = given(args, kwargs)
            message = error_of(lambda a=wrong_args, k=wrong_kwargs: module.forward(*a, **k), ws.Error)
            assert all(word in message for word in words), message
        assert same(module.forward(*args, **kwargs), expected(net, args, kwargs, 1))


def test_sizes_of_0_are_sizes(net, files):
    """A past that is empty at first, in every layout in which torch may hold it."""
    with ws.Module(*files) as module:
        for number, past in enumerate((torch.empty(0, 8), torch.empty(8, 0).t(), torch.empty(5, 8)[5:], torch.empty(1, 8)[:0]), 1):
            args, kwargs = arguments(seed=number)
            kwargs["past"] = past
            assert same(module.forward(*args, **kwargs), expected(net, args, kwargs, number))


def test_an_inspection_lists_the_arguments(files):
    status, text = runtime.command(["inspect", *files])
    assert status == 0
    assert "a call takes, in this order:" in text
    for line in ("x", "state[0]", "state[1]", "mode: always 'relu'", "mask (keyword)", "cache['a'][0] (keyword)"):
        assert f"\n    {line}\n" in text


def test_a_program_without_names_takes_positions(net, files, tmp_path):
    """As older exporters wrote it."""

    def forget(record):
        for name in [name for name in record if name.startswith("x_call")]:
            del record[name]

    old = changed_record(files[0], tmp_path / "old.pte", forget)
    sealed(old, files[1], tmp_path / "old.ptd")
    (x, state, _), kwargs = arguments(seed=2)
    mask, past, cache = kwargs.values()
    with ws.Module(str(old), str(tmp_path / "old.ptd")) as module:
        message = error_of(lambda: module.forward(x, mask=mask), ws.Error)
        assert "'mask' cannot be given by name: the program does not name its inputs" in message
        found = module.forward(x, *state, None, mask, past, cache["k"], *cache["a"])
        assert same(found, expected(net, (x, state), kwargs, 1))


def call_of(inputs, constants=()):
    return Call("forward", [Argument(path, place, dict(constants).get(path, "")) for path, place in inputs])


def test_every_order_of_keywords_is_one_call():
    call = call_of([("a", 0), ("b['y']", None), ("b['x']", None), ("c", None)])
    values = {"b": {"x": 3, "y": 2}, "c": 4}
    for names in itertools.permutations(values):
        assert call.inputs((1,), {name: values[name] for name in names}) == [1, 2, 3, 4]
        assert call.inputs((), {"a": 1} | {name: values[name] for name in names}) == [1, 2, 3, 4]


def test_tuples_may_be_given_as_the_list_of_their_inputs():
    """As ExecuTorch takes them. Not what a name orders: keywords, and keys of a dictionary."""
    nested = call_of([("x", 0), ("state[0]", 1), ("state[1][0]", 1)])
    assert nested.inputs((1, (2, [3])), {}) == nested.inputs((1, 2, 3), {}) == [1, 2, 3]
    assert "'state[1][0]'" in error_of(lambda: nested.inputs((1, 2), {}), ws.Error)
    for other in (
        [("x", 0), ("state['a']", 1), ("state['b']", 1)],
        [("x", 0), ("a", None), ("b", None)],
        [("x", 0), ("s.a", 1), ("s.b", 1)],
    ):
        assert "missing" in error_of(lambda inputs=other: call_of(inputs).inputs((1, 2, 3), {}), ws.Error)


@pytest.mark.no_runtime
def test_each_method_names_its_own_inputs(quick, tmp_path):
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(8, 8)

        def forward(self, mask, x):
            return self.other(x) * mask

    x, paths = torch.randn(2, 8), (tmp_path / "model.pte", tmp_path / "model.ptd")
    methods = {"first": Net(), "second": Other()}
    args, kwargs = arguments()
    ws.export(methods, {"first": args, "second": ()}, *paths, kwargs={"first": kwargs, "second": {"x": x, "mask": x}}, check=False)
    first, second = (decode_payload(payloads(paths[0])[method]) for method in methods)
    assert second["x_call"] == ["x", "mask"]
    assert second["x_call_places"] == [-1, -1]
    assert first["x_call"][:4] == ["x", "state[0]", "state[1]", "mode"]
    assert first["x_call_places"] == [0, 1, 1, 2, *[-1] * 6]
    assert first["x_call_constants"] == ["", "", "", "'relu'", *[""] * 6]


@pytest.mark.no_runtime
def test_a_model_may_take_any_keywords():
    """torch's own assertions of its sizes fail where a model that takes `**kwargs` is traced again."""

    class Open(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, **named):
            return self.linear(named["b"]), named["a"] + 1

    n = torch.export.Dim("n", min=0, max=9)
    named = {"b": torch.ones(4, 8), "a": torch.ones(5, 8)}
    program = torch.export.export(Open(), (), kwargs=named, dynamic_shapes={"named": {"b": {0: n}, "a": {0: n + 1}}})
    call = call_names.call_of(ws.apply_weight_offload(program))
    assert (call["x_call"], call["x_call_places"]) == (["b", "a"], [-1, -1])


@pytest.mark.no_runtime
def test_a_structure_that_cannot_be_built_again_leaves_inputs_unnamed(capfd):
    class Fragile:
        def __init__(self, one, built=None):
            self.one = one
            if built:
                raise ValueError("not from a trace")

    torch.utils._pytree.register_pytree_node(
        Fragile,
        lambda fragile: ([fragile.one], None),
        lambda values, _: Fragile(*values),
        flatten_with_keys_fn=lambda fragile: ([(torch.utils._pytree.GetAttrKey("one"), fragile.one)], None),
    )

    class Takes(nn.Module):
        def forward(self, given):
            return given.one + 1

    program = torch.export.export(Takes(), (Fragile(torch.ones(2)),))
    assert call_names.call_of(program) == {"x_call": ["given.one"], "x_call_places": [0], "x_call_constants": [""]}
    Fragile.__init__.__defaults__ = (True,)
    assert call_names.call_of(program) == {}
    assert "the inputs have no names" in capfd.readouterr().err


class Plain(nn.Module):
    def forward(self, x, other=None):
        return x


X = torch.ones(2, 8)
NO_EXAMPLES = {
    "dictionary": ({"x": X}, {}, ["inputs is a dictionary", "as kwargs={...}", "({...},)"]),
    "nothing": (None, {}, ["inputs is None"]),
    "text": ("x", {}, ["inputs is of the type str: give a tuple of examples"]),
    "names in a list": (X, [("other", X)], ["kwargs is of the type list"]),
    "sparse": (X.to_sparse(), {}, ["inputs[0] is a sparse tensor (torch.sparse_coo)", "to_dense()"]),
    "nested sparse": ((X, {"k": [X.to_sparse()]}), {}, ["inputs[1]['k'][0] is a sparse tensor"]),
    "dtype": (X, {"other": torch.float16}, ["kwargs['other'] is of the type torch.dtype", "attribute of the module"]),
    "device": ((X, torch.device("cpu")), {}, ["inputs[1] is of the type torch.device"]),
    "large": ((X, 2**63), {}, ["inputs[1] is 9223372036854775808, which does not fit into an integer of 64 bits"]),
    "another name": (X, {"nope": X}, ["not what forward of Plain takes", "'nope'"]),
}


@pytest.mark.no_runtime
def test_examples_that_no_program_takes_are_named(tmp_path):
    files = tmp_path / "model.pte", tmp_path / "model.ptd"
    for inputs, kwargs, words in NO_EXAMPLES.values():
        message = error_of(lambda i=inputs, k=kwargs: ws.export(Plain(), i, *files, kwargs=k), ws.ExportError)
        assert all(word in message for word in words), message
    methods = {"first": Plain(), "second": Plain()}
    message = error_of(lambda: ws.export(methods, {"first": X, "second": {"x": X}}, *files), ws.ExportError)
    assert message.startswith("method 'second': inputs is a dictionary")
