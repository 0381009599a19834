"""Programs of many short kernels on a GPU, at the sizes at which people run them: `torchwise tune
benchmarks/gpu_programs_targets.py:neural_ode`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


class NeuralOde(nn.Module):
    """Forty steps of the fourth order."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 128, 64)
        self.layers = nn.ModuleList(nn.Linear(one, other) for one, other in itertools.pairwise(widths))

    def slope(self, x: torch.Tensor) -> torch.Tensor:
        """Return the derivative of a state."""
        first, second, last = self.layers
        found: torch.Tensor = last(torch.tanh(second(torch.tanh(first(x)))))
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the state after a time of one."""
        step = 1 / 40
        for _ in range(40):
            k1 = self.slope(x)
            k2 = self.slope(x + step / 2 * k1)
            k3 = self.slope(x + step / 2 * k2)
            k4 = self.slope(x + step * k3)
            x = x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x


class Policy(nn.Module):
    """Three layers of 256, for one state."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        )
        self.last = nn.Linear(256, 8)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Return an action in (-1, 1)."""
        return torch.tanh(self.last(self.net(state)))


class Scan(nn.Module):
    """A selective state space by its plain recurrence, 64 steps."""

    def __init__(self, width: int = 256, states: int = 16) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.rand(width, states).neg())

    def forward(self, x: torch.Tensor, gate: torch.Tensor, to: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the sum over the state at each time."""
        gate = functional.softplus(gate)
        state, found = x.new_zeros(x.shape[0], *self.rates.shape), []
        for time in range(x.shape[1]):
            now = gate[:, time, :, None]
            state = torch.exp(now * self.rates) * state + now * to[:, time, None, :] * x[:, time, :, None]
            found.append((state * out[:, time, None, :]).sum(-1))
        return torch.stack(found, 1)


class Radiance(nn.Module):
    """A radiance field: eight layers of 256 on angles of ten frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(63, 256)
        self.early = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.again = nn.Linear(319, 256)
        self.late = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
        self.last = nn.Linear(256, 4)

    def forward(self, place: torch.Tensor) -> torch.Tensor:
        """Return colors and densities."""
        waves = [function(place * 2.0**k) for k in range(10) for function in (torch.sin, torch.cos)]
        angles = torch.cat([place, *waves], -1)
        h = torch.relu(self.first(angles))
        for layer in self.early:
            h = torch.relu(layer(h))
        h = torch.relu(self.again(torch.cat([h, angles], -1)))
        for layer in self.late:
            h = torch.relu(layer(h))
        found: torch.Tensor = self.last(h)
        return found


class Gru(nn.Module):
    """Thirty-two gated steps."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the last state."""
        for time in range(x.shape[1]):
            gates = functional.linear(x[:, time], self.cell.weight_ih, self.cell.bias_ih).chunk(3, 1)
            own = functional.linear(state, self.cell.weight_hh, self.cell.bias_hh).chunk(3, 1)
            reset, update = torch.sigmoid(gates[0] + own[0]), torch.sigmoid(gates[1] + own[1])
            state = (1 - update) * torch.tanh(gates[2] + reset * own[2]) + update * state
        return state


def heston(price: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Return the payoffs of paths of 64 steps, each with noise of its own."""
    step, correlation = 1 / 64, -0.7
    for _ in range(64):
        first, second = torch.randn_like(price), torch.randn_like(price)
        level = torch.clamp(variance, min=0)
        spread = torch.sqrt(level * step)
        price = price * torch.exp(-0.5 * level * step + spread * first)
        noise = correlation * first + math.sqrt(1 - correlation**2) * second
        variance = variance + 2.0 * (0.04 - level) * step + 0.3 * spread * noise
    return torch.clamp(price - 100, min=0)


def lennard_jones(places: torch.Tensor, speeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return places and speeds after ten steps of particles with a force between each two."""
    step, eye = 1e-4, torch.eye(len(places), device=places.device)
    for _ in range(10):
        difference = places[:, None, :] - places[None, :, :]
        squared = (difference * difference).sum(-1) + eye
        inverse = 1 / (squared * squared * squared)
        force = ((24 * (2 * inverse * inverse - inverse) / squared)[..., None] * difference).sum(1)
        speeds = speeds + step * force
        places = places + step * speeds
    return places, speeds


def _place(device: str, model: nn.Module, *inputs: torch.Tensor) -> Made:
    return model.to(device).eval(), tuple(one.to(device) for one in inputs)


def neural_ode(device: str = "cuda") -> Made:
    """Return a neural ODE for 256 states."""
    return _place(device, NeuralOde(), torch.randn(256, 64))


def policy(device: str = "cuda") -> Made:
    """Return a policy for one state."""
    return _place(device, Policy(), torch.randn(1, 32))


def scan(device: str = "cuda") -> Made:
    """Return a selective scan of 64 steps."""
    return _place(device, Scan(), torch.randn(8, 64, 256), *(torch.randn(8, 64, n) for n in (256, 16, 16)))


def radiance(device: str = "cuda") -> Made:
    """Return a radiance field for 4,096 rays of 64 points."""
    return _place(device, Radiance(), torch.rand(4096 * 64, 3))


def gru(device: str = "cuda") -> Made:
    """Return gated steps of 256 sequences."""
    return _place(device, Gru(), torch.randn(256, 32, 64), torch.randn(256, 64))


def monte_carlo(device: str = "cuda") -> Made:
    """Return 200,000 paths."""
    ones = torch.ones(200_000, device=device)
    return heston, (100 * ones, 0.04 * ones)


def particles(device: str = "cuda") -> Made:
    """Return ten steps of 2,048 particles."""
    return lennard_jones, (3 * torch.rand(2048, 3, device=device), torch.zeros(2048, 3, device=device))


PROGRAMS = ("neural_ode", "policy", "scan", "radiance", "gru", "monte_carlo", "particles")
WITHOUT_PRODUCTS = ("scan", "monte_carlo", "particles")
"""Programs without a matrix product, to which TF32 means nothing."""
ZOO = {
    "energy_flow_rollout": "zoo:energy_flow.rollout",
    "energy_flow_step": "zoo:energy_flow.fused_step",
    "carrier": "zoo:energy_flow.carrier",
    "many_small_ops": "zoo:tutorial.many_small_ops",
    "gru_step": "zoo:ivhl.gru_step",
    "neuron": "zoo:energy_flow.neuron",
    "transformer_block": "zoo:tutorial.transformer_block",
    "six_layer_transformer": "zoo:tutorial.six_layer_transformer",
}
"""Programs of the zoo beside them, by their targets, to which a size may be added."""
