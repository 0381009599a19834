"""Three answers: yes, no, and that it cannot be told. One sentence speaks of trust."""

from __future__ import annotations

import pytest

from torchwise.records import Interval
from torchwise.records.answer import Answer, Reliability, all_of, any_of, exceeds, judge_trust


@pytest.mark.parametrize(
    ("ratio", "answer"),
    [
        ((1.2, 1.3, 1.4), Answer.YES),
        ((3.0, 6.0, 9.0), Answer.YES),
        ((0.7, 0.8, 0.9), Answer.NO),
        ((0.98, 1.0, 1.02), Answer.NO),
        ((0.9, 0.95, 1.0), Answer.NO),
        ((0.807, 4.5, 28.4), Answer.INCONCLUSIVE),
        ((0.00245, 0.993, 2.66), Answer.INCONCLUSIVE),
        ((0.9, 1.0, 1.1), Answer.INCONCLUSIVE),
    ],
)
def test_a_wide_interval_that_holds_the_bound_is_no_answer(ratio: tuple[float, float, float], answer: Answer) -> None:
    assert exceeds(Interval(*ratio)) is answer
    low, mid, high = ratio
    assert exceeds(Interval(2 * low, 2 * mid, 2 * high), 2.0) is answer


def test_a_middle_is_quoted_only_from_a_narrow_interval() -> None:
    assert Interval(1.5, 1.71, 1.9).is_usable
    assert str(Interval(1.5, 1.71, 1.9)) == "1.71 [1.5, 1.9]"
    assert not Interval(40.5, 79.5, 105.0).is_usable
    assert str(Interval(40.5, 79.5, 105.0)) == "40.5 to 105"
    assert not Interval(0.0, 1.0, 1.0).is_usable
    wide = Interval(0.8, 1.0, 1.3)
    assert wide.is_usable == wide.inverse.is_usable  # a time is as usable as its speed-up


def test_one_no_or_one_yes_settles_several_questions() -> None:
    yes, no, untold = Answer.YES, Answer.NO, Answer.INCONCLUSIVE
    assert [all_of(yes, other) for other in (yes, no, untold)] == [yes, no, untold]
    assert [any_of(no, other) for other in (yes, no, untold)] == [yes, no, untold]
    assert (all_of(no, untold), any_of(yes, untold)) == (no, yes)


def test_trust_is_one_sentence() -> None:
    quiet, wide, garbage = Interval(0.99, 1.0, 1.01), Interval(0.9, 1.0, 1.1), Interval(0.1, 1.0, 3.0)
    assert judge_trust([quiet] * 3).reliability is Reliability.GOOD
    assert judge_trust([quiet] * 3).sentence == "The machine was quiet: ratios hold within about ±1.0%."
    assert judge_trust([quiet, quiet, garbage]).reliability is Reliability.LIMITED
    limited = judge_trust([wide] * 3, ["another program held 1 of 2 cores", "it drifted"])
    assert limited.reliability is Reliability.LIMITED
    assert "disturbed: another program held 1 of 2 cores; ratios hold within about ±10.0%" in limited.sentence
    assert judge_trust([garbage]).reliability is Reliability.UNUSABLE
    assert "the ratio is only a range" in judge_trust([garbage]).sentence
    assert judge_trust([garbage, garbage, quiet]).sentence.endswith("2 of 3 ratios are only ranges.")
    assert judge_trust([]).half_width is None
