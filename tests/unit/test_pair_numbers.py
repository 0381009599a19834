"""Plain numbers among the answers of a pair: fractions are rounded, also under a tolerance, and counts are exact."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.input_cases import cases_of_description
from torchwise.verify.input_description import InputDescription
from torchwise.verify.pair import judge_pair
from torchwise.verify.pair_subject import PairSubject
from torchwise.verify.surroundings import Surroundings
from torchwise.verify.witness import LocalWitness


@functools.cache
def before() -> Surroundings:
    """Take the surroundings once, as they are some thousand functions, and after tests of other files changed some."""
    return Surroundings()


def reference(x: torch.Tensor) -> dict[str, Any]:
    return {"mean": x.mean().item(), "turn": complex(x.sum().item(), 1.0), "size": x.numel(), "any": True, "of": "x"}


def judge(change: Callable[[dict[str, Any]], dict[str, Any]], **options: Any) -> Check:
    cases = cases_of_description(InputDescription.parse(["x: float32[4, 5] in 1..2"]), 1)
    witness = LocalWitness(lambda x: change(reference(x)), before())
    found = judge_pair(PairSubject(reference, witness, reference, **options), cases[:2]).checks
    return next((check for check in found if check.outcome is not Outcome.PASS), found[-1])


@pytest.mark.parametrize(
    ("name", "change", "is_allowed"),
    [
        ("mean", lambda value: value * 1.005, True),
        ("mean", lambda value: value * 1.02, False),
        ("mean", lambda _value: float("nan"), False),
        ("turn", lambda value: value * 1.005, True),
        ("turn", lambda value: value + 5j, False),
        ("size", lambda value: value + 1, False),
        ("any", lambda value: not value, False),
        ("of", lambda value: value + "y", False),
    ],
)
def test_a_tolerance_covers_plain_fractions_and_nothing_else(
    name: str, change: Callable[[Any], Any], is_allowed: bool
) -> None:
    found = judge(lambda answer: {**answer, name: change(answer[name])}, tolerance=0.01)
    assert found.outcome is (Outcome.PASS if is_allowed else Outcome.FAIL), found
    assert is_allowed or name in found.detail
    strict = judge(lambda answer: {**answer, name: change(answer[name])})
    assert (strict.outcome, strict.name) == (Outcome.FAIL, CheckName.VALUES), strict


def test_a_last_bit_of_a_plain_number_is_rounding_unless_bits_are_required() -> None:
    def nudge(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "mean": answer["mean"] * (1 + 2.0**-24)}

    assert judge(nudge).outcome is Outcome.PASS
    from torchwise.plan.requirements import Property

    assert judge(nudge, properties=frozenset({Property.BITWISE})).name == CheckName.BITWISE
