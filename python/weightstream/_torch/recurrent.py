"""Recurrent layers, unrolled before anything asks for their shapes."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import decompositions, get_decompositions

_ATEN = torch.ops.aten


def unrolled() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the layers, which the compiler would use later."""
    return get_decompositions([_ATEN.lstm, _ATEN.gru, _ATEN.rnn_tanh, _ATEN.rnn_relu])


@contextlib.contextmanager
def shaped_states() -> Iterator[None]:
    """Gives an LSTM's last states the shapes of its first ones. torch 2.11 squeezes their batch, which only works for a batch of one."""
    original = decompositions.one_layer_lstm

    def shaped(inp: Any, hidden: Any, *others: Any, **named: Any) -> Any:
        out, (h, c) = original(inp, hidden, *others, **named)
        return out, (h.reshape(hidden[0].shape), c.reshape(hidden[1].shape))

    with unittest.mock.patch.object(decompositions, "one_layer_lstm", shaped):
        yield
