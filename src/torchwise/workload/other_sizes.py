"""Examples of other sizes than the given ones, for calls whose sizes vary.

A plan for such calls is verified and timed at sizes that nobody gave. The dimensions that vary are known from marks for
`torch.compile` (`mark_dynamic`), or from examples that differ. Otherwise it is tried: dimensions of one length change
together, such as those of a batch, and vary if the model takes them at other lengths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from torchwise._torch.dynamo import DIM_MARKS
from torchwise.plan.workload_spec import VaryingDim
from torchwise.workload import pytree
from torchwise.workload.identity import describe_example
from torchwise.workload.input_spec import InputSpec, TensorSpec, find_varying_dims
from torchwise.workload.layouts import overlap_of
from torchwise.workload.workload import Example, Workload, resize_places

LEAST = 8
"""Least length of a dimension that is tried, but for the first one. Shorter ones are coordinates, channels or heads."""
FACTORS = ((0.75, 1.25), (0.5, 0.75), (1.25, 1.5))
"""Pairs of factors by which lengths are changed. The first pair that the model takes counts.

A model may have a maximum length, or inputs whose values are positions in another input.
"""
Place = tuple[str, int]
"""The path of an input, and a dimension of it."""


def search_varying_dims(workload: Workload, run: Callable[[Example], object]) -> tuple[VaryingDim, ...]:
    """Return the dimensions in which inputs vary, with other lengths that the model takes, or none.

    Args:
        workload: the model with its examples.
        run: calls the model. It raises if the model does not take the sizes.
    """
    example = workload.examples[0]
    if overlap_of(example.tensors()) is not None:  # resized inputs would not share memory
        return ()
    lengths = {(path, dim): size for path, tensor in _list_tensors(example) for dim, size in enumerate(tensor.shape)}
    known = _list_marked(workload.examples) or _list_different(workload.examples)
    wanted = [place for place in lengths if place in known or (not known and _may_vary(place, lengths[place]))]
    found: list[Place] = []
    for length in sorted({lengths[place] for place in wanted}):
        group = [place for place in wanted if lengths[place] == length]
        # One length may be that of several things, such as of a batch and of features.
        for tried in (group, [place for place in group if place[1] == 0], *([place] for place in group)):
            if tried and not set(tried) & set(found) and _choose_lengths(example, tried, lengths, run):
                found += tried
    return _choose_lengths(example, found, lengths, run)


def add_other_sizes(workload: Workload, varying: Sequence[VaryingDim]) -> Workload:
    """Return the workload with examples at other lengths of these dimensions. They weigh as much as the given ones."""
    if not varying:
        return workload

    def extend(examples: tuple[Example, ...]) -> tuple[Example, ...]:
        weight = sum(example.weight for example in examples) / len(varying[0].lengths)
        made = (
            resize_places(examples[0], {(one.path, one.dim): one.lengths[at] for one in varying})
            for at in range(len(varying[0].lengths))
        )
        return (*examples, *(replace(example, weight=weight) for example in made))

    reseed = workload.reseed
    return replace(
        workload,
        examples=extend(workload.examples),
        reseed=(lambda seed: extend(reseed(seed))) if reseed is not None else None,
    )


def make_example_like(example: Example, inputs: InputSpec, weight: float) -> Example:
    """Return the example at the sizes of inputs of the same form, with its own values."""
    lengths = {
        (leaf.path, dim): length
        for leaf in inputs.leaves
        if isinstance(leaf.value, TensorSpec)
        for dim, length in enumerate(leaf.value.shape or ())
    }
    own = {(path, dim): length for path, t in _list_tensors(example) for dim, length in enumerate(t.shape)}
    different = {place: length for place, length in lengths.items() if own.get(place, length) != length}
    return replace(resize_places(example, different), weight=weight)


def strip_marks(workload: Workload) -> Workload:
    """Take the marks off the examples: plans for one size must not be compiled for several."""
    for tensor in [tensor for example in workload.examples for tensor in example.tensors()]:
        for marks in DIM_MARKS:
            vars(tensor).pop(marks, None)
    return workload


def _list_tensors(example: Example) -> list[tuple[str, torch.Tensor]]:
    leaves = pytree.list_named_leaves((example.args, dict(example.kwargs)))
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]


def _list_marked(examples: Iterable[Example]) -> set[Place]:
    """List the dimensions that the user marked as dynamic for `torch.compile`."""
    marked: defaultdict[str, set[int]] = defaultdict(set)
    for path, tensor in [pair for example in examples for pair in _list_tensors(example)]:
        marked[path].update(*(getattr(tensor, marks, ()) for marks in DIM_MARKS))
    return {(path, dim) for path, dims in marked.items() for dim in dims}


def _list_different(examples: Iterable[Example]) -> set[Place]:
    found = find_varying_dims([*map(describe_example, examples)])
    return {(path, dim) for path, dims in found.items() for dim in dims}


def _may_vary(place: Place, length: int) -> bool:
    return length >= LEAST or (place[1] == 0 and length > 0)


def _choose_lengths(
    example: Example, places: Sequence[Place], lengths: dict[Place, int], run: Callable[[Example], object]
) -> tuple[VaryingDim, ...]:
    """Return the first lengths of these dimensions at which the model runs, or none."""
    different = sorted({lengths[place] for place in places})
    for factors in FACTORS if places else ():
        varying = tuple(
            VaryingDim(*place, tuple(_scale(lengths[place], factor, different) for factor in factors))
            for place in places
        )
        try:
            for at in range(len(factors)):
                run(resize_places(example, {(one.path, one.dim): one.lengths[at] for one in varying}))
        except Exception:  # the model's own, for sizes that it does not take
            continue
        return varying
    return ()


def _scale(length: int, factor: float, different: Sequence[int]) -> int:
    """Return another length. Different lengths are not scaled alike, as code may hold for their ratio alone."""
    extra = 2 * different.index(length) + 1
    return max(round(length * factor), 2) + extra if factor > 1 else max(round(length * factor) - extra, 2)
