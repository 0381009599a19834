"""Judge other operators by the distribution of a model's outputs: those that vary, and those that do not.

Tests of noise look at numbers that vary. Whole numbers, texts, infinities and all else that stays the same in each call
are compared by value. Noise may also be shared among outputs, as one mask of a dropout for a whole batch is. So mean
products are tested, too: along each dimension of an output, and between outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchwise.records import Check, CheckName, Figure, Outcome
from torchwise.records import format as show
from torchwise.verify.compare import check_structure
from torchwise.verify.leaves import is_value, leaves_of
from torchwise.verify.observe import observe
from torchwise.verify.stochastic import (
    FALSE_ALARM_RATE,
    MAX_ELEMENTS,
    MIN_STILL,
    STILL,
    Pairs,
    check_noise,
    list_real_tensors,
    make_call,
)
from torchwise.workload.workload import Example

BY_DISTRIBUTION = "judged by the distribution of outputs"
DRAWS = 8
"""Calls of each side, by which outputs that do not vary are found and compared."""
MAX_PAIRS = 12
"""Mean products of outputs that are tested."""


def check_distribution(
    original: Callable[..., Any],
    substituted: Callable[..., Any],
    examples: Sequence[Example],
    *,
    budget_s: float,
    is_stateful: bool = False,
) -> Check:
    """Compare the distributions of a model's outputs with those of the same model with other operators.

    Both draw their own random numbers. The false-alarm rate of `torchwise.verify.stochastic` holds for all inputs
    together.

    Args:
        original: the model, which draws random numbers.
        substituted: the model with other operators.
        examples: inputs to compare on. Outputs must have the form of the model's on each. On some of them they may not
            vary.
        budget_s: seconds for the calls on all inputs together.
        is_stateful: whether a call changes the state that the next one starts from.
    """
    tested: list[Check] = []
    still: Check | None = None
    for seed, example in enumerate(examples):
        mine, theirs = (observe(call, original, example, seed=seed) for call in (substituted, original))
        check = check_structure(mine, theirs)
        if check.outcome is not Outcome.PASS:
            return check
        calls = [make_call(call, original, example, is_stateful=is_stateful) for call in (substituted, original)]
        if problem := find_still_problem(*calls):
            return Check(CheckName.SUBSTITUTION, Outcome.FAIL, f"{BY_DISTRIBUTION}: {problem}")
        found = check_noise(
            *calls,
            budget_s=budget_s / len(examples),
            exact_precision=True,
            share=len(examples),
            pairs=list_pairs(calls[1]()),
        )
        wrong = next((check for check in found if check.outcome is not Outcome.PASS), None)
        if wrong is None:
            tested.append(found[0])
            continue
        detail = f"{BY_DISTRIBUTION}: {wrong.name}: {wrong.detail}"
        judged = replace(wrong, name=CheckName.SUBSTITUTION, detail=detail)
        if wrong.outcome is not Outcome.NOT_COMPARABLE:
            return judged
        still = judged  # on this input, outputs are compared by value
    if not tested:
        assert still is not None, "there is an example"
        return still
    tests, made = (sorted(one.figures[figure] for one in tested) for figure in (Figure.TESTS, Figure.SAMPLES))
    return Check(
        CheckName.SUBSTITUTION,
        Outcome.PASS,
        f"{BY_DISTRIBUTION}: no difference over {sum(tests):g} tests of at least {made[0]:g} calls each on "
        f"{show.pluralize(len(examples), 'input')}, false-alarm rate {FALSE_ALARM_RATE:g}",
        figures={Figure.TESTS: sum(tests), Figure.SAMPLES: made[0], Figure.LEVEL: FALSE_ALARM_RATE},
    )


def find_still_problem(substituted: Callable[[], Any], original: Callable[[], Any]) -> str:
    """Return how outputs differ that are the same in all calls of the original, or "" if none does.

    One that varies once in a while may have stayed the same by chance. So it counts if it differs in all calls with
    other operators. Tests of noise find those that then vary. Of a large output, some numbers are looked at.
    """
    mine, theirs = (list(_draw(call)) for call in (substituted, original))
    forms = {tuple((name, isinstance(leaf, _Numbers)) for name, leaf in one) for one in (*mine, *theirs)}
    if len(forms) > 1:
        return ""  # a form is drawn, too
    for place, (name, first) in enumerate(theirs[0]):
        ours, eagers = ([one[place][1] for one in side] for side in (mine, theirs))
        off = _find_off_numbers(ours, eagers) if isinstance(first, _Numbers) else _find_off_value(ours, eagers)
        if off:
            return f"{name or 'the output'} {off}, and does not vary in eager"
    return ""


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers of a tensor, on the CPU.

    Attributes:
        values: float64, of one dimension.
        is_exact: whether they are whole numbers or booleans.
        size: of the whole tensor.
    """

    values: torch.Tensor
    is_exact: bool
    size: torch.Size

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Numbers:
        """Take at most `MAX_ELEMENTS` numbers of a tensor."""
        [reals] = list_real_tensors(tensor)
        flat = reals.flatten()
        values = flat[:: -(-flat.numel() // MAX_ELEMENTS) or 1].double().cpu()
        return cls(values, not (tensor.is_floating_point() or tensor.is_complex()), tensor.shape)


def _draw(call: Callable[[], Any]) -> Iterator[list[tuple[str, Any]]]:
    """Yield the leaves of some answers, each with its name, from other random numbers."""
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        named = leaves_of(call()).named
        yield [(name, _Numbers.of(one) if isinstance(one, torch.Tensor) else one) for name, one in named]


def _find_off_value(ours: Sequence[Any], eagers: Sequence[Any]) -> str:
    expected = eagers[0]
    if not is_value(expected) or any(repr(one) != repr(expected) for one in eagers):
        return ""
    off = [one for one in ours if repr(one) != repr(expected) and not _is_near(one, expected)]
    return f"is {off[0]!r} in place of {expected!r}" if len(off) == len(ours) else ""


def _is_near(one: Any, expected: Any) -> bool:
    is_number = isinstance(one, (float, complex)) and isinstance(expected, (float, complex))
    return is_number and abs(one - expected) <= STILL * max(abs(expected), MIN_STILL)


def _find_off_numbers(ours: Sequence[_Numbers], eagers: Sequence[_Numbers]) -> str:
    if len({one.size for one in (*ours, *eagers)}) > 1:
        return ""  # a size is drawn, too
    own, usual = (torch.stack([one.values for one in side]) for side in (ours, eagers))
    expected = usual[0]
    is_still = ((usual == expected) | (usual.isnan() & expected.isnan())).all(0)
    same_kind = torch.where(expected.isfinite(), own.isfinite(), (own == expected) | (own.isnan() & expected.isnan()))
    if bool((~same_kind.any(0) & (is_still | usual.isfinite().all(0))).any()):
        return "has infinities or NaN in other places"
    finite = is_still & expected.isfinite()
    if not bool(finite.any()):
        return ""
    size = max(float(expected[finite].square().mean().sqrt()), MIN_STILL)
    most = 0.0 if eagers[0].is_exact else STILL * size
    off = (own - expected).abs().nan_to_num(torch.inf)
    is_off = (off > most).all(0) & finite
    return f"is off by {float(off[:, is_off].median()):.2g}" if bool(is_off.any()) else ""


def list_pairs(answer: Any) -> list[Pairs]:
    """Return the pairs of outputs whose mean products are tested, by their places in all numbers of an answer.

    There are none if the answer is so large that only some of its numbers are looked at.
    """
    return list(itertools.islice(_iter_pairs(list_real_tensors(answer)), MAX_PAIRS))


def _iter_pairs(tensors: Sequence[torch.Tensor]) -> Iterator[Pairs]:
    starts = np.cumsum([0, *(one.numel() for one in tensors)])
    if starts[-1] > MAX_ELEMENTS:
        return
    for number, (one, start) in enumerate(zip(tensors, starts, strict=False)):
        lag = 1
        for dim in reversed(range(1, one.dim())):
            lag *= one.shape[dim]
            if one.shape[dim - 1] > 1:
                places = np.arange(start, start + one.numel() - lag)
                yield f"products along dimension {dim - 1} of tensor {number}", places, places + lag
    for number, (one, other) in enumerate(itertools.pairwise(tensors)):
        places = np.arange(min(one.numel(), other.numel()))
        yield f"products of tensors {number} and {number + 1}", starts[number] + places, starts[number + 1] + places
