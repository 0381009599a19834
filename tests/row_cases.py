"""Small programs whose rows are independent, as people run them, for row programs on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, gelu, layer_norm, linear, silu


@dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
        call: it.
        inputs: makes its inputs from a generator.
        loops: the number of loops in its kernel.
        kernels: the number of kernels.
        tolerance: the largest error of an answer, as a share of its largest number.
    """

    call: Callable[..., Any]
    inputs: Callable[[torch.Generator], tuple[torch.Tensor, ...]]
    loops: int = 0
    kernels: int = 1
    tolerance: float = 2e-6


def draw(generator: torch.Generator, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Return random numbers."""
    return torch.randn(shape, generator=generator) * scale


def perceptron(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
    """Two layers, with softmax."""
    return torch.softmax(linear(gelu(linear(x, w1, b1)), w2, b2), -1)


def neural_ode(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
    """Steps of the fourth order, whose derivative depends on the time."""
    step = 0.1

    def slope(x: torch.Tensor, time: float) -> torch.Tensor:
        return linear(torch.tanh(linear(x, w1, b1) + time), w2, b2)

    for number in range(6):
        time = number * step
        k1 = slope(x, time)
        k2 = slope(x + step / 2 * k1, time + step / 2)
        k3 = slope(x + step / 2 * k2, time + step / 2)
        k4 = slope(x + step * k3, time + step)
        x = x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def state_space(x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """A selective scan. Its gates are computed for all times at once, and read one by one."""
    state, found = x.new_zeros(x.shape[0], x.shape[2], a.shape[1]), []
    gates = torch.sigmoid(dt)
    for time in range(x.shape[1]):
        gate = gates[:, time, :, None]
        state = torch.exp(gate * a) * state + gate * b[:, time, None, :] * x[:, time, :, None]
        found.append((state * c[:, time, None, :]).sum(-1))
    return torch.stack(found, 1)


def gru(
    x: torch.Tensor, h: torch.Tensor, wi: torch.Tensor, wh: torch.Tensor, bi: torch.Tensor, bh: torch.Tensor
) -> torch.Tensor:
    """Gated steps, whose gates are parts of one product."""
    for time in range(x.shape[1]):
        ir, iz, ic = linear(x[:, time], wi, bi).chunk(3, 1)
        hr, hz, hc = linear(h, wh, bh).chunk(3, 1)
        update = torch.sigmoid(iz + hz)
        h = (1 - update) * torch.tanh(ic + torch.sigmoid(ir + hr) * hc) + update * h
    return h


def recurrent(
    x: torch.Tensor, h: torch.Tensor, wi: torch.Tensor, wh: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """All states, and the last one again."""
    found = []
    for time in range(x.shape[0]):
        h = torch.tanh(linear(x[time], wi) + linear(h, wh))
        found.append(h)
    return torch.stack(found), h


def radiance(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles of several frequencies, and a layer that reads them again."""
    w1, b1, w2, b2, w3, b3 = weights
    angles = torch.cat([x, *(f(x * 2.0**k) for k in range(3) for f in (torch.sin, torch.cos))], -1)
    h = torch.relu(linear(angles, w1, b1))
    found = linear(torch.relu(linear(torch.cat([h, angles], -1), w2, b2)), w3, b3)
    return torch.sigmoid(found[..., :3]), torch.relu(found[..., 3])


def heston(price: torch.Tensor, variance: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Paths of a price, by noise that is given."""
    for time in range(first.shape[0]):
        level = torch.clamp(variance, min=0)
        price = price * torch.exp((0.05 - 0.5 * level) * 0.01 + torch.sqrt(level * 0.01) * first[time])
        noise = -0.7 * first[time] + 0.714 * second[time]
        variance = variance + 2.0 * (0.04 - level) * 0.01 + 0.3 * torch.sqrt(level * 0.01) * noise
    return torch.clamp(price - 100, min=0)


def mandelbrot(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    """An iteration of complex numbers, in parts."""
    zr, zi, count = torch.zeros_like(real), torch.zeros_like(real), torch.zeros_like(real)
    for _ in range(8):
        zr, zi = zr * zr - zi * zi + real, 2 * zr * zi + imaginary
        count = count + torch.where(zr * zr + zi * zi < 4, 1.0, 0.0)
    return count


def block(x: torch.Tensor, g: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
    """The norm and the gated layers of a Llama."""
    h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * g
    return x + linear(silu(linear(h, w1)) * linear(h, w2), w3)


def normed(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A layer norm, and a residual layer as wide."""
    return linear(layer_norm(x, (x.shape[-1],), g, b), w) + x


def motion(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Places and speeds, which are parts of one tensor."""
    place, speed = x[:, :2], x[:, 2:4]
    for _ in range(5):
        speed = speed + 0.1 * torch.tanh(linear(torch.cat([place, speed], 1), w))
        place = place + 0.1 * speed
    return torch.cat([place, speed], 1)


def recommender(index: torch.Tensor, table: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows of a table, side by side."""
    return linear(embedding(index, table).reshape(index.shape[0], -1), w)


def statistics(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reductions along features."""
    z = x * y
    return z.mean(-1), z.amax(-1), z.var(-1), z.log_softmax(-1), z.sum(-1, keepdim=True) * x


def pinn(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A function, and its derivative."""
    h = torch.tanh(x @ w1)
    return h @ w2, ((1 - h * h) * w1[0]) @ w2


def distances(x: torch.Tensor) -> torch.Tensor:
    """All pairs of a few points."""
    difference = x[:, None, :] - x[None, :, :]
    return (difference * difference).sum(-1).sum(1)


def particles(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps of particles with a force between each two: one kernel a step, as each reads all places."""
    for _ in range(3):
        difference = x[:, None, :] - x[None, :, :]
        squared = (difference * difference).sum(-1) + 0.1
        inverse = 1 / (squared * squared * squared)
        force = ((24 * (2 * inverse * inverse - inverse) / squared)[..., None] * difference).sum(1)
        v = v + 0.001 * force
        x = x + 0.001 * v
    return x, v


def many_particles(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps of so many particles that a program goes along all places, and a mask that depends on no input."""
    itself = torch.eye(len(x), device=x.device)
    for _ in range(2):
        difference = x[:, None, :] - x[None, :, :]
        squared = (difference * difference).sum(-1) + itself
        v = v + 0.001 * ((1 / (squared + 0.5))[..., None] * difference).sum(1)
        x = x + 0.1 * v
    return x, v


def attend(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of all pairs, by their distances: the sums read the largest of each row."""
    difference = x[:, None, :] - y[None, :, :]
    scores = -(difference * difference).mean(-1)
    weights = torch.exp(scores - scores.amax(1, keepdim=True))
    return (weights[..., None] * y).sum(1) / weights.sum(1, keepdim=True), scores.amin(1)


CASES: dict[str, Case] = {
    "perceptron": Case(
        perceptron, lambda g: (draw(g, 50, 20), draw(g, 32, 20, scale=0.2), draw(g, 32), draw(g, 5, 32), draw(g, 5))
    ),
    "one row": Case(
        perceptron, lambda g: (draw(g, 1, 20), draw(g, 100, 20, scale=0.2), draw(g, 100), draw(g, 5, 100), draw(g, 5))
    ),
    "neural ODE": Case(
        neural_ode,
        lambda g: (draw(g, 40, 20), draw(g, 32, 20, scale=0.2), draw(g, 32), draw(g, 20, 32, scale=0.2), draw(g, 20)),
        loops=1,
    ),
    "state space": Case(
        state_space,
        lambda g: (draw(g, 2, 7, 6), draw(g, 2, 7, 6), -draw(g, 6, 4).abs(), draw(g, 2, 7, 4), draw(g, 2, 7, 4)),
        loops=1,
    ),
    "GRU": Case(
        gru, lambda g: (draw(g, 20, 4, 6), draw(g, 20, 8), draw(g, 24, 6), draw(g, 24, 8), draw(g, 24), draw(g, 24)), 1
    ),
    "recurrent": Case(recurrent, lambda g: (draw(g, 5, 20, 6), draw(g, 20, 8), draw(g, 8, 6), draw(g, 8, 8) / 3), 1),
    "radiance": Case(
        radiance,
        lambda g: (
            *(draw(g, 30, 3), draw(g, 40, 21, scale=0.2), draw(g, 40), draw(g, 40, 61, scale=0.2), draw(g, 40)),
            *(draw(g, 4, 40), draw(g, 4)),
        ),
    ),
    "Heston": Case(
        heston,
        lambda g: (torch.full((70,), 100.0), torch.full((70,), 0.04), draw(g, 6, 70), draw(g, 6, 70)),
        loops=1,
        tolerance=1e-5,  # of the difference of two prices
    ),
    "Mandelbrot": Case(mandelbrot, lambda g: (draw(g, 9, 11), draw(g, 9, 11)), loops=1),
    "block": Case(
        block,
        lambda g: (draw(g, 20, 24), draw(g, 24), *(draw(g, *s, scale=0.2) for s in ((48, 24), (48, 24), (24, 48)))),
    ),
    "norm": Case(normed, lambda g: (draw(g, 3, 7, 24), draw(g, 24), draw(g, 24), draw(g, 24, 24, scale=0.2))),
    "wide norm": Case(normed, lambda g: (draw(g, 20, 200), draw(g, 200), draw(g, 200), draw(g, 200, 200, scale=0.06))),
    "motion": Case(motion, lambda g: (draw(g, 17, 4), draw(g, 2, 4)), loops=1),
    "recommender": Case(recommender, lambda g: (torch.randint(9, (20, 3), generator=g), draw(g, 9, 8), draw(g, 5, 24))),
    "statistics": Case(statistics, lambda g: (draw(g, 20, 13), draw(g, 13))),
    "PINN": Case(pinn, lambda g: (draw(g, 40, 1), draw(g, 1, 20), draw(g, 20, 1))),
    "distances": Case(distances, lambda g: (draw(g, 20, 3),)),
    "particles": Case(particles, lambda g: (draw(g, 24, 3), draw(g, 24, 3)), kernels=3, tolerance=1e-5),
    "many particles": Case(
        many_particles, lambda g: (draw(g, 300, 3), draw(g, 300, 3)), loops=1, kernels=2, tolerance=1e-5
    ),
    "pairs": Case(attend, lambda g: (draw(g, 40, 3), draw(g, 512, 3)), loops=2),
}


def check(call: Callable[..., Any], case: Case, inputs: tuple[torch.Tensor, ...]) -> None:
    """Compare an answer with eager's: numbers, types, sizes and strides."""
    found, wanted = call(*inputs), case.call(*inputs)
    several = isinstance(wanted, tuple)
    for one, other in zip(found if several else [found], wanted if several else [wanted], strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        error = (one.double() - other.double()).abs().max()
        assert error <= case.tolerance * other.double().abs().max()
