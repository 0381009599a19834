"""Small programs of tens of microseconds, each at batch 1 and 64: `torchwise tune benchmarks/small_targets.py:mlp_64`.

`PROGRAMS` served to develop row programs. `HELD_OUT` did not: they follow model code of public repositories, and only
the last figure is taken on them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torchwise.workload import Example, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.energy_flow.neuron import build_neuron
from torchwise_models.zoo.ivhl.trajectories import build_gru_step

BATCHES = (1, 64)
Make = Callable[[int], tuple[Callable[..., Any], tuple[Any, ...]]]


def perceptron(*widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Return linear layers with an activation between them."""
    pairs = list(itertools.pairwise(widths))
    layers = [layer for pair in pairs for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


class Policy(nn.Module):
    """A policy that draws its action, and returns the logarithm of its density."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.log_std = perceptron(24, 64, 64, 6), nn.Parameter(torch.full((6,), -0.5))

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an action in (-1, 1), and the density of what was drawn."""
        mean = self.net(state)
        noise = torch.randn_like(mean)
        density = (-0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        return torch.tanh(mean + self.log_std.exp() * noise), density


class Burgers(nn.Module):
    """A physics-informed network, with the residual of Burgers' equation by derivatives carried forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return u and u_t + u u_x - 0.01 / pi u_xx at each (t, x)."""
        a = torch.tanh(self.first(place))
        slope, (by_t, by_x) = 1 - a * a, self.first.weight.unbind(1)
        a_t, a_x, a_xx = slope * by_t, slope * by_x, -2 * a * slope * by_x * by_x
        b = torch.tanh(self.second(a))
        slope = 1 - b * b
        z_t, z_x, z_xx = (functional.linear(one, self.second.weight) for one in (a_t, a_x, a_xx))
        b_t, b_x, b_xx = slope * z_t, slope * z_x, slope * z_xx - 2 * b * slope * z_x * z_x
        u = self.last(b)
        u_t, u_x, u_xx = (functional.linear(one, self.last.weight) for one in (b_t, b_x, b_xx))
        return u, u_t + u * u_x - 0.01 / math.pi * u_xx


class Kalman(nn.Module):
    """One step of a Kalman filter: a body with a place and a speed in the plane, whose place is seen."""

    move: torch.Tensor
    see: torch.Tensor
    identity: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        move = torch.eye(4)
        move[0, 2] = move[1, 3] = 0.1
        self.register_buffer("move", move)
        self.register_buffer("see", torch.eye(2, 4))
        self.register_buffer("identity", torch.eye(4))

    def forward(self, x: torch.Tensor, p: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the estimate and its covariance after a measurement."""
        x, p = x @ self.move.T, self.move @ p @ self.move.T + 0.01 * self.identity
        spread = self.see @ p @ self.see.T + 0.1 * self.identity[:2, :2]
        gain = p @ self.see.T @ torch.linalg.inv(spread)
        x = x + (gain @ (seen - x @ self.see.T).unsqueeze(-1)).squeeze(-1)
        return x, (self.identity - gain @ self.see) @ p


class RungeKutta(nn.Module):
    """Four steps of order four along a field that a network describes."""

    def __init__(self) -> None:
        super().__init__()
        self.field = perceptron(8, 32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the state after the steps."""
        step = 0.1
        for _ in range(4):
            a = self.field(x)
            b = self.field(x + step / 2 * a)
            c = self.field(x + step / 2 * b)
            x = x + step / 6 * (a + 2 * b + 2 * c + self.field(x + step * c))
        return x


class Attention(nn.Module):
    """Four heads over eight tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens after the layer."""
        batch, tokens, width = x.shape
        q, k, v = self.inner(x).view(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        answer = functional.scaled_dot_product_attention(q, k, v)
        mixed: torch.Tensor = self.outer(answer.transpose(1, 2).reshape(batch, tokens, width))
        return mixed


class Recommender(nn.Module):
    """A bag of items and some numbers, from which a click is predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.net = nn.EmbeddingBag(1000, 32, mode="mean"), perceptron(40, 64, 1, activation=nn.ReLU)

    def forward(self, items: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return a probability."""
        return torch.sigmoid(self.net(torch.cat([self.items(items), numbers], 1)))


class MonteCarlo(nn.Module):
    """The price of an option by paths of 16 steps."""

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        """Return the mean payoff."""
        x = start.log()
        for _ in range(16):
            x = x + (0.02 - 0.5 * 0.04) / 16 + 0.2 / 4 * torch.randn_like(x)
        return torch.relu(x.exp() - 1).mean()


class Iteration(nn.Module):
    """Thirty steps of an iteration over complex numbers, each point by itself."""

    def forward(self, z: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Return the points after the steps, kept in the unit disk."""
        for _ in range(30):
            z = z * z + c
            z = z / (1 + z.abs())
        return z


def make_norm_net() -> nn.Sequential:
    """Return a network with layer norms."""
    layers = (nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.SiLU())
    return nn.Sequential(*layers, nn.Linear(64, 8))


def draw_kalman(rows: int) -> tuple[torch.Tensor, ...]:
    """Return estimates, covariances and measurements."""
    return torch.randn(rows, 4), torch.eye(4).repeat(rows, 1, 1), torch.randn(rows, 2)


PROGRAMS: dict[str, Make] = {
    "mlp": lambda rows: (perceptron(64, 128, 128, 8), (torch.randn(rows, 64),)),
    "layer_norm_mlp": lambda rows: (make_norm_net(), (torch.randn(rows, 32),)),
    "gru_cell": lambda rows: (nn.GRUCell(32, 64), (torch.randn(rows, 32), torch.randn(rows, 64))),
    "lstm_cell": lambda rows: (
        nn.LSTMCell(32, 64),
        (torch.randn(rows, 32), (torch.randn(rows, 64), torch.randn(rows, 64))),
    ),
    "policy": lambda rows: (Policy(), (torch.randn(rows, 24),)),
    "pinn": lambda rows: (Burgers(), (torch.rand(rows, 2),)),
    "kalman": lambda rows: (Kalman(), draw_kalman(rows)),
    "runge_kutta": lambda rows: (RungeKutta(), (torch.randn(rows, 8),)),
    "attention": lambda rows: (Attention(), (torch.randn(rows, 8, 32),)),
    "recommender": lambda rows: (Recommender(), (torch.randint(0, 1000, (rows, 10)), torch.randn(rows, 8))),
    "monte_carlo": lambda rows: (MonteCarlo(), (torch.rand(rows * 16) + 0.5,)),
    "complex_loop": lambda rows: (
        Iteration(),
        tuple(torch.randn(rows * 1600, dtype=torch.complex64) for _ in range(2)),
    ),
}
ZOO: dict[str, Callable[[Request, int], Workload]] = {
    "gru_step": lambda request, rows: build_gru_step(request, batch=rows, hidden=128),
    "neuron": lambda request, rows: build_neuron(request, batch=rows),
}


class Critic(nn.Module):
    """Two networks that value an action (after sfujim/TD3)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (perceptron(23, 64, 64, 1, activation=nn.ReLU) for _ in range(2))

    def forward(self, state: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two values."""
        both = torch.cat([state, action], 1)
        return self.one(both), self.other(both)


class Siren(nn.Module):
    """A field as a network of sines (after vsitzmann/siren)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList([nn.Linear(2, 64), nn.Linear(64, 64)]), nn.Linear(64, 3)

    def forward(self, place: torch.Tensor) -> torch.Tensor:
        """Return a color for each place."""
        for layer in self.layers:
            place = torch.sin(30 * layer(place))
        color: torch.Tensor = self.last(place)
        return color


class FactorMachine(nn.Module):
    """Products of all pairs of features, and a network beside them (after shenweichen/DeepCTR-Torch's DeepFM)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.weight = nn.Embedding(2000, 8), nn.Embedding(2000, 1)
        self.net = perceptron(80, 64, 1, activation=nn.ReLU)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return a probability."""
        vectors = self.table(features)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.weight(features).sum(1) + pairs + self.net(vectors.flatten(1)))


class Coupling(nn.Module):
    """Two layers of a flow that maps noise to samples, and its density (after chrischute/real-nvp)."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList([perceptron(8, 32, 16, activation=nn.ReLU) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sample, and the logarithm of the change of volume."""
        volume = torch.zeros(len(x))
        for net in self.nets:
            kept, moved = x.chunk(2, 1)
            scale, shift = net(kept).chunk(2, 1)
            scale = torch.tanh(scale)
            volume = volume + scale.sum(1)
            x = torch.cat([moved * scale.exp() + shift, kept], 1)
        return x, volume


class Mixture(nn.Module):
    """The likelihood of a value under a mixture that depends on the input (after tonyduan/mixture-density-network)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron(10, 32, 15)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the density."""
        weight, mean, spread = self.net(x).chunk(3, 1)
        away = (y - mean) * torch.exp(-spread)
        return torch.logsumexp(functional.log_softmax(weight, 1) - 0.5 * away.square() - spread, 1)


HELD_OUT: dict[str, Make] = {
    "critic": lambda rows: (Critic(), (torch.randn(rows, 17), torch.randn(rows, 6))),
    "siren": lambda rows: (Siren(), (torch.rand(rows, 2) * 2 - 1,)),
    "factor_machine": lambda rows: (FactorMachine(), (torch.randint(0, 2000, (rows, 10)),)),
    "coupling": lambda rows: (Coupling(), (torch.randn(rows, 16),)),
    "mixture": lambda rows: (Mixture(), (torch.randn(rows, 10), torch.randn(rows, 1))),
}


def build(make: Make, name: str, rows: int) -> Workload:
    """Return a program with random weights and inputs."""
    torch.manual_seed(0)
    model, inputs = make(rows)
    module = model.eval() if isinstance(model, nn.Module) else model
    return Workload(module, (Example(inputs),), name=name)


def build_zoo(make: Callable[[Request, int], Workload], name: str, rows: int) -> Workload:
    """Return a program of the zoo at another batch size."""
    return make(Request(name, "cpu", torch.float32, 0), rows)


for _rows in BATCHES:
    for _name, _make in (PROGRAMS | HELD_OUT).items():
        globals()[f"{_name}_{_rows}"] = functools.partial(build, _make, f"{_name}_{_rows}", _rows)
    for _name, _build in ZOO.items():
        globals()[f"{_name}_{_rows}"] = functools.partial(build_zoo, _build, f"{_name}_{_rows}", _rows)
