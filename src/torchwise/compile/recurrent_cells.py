"""Cells of recurrent nets as plain operators, where PyTorch computes them by operators of their own.

On a GPU `nn.GRUCell` and `nn.LSTMCell` become two products and one of these
(https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/RNN.cu). A region would end at each of them, and
Inductor calls it as it is. In an exported graph a whole `nn.RNN`, `nn.GRU` or `nn.LSTM` is one operator as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

MAX_CELLS = 200
"""Most steps of all layers and directions that are parts of a graph: each is some 20 operators."""


def decompose_gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the memory after a step of a GRU (Cho et al., https://arxiv.org/abs/1406.1078), and what gradients need.

    Args:
        input_gates: (batch, 3 * hidden), the products of inputs with their weights: those of r, z and n.
        hidden_gates: the same of the memory.
        hidden: the memory, (batch, hidden).
        input_bias: (3 * hidden,), and so is that of the memory, or None.
    """
    dtype, wide = hidden.dtype, _find_wide(hidden.dtype)
    from_input, from_memory = (_add(*one, wide) for one in ((input_gates, input_bias), (hidden_gates, hidden_bias)))
    (r, z, n), (own_r, own_z, own_n) = from_input.chunk(3, 1), from_memory.chunk(3, 1)
    reset, update = torch.sigmoid(r + own_r), torch.sigmoid(z + own_z)
    new = torch.tanh(n + reset * own_n)
    memory = hidden.to(wide)
    after = new + update * (memory - new)
    return after.to(dtype), torch.cat((reset, update, new, memory, own_n), 1).to(dtype)


def decompose_lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and the memory after a step of an LSTM (Hochreiter and Schmidhuber, 1997), and the gates.

    Args:
        input_gates: (batch, 4 * hidden), the products of inputs with their weights: those of i, f, g and o.
        hidden_gates: the same of the last output.
        cell: the memory, (batch, hidden).
        input_bias: (4 * hidden,), and so is that of the last output, or None.
    """
    dtype, wide = cell.dtype, _find_wide(cell.dtype)
    i, f, g, o = (_add(input_gates, input_bias, wide) + _add(hidden_gates, hidden_bias, wide)).chunk(4, 1)
    enter, keep, new, leave = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    memory = keep * cell.to(wide) + enter * new
    output = leave * torch.tanh(memory)
    return output.to(dtype), memory.to(dtype), torch.cat((enter, keep, new, leave), 1).to(dtype)


def decompose_short_rnn(
    decompose: Callable[..., Any], x: Tensor, state: Tensor | Sequence[Tensor], weights: Sequence[Tensor], *options: Any
) -> Any:
    """Return the steps of an RNN, or `NotImplemented` if a graph would be too long by them, so that it stays whole.

    Args:
        decompose: PyTorch's own way.
        x: (steps, batch, inputs), or (batch, steps, inputs) if the last option says so.
        state: output before, (layers * directions, batch, hidden), and for an LSTM also the memory.
        weights: all of them.
        options: as of `torch.gru`.
    """
    steps, output = x.shape[1 if options[-1] else 0], state if isinstance(state, Tensor) else state[0]
    return NotImplemented if steps * output.shape[0] > MAX_CELLS else decompose(x, state, weights, *options)


def _find_wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which PyTorch's own kernels compute."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _add(gates: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return gates.to(dtype) if bias is None else gates.to(dtype) + bias.to(dtype)
