"""LSTMs in the compiled graph: each `nn.LSTM` of a model becomes the function that it calls, which Dynamo traces.

Dynamo breaks the graph at an RNN, as compiling one step by step takes long. But on a CPU, without gradients, Inductor
has an operator of oneDNN for all steps of a layer of an LSTM. If weights are frozen, it packs them once and not on each
call. On one core that took 0.85 to 0.96 of eager's time, where four models whose LSTM was isolated took 0.96 to 1.5
(`benchmarks/results/2026-11-27-epyc-2cpu-busy-compiled-lstm.txt`). A GRU has no such operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from torchwise.compile.shared_copies import share
from torchwise.errors import UnsupportedError

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]
DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes of oneDNN's LSTM. For others each step would be compiled."""


class CompiledLSTM(nn.Module):
    """Replaces an LSTM, with its parameters, attributes and hooks.

    It must not have an RNN's class, or Dynamo would break the graph. So `isinstance(it, nn.LSTM)` is false.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.__dict__.update(vars(lstm))  # the very same dictionaries of parameters

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Answer as the LSTM does for a tensor.

        Raises:
            UnsupportedError: the input is a packed sequence.
        """
        own: Any = self
        if not isinstance(input, Tensor):
            raise UnsupportedError("compiled_lstm takes tensors, but no packed sequences")
        is_batched = input.dim() == 3
        x = input if is_batched else input.unsqueeze(0 if own.batch_first else 1)
        if hx is None:
            layers, batch = own.num_layers * (2 if own.bidirectional else 1), x.shape[0 if own.batch_first else 1]
            start = torch.zeros(layers, batch, own.hidden_size, dtype=x.dtype, device=x.device)
            state = (start, start)
        else:
            state = hx if is_batched else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        # A hook may have set one that is computed, as pruning does.
        weights = [getattr(own, name) for names in own._all_weights for name in names]
        output, hidden, cell = torch.lstm(
            x, state, weights, own.bias, own.num_layers, own.dropout, own.training, own.bidirectional, own.batch_first
        )
        if is_batched:
            return output, (hidden, cell)
        return output.squeeze(0 if own.batch_first else 1), (hidden.squeeze(1), cell.squeeze(1))

    def flatten_parameters(self) -> None:
        """Do nothing, as an LSTM on a CPU does: models call it ahead of the LSTM."""


def compile_lstms(call: Callable[..., Any]) -> tuple[nn.Module, Layer]:
    """Return a copy of a model with shared parameters and LSTMs that Dynamo traces, and an empty layer for around it.

    Raises:
        UnsupportedError: it has no LSTM that oneDNN runs, or it cannot be copied.
    """
    if not has_lstm(call):
        kind = type(call).__qualname__
        raise UnsupportedError(
            f"transforms has 'compiled_lstm', but {kind} has no nn.LSTM in float32 or bfloat16, without projections "
            "and dropout in training"
        )
    model = share(call)
    if _is_compilable(model):
        return CompiledLSTM(model), lambda inner: inner
    compiled: dict[int, CompiledLSTM] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and _is_compilable(child):  # one that hangs in two places stays one
                parent._modules[name] = compiled.setdefault(id(child), CompiledLSTM(child))
    return model, lambda inner: inner


def has_lstm(model: Any) -> TypeGuard[nn.Module]:
    """Whether a model has, or is, an LSTM that oneDNN runs."""
    return isinstance(model, nn.Module) and any(map(_is_compilable, model.modules()))


def _is_compilable(module: nn.Module) -> TypeGuard[nn.LSTM]:
    if type(module) is not nn.LSTM or "forward" in vars(module):
        return False
    lstm: Any = module
    draws = lstm.training and lstm.dropout > 0
    return lstm.proj_size == 0 and not draws and all(weight.dtype in DTYPES for weight in lstm.parameters())
