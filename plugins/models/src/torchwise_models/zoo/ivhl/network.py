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
"""The labels of a tensor's dimensions, in order. Dimensions of one label are summed together.

A label that one tensor has twice stands for its diagonal.
"""

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
        return write_equation((self.left, self.right), self.kept)


def write_equation(legs: Sequence[Legs], kept: Legs) -> str:
    """Write the contraction of one or two tensors in the notation of `torch.einsum`."""
    letters = dict(zip(dict.fromkeys(leg for some in legs for leg in some), string.ascii_letters, strict=False))
    *left, right = ("".join(letters[leg] for leg in some) for some in (*legs, kept))
    return f"{','.join(left)}->{right}"


class TensorNetwork(nn.Module):
    """Contract a network of tensors to one: Σ over all legs but the open ones of the product of all tensors.

    It has no parameters: tensors are its inputs, of one dtype, real or complex. A leg may join more than two tensors,
    and may be open all the same, as a batch's is. It may also end in the tensor where it begins.

    Args:
        legs: of each input tensor.
        open_legs: the legs of the result, in order.
        path: how to contract, in one pair fewer than there are tensors.

    Raises:
        WorkloadError: the path does not lead to one tensor, or no tensor has an open leg.
    """

    def __init__(self, legs: Sequence[Legs], open_legs: Legs, path: Path) -> None:
        super().__init__()
        if not legs or len(path) != len(legs) - 1:
            raise WorkloadError(
                f"the path has {len(path)} pairs for {len(legs)} tensors, but must have one fewer than at least one"
            )
        if missing := set(open_legs) - {leg for some in legs for leg in some}:
            raise WorkloadError(f"leg {min(missing)} is open, but no tensor has it")
        alone = [open_legs] if len(legs) == 1 else [tuple(dict.fromkeys(some)) for some in legs]
        self.own = tuple(
            write_equation((some,), kept) if some != kept else "" for some, kept in zip(legs, alone, strict=True)
        )
        self.steps = tuple((*step.pair, step.equation) for step in steps_of(alone, open_legs, path))

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Map one tensor for each entry of `legs` to the tensor with the open legs."""
        left = [torch.einsum(own, t) if own else t for own, t in zip(self.own, tensors, strict=True)]
        for first, second, equation in self.steps:
            late, early = left.pop(second), left.pop(first)
            left.append(torch.einsum(equation, early, late))
        return left[0]


def contract(equation: str, *tensors: torch.Tensor) -> torch.Tensor:
    """Contract any network along a greedy path. See `network_of` for its equation.

    Raises:
        WorkloadError: the equation does not fit the tensors.
    """
    result: torch.Tensor = network_of(equation, [tuple(tensor.shape) for tensor in tensors])(*tensors)
    return result


def network_of(equation: str, shapes: Sequence[Sequence[int]]) -> TensorNetwork:
    """Return the network of an equation, with a greedy path for tensors of these shapes.

    Args:
        equation: in the notation of `torch.einsum`, such as "abc,bd,cde->ae". Any character but a comma, a space, a dot
            and "->" is a label, so that there may be more than 52. Without "->", labels that occur once are open, in
            alphabetical order.
        shapes: of each tensor.

    Raises:
        WorkloadError: the equation does not fit the shapes.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    words = inputs.split(",")
    if set("->.") & {*inputs, *output}:
        raise WorkloadError(
            f"equation {equation!r} has an ellipsis, or more than one '->': give each dimension a label"
        )
    if [len(word) for word in words] != [len(shape) for shape in shapes]:
        dimensions = ", ".join(str(len(shape)) for shape in shapes) or "none"
        raise WorkloadError(
            f"equation {equation!r} must have a label for each dimension: the tensors have {dimensions}"
        )
    counts = Counter("".join(words))
    output = output if arrow else "".join(sorted(label for label, count in counts.items() if count == 1))
    if len(set(output)) != len(output):
        raise WorkloadError(f"equation {equation!r} has a label twice in its result: name it once")
    if unknown := sorted(set(output) - set(counts)):
        raise WorkloadError(f"equation {equation!r} has label {unknown[0]!r} in its result, but no tensor has it")
    sizes: dict[int, int] = {}
    for label, size in zip("".join(words), (size for shape in shapes for size in shape), strict=True):
        if sizes.setdefault(ord(label), size) != size:
            raise WorkloadError(f"label {label!r} has the sizes {sizes[ord(label)]} and {size}, but must have one")
    legs = [tuple(map(ord, word)) for word in words]
    open_legs = tuple(map(ord, output))
    alone = [tuple(dict.fromkeys(some)) for some in legs]
    return TensorNetwork(legs, open_legs, greedy_path(alone, open_legs, sizes))


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
