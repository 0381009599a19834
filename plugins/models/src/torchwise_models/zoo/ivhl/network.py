"""Family `ivhl`: tensor networks, contracted pair by pair along a path that is fixed beforehand.

Source: Pfeifer, Haegeman and Verstraete, https://arxiv.org/abs/1304.6112. The greedy choice is that of Smith and Gray,
*opt_einsum*, https://doi.org/10.21105/joss.00753. Paths are written as there and in `numpy.einsum_path`: a pair names
two positions in the list of tensors left. Both are taken out, and their contraction is put at the end.
"""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from torchwise.errors import WorkloadError

Legs = tuple[int, ...]
"""The labels of a tensor's dimensions, in order, each at most once. Dimensions of one label are summed together."""

Path = tuple[tuple[int, int], ...]
"""Which two of the tensors left are contracted next, the smaller position first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One contraction of two tensors: their positions in the list, their legs, and the legs that are kept."""

    pair: tuple[int, int]
    left: Legs
    right: Legs
    kept: Legs

    @property
    def equation(self) -> str:
        """The step in the notation of `torch.einsum`, which has letters enough for one pair, if not for a network."""
        letters = dict(zip(dict.fromkeys(self.left + self.right), string.ascii_letters, strict=False))
        left, right, kept = ("".join(letters[leg] for leg in legs) for legs in (self.left, self.right, self.kept))
        return f"{left},{right}->{kept}"


class TensorNetwork(nn.Module):
    """Contract a network of tensors to one: Σ over all legs but the open ones of the product of all tensors.

    It has no parameters: tensors are its inputs, of one dtype, real or complex. A leg may join more than two tensors,
    and may be open all the same, as a batch's is.

    Args:
        legs: of each input tensor.
        open_legs: the legs of the result, in order.
        path: how to contract, in one pair fewer than there are tensors.

    Raises:
        WorkloadError: the path does not lead to one tensor.
    """

    def __init__(self, legs: Sequence[Legs], open_legs: Legs, path: Path) -> None:
        super().__init__()
        if len(legs) < 2 or len(path) != len(legs) - 1:
            raise WorkloadError(
                f"the path has {len(path)} pairs for {len(legs)} tensors, but must have one fewer than at least two"
            )
        self.steps = tuple((*step.pair, step.equation) for step in steps_of(legs, open_legs, path))

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Map one tensor for each entry of `legs` to the tensor with the open legs."""
        left = list(tensors)
        for first, second, equation in self.steps:
            late, early = left.pop(second), left.pop(first)
            left.append(torch.einsum(equation, early, late))
        return left[0]


def steps_of(legs: Sequence[Legs], open_legs: Legs, path: Path) -> Iterator[Step]:
    """Follow a path through a network, and tell each step of it."""
    left, ends = list(legs), _count_ends(legs, open_legs)
    for pair in path:
        early, late, kept = _join(left, pair, ends)
        yield Step(pair, early, late, kept if left[1:] else open_legs)


def greedy_path(legs: Sequence[Legs], open_legs: Legs, sizes: Mapping[int, int]) -> Path:
    """Choose, again and again, the joined pair whose contraction takes the least room more than the pair itself.

    Args:
        legs: of each tensor.
        open_legs: the legs of the result.
        sizes: of each leg.

    Returns:
        A path to one tensor. Parts that share no leg are multiplied at the end. The first of equals is taken, so
        that the path depends on nothing else.
    """

    def room(some: Legs) -> int:
        return math.prod(sizes[leg] for leg in some)

    left, ends = list(legs), _count_ends(legs, open_legs)
    path: list[tuple[int, int]] = []
    while len(left) > 1:
        growth = {
            (i, j): room(_select_open_legs(left[i], left[j], ends)) - room(left[i]) - room(left[j])
            for i, j in _neighbours(left)
        }
        pair = min(growth, key=lambda pair: (growth[pair], pair)) if growth else (0, 1)
        _join(left, pair, ends)
        path.append(pair)
    return tuple(path)


def flops_of(legs: Sequence[Legs], open_legs: Legs, path: Path, sizes: Mapping[int, int]) -> float:
    """Count the real operations of contracting complex tensors: per combination of legs a product (6) and a sum (2)."""
    steps = steps_of(legs, open_legs, path)
    return 8.0 * sum(math.prod(sizes[leg] for leg in {*step.left, *step.right}) for step in steps)


def _count_ends(legs: Sequence[Legs], open_legs: Legs) -> Counter[int]:
    """Count for each leg the tensors that it joins. An open end counts as one."""
    return Counter(leg for some in (*legs, open_legs) for leg in some)


def _select_open_legs(early: Legs, late: Legs, ends: Mapping[int, int]) -> Legs:
    """Return the legs of a pair that lead on, to another tensor or to an open end."""
    return tuple(leg for leg in dict.fromkeys(early + late) if ends[leg] > (leg in early) + (leg in late))


def _join(left: list[Legs], pair: tuple[int, int], ends: Counter[int]) -> tuple[Legs, Legs, Legs]:
    """Contract a pair in the list and in the count. Return the legs of both and of their contraction."""
    first, second = pair
    late, early = left.pop(second), left.pop(first)
    kept = _select_open_legs(early, late, ends)
    left.append(kept)
    ends.subtract(early + late)
    ends.update(kept)
    return early, late, kept


def _neighbours(left: Sequence[Legs]) -> set[tuple[int, int]]:
    """Return the pairs of positions that share a leg."""
    ends: dict[int, list[int]] = {}
    for position, legs in enumerate(left):
        for leg in legs:
            ends.setdefault(leg, []).append(position)
    return {(i, j) for found in ends.values() for i in found for j in found if i < j}
