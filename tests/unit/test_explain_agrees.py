"""No two figures of an explanation disagree, however busy the machine was while it was made."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from consistency import check_explanation, read_seconds
from explain_samples import CALL_S, FixedPrices, evidence, explanation, make_finding, price
from torchwise.diagnose import findings
from torchwise.diagnose.savings import Savings, share_saved_anywhere
from torchwise.plan import Plan
from torchwise.records import Interval, Measurement
from torchwise.records.answer import Answer
from torchwise.records.explanation import (
    Basis,
    Execution,
    Explanation,
    Finding,
    FixTrial,
    Kernel,
    Saving,
    judge_measurement,
    make_saving,
    rank_findings,
)
from torchwise.report.explanation import next_steps, render_explanation, render_explanation_html
from torchwise.workload import Example, Workload

PLAN = Plan(backend="inductor", transforms=("complex_to_real",))


def render_text(record: Explanation) -> str:
    out = StringIO()
    Console(file=out, width=200, no_color=True).print(render_explanation(record))
    return out.getvalue()


def check(record: Explanation) -> None:
    check_explanation(record, render_text(record), render_explanation_html(record))


def make_price(low: float, mid: float, high: float) -> Saving:
    return Saving(Interval(low, mid, high), Basis.MEASURED, "timed in alternation, 40 rounds: the plan")


def make_explanation(call_s: float, *found: Finding, **changes: Any) -> Explanation:
    """A record from before savings and kernels were limited to the call, which takes `call_s`."""
    kernels = (Kernel("cpp_fused_0", 1.0, call_s * 0.9, 1e3, None, None, generated=True),)
    made = explanation(
        *found,
        measurement=Measurement((call_s,) * 20, (2 * call_s,) * 20),
        execution=Execution(Interval(call_s, call_s, call_s), call_s * 0.9, call_s * 0.02, 40, 1.0),
        kernels=kernels,
    )
    return replace(made, **changes)


FAULTS = {
    "a saving of 21.8 ms in a call of 536 µs": (
        make_explanation(536e-6, make_finding("fused", make_price(88e-6, 21.8e-3, 49e-3))),
        "is not within 0 and the call's",
    ),
    "at most 2.65 ms of 2.62": (
        make_explanation(
            2.62e-3, make_finding("roofline", Saving(Interval(0.0, 0.7e-3, 2.65e-3), Basis.ESTIMATED, "its time"))
        ),
        "is not within 0 and the call's",
    ),
    "-113 ms to 76.7 ms, and advice": (
        make_explanation(48e-3, make_finding("fused", make_price(-113e-3, 1e-3, 76.7e-3), plan=PLAN)),
        "is not within 0 and the call's",
    ),
    "no gain, and advice": (
        make_explanation(48e-3, make_finding("fused", make_price(0.0, 1e-3, 2e-3))),
        "but it is advised to mend it",
    ),
    "a kernel of 411 ms in a call of 10.8": (
        make_explanation(10.8e-3, kernels=(Kernel("aten::exp", 1.0, 411e-3, 1e3),)),
        r"kernels take 0\.411 s together, the call 0\.0108",
    ),
    "kernels above the call": (
        make_explanation(1e-3, kernels=tuple(Kernel(f"aten::{name}", 1.0, 0.7e-3) for name in ("mm", "bmm"))),
        r"kernels take 0\.0014 s",
    ),
    "3 % of the roofline with unknown FLOPs": (
        make_explanation(1e-3, kernels=(Kernel("cpp_fused_0", 1.0, 0.9e-3, 1e3, None, 0.03, generated=True),)),
        "has a roofline share, of work",
    ),
    "a fix that helps by what nobody could tell": (
        make_explanation(
            1e-3,
            make_finding(
                "recompile", price(1e-4), tried=(FixTrial("x = True", True, "done", make_price(0.0, 1e-4, 3e-4)),)
            ),
        ),
        "is said to help, without a gain",
    ),
    "the small before the large": (
        make_explanation(1e-3, make_finding("small", price(1e-5)), make_finding("large", price(1e-4))),
        "not in the order of their savings",
    ),
    "the unknown before the known": (
        make_explanation(1e-3, make_finding("unknown"), make_finding("known", price(1e-4))),
        "stands before",
    ),
}


@pytest.mark.parametrize(("record", "disagreement"), FAULTS.values(), ids=FAULTS)
def test_what_disagreed_is_seen_and_is_shown_within_the_call(record: Explanation, disagreement: str) -> None:
    with pytest.raises(AssertionError, match=disagreement):
        check_explanation(record, "", "")
    settled = record.make_consistent()
    execution = replace(settled.execution, busy_s=sum(kernel.seconds for kernel in settled.kernels))
    check(replace(settled, execution=execution, findings=tuple(map(findings.withhold_advice, settled.findings))))


def test_a_figure_that_is_not_the_records_is_seen() -> None:
    guess = Saving(Interval(0.0, 10e-6, 40e-6), Basis.ESTIMATED, "the most")
    record = explanation(make_finding(found=price(12e-6)), make_finding("host", guess)).make_consistent()
    text, page = render_text(record), render_explanation_html(record)
    check_explanation(record, text, page)
    for right, wrong in (
        ("saves 12.0 µs per call", "saves 13.0 µs per call"),
        ("[10.8 µs, 13.2 µs]", "[10.8 µs, 15.2 µs]"),
        (": 100 µs per call, 2.00×", ": 120 µs per call, 2.00×"),
        ("100 µs per call, 2.00×", "100 µs per call, 2.50×"),
        ("Kernels run for 95.0 µs", "Kernels run for 99.0 µs"),
        ("saves at most 40.0 µs", "saves at most 140 µs"),
        ("The machine was quiet", "The machine is quiet"),
        ("95.0 µs   1000 B", "55.0 µs   1000 B"),
        ("1000 B       –    unknown", "1000 B       –       30 %"),
    ):
        assert right in text
        with pytest.raises(AssertionError):
            check_explanation(record, text.replace(right, wrong), page)


def test_what_was_said_twice_is_seen() -> None:
    note = "other processes used 1.6 of 2 cores meanwhile"
    measured = replace(explanation().measurement, notes=(note,))
    check(replace(explanation(measurement=measured, kernels=()).make_consistent(), execution=_idle()))
    told = replace(explanation(measurement=measured, kernels=(), execution=_idle()).make_consistent(), notes=(note,))
    with pytest.raises(AssertionError, match="of 2 cores"):
        check(told)


def _idle() -> Execution:
    return Execution(Interval(CALL_S, CALL_S, CALL_S), 0.0)


@pytest.mark.parametrize(
    ("share", "answer"),
    [
        ((0.37, 0.40, 0.43), Answer.YES),
        ((-0.02, 0.01, 0.04), Answer.NO),
        ((-0.5, -0.4, -0.3), Answer.NO),
        ((-3.4, -3.0, -2.6), Answer.NO),
        ((-0.2, 0.1, 0.3), Answer.INCONCLUSIVE),
        ((0.16, 0.6, 0.95), Answer.INCONCLUSIVE),
        ((-2.3, 0.02, 0.99), Answer.INCONCLUSIVE),
        ((-40.0, -3.0, -0.5), Answer.INCONCLUSIVE),
    ],
)
def test_a_saving_is_told_where_its_interval_is_narrow(share: tuple[float, float, float], answer: Answer) -> None:
    assert make_saving(Interval(*share), CALL_S, "").answer is answer


def test_a_fix_that_takes_next_to_nothing_saves_no_more_than_the_call() -> None:
    told = make_saving(share_saved_anywhere(Measurement((1e-7,) * 40, (CALL_S,) * 40)), CALL_S, "")
    assert (told.answer, told.per_call_s.high) == (Answer.YES, CALL_S)


def test_a_saving_is_on_the_scale_of_the_call_that_is_shown() -> None:
    """The run took three times as long when the fix was timed. Three times its saving would be more than the call."""
    slow = Measurement((1.5 * CALL_S,) * 40, (3 * CALL_S,) * 40)
    assert make_saving(share_saved_anywhere(slow), CALL_S, "").per_call_s.mid == pytest.approx(CALL_S / 2)


def noise(seed: int, low_s: float, factor: float) -> Measurement:
    """Return measurements beside busy programs: both sides take anything up to `factor` as long."""
    rng = np.random.default_rng(seed)
    sides = low_s * np.exp(rng.uniform(0, np.log(factor), (2, 40)))
    return Measurement(tuple(sides[0].tolist()), tuple(sides[1].tolist()), notes=("eager's own time varies by 862%",))


class Busy:
    """An arena on a busy machine: the first measurements tell nothing."""

    device, mode = "cpu", "inference"

    def __init__(self, *measured: Measurement) -> None:
        self.workload = Workload(lambda x: x, (Example((torch.ones(1),)),))
        self.measured = list(measured)

    def runners(self, call: Any, _model: Any = None) -> Any:
        return [lambda: call]

    def first_calls(self, _calls: Any) -> float:
        return 0.0

    def measure(self, _fixed: Any, _run: Any, *, block_s: float) -> Measurement:
        assert block_s
        return self.measured.pop(0)


@pytest.mark.parametrize("quiet_at_last", [True, False])
def test_what_was_too_noisy_is_timed_once_more_and_then_could_not_be_measured(
    monkeypatch: pytest.MonkeyPatch, quiet_at_last: bool
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("torchwise.diagnose.savings.time.sleep", pauses.append)
    calm = Measurement((60e-6,) * 40, (100e-6,) * 40)
    arena = Busy(noise(0, CALL_S, 50), calm if quiet_at_last else noise(1, CALL_S, 50))
    asked = Savings(arena, [lambda: None], CALL_S, 60.0, lambda _stage: None)  # type: ignore[arg-type]
    told = asked.measure_setting("torch._dynamo.config.capture_scalar_outputs = True")
    assert told is not None
    assert told.answer is (Answer.YES if quiet_at_last else Answer.INCONCLUSIVE)
    assert (len(pauses), arena.measured) == (1, [])
    assert told.per_call_s.high <= CALL_S


def test_what_could_not_be_measured_ranks_last_and_nothing_is_derived_from_it() -> None:
    untold = make_saving(Interval(-2.0, 0.9, 0.99), CALL_S, "timed in alternation, 40 rounds: the plan")
    lost = make_saving(Interval(-0.04, 0.0, 0.03), CALL_S, "timed")
    found = [
        make_finding("untold", untold, plan=PLAN),
        make_finding("lost", lost),
        make_finding("unpriced"),
        make_finding("small", price(1e-6)),
    ]
    told = explanation(*rank_findings(found, 1000)).make_consistent()
    assert [one.kind for one in told.findings] == ["small", "lost", "untold", "unpriced"]
    told = replace(told, findings=tuple(map(findings.withhold_advice, told.findings)))
    assert told.findings[2].fix == "Not recommended, as no gain could be measured: mend it"
    assert len(next_steps(told)) == 1, "the plan is not proposed"
    check(replace(told, kernels=(), execution=_idle()))


def test_where_the_call_could_not_be_timed_nothing_is_ranked_and_that_is_said_once() -> None:
    seen = evidence(
        measurement=noise(0, CALL_S, 50),
        profiled=replace(evidence().profiled, kernels=(Kernel("aten::mm", 2.0, 50e-6, 1e3, 1e6, 0.1),)),
        execution=Execution(Interval(CALL_S / 5, CALL_S, 7 * CALL_S), 50e-6, 2e-6, 40, 1.0),
    )
    found = findings.find(seen, FixedPrices(price(20e-6)))
    assert [one.kind for one in found] == ["guards"], "what is nothing but a time is no finding"
    kernels = (Kernel("aten::mm", 2.0, 50e-6, 1e3, 1e6),)
    told = explanation(
        *found, measurement=seen.measurement, execution=seen.execution, kernels=kernels, notes=seen.measurement.notes
    ).make_consistent()
    assert not told.is_ranked
    check(told)


def test_a_trust_that_is_good_and_one_that_is_limited_are_said() -> None:
    for factor in (1.01, 1.4):
        measured = noise(0, CALL_S, factor)
        call_s = measured.candidate_time
        execution = Execution(call_s, call_s.mid * 0.95)
        kernels = (Kernel("cpp_fused_0", 1.0, call_s.mid * 0.95, 1e3, generated=True),)
        told = explanation(measurement=measured, execution=execution, kernels=kernels)
        check(replace(told.make_consistent(), trust=judge_measurement(measured)))


@pytest.mark.parametrize(
    ("text", "seconds"), [("12.3 µs", 12.3e-6), ("2 min 5 s", 125.0), ("1,234 s", 1234.0), ("0 s", 0.0)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert read_seconds(text) == pytest.approx(seconds)
