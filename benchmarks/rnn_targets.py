"""Controllers with a recurrent net between linear layers: torchwise bench benchmarks/rnn_targets.py:gru

Random weights, four sequences of eight steps of 17 numbers, two layers of 32 units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor]]


class Controller(nn.Module):
    """Maps sequences (batch, steps, 17) to actions (batch, 4)."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.first, self.rnn, self.last = nn.Linear(17, 32), kind(32, 32, 2, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return the actions after the last step."""
        outputs: Tensor = self.rnn(torch.relu(self.first(x)))[0]
        return torch.tanh(self.last(outputs[:, -1]))


def make(kind: type[nn.RNNBase]) -> Made:
    """Return a controller and its sequences, the same each time."""
    torch.manual_seed(0)
    return Controller(kind).eval(), (torch.randn(4, 8, 17),)


def rnn() -> Made:
    """Return one with plain steps."""
    return make(nn.RNN)


def gru() -> Made:
    """Return one with a GRU."""
    return make(nn.GRU)


def lstm() -> Made:
    """Return one with an LSTM."""
    return make(nn.LSTM)
