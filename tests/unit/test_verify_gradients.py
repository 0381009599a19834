"""Gradients over several draws of the batch: which are judged together, and when more draws are asked for."""

from __future__ import annotations

import pytest
import torch

from torchwise.records import Outcome
from torchwise.verify.gradients import Gradients
from torchwise.verify.observe import Observation

SIZE = 4096


def make_observation(gradient: torch.Tensor) -> Observation:
    return Observation((("loss", torch.ones(())), ("gradient of w", gradient)), frozenset())


def make_gradients(ours: list[float], eagers: list[float]) -> Gradients:
    """Return draws on which candidate and eager are off by these relative amounts, in directions of their own."""
    generator, found = torch.Generator().manual_seed(0), Gradients(2.0**-7)
    for mine, theirs in zip(ours, eagers, strict=True):
        exact, first, second = (torch.randn(SIZE, generator=generator) for _ in range(3))
        first, second = ((noise - (noise @ exact) / (exact @ exact) * exact) for noise in (first, second))
        eager = make_observation(exact + theirs * second)
        found.add(make_observation(exact + mine * first), eager, eager, make_observation(exact))
    return found


@pytest.mark.parametrize(
    ("ours", "eagers", "outcome", "is_open"),
    [
        ([0.01] * 3, [0.01] * 3, Outcome.PASS, False),
        ([0.5, 0.01, 0.01], [0.01] * 3, Outcome.FAIL, True),  # eager may do the same on another draw
        ([0.5, 0.01, 0.01, 0.01], [0.01, 0.01, 0.01, 0.4], Outcome.PASS, False),  # as it does here
        ([0.5, 0.5, 0.01], [0.01, 0.01, 0.5], Outcome.FAIL, True),  # but not on most
        ([0.5] * 3, [0.01] * 3, Outcome.FAIL, False),  # nothing that eager could do would settle that
    ],
)
def test_typical_errors_beside_typical_and_worst_beside_worst(
    ours: list[float], eagers: list[float], outcome: Outcome, is_open: bool
) -> None:
    found = make_gradients(ours, eagers)
    assert found.checks()[-1].outcome is outcome, found.checks()[-1].detail
    assert found.is_open is is_open


def test_one_bad_element_is_found() -> None:
    exact = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    wrong = exact.clone()
    wrong[7] += 1e-4  # too little to show in the root mean square
    found, eager = Gradients(2.0**-24), make_observation(exact * (1 + 1e-7))
    found.add(make_observation(wrong), eager, eager, make_observation(exact))
    assert "in its worst element" in found.checks()[-1].detail


@pytest.mark.parametrize(("eagers", "decides"), [([0.01, 0.02, 0.015], False), ([0.01, 0.3, 0.01], True)])
def test_a_model_that_decides_shows_by_eagers_own_errors(eagers: list[float], decides: bool) -> None:
    assert make_gradients(eagers, eagers).decides is decides


def test_what_is_rounding_on_most_draws_is_rounding() -> None:
    assert make_gradients([0.01] * 3, [0.6, 0.01, 0.01]).rounding == set()
    assert make_gradients([0.6] * 3, [0.6, 0.7, 0.01]).rounding == {"gradient of w"}
