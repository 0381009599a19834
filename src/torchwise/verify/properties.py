"""Check properties of answers down to their bits: deterministic, batch-invariant, and equal to another's.

A tolerance has no place here. Two answers agree if every bit of every value does: -0.0 is not 0.0. Each check makes
real calls, and a pass says how many. So it is evidence, and no proof for the calls that were not made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchwise.errors import UnsupportedError
from torchwise.records import Check, CheckName, Figure, Outcome
from torchwise.records.format import pluralize
from torchwise.verify.deviation import is_rounded
from torchwise.verify.independence import list_unlike_draws
from torchwise.verify.leaves import is_value
from torchwise.verify.observe import Observation
from torchwise.workload.workload import Example, batch_of, resize_example

Run = Callable[[Example, int], Observation]
"""Observes a call on an example from a seed, such as `observe` does."""
CALLS = 8
"""Equal calls that are compared. Eight threads that add to one sum in any order differ in most of them."""
FILLS = (float("nan"), 1e30, -1.0)
"""Values that freed memory is filled with between calls, in turn. A call that reads unwritten memory shows them."""
MAX_FILLED = 2**24
"""Largest number of elements that are filled for that."""
LARGE = 1e4
"""Factor of values in a batch beside which a sample must keep its answer."""
ALONE = 3
"""Samples of a batch that are also answered alone, spread over it."""


def check_bitwise(run: Run, original: Run, examples: Sequence[Example]) -> Check:
    """Compare a candidate's answers with the original's, bit by bit, on each example."""
    for seed, example in enumerate(examples):
        if found := find_difference(run(example, seed), original(example, seed)):
            return _fail(CheckName.BITWISE, f"on input {seed + 1} of {len(examples)} {found[0]}", found[1])
    return _pass(
        CheckName.BITWISE, f"all bits are the original's on {pluralize(len(examples), 'input')}", len(examples)
    )


def check_deterministic(run: Run, examples: Sequence[Example]) -> Check:
    """Compare equal calls with each other, with calls on other inputs and other work between them."""
    for seed, example in enumerate(examples):
        first = run(example, seed)
        for number in range(1, CALLS):
            _work_between(run, examples, number, first)
            if found := find_difference(run(example, seed), first):
                detail = f"on input {seed + 1} {found[0]} between calls 1 and {number + 1} on equal inputs"
                return _fail(CheckName.DETERMINISTIC, detail, found[1])
    detail = f"{CALLS} equal calls give equal bits on {pluralize(len(examples), 'input')}, after other calls and work"
    return _pass(CheckName.DETERMINISTIC, detail, CALLS * len(examples))


def check_batch_invariant(
    run: Run, examples: Sequence[Example], *, other_sizes: Run | None = None, dim: int = 0
) -> Check:
    """Compare each sample's answer with its answers in other batches.

    The sample is at another place of the batch, beside other samples, alone, or in batches of other sizes.

    Args:
        run: observes the candidate.
        examples: batches of inputs.
        other_sizes: observes what answers at other sizes, or None if no other sizes come.
        dim: the dimension of the batch, in inputs and outputs.
    """
    compared = 0
    for number, example in enumerate(examples):
        try:
            size = batch_of(example, dim).size
        except UnsupportedError as error:
            return Check(CheckName.BATCH_INVARIANT, Outcome.NOT_COMPARABLE, str(error))
        whole = run(example, 0)
        if problem := _find_unsplittable(whole, size, dim) or _find_noise(run, example, whole):
            return Check(CheckName.BATCH_INVARIANT, Outcome.NOT_COMPARABLE, problem)
        for what, samples, answer in _iter_batches(run, other_sizes, example, size, dim):
            if found := find_difference(answer, _take(whole, samples, dim, size), within=whole.outputs):
                detail = f"of input {number + 1}, a batch of {size}, {found[0]} for a sample {what}"
                return _fail(CheckName.BATCH_INVARIANT, detail, found[1])
            compared += 1
    if not compared:
        detail = "no other batch could be made of the examples: give an example of several unlike samples"
        return Check(CheckName.BATCH_INVARIANT, Outcome.NOT_COMPARABLE, detail)
    return _pass(
        CheckName.BATCH_INVARIANT,
        f"each sample keeps its bits in {pluralize(compared, 'comparison')} with other batches",
        compared,
    )


def digest_answers(run: Run, examples: Iterable[Example]) -> str:
    """Return a digest of all bits of the answers to the examples, to compare those of several processes."""
    digest = hashlib.sha256()
    for seed, example in enumerate(examples):
        for name, leaf in run(example, seed).leaves:
            if isinstance(leaf, torch.Tensor):
                digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
                digest.update(_bytes_of(leaf).cpu().numpy().tobytes())
            elif is_value(leaf):
                digest.update(f"{name} {leaf!r}".encode())
    return digest.hexdigest()[:16]


def find_difference(
    one: Observation, other: Observation, *, within: frozenset[str] | None = None
) -> tuple[str, int] | None:
    """Return the first difference of two observations in words, with the number of elements, or None.

    `within` are the names of the leaves to compare, or None for all.
    """
    leaves, known = ({n: leaf for n, leaf in o.leaves if within is None or n in within} for o in (one, other))
    if leaves.keys() != known.keys():
        return f"{min(leaves.keys() ^ known.keys())} is only in one of the answers", 0
    for name, leaf in leaves.items():
        if found := _differs(leaf, known[name]):
            return f"{name} {found[0]}", found[1]
    return None


def _differs(one: Any, other: Any) -> tuple[str, int] | None:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        is_same = type(one) is type(other) and (one is other or not is_value(one) or repr(one) == repr(other))
        return None if is_same else (f"is {one!r:.40}, and was {other!r:.40}", 1)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"is {one.dtype} of shape {tuple(one.shape)}, and was {other.dtype} {tuple(other.shape)}", 0
    width = one.element_size()
    count = int((_bytes_of(one) != _bytes_of(other).to(one.device)).view(-1, width).any(1).sum())
    return (f"differs in {count} of {one.numel()} elements{_describe_distance(one, other)}", count) if count else None


def _describe_distance(one: torch.Tensor, other: torch.Tensor) -> str:
    if not (one.is_floating_point() or one.is_complex()):
        return ""
    kind = torch.complex128 if one.is_complex() else torch.float64
    most = float((one.to(kind) - other.to(one.device, kind)).abs().nan_to_num(nan=float("inf")).max())
    return f", by up to {most:.2g}"


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


def _work_between(run: Run, examples: Sequence[Example], number: int, first: Observation) -> None:
    """Do what a program may do between two equal calls: other calls, and memory that holds other values."""
    if len(examples) > 1 and number % 2:
        run(examples[number % len(examples)], number)
    for _, leaf in first.leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and 0 < leaf.numel() <= MAX_FILLED:
            kept = [torch.full_like(leaf, _fill(leaf, number)) for _ in range(2)]
            del kept
    torch.randn(64, 64) @ torch.randn(64, 64)


def _fill(leaf: torch.Tensor, number: int) -> float | bool:
    if leaf.is_floating_point() or leaf.is_complex():
        return FILLS[number % len(FILLS)]
    return bool(number % 2) if leaf.dtype is torch.bool else number % 2


def _find_noise(run: Run, example: Example, first: Observation) -> str:
    again, other = run(example, 0), run(example, 1)
    if find_difference(again, first, within=first.outputs):
        return "the answers differ from call to call, so that those of other batches tell nothing"
    if find_difference(other, first, within=first.outputs):
        return "the answers are random, so that those of other batches tell nothing"
    return ""


def _find_unsplittable(answer: Observation, size: int, dim: int) -> str:
    """Say which output is no batch of answers, or return ""."""
    for name, leaf in answer.leaves:
        if name not in answer.outputs or leaf is None:
            continue
        if not isinstance(leaf, torch.Tensor) or not -leaf.dim() <= dim < leaf.dim() or leaf.shape[dim] != size:
            found = f"shape {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else f"type {type(leaf).__name__}"
            return f"{name} is of {found}, but must be a tensor with an answer for each of {size} samples"
    return ""


def _iter_batches(
    run: Run, other_sizes: Run | None, example: Example, size: int, dim: int
) -> Iterator[tuple[str, list[int], Observation]]:
    """Yield other batches: in words, the places in the whole batch of the samples to compare, and their answers."""
    places = list(range(size))
    if size > 1:
        rolled = places[1:] + places[:1]
        if (answer := _try(run, _select(example, rolled, dim))) is not None:
            yield "at another place of the batch", rolled, answer
        kept = places[::2]
        for other in _iter_neighbours(example, kept, dim):
            if (answer := _try(run, other)) is not None:
                yield "beside other samples", kept, _keep(answer, kept, dim)
    if other_sizes is None:
        return
    for place in sorted({round(at * (size - 1) / (ALONE - 1)) for at in range(ALONE)}) if size > 1 else ():
        if (answer := _try(other_sizes, _select(example, [place], dim))) is not None:
            yield "alone", [place], answer
    for other_size in sorted({2, 3, size // 2, size - 1, size + 1, 2 * size} - {0, 1, size}):
        if (answer := _try(other_sizes, resize_example(example, dim, other_size))) is not None:
            count = min(size, other_size)
            yield f"in a batch of {other_size}", places[:count], _cut(answer, count, dim)


def _try(run: Run, example: Example) -> Observation | None:
    try:
        return run(example, 0)
    except Exception:  # a model may refuse made-up values, or other sizes, in any way
        return None


def _iter_neighbours(example: Example, kept: Sequence[int], dim: int) -> Iterator[Example]:
    """Yield the batch with other samples at all places but some: like the given ones, far larger, and not numbers."""
    extremes = [lambda t: t * LARGE if is_rounded(t) else t, lambda t: t * torch.nan if is_rounded(t) else t]
    for draw in [*list_unlike_draws(), *extremes]:

        def replace_others(tensor: torch.Tensor, draw: Callable[[torch.Tensor], torch.Tensor] = draw) -> torch.Tensor:
            if not tensor.dim():
                return tensor
            plain = tensor.detach().movedim(dim, 0)
            made = draw(plain.contiguous()).clone()
            made[list(kept)] = plain[list(kept)]
            return made.movedim(0, dim).contiguous().requires_grad_(tensor.requires_grad)

        yield example.map_tensors(replace_others)


def _select(example: Example, items: Sequence[int], dim: int) -> Example:
    def select(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim():
            return tensor
        chosen = tensor.detach().index_select(dim, torch.tensor(items, device=tensor.device))
        return chosen.requires_grad_(tensor.requires_grad)

    return example.map_tensors(select)


def _take(answer: Observation, items: Sequence[int], dim: int, size: int) -> Observation:
    def take(leaf: Any) -> Any:
        has_batch = isinstance(leaf, torch.Tensor) and leaf.dim() > dim and leaf.shape[dim] == size
        return leaf.index_select(dim, torch.tensor(items, device=leaf.device)) if has_batch else leaf

    return replace(answer, leaves=tuple((name, take(leaf)) for name, leaf in answer.leaves))


def _keep(answer: Observation, items: Sequence[int], dim: int) -> Observation:
    size = next(
        (leaf.shape[dim] for name, leaf in answer.leaves if name in answer.outputs and isinstance(leaf, torch.Tensor)),
        0,
    )
    return _take(answer, items, dim, size)


def _cut(answer: Observation, count: int, dim: int) -> Observation:
    return _keep(answer, range(count), dim)


def _fail(name: CheckName, detail: str, count: int = 0) -> Check:
    return Check(name, Outcome.FAIL, detail, figures={Figure.DIFFERING: count} if count else {})


def _pass(name: CheckName, detail: str, samples: int) -> Check:
    return Check(name, Outcome.PASS, detail, figures={Figure.SAMPLES: samples})
