"""Recurrent layers and cells, written out before anything asks for their shapes.

A cell on a GPU becomes a fused operator of libtorch's, which the runtime does not have.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions, get_decompositions
from torch.nn.functional import linear

_ATEN = torch.ops.aten


def unrolled() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the layers, which the compiler would use later, and of the cells."""
    return {
        **get_decompositions([_ATEN.lstm, _ATEN.gru, _ATEN.rnn_tanh, _ATEN.rnn_relu]),
        _ATEN.gru_cell.default: _gru_cell,
        _ATEN.lstm_cell.default: _lstm_cell,
        _ATEN._thnn_fused_gru_cell.default: _fused_gru_cell,
        _ATEN._thnn_fused_lstm_cell.default: _fused_lstm_cell,
    }


def _gru_cell(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Tensor:
    return _fused_gru_cell(linear(x, w_ih), linear(h, w_hh), h, b_ih, b_hh)[0]


def _lstm_cell(
    x: Tensor, state: list[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return _fused_lstm_cell(linear(x, w_ih), linear(state[0], w_hh), state[1], b_ih, b_hh)[:2]


def _fused_gru_cell(
    given: Tensor, kept: Tensor, h: Tensor, given_bias: Tensor | None = None, kept_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The last result is for gradients only."""
    given, kept = _with_bias(given, given_bias), _with_bias(kept, kept_bias)
    (reset, update, new), (reset_h, update_h, new_h) = given.chunk(3, -1), kept.chunk(3, -1)
    update = (update + update_h).sigmoid()
    new = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    return (h - new) * update + new, given


def _fused_lstm_cell(
    given: Tensor, kept: Tensor, c: Tensor, given_bias: Tensor | None = None, kept_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The last result is for gradients only."""
    gates = _with_bias(given, given_bias) + _with_bias(kept, kept_bias)
    enter, forget, cell, leave = gates.chunk(4, -1)
    c = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
    return leave.sigmoid() * c.tanh(), c, gates


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


@contextlib.contextmanager
def shaped_states() -> Iterator[None]:
    """Gives an LSTM's last states the shapes of its first ones. torch 2.11 squeezes their batch, which only works for a batch of one."""
    original = decompositions.one_layer_lstm

    def shaped(inp: Any, hidden: Any, *others: Any, **named: Any) -> Any:
        out, (h, c) = original(inp, hidden, *others, **named)
        return out, (h.reshape(hidden[0].shape), c.reshape(hidden[1].shape))

    with unittest.mock.patch.object(decompositions, "one_layer_lstm", shaped):
        yield
