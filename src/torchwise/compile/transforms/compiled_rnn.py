"""RNNs in the compiled graph: each `nn.RNN`, `nn.GRU` and `nn.LSTM` becomes a module of plain operators.

Dynamo breaks the graph at an RNN, as compiling one step by step takes long. Yet a sequence of few steps, such as one
step of a controller, is a few products and pointwise operators, which a compiler joins with those around them.

On a CPU, without gradients, Inductor has an operator of oneDNN for all steps of a layer of an LSTM, however long. If
weights are frozen, it packs them once and not on each call. On one core that took 0.85 to 0.96 of eager's time, where
four models whose LSTM was isolated took 0.96 to 1.5
(`benchmarks/results/2026-11-27-epyc-2cpu-busy-compiled-lstm.txt`). Other RNNs have no such operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchwise.compile.recurrent_cells import decompose_gru_cell, decompose_lstm_cell
from torchwise.compile.shared_copies import share
from torchwise.errors import UnsupportedError

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]
WAY_OUT = "choose isolate_rnn"
State = tuple[Tensor, ...]
"""The memory of one layer in one direction: its output before, and for an LSTM its cell, each (batch, hidden)."""
KINDS = (nn.RNN, nn.GRU, nn.LSTM)
MAX_CELLS = 64
"""Most steps of all layers and directions of one call that are compiled one by one. Inductor takes time for each."""
HAS_ONEDNN = torch.backends.mkldnn.is_available()


class CompiledRNN(nn.Module):
    """Replaces an RNN, with its parameters, attributes and hooks.

    It must not have an RNN's class, or Dynamo would break the graph. So `isinstance(it, nn.LSTM)` is false.
    """

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.__dict__.update(vars(rnn))  # the very same dictionaries of parameters

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Answer as the RNN does for a tensor.

        Raises:
            UnsupportedError: the input is a packed sequence, has too many steps, or it or the state has other sizes.
        """
        own: Any = self
        if not isinstance(input, Tensor):
            raise UnsupportedError(f"compiled_rnn takes tensors, but no packed sequences: {WAY_OUT}")
        if input.dim() not in (2, 3) or input.shape[-1] != own.input_size:
            size, width = tuple(input.shape), own.input_size
            raise UnsupportedError(
                f"the input of an RNN has size {size}, but must be rows of {width} numbers: {WAY_OUT}"
            )
        is_batched, is_lstm = input.dim() == 3, own.mode == "LSTM"
        x = input if is_batched else input.unsqueeze(0 if own.batch_first else 1)
        if x.shape[1 if own.batch_first else 0] == 0:
            raise UnsupportedError("an RNN has 0 steps, but must have at least 1: leave compiled_rnn out")
        state: State = self._make_state(x) if hx is None else tuple(hx) if is_lstm else (hx,)
        if hx is not None and not is_batched:
            state = tuple(one.unsqueeze(1) for one in state)
        self._check_state(state, x.shape[0 if own.batch_first else 1])
        output, *after = self._run_whole(x, state) if self._is_whole(x) else self._run_steps(x, state)
        if not is_batched:
            output, after = output.squeeze(0 if own.batch_first else 1), [one.squeeze(1) for one in after]
        return output, tuple(after) if is_lstm else after[0]

    def flatten_parameters(self) -> None:
        """Do nothing: models call it ahead of the RNN, for cuDNN."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The weights of each layer and direction, as the RNN gives them."""
        own: Any = self
        return [[getattr(own, name) for name in names] for names in own._all_weights]

    def _check_state(self, state: State, batch: int) -> None:
        """Refuse a state of other sizes, which code would read beyond, or repeat for all rows."""
        own: Any = self
        layers = own.num_layers * (2 if own.bidirectional else 1)
        for one, width in zip(state, self._list_widths(), strict=True):
            if tuple(one.shape) != (layers, batch, width):
                raise UnsupportedError(
                    f"a state of an RNN has size {tuple(one.shape)}, but must have {(layers, batch, width)}: {WAY_OUT}"
                )

    def _list_widths(self) -> tuple[int, ...]:
        """Return the widths of the tensors of a state."""
        own: Any = self
        return (own.proj_size or own.hidden_size, own.hidden_size)[: 2 if own.mode == "LSTM" else 1]

    def _make_state(self, x: Tensor) -> State:
        """Return the state of an RNN that is given none."""
        own: Any = self
        layers, batch = own.num_layers * (2 if own.bidirectional else 1), x.shape[0 if own.batch_first else 1]
        return tuple(torch.zeros(layers, batch, one, dtype=x.dtype, device=x.device) for one in self._list_widths())

    def _is_whole(self, x: Tensor) -> bool:
        """Whether oneDNN has one operator for all steps of a layer."""
        own: Any = self
        is_plain = own.mode == "LSTM" and own.proj_size == 0
        # A tuple of dtypes that is a global would be a guard that no code compiled ahead can hold.
        is_fit = x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and not x.requires_grad
        return HAS_ONEDNN and is_plain and is_fit

    def _run_whole(self, x: Tensor, state: State) -> tuple[Tensor, ...]:
        own: Any = self
        # A hook may have set one that is computed, as pruning does.
        weights = [getattr(own, name) for names in own._all_weights for name in names]
        return torch.lstm(
            x, state, weights, own.bias, own.num_layers, own.dropout, own.training, own.bidirectional, own.batch_first
        )

    def _run_steps(self, x: Tensor, state: State) -> tuple[Tensor, ...]:
        """Return the outputs and the last state, (layers * directions, batch, hidden), step by step."""
        own: Any = self
        x = x.transpose(0, 1) if own.batch_first else x
        directions = 2 if own.bidirectional else 1
        if (cells := x.shape[0] * own.num_layers * directions) > MAX_CELLS:
            raise UnsupportedError(
                f"compiled_rnn compiles at most {MAX_CELLS} steps of all layers and directions one by one, but a call "
                f"has {cells}: {WAY_OUT}"
            )
        ends: list[State] = []
        for layer in range(own.num_layers):
            sides = []
            for direction in range(directions):
                place = layer * directions + direction
                outputs, end = self._run_layer(x, tuple(one[place] for one in state), place, reverse=direction == 1)
                sides.append(outputs)
                ends.append(end)
            x = sides[0] if directions == 1 else torch.cat(sides, -1)
        after = [torch.stack(parts) for parts in zip(*ends, strict=True)]
        return (x.transpose(0, 1) if own.batch_first else x), *after

    def _run_layer(self, x: Tensor, state: State, place: int, *, reverse: bool) -> tuple[Tensor, State]:
        """Return the outputs of one layer in one direction, (steps, batch, hidden), and its last state."""
        own: Any = self
        weights = {name[: name.index("_l")]: getattr(own, name) for name in own._all_weights[place]}
        from_input = functional.linear(x, weights["weight_ih"], weights.get("bias_ih"))
        outputs: list[Tensor] = []
        steps = range(x.shape[0])
        for step in reversed(steps) if reverse else steps:
            own_gates = functional.linear(state[0], weights["weight_hh"], weights.get("bias_hh"))
            state = _run_cell(own.mode, from_input[step], own_gates, state)
            if "weight_hr" in weights:
                state = (functional.linear(state[0], weights["weight_hr"]), *state[1:])
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if reverse else outputs), state


def _run_cell(mode: str, from_input: Tensor, from_memory: Tensor, state: State) -> State:
    """Return the state after a step, from the products of its input and of the state with their weights."""
    if mode == "LSTM":
        return decompose_lstm_cell(from_input, from_memory, state[1])[:2]
    if mode == "GRU":
        return decompose_gru_cell(from_input, from_memory, state[0])[:1]
    return ((torch.tanh if mode == "RNN_TANH" else torch.relu)(from_input + from_memory),)


def compile_rnns(call: Callable[..., Any]) -> tuple[nn.Module, Layer]:
    """Return a copy of a model with shared parameters and RNNs that Dynamo traces, and an empty layer for around it.

    Raises:
        UnsupportedError: it has no RNN of the kind, or it cannot be copied.
    """
    if not has_rnn(call):
        kind = type(call).__qualname__
        raise UnsupportedError(
            f"transforms has 'compiled_rnn', but {kind} has no plain nn.RNN, nn.GRU or nn.LSTM without dropout in "
            "training: leave it out. Subclasses and parametrized ones stay as they are"
        )
    model = share(call)
    if _is_compilable(model):
        return CompiledRNN(model), lambda inner: inner
    compiled: dict[int, CompiledRNN] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and _is_compilable(child):  # one that hangs in two places stays one
                parent._modules[name] = compiled.setdefault(id(child), CompiledRNN(child))
    return model, lambda inner: inner


def has_rnn(model: Any) -> TypeGuard[nn.Module]:
    """Whether a model has, or is, an RNN that becomes part of the graph."""
    return isinstance(model, nn.Module) and any(map(_is_compilable, model.modules()))


def _is_compilable(module: nn.Module) -> TypeGuard[nn.RNNBase]:
    if type(module) not in KINDS or "forward" in vars(module):
        return False
    rnn: Any = module
    return not (rnn.training and rnn.dropout > 0 and rnn.num_layers > 1)
