"""Family `ivhl`: Pachner moves on a causal triangulation of a space-time of one space and one time dimension.

Source: Ambjørn and Loll, https://arxiv.org/abs/hep-th/9805108. Space-time is a stack of slices, each a circle of l_t
edges. Between two slices lies a strip of l_t + l_{t+1} triangles, and time, too, is periodic. A configuration of
lengths stands for all the ways to triangulate its strips, and weighs

    π(l) = Π_t l_t · (1 / (l_t + l_{t+1})) · C(l_t + l_{t+1}, l_t) · g^(l_t + l_{t+1}),   g = exp(−λ)

with λ the cosmological constant. So the (2,2) move, which changes a strip but no length, is summed over exactly. The
proposed moves are (2,4), which inserts a vertex in a slice, and its inverse (4,2), which removes one. Only whole
numbers are compared: the answer has no rounding, and is the same for every requested dtype.
"""

from __future__ import annotations

import functools

import torch

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.ivhl.complexes import exact_draws

CHANCES = 1 << 20
"""Number of equal parts of the interval [0, 1) for random numbers and for g²."""

FUGACITY = 212_500
"""g² in those parts: λ = 0.798, above the critical ln 2, so that slices have a few edges on average."""

MAX_LENGTH = 50
"""The greatest length drawn. The products below fit into 63 bits for lengths up to 2¹¹."""


def pachner_moves(
    lengths: torch.Tensor, grow: torch.Tensor, chances: torch.Tensor, fugacity: int = FUGACITY
) -> torch.Tensor:
    """Propose one move in every slice, and accept it by the rule of Metropolis (J. Chem. Phys. 21, 1087, 1953).

    A slice of length l between slices of lengths a and b has π(l + 1) / π(l) = g² (l + a)(l + b) / (l (l + 1)). A move
    with that ratio r (or its inverse, from l to l − 1) is accepted if chance < r. The even slices move at once, as none
    is a neighbour of another. Then the odd ones do. So each half keeps detailed balance with π.

    Args:
        lengths: l, (..., T), int64, from 1 to 2¹¹, T even: the slices of a triangulation, or of many.
        grow: (..., T), bool: whether a slice is to gain an edge, (2,4), or to lose one, (4,2).
        chances: (..., T), int64, even over [0, 2²⁰): random numbers in [0, 1), in units of 2⁻²⁰.
        fugacity: g², in the same units.

    Returns:
        The lengths after it, (..., T), int64, at least 1, in new memory.
    """
    even, odd = lengths[..., 0::2], lengths[..., 1::2]
    even = _move(even, odd.roll(1, -1), odd, grow[..., 0::2], chances[..., 0::2], fugacity)
    odd = _move(odd, even, even.roll(-1, -1), grow[..., 1::2], chances[..., 1::2], fugacity)
    return torch.stack((even, odd), dim=-1).flatten(-2)


def build_pachner_moves(request: Request, *, moves: int) -> Workload:
    """Build it for a triangulation of `moves` slices, of 1 to 50 edges each. Any floating dtype is as good."""
    examples = functools.partial(_examples, request, moves)
    return Workload(
        pachner_moves,
        examples(request.seed),
        name=request.name,
        # Per move: the shorter length 1, two sums, l + 1, three products, g² and chance 2, whole-number comparison of
        # either kind 2, choice 1, new length 2. Read: length, chance (8 bytes each) and direction (1); written: length.
        roofline=Roofline(flops=14.0 * moves, bytes=25.0 * moves),
        reseed=examples,
    )


def _move(
    length: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
    grow: torch.Tensor,
    chance: torch.Tensor,
    fugacity: int,
) -> torch.Tensor:
    shorter = torch.where(grow, length, length - 1)  # of the two lengths that the move leads between
    up = fugacity * (shorter + before) * (shorter + after)
    down = shorter * (shorter + 1)
    # chance < r, times 2²⁰ and both denominators. A slice of one edge has down = 0: it never loses it.
    accepted = torch.where(grow, chance * down < up, chance * up < CHANCES * (CHANCES * down))
    return length + torch.where(grow, 1, -1) * accepted


def _examples(request: Request, moves: int, seed: int) -> tuple[Example, ...]:
    draws = exact_draws(seed)
    args = (
        draws.uniform(moves, low=1.0, high=MAX_LENGTH + 1.0).long(),
        draws.uniform(moves) < 0.5,
        draws.uniform(moves, high=float(CHANCES)).long(),
    )
    return (Example(tuple(arg.to(request.device) for arg in args)),)
