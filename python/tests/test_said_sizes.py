"""What an export says of sizes: those that the trace fixed or joined, conditions of the model's code, and quotients that are rounded."""

from __future__ import annotations

import math
import operator

import pytest
import torch
import weightstream as ws
from doctor import decode_payload, payloads
from support import error_of
from torch import nn
from torch.export import Dim

pytestmark = pytest.mark.no_runtime
X, AUTO = torch.linspace(-1, 1, 40).reshape(5, 8), Dim.AUTO


class Of(nn.Module):
    """Whatever a function makes of a layer's input and output."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, x, y=None):
        return self.function(self.linear(x), x, y)


@pytest.fixture
def said(quick, tmp_path, capfd):
    """What the export of a function says, and its record."""

    def export(function, inputs, shapes):
        paths = tmp_path / "model.pte", tmp_path / "model.ptd"
        ws.export(Of(function), inputs, *paths, dynamic_shapes=shapes, check=False)
        return capfd.readouterr().err, decode_payload(payloads(paths[0])["forward"])

    return export


def test_a_size_that_the_trace_fixed_is_said(said):
    text, record = said(lambda out, x, y: out + torch.ones(5, 8), X, ({0: AUTO},))
    assert "dimension 0 of 'x' is 5 in every call" in text
    assert record["inputs"][2:4] == [5, 5]
    assert "in every call" not in said(lambda out, x, y: out, X, ({0: AUTO},))[0]
    assert "in every call" not in said(lambda out, x, y: out + torch.ones(5, 8), X, ({0: None},))[0]


def test_sizes_that_the_trace_joined_are_said(said):
    text, _ = said(lambda out, x, y: out + y, (X, X), ({0: AUTO}, {0: AUTO}))
    assert "dimension 0 of 'x', dimension 0 of 'y' are one size in every call" in text
    rows = Dim("rows", max=9)
    assert "one size" not in said(lambda out, x, y: out + y, (X, X), ({0: rows}, {0: rows}))[0]


def test_a_condition_of_the_code_is_said_once_in_words(said):
    def function(out, x, y):
        return (out if x.shape[0] % 4 else out + 1) + (0 if math.ceil(x.shape[0] / 3) == 2 else 1)

    text, record = said(function, X, ({0: AUTO},))
    assert text.count("it is right only for sizes with (s") == 1
    assert "% 4) != 0" in text
    assert "is dimension 0 of 'x'), as in the example; a call with others is refused" in text
    assert "math.ceil(s" in text
    assert "/ 3) == 2" in text
    assert [[n for n in range(1, 20) if value(guard, n)] for guard in record["guards"]] == [
        [n for n in range(1, 20) if n % 4],
        [4, 5, 6],
    ]


def test_a_condition_that_cannot_be_checked_is_refused_in_words(said):
    message = error_of(lambda: said(lambda out, x, y: out + (1 if int(x.shape[0] ** 0.5) == 2 else 0), X, ({0: AUTO},)), ws.ExportError)
    assert "** 0.5) == 2 (s" in message
    assert "is dimension 0 of 'x')" in message
    assert "the runtime computes sizes in whole numbers (it has a power of floats)" in message
    assert "leave these dimensions out of dynamic_shapes" in message


ROUNDED = {
    "ceil": lambda n: math.ceil(n / 3),
    "floor": lambda n: math.floor(n / 2),
    "trunc": lambda n: math.trunc(n / 2),
    "one and a half": lambda n: math.trunc(n * 1.5),
    "nested": lambda n: math.ceil(n * 0.75 / 2),
}


def test_quotients_are_rounded_as_python_does(said):
    _, record = said(lambda out, x, y: [torch.ones(rows(x.shape[0])) + out[0, 0] for rows in ROUNDED.values()], X, ({0: AUTO},))
    relations = dict(text.split(".0 ", 1) for text in record["relations"])
    for index, (name, rows) in enumerate(ROUNDED.items()):
        assert [value(relations[f"o{index}"], n) for n in range(3, 65)] == [rows(n) for n in range(3, 65)], name


BINARY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}
BINARY |= {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def value(postfix, size):
    """An expression over one symbol."""
    stack = []
    for word in postfix.split():
        if word in BINARY:
            right, left = stack.pop(), stack.pop()
            stack.append(BINARY[word](left, right))
        else:
            stack.append(size if word == "s0" else int(word))
    (found,) = stack
    return found
