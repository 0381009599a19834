"""Checks of properties down to the bits: each finds the functions that lack the property, and passes the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchwise.errors import WorkloadError
from torchwise.plan.requirements import Property, read_properties
from torchwise.records import CheckName, Figure, Outcome
from torchwise.records.verdict import compare_processes
from torchwise.verify.observe import Observation, observe
from torchwise.verify.properties import (
    Run,
    check_batch_invariant,
    check_bitwise,
    check_deterministic,
    digest_answers,
)
from torchwise.workload import Example

X = torch.randn(6, 16, generator=torch.Generator().manual_seed(3))
WEIGHT = torch.randn(16, generator=torch.Generator().manual_seed(4))
EXAMPLES = [Example((X,)), Example((2 * X + 1,))]


def run_of(function: Callable[..., Any]) -> Run:
    def run(example: Example, seed: int) -> Observation:
        return observe(function, torch.neg, example, seed=seed)  # the state of a candidate is its own

    return run


def scale(x: torch.Tensor) -> torch.Tensor:
    return (x * WEIGHT).sum(-1)


def negate_zero(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 100, x, -torch.zeros_like(x))


def zero(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


def next_float(x: torch.Tensor) -> torch.Tensor:
    found = scale(x).clone()
    found[2] = torch.nextafter(found[2], torch.tensor(torch.inf))
    return found


def divide(x: torch.Tensor) -> torch.Tensor:
    return (x - x) / (x - x)


def test_bits_of_another_are_equal() -> None:
    for function in (
        scale,
        divide,
        torch.argmax,
        lambda x: (x, {"n": 1.5, "of": None}),
        lambda x: x.to(torch.bfloat16),
    ):
        check = check_bitwise(run_of(function), run_of(function), EXAMPLES)
        assert (check.name, check.outcome) == (CheckName.BITWISE, Outcome.PASS), check
    assert check.figures == {Figure.SAMPLES: 2}


@pytest.mark.parametrize(
    ("candidate", "original", "count"),
    [
        (next_float, scale, 1),
        (negate_zero, zero, 96),
        (lambda x: (x * WEIGHT).flip(-1).sum(-1), scale, None),
        (lambda x: x.double(), lambda x: x, None),
        (lambda x: x.argmax(-1), lambda x: x.argmin(-1), None),
        (lambda x: (x, 1.0), lambda x: (x, 1.5), 1),
        (lambda x: x.mul_(2), lambda x: x * 2, None),  # which writes to its input
    ],
)
def test_other_bits_fail(candidate: Callable[..., Any], original: Callable[..., Any], count: int | None) -> None:
    check = check_bitwise(run_of(candidate), run_of(original), EXAMPLES)
    assert check.outcome is Outcome.FAIL
    assert count is None or check.figures == {Figure.DIFFERING: count}


def make_counting() -> Callable[..., Any]:
    calls: list[int] = []

    def count(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + (1e-6 if len(calls) % 5 == 4 else 0.0)

    return count


def make_remembering() -> Callable[..., Any]:
    """Return a function whose answer depends on the input of the call before it."""
    last = [torch.zeros(())]

    def remember(x: torch.Tensor) -> torch.Tensor:
        found = x * 1.5 + 1e-7 * (last[0] != x.sum())
        last[0] = x.sum()
        return found

    return remember


def leave_unwritten(x: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(x)
    found[:, 1:] = x[:, 1:]
    return found


def draw_in_python(x: torch.Tensor) -> torch.Tensor:
    return x + random.random() * 1e-6


@pytest.mark.parametrize("function", [make_counting(), make_remembering(), draw_in_python, leave_unwritten])
def test_answers_that_vary_are_not_deterministic(function: Callable[..., Any]) -> None:
    check = check_deterministic(run_of(function), EXAMPLES)
    assert (check.name, check.outcome) == (CheckName.DETERMINISTIC, Outcome.FAIL)
    assert check.figures[Figure.DIFFERING] >= 1
    assert "between calls" in check.detail


@pytest.mark.parametrize("function", [scale, nn.Linear(16, 4), lambda x: nn.functional.dropout(x, 0.5), divide])
def test_seeded_answers_are_deterministic(function: Callable[..., Any]) -> None:
    check = check_deterministic(run_of(function), EXAMPLES)
    assert (check.outcome, check.figures) == (Outcome.PASS, {Figure.SAMPLES: 16})


def test_digests_of_processes_differ_by_a_bit() -> None:
    assert digest_answers(run_of(scale), EXAMPLES) == digest_answers(run_of(scale), EXAMPLES)
    for one, other in ((next_float, scale), (negate_zero, zero), (lambda x: x, lambda x: x.view(16, 6))):
        found = [digest_answers(run_of(function), EXAMPLES) for function in (one, other)]
        assert compare_processes(*found).outcome is Outcome.FAIL
    assert compare_processes("a", "a").outcome is Outcome.PASS


def sum_in_tiles(x: torch.Tensor) -> torch.Tensor:
    """Sum in tiles whose size depends on the batch, as libraries choose them."""
    return (x * 1.1).view(len(x), -1, 8 if len(x) > 2 else 4).sum(-1).sum(-1)


def quantize(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x / x.abs().max() * 127) * x.abs().max() / 127


def add_place(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(len(x)).unsqueeze(1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x - x.mean(0), "at another place"),
        (quantize, "beside other samples"),
        (lambda x: x + (x.amax() > 4) * 1e-6, "beside other samples"),
        (add_place, "at another place"),
        (sum_in_tiles, "alone"),
        (lambda x: x + (1e-6 if len(x) == 7 else 0.0), "in a batch of 7"),
    ],
)
def test_dependence_on_the_batch_is_found(function: Callable[..., Any], words: str) -> None:
    check = check_batch_invariant(run_of(function), EXAMPLES[:1], other_sizes=run_of(function))
    assert (check.name, check.outcome) == (CheckName.BATCH_INVARIANT, Outcome.FAIL)
    assert words in check.detail


@pytest.mark.parametrize("function", [scale, lambda x: (x.exp(), {"top": x.argmax(-1)}), divide])
def test_samples_by_themselves_pass(function: Callable[..., Any]) -> None:
    for other_sizes in (None, run_of(function)):
        check = check_batch_invariant(run_of(function), EXAMPLES, other_sizes=other_sizes)
        assert check.outcome is Outcome.PASS, check


def test_a_batch_that_the_model_refuses_is_left_out() -> None:
    def refuse_unsorted(x: torch.Tensor) -> torch.Tensor:
        if bool((x[1:, 0] < x[:-1, 0]).any()):
            raise ValueError("rows must be sorted")
        return x * 2

    ordered = Example((torch.arange(12.0).view(4, 3),))
    check = check_batch_invariant(run_of(refuse_unsorted), [ordered], other_sizes=run_of(refuse_unsorted))
    assert check.outcome is Outcome.PASS, check.detail


def test_other_sizes_count_only_where_they_come() -> None:
    fixed = check_batch_invariant(run_of(sum_in_tiles), EXAMPLES)
    assert fixed.outcome is Outcome.PASS
    served_by_original = check_batch_invariant(run_of(sum_in_tiles), EXAMPLES, other_sizes=run_of(lambda x: x.sum(-1)))
    assert served_by_original.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: nn.functional.dropout(x), "random"),
        (draw_in_python, "differ from call to call"),
        (lambda x: x.sum(), "shape ()"),
        (lambda x: (x, 3), "type int"),
    ],
)
def test_answers_without_samples_are_not_comparable(function: Callable[..., Any], words: str) -> None:
    check = check_batch_invariant(run_of(function), EXAMPLES)
    assert check.outcome is Outcome.NOT_COMPARABLE
    assert words in check.detail


def test_inputs_without_a_batch_are_not_comparable() -> None:
    unlike = Example((torch.randn(4, 2), torch.randn(3, 2)))
    add = run_of(lambda x, y: x.sum() + y)
    assert "differ in dimension 0" in check_batch_invariant(add, [unlike]).detail
    lone = check_batch_invariant(run_of(scale), [Example((X[:1],))])
    assert lone.outcome is Outcome.NOT_COMPARABLE
    assert "several unlike samples" in lone.detail


def test_another_dimension_may_be_the_batch() -> None:
    time_first = [Example((X.T.contiguous(),))]
    start = run_of(lambda x: x - x[0])
    assert check_batch_invariant(start, time_first, other_sizes=start, dim=1).outcome is Outcome.PASS
    assert check_batch_invariant(start, time_first, other_sizes=start, dim=0).outcome is Outcome.FAIL


def test_properties_are_read_by_name() -> None:
    assert read_properties("bitwise") == (Property.BITWISE,)
    assert read_properties(["bitwise", "deterministic", "bitwise"]) == (Property.DETERMINISTIC, Property.BITWISE)
    assert read_properties(()) == ()
    with pytest.raises(WorkloadError, match=r"require is 'determinism', but must be one of .*mean deterministic\?"):
        read_properties(["determinism"])
    with pytest.raises(WorkloadError, match="require is 3, but must be"):
        read_properties([3])
    with pytest.raises(WorkloadError, match="require is 3, but must be a list"):
        read_properties(3)
