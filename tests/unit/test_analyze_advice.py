"""Advice: each rule speaks with its figures if there is something to say, and is silent otherwise."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from analysis_samples import a_batch, a_steady, an_analysis
from builders import EAGER_S, UNCLEAR, a_failure, a_measurement, a_plan, a_trial
from torchwise.diagnose import analyze_advice as advice
from torchwise.diagnose.analyze_advice import RULES, advise
from torchwise.plan import EAGER
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, FailureKind
from torchwise.records.analysis import Analysis, Batch, Consistency, Memory
from torchwise.records.answer import Answer

SPEC = WorkloadSpec("zoo:vision.resnet50", device="cuda")


def make_analysis(eager_s: float, plan_s: float, **changes: Any) -> Analysis:
    """Return an analysis without any noise."""
    measurement = a_measurement(candidate_s=(plan_s,) * 20, baseline_s=(eager_s,) * 20, **changes)
    steady = a_steady(plan=Consistency((plan_s,) * 60), baseline=Consistency((eager_s,) * 60))
    return an_analysis(
        trial=a_trial(measurement=measurement, costs=Costs(9.0, 1.2, cache_bytes=5 << 20)), steady=steady
    )


def test_a_plan_that_pays_is_to_be_used_with_what_it_saves_and_when_it_has_paid() -> None:
    text = advice.use(make_analysis(0.00100, 0.00050))
    assert text == (
        "Use inductor: it saves 500 µs a call and pays back its 9.00 s of compiling after 18,000 calls. Over the "
        "expected 100,000 calls it saves 41.0 s."
    )


def test_a_plan_that_pays_too_late_is_to_be_left_alone() -> None:
    record = replace(make_analysis(0.00100, 0.00050), workload=replace(SPEC, calls=1000))
    assert advice.use(record).startswith("Keep the original model for 1,000 calls. With inductor it saves 500 µs")
    assert "after 18,000 calls" in advice.use(record)


def test_a_plan_that_may_pay_too_late_is_inconclusive() -> None:
    record = replace(make_analysis(0.00100, 0.00050), workload=replace(SPEC, calls=18_100))
    assert record.answer is Answer.INCONCLUSIVE
    assert re.fullmatch(
        r"Inconclusive: inductor pays back its 9.00 s of compiling after 1\d,\d00 to 2\d,\d00 calls, and 18,100 are "
        r"expected\.",
        advice.use(record),
    )
    assert [one.rule for one in advise(record)] == ["use"]


def test_a_slower_plan_a_sure_tie_and_an_unclear_one_are_told_apart() -> None:
    assert "is slower, with a speed-up over eager of 0.500×" in advice.use(make_analysis(0.010, 0.020))
    tie = make_analysis(0.010, 0.010)
    sure = replace(tie, trial=replace(tie.trial, repeats=(tie.trial.measurement,) * 4))
    assert "is not clearly faster" in advice.use(sure)
    wide = a_measurement(candidate_s=(0.5, 0.9, 2.0) * 5, baseline_s=(1.0,) * 15)
    for record in (tie, an_analysis(trial=a_trial(measurement=wide), steady=None)):
        assert advice.use(record).startswith("Inconclusive: the speed-up of inductor over eager, ")
        assert record.answer is Answer.INCONCLUSIVE
        assert [one.rule for one in advise(record)] == ["use"]  # nothing follows from untold figures


def test_two_processes_that_disagree_decide_nothing() -> None:
    other = replace(make_analysis(0.010, 0.001), steady=a_steady(0.27))
    assert advice.use(other).startswith("Inconclusive: the speed-up of inductor over eager, 0.1")
    two = replace(other, inspection=replace(other.inspection, inputs=("x", "y")))
    assert advice.use(two).startswith("Use inductor"), "the second process times one of several inputs"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (an_analysis(trial=a_failure(FailureKind.DIED), steady=None), "its process died in compile: SIGSEGV"),
        (an_analysis(None, None), "wrong answer: values: output[0] is off at (3, 17)"),
        (an_analysis(trial=a_trial(0, None, None, verdict=UNCLEAR), steady=None), "eager differs from itself"),
    ],
)
def test_what_failed_or_is_not_right_is_not_to_be_used_whatever_its_speed(record: Analysis, words: str) -> None:
    text = advice.use(record)
    assert text.startswith("Do not use inductor: ")
    assert words in text


def test_eager_itself_has_nothing_to_pay_back() -> None:
    record = an_analysis(EAGER, 1.0)
    assert "This plan is eager" in advice.use(record)
    assert advice.few_calls(record) == ""


def test_the_number_of_calls_under_which_compiling_does_not_pay_is_named() -> None:
    assert advice.few_calls(make_analysis(0.00100, 0.00050)).startswith("Do not compile for fewer than 18,000 calls")
    assert advice.few_calls(an_analysis(speedup=0.8)) == ""


def test_a_warm_start_that_saves_and_one_that_does_not() -> None:
    assert advice.warm_start(make_analysis(0.010, 0.005)) == (
        "A warm start saves 7.80 s: 1.20 s in place of 9.00 s. Keep the compile caches between starts "
        "(TORCHINDUCTOR_CACHE_DIR, 5.00 MiB)."
    )
    same = an_analysis(trial=a_trial(costs=Costs(9.0, 8.5)))
    assert advice.warm_start(same).startswith("A warm start saves little: 8.50 s in place of 9.00 s.")
    assert advice.warm_start(an_analysis(trial=a_trial(costs=Costs(0.2, 0.1)))) == ""
    assert advice.warm_start(an_analysis(trial=a_trial(costs=Costs(9.0)))) == ""


def test_a_tail_is_the_plans_own_or_the_machines() -> None:
    steady, long = Consistency((0.001, 0.00101) * 50), Consistency((0.001,) * 95 + (0.004,) * 5)
    own = an_analysis(steady=a_steady(plan=long, baseline=steady))
    assert "4.00× the median" in advice.tail(own)
    assert advice.tail(own).endswith("the cause is the plan.")
    shared = an_analysis(steady=a_steady(plan=long, baseline=long))
    assert advice.tail(shared).endswith("the cause is the machine or the model.")
    assert advice.tail(an_analysis(steady=a_steady(plan=steady, baseline=long))) == ""


def test_drift_of_the_plan_alone_speaks_from_its_threshold_on() -> None:
    flat, rising = Consistency((1.0,) * 30), Consistency((1.0,) * 10 + (1.1,) * 10 + (1.2,) * 10)
    own = an_analysis(steady=a_steady(plan=rising, baseline=flat))
    assert advice.drift(own) == ("Calls became 20 % longer from the first third to the last. Eager's did not.")
    raised = a_steady(plan=Consistency((1.0,) * 10 + (1.1,) * 10 + (364.0,) * 10))
    assert "Calls took 364 times as long in the last third" in advice.drift(an_analysis(steady=raised))
    assert advice.drift(an_analysis(steady=a_steady(plan=rising, baseline=rising))) == ""  # it is the machine
    still = an_analysis(steady=a_steady(plan=flat, baseline=flat))
    assert (advice.drift(still), advice.tail(still)) == ("", "")


def test_memory_names_what_to_reserve_and_only_a_difference_that_counts() -> None:
    def text(call: int, **changes: Any) -> str:
        return advice.memory(an_analysis(steady=a_steady(memory=Memory(80, 20, None, call, 100)), **changes))

    assert text(
        200
    ) == "Reserve 360 B in addition to CUDA's own context: 20 % above the peak seen. A call needs 100 B more " + (
        "than eager's 100 B."
    )
    assert "A call needs 50 B less than eager's 100 B." in text(50)
    assert "A call needs" not in text(105)
    assert "in addition to Python and PyTorch themselves" in text(200, workload=replace(SPEC, device="cpu"))
    assert advice.memory(an_analysis(steady=a_steady(memory=Memory(80, 20)))) == ""


def test_a_gpu_that_waits_for_the_host_is_named_unless_the_plan_captures() -> None:
    waiting = a_measurement(1.5, busy_s=EAGER_S / 1.5 * 0.4)
    assert "waits for the host during 60 % of a call" in advice.waits(an_analysis(trial=a_trial(measurement=waiting)))
    captured = a_trial(plan=a_plan(capture="call"), measurement=waiting)
    assert advice.waits(an_analysis(trial=captured)) == ""
    assert advice.waits(an_analysis()) == ""


def test_batches_say_what_a_larger_one_costs_and_where_throughput_ends() -> None:
    growing = an_analysis(batches=tuple(map(a_batch, (1, 2, 4, 8))))
    assert re.match(r"A batch of 8 takes 2\.[12]\d*× the time of a batch of 1, with 3\.6", advice.batches(growing))
    assert "hardly" not in advice.batches(growing)
    stops = an_analysis(batches=(_batch(1, 0.6), _batch(2, 1.0), _batch(4, 1.01), _batch(8, 1.02)))
    assert advice.batches(stops).endswith("Beyond batch 2 throughput hardly grows.")
    assert advice.batches(an_analysis(batches=(a_batch(1), Batch(2, reason="out of memory")))) == ""


def test_throughput_that_falls_names_the_best_batch() -> None:
    record = an_analysis(batches=(_batch(1, 1.0), _batch(2, 2.0), _batch(4, 1.5)))
    assert "Batch 2 has the highest throughput, 2.00 items per second." in advice.batches(record)


def test_batches_are_not_compared_where_the_machine_changed_between_them() -> None:
    record = an_analysis(batches=(_batch(1, 1.0), _batch(2, 2.5)))
    assert advice.batches(record) == ""


def test_batches_that_were_not_timed_on_one_scale_are_not_compared() -> None:
    noise = a_measurement(candidate_s=(1e-3, 1.0, 5.0), baseline_s=(EAGER_S,) * 3)
    for unclear in (replace(a_batch(4), eager=None), replace(a_batch(4), eager=noise)):
        assert advice.batches(an_analysis(batches=(a_batch(1), unclear))) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"calls": 10**9}, "The plan is excellent: its compiling returns "),
        ({"calls": 30_000}, "The plan is good: its compiling returns "),
        ({"calls": 100}, ""),
    ],
)
def test_the_return_of_a_plan_that_pays_is_graded(changes: dict[str, int], said: str) -> None:
    record = an_analysis(workload=WorkloadSpec("m:f", device="cuda", **changes))  # type: ignore[arg-type]
    assert advice.earns(record).startswith(said)
    assert bool(advice.earns(record)) is bool(said)


def test_batches_at_which_the_plan_loses_are_named() -> None:
    mixed = an_analysis(batches=(a_batch(1, speedup=0.7), a_batch(2)))
    assert advice.batches_lost(mixed).startswith("At some batch sizes the plan is slower than eager: 1 (0.70")
    assert advice.batches_lost(an_analysis(batches=(a_batch(1), a_batch(2)))) == ""
    all_slow = (a_batch(1, speedup=0.7), a_batch(2, speedup=0.7))
    assert advice.batches_lost(an_analysis(batches=all_slow)) == ""  # `use` says so already


def test_advice_is_in_the_order_of_the_rules_and_nothing_is_said_twice() -> None:
    found = advise(an_analysis())
    names = [rule.__name__ for rule in RULES]
    assert [a.rule for a in found] == sorted((a.rule for a in found), key=names.index)
    assert found[0].rule == "use"
    assert all(a.text.endswith(".") for a in found)


def _batch(size: int, throughput: float) -> Batch:
    seconds = size / throughput
    timed = a_measurement(candidate_s=(seconds,) * 5, baseline_s=(seconds * 1.2,) * 5)
    scale = a_measurement(candidate_s=(seconds * 1.2,) * 5, baseline_s=(EAGER_S,) * 5)
    return Batch(size, timed, eager=scale)
