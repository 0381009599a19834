"""Inputs of the programs of the family: activations of unit variance."""

from __future__ import annotations

from torchwise.workload import Example
from torchwise.zoo.random_inputs import Request


def normal_examples(request: Request, shape: tuple[int, ...], seed: int) -> tuple[Example, ...]:
    """Return one example, a tensor of this shape."""
    # Another stream than the weights, which start from the request's seed.
    return (Example((request.draws(seed + 1).normal(*shape),)),)


def make_mirrored_examples(request: Request, shape: tuple[int, ...], seed: int) -> tuple[Example, ...]:
    """Return two examples, x and −x: whichever way an odd function of x decides a branch, both ways are taken."""
    ((x,),) = (example.args for example in normal_examples(request, shape, seed))
    return (Example((x,)), Example((-x,)))
