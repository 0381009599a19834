"""Reasons for which the original answers: members for machines, sentences for people, and bounds on both."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
import torch

from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import Fallback, FallbackReason, read_fallback
from torchwise.runtime.statistics import MAX_ERROR_TYPES, MAX_SENTENCES, OTHER, Fallbacks, Statistics

PLAN = Plan(threads=torch.get_num_threads() + 1)
X = torch.randn(3, 4)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("reason", FallbackReason)
def test_every_reason_has_a_short_value_and_a_sentence(reason: FallbackReason) -> None:
    assert reason.value == reason.name.lower()
    sentence = str(Fallback(reason))
    assert sentence == sentence.strip(" .")
    assert " " in sentence


def test_the_docs_list_every_reason_with_its_sentence() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "fallback-reasons.md").read_text()
    missing = [reason for reason in FallbackReason if f"| `{reason}` | {Fallback(reason)} |" not in page]
    assert not missing


def test_no_two_reasons_share_a_sentence() -> None:
    assert all(reason.fact for reason in FallbackReason)
    assert len({str(Fallback(reason)) for reason in FallbackReason}) == len(FallbackReason)


@pytest.mark.parametrize(
    ("fallback", "sentence"),
    [
        (Fallback(FallbackReason.PLAN_FAILED, "KeyError"), "the plan failed (KeyError)"),
        (
            Fallback(FallbackReason.STALE_DECISION, "torch is 2.13"),
            "the decision is stale (torch is 2.13): tune again",
        ),
        (Fallback(FallbackReason.CLOSED, "the service moves"), "the service moves"),
        (Fallback(FallbackReason.CLOSED), "it was closed"),
    ],
)
def test_details_stand_in_parentheses_or_are_the_whole_sentence(fallback: Fallback, sentence: str) -> None:
    assert str(fallback) == sentence


def test_a_fallback_survives_a_pickle_and_a_sentence_of_an_older_pickle_is_read() -> None:
    fallback = Fallback(FallbackReason.PLAN_FAILED, "KeyError")
    assert read_fallback(pickle.loads(pickle.dumps(fallback))) == fallback
    assert str(read_fallback("Ada rejected it")) == "Ada rejected it"
    assert read_fallback(None) is None


def test_sentences_of_one_reason_are_logged_up_to_a_number(caplog: pytest.LogCaptureFixture) -> None:
    fallbacks, statistics = Fallbacks(make_decision(double, PLAN, X), "the original answers"), Statistics()
    with caplog.at_level(logging.WARNING, "torchwise"):
        for i in range(5 * MAX_SENTENCES):
            fallbacks.count(Fallback(FallbackReason.MODEL_CHANGED, f"weight {i} is another"), statistics)
        fallbacks.count(Fallback(FallbackReason.PLAN_FAILED, "KeyError"), statistics)
    assert len(caplog.messages) == MAX_SENTENCES + 1
    assert statistics.original == {FallbackReason.MODEL_CHANGED: 5 * MAX_SENTENCES, FallbackReason.PLAN_FAILED: 1}
    assert statistics.sentences[FallbackReason.MODEL_CHANGED] == f"weight {5 * MAX_SENTENCES - 1} is another"


def test_failures_are_counted_by_a_bounded_number_of_types() -> None:
    statistics = Statistics()
    for i in range(MAX_ERROR_TYPES + 5):
        statistics.count_failure(type(f"Error{i}", (Exception,), {})())
    statistics.count_failure(type("Error0", (Exception,), {})())
    assert len(statistics.failures) == MAX_ERROR_TYPES + 1
    assert (statistics.failures["Error0"], statistics.failures[OTHER]) == (2, 5)
