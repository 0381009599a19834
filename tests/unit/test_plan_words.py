"""The words of a plan, as reports print them, are read again."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from torchwise.cli.common import resolve_choice
from torchwise.diagnose.requests import choice_of
from torchwise.errors import PlanError
from torchwise.plan import EAGER, Choice, Plan
from torchwise.plan.choice import ANY, load_choices
from torchwise.plan.words import is_words, read_words

CHOICES = [choice for choice in load_choices().values() if choice.value != ANY]
INDUCTOR = Plan(backend="inductor")


def build(*choices: Choice) -> Plan | None:
    """Return the plan with these choices and those that they need, or None if it is illegal."""
    plan, parts = EAGER, [part for one in choices for part in (*one.requires, *one.implies, one.key)]
    fields: dict[str, Any] = {"transforms": (), "options": ()}
    for field, value in parts:
        if field in ("transforms", "options"):
            fields[field] = tuple(dict.fromkeys((*fields[field], value)))
        else:
            fields[field] = value
    try:
        return replace(plan, **fields)
    except PlanError:
        return None


@pytest.mark.parametrize("choice", CHOICES, ids=lambda one: str(one.value))
def test_each_choice_is_read_again(choice: Choice) -> None:
    plan = build(choice) or build(choice, load_choices()["backend", "inductor"])
    assert plan is not None
    assert read_words(str(plan)) == plan
    assert is_words(str(plan))


def test_pairs_of_choices_are_read_again() -> None:
    plans = [plan for pair in itertools.combinations(CHOICES, 2) if (plan := build(*pair)) is not None]
    assert len(plans) > 500
    for plan in plans:
        assert read_words(str(plan)) == plan


@pytest.mark.parametrize(
    "plan",
    [
        Plan(threads=12),
        Plan(
            backend="inductor",
            mode="max-autotune-no-cudagraphs",
            options=(("freezing", True), ("epilogue_fusion", False)),
        ),
        Plan(backend="inductor", options=(("cpp.simdlen", 8), ("cpp.vec_isa_ok", False))),
        Plan(backend="inductor", microbatches=4, activation_checkpointing="blocks", optimizer="fused", scope="loss"),
        Plan(backend="inductor", transforms=("int8_dynamic@skip=head,layers.0",)),
    ],
    ids=str,
)
def test_values_that_no_choice_has_are_read_again(plan: Plan) -> None:
    assert read_words(str(plan)) == plan


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("inductor + frezing", "plan has the word 'frezing'.*did you mean freezing"),
        ("inductor + bf16 + tf32", "has precision twice"),
        ("inductor + max-autotune", "plan has the word 'max-autotune'"),
        ("inductor fastest", "mode is 'fastest'"),
        ("inductor + many threads", "plan has the word 'many threads'"),
        ("inductor + no_such_option=3", "no_such_option"),
        ("eager + freezing", "options"),
        ("inductor + ", "plan has the word ''"),
    ],
)
def test_words_that_mean_nothing_are_told(words: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        read_words(words)


def test_commands_and_functions_take_the_words_of_a_report() -> None:
    words = "inductor + freezing + 1 thread"
    wanted = Plan(backend="inductor", options=(("freezing", True),), threads=1)
    assert resolve_choice(words, ["any.py:make"], None) == wanted
    assert choice_of(words) == wanted
    assert resolve_choice("inductor", ["any.py:make"], None) == choice_of("inductor") == INDUCTOR
    assert choice_of("eager") == resolve_choice("eager", [], None) == EAGER
