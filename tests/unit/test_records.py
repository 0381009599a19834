"""Records go to JSON and come back the same. Other text is refused, with the place. Figures are derived."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketches import FAILED, HERE, INDUCTOR, NOT_COMPARABLE, PASSED, a_trial, an_inspection

from torchwise.errors import InputError, PlanError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Check,
    Costs,
    Decision,
    Failure,
    FailureKind,
    Inspection,
    Interval,
    Measurement,
    Outcome,
    Study,
    StudyState,
    Trial,
    TrialState,
    Verdict,
    codec,
)
from torchwise.records.study import study_from_dict

SPEC = WorkloadSpec("zoo:tutorial.fusion_demo", calls=5000, restarts=2)
MEASUREMENT = Measurement(
    (1.0e-3, 1.1e-3, 0.9e-3), (2.0e-3, 2.2e-3, 1.8e-3), 8, (0.8e-3,), (1.9e-3,), 0.5e-3, notes=("noisy",)
)
PLAN = Plan(backend="inductor", mode="max-autotune-no-cudagraphs", options=(("freezing", True),), precision="bf16")
DECISION = Decision(
    plan=PLAN,
    reason="Run it.",
    speedup=Interval(1.9, 2.0, 2.1),
    break_even_calls=Interval(90.0, 100.0, 110.0),
    saved_s=12.5,
    baseline_s=2e-3,
    cold_s=10.0,
    warm_s=None,
    workload=SPEC,
    identity="1d" * 8,
    structure="57" * 8,
    inputs=("[0][0] float32[8, 16] (16, 1)",),
    environment=HERE,
    error=1e-7,
)
TRIALS = (
    a_trial(INDUCTOR, number=0, measurement=MEASUREMENT, warm_s=3.0, reason="fuses", started_at=1e9),
    Trial(
        1,
        Plan(threads=1),
        TrialState.FAIL,
        "died in compile: SIGSEGV",
        Failure(FailureKind.DIED, "compile", "SIGSEGV", "Traceback: élan"),
        seconds=3.5,
    ),
    Trial(2, Plan(capture="call"), TrialState.COMPLETE, verdict=FAILED, costs=Costs(1.0, None, 2**30, 2**31, 10)),
    Trial(3, Plan(memory_format="channels_last"), TrialState.RUNNING),
)
STUDY = Study(
    id=7,
    workload=SPEC,
    environment=HERE,
    inspection=an_inspection(2e-3, shares={"gemm": 0.5}, peak_memory=4096, notes=("in training mode",)),
    allow="lower-precision",
    effort="standard",
    state=StudyState.DECIDED,
    trials=TRIALS,
    excluded=("eager + tf32: it is for cuda",),
    decision=DECISION,
    created_at=1.7e9,
    seconds=60.5,
)
RECORDS: list[Any] = [
    SPEC, HERE, EAGER, PLAN, MEASUREMENT, PASSED, FAILED, *TRIALS, STUDY.inspection, DECISION, STUDY, Interval(1, 2, 3)
]  # fmt: skip


# ---- there and back


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_comes_back(record: Any) -> None:
    text = codec.to_json(record)
    assert "\n" not in text
    assert codec.from_json(text, type(record)) == record
    assert codec.from_json(text.encode(), type(record)) == record
    plain = codec.to_builtins(record)
    assert codec.from_builtins(json.loads(json.dumps(plain)), type(record)) == record


@settings(deadline=None)
@given(st.lists(st.floats(0, exclude_min=True, allow_infinity=False), min_size=1), st.integers(1, 1000))
def test_samples_come_back_to_the_last_bit(samples: list[float], calls: int) -> None:
    measurement = Measurement(tuple(samples), tuple(reversed(samples)), calls)
    assert codec.from_json(codec.to_json(measurement), Measurement) == measurement


def test_a_plan_inside_a_record_leaves_its_remembered_id_out() -> None:
    trial = Trial(0, Plan(threads=3))
    before = codec.to_json(trial)
    assert trial.plan.id
    assert codec.to_json(trial) == before


def test_fields_that_a_later_version_added_are_passed_over_in_a_store_alone_and_never_in_a_plan() -> None:
    data = {**codec.to_builtins(Costs(1.0)), "energy_j": 5.0}
    assert codec.from_builtins(data, Costs, stored=True) == Costs(1.0)
    with pytest.raises(InputError, match=r"this is no Costs: \$ has an unknown field 'energy_j'"):
        codec.from_builtins(data, Costs)
    trial = codec.to_builtins(TRIALS[0])
    trial["plan"]["tiles"] = 4
    with pytest.raises(InputError, match=r"this is no Trial: \$\.plan has an unknown field 'tiles'"):
        codec.from_builtins(trial, Trial, stored=True)


def test_fields_with_a_default_may_be_missing() -> None:
    assert codec.from_json('{"number": 3, "plan": {}}', Trial) == Trial(3, EAGER)


@pytest.mark.parametrize("thing", [MEASUREMENT, TRIALS[0], DECISION, STUDY], ids=lambda thing: type(thing).__name__)
def test_records_are_frozen(thing: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(thing, next(iter(codec.to_builtins(thing))), None)


# ---- refused text


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", Trial, "this is no Trial: it is empty, but must be JSON"),
        (
            "{",
            Trial,
            "this is no Trial: it is no JSON: Expecting property name enclosed in double quotes at line 1, col",
        ),
        ("[]", Trial, "this is no Trial: $ is [], but must be an object"),
        ("{}", Trial, "this is no Trial: $ lacks the field 'number'"),
        ('{"number": "1", "plan": {}}', Trial, "this is no Trial: $.number is '1', but must be a whole number"),
        ('{"number": 1.5, "plan": {}}', Trial, "this is no Trial: $.number is 1.5, but must be a whole number"),
        ('{"number": 1, "plan": {"threads": "2"}}', Trial, "$.plan.threads is '2', but must be a whole number or null"),
        ('{"number": 1, "plan": {}, "state": "done"}', Trial, "$.state is 'done', but must be one of waiting, running"),
        (
            '{"number": 1, "plan": {}, "measurement": {"candidate_s": [1, "2"], "baseline_s": []}}',
            Trial,
            "$.measurement.candidate_s[1] is '2', but must be a number",
        ),
        ('{"checks": [{"name": "v", "outcome": "pass"}]}', Verdict, "$.checks[0] lacks the field 'detail'"),
        (
            '{"target": "t", "device": "tpu"}',
            WorkloadSpec,
            "$.device is 'tpu', but must be one of cpu, cuda; did you mean cpu?",
        ),
        ('{"target": "t", "calls": true}', WorkloadSpec, "$.calls is True, but must be a whole number"),
    ],
)
def test_what_is_no_record_is_refused_with_the_place(text: str, kind: type, message: str) -> None:
    with pytest.raises(InputError) as error:
        codec.from_json(text, kind)
    assert message in str(error.value)


def test_builtins_of_another_type_are_refused_with_the_place() -> None:
    data = codec.to_builtins(STUDY)
    data["trials"][2]["costs"]["cold_s"] = "long"
    with pytest.raises(InputError, match=r"this is no Study: \$.trials\[2\].costs.cold_s is 'long', but must"):
        codec.from_builtins(data, Study)


def test_a_value_that_its_class_refuses_is_refused() -> None:
    with pytest.raises(InputError, match="calls is 0, but must be a whole number of at least 1"):
        codec.from_json('{"target": "t", "calls": 0}', WorkloadSpec)
    with pytest.raises(PlanError, match="capture is 'loop', but must be one of none, call, branches, step"):
        codec.from_json('{"number": 1, "plan": {"capture": "loop"}}', Trial)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_in_json_and_no_sample(value: float) -> None:
    text = codec.to_json(Measurement((value,), (1.0,)))
    assert json.loads(text)["candidate_s"] == [None]
    with pytest.raises(InputError, match=r"\$.candidate_s\[0\] is null, but must be a number"):
        codec.from_json(text, Measurement)


def test_an_error_that_is_not_finite_comes_back_as_none() -> None:
    check = Check("values", Outcome.FAIL, "NaN at [3]", error=math.nan, floor=1e-7)
    assert codec.from_json(codec.to_json(check), Check) == replace(check, error=None)


# ---- schemas


def test_a_decision_is_kept_beside_the_model() -> None:
    text = DECISION.to_json()
    assert json.loads(text)["schema"] == "torchwise.decision/1"
    assert Decision.from_json(text) == DECISION


@pytest.mark.parametrize("schema", ["torchwise.decision/2", "", "torchwise.study/1"])
def test_a_decision_of_another_schema_is_refused(schema: str) -> None:
    text = replace(DECISION, schema=schema).to_json()
    with pytest.raises(InputError) as error:
        Decision.from_json(text)
    assert str(error.value) == f"schema is {schema!r}, but this version reads 'torchwise.decision/1'"


def test_a_study_is_exported_under_its_schema_and_comes_back() -> None:
    data = json.loads(json.dumps(STUDY.to_dict(), allow_nan=False))
    assert data["schema"] == "torchwise.study/1"
    assert {"workload", "environment", "baseline", "trials", "decision"} <= set(data)
    assert "inspection" not in data
    assert study_from_dict(data) == STUDY
    assert STUDY.to_dict() == STUDY.to_dict()


@pytest.mark.parametrize("schema", ["torchwise.study/2", None, 1])
def test_a_study_of_another_schema_is_refused(schema: object) -> None:
    with pytest.raises(InputError, match=r"schema is .*, but this version reads 'torchwise.study/1'"):
        study_from_dict({**STUDY.to_dict(), "schema": schema})


def test_a_study_without_a_baseline_is_refused() -> None:
    data = STUDY.to_dict()
    del data["baseline"]
    with pytest.raises(InputError, match=r"this is no Study: \$ lacks the field 'inspection'"):
        study_from_dict(data)


def test_derived_figures_stand_beside_the_samples_and_must_follow_from_them() -> None:
    data = STUDY.to_dict()
    first = data["trials"][0]
    assert first["plan_id"] == INDUCTOR.id
    assert first["speedup"] == codec.to_builtins(MEASUREMENT.speedup)
    assert first["verdict"]["outcome"] == "pass"
    assert data["trials"][2]["verdict"]["outcome"] == "fail"
    assert "speedup" not in data["trials"][3]
    assert data["baseline"]["seconds_per_call"] == {"low": 2e-3, "mid": 2e-3, "high": 2e-3}
    for place, wrong in (
        ("speedup", {"low": 90.0, "mid": 99.0, "high": 100.0}),
        ("speedup", {"low": 2.0, "mid": 2.0}),
        ("speedup", 2.0),
        ("plan_id", "0" * 12),
        ("verdict", {**first["verdict"], "outcome": "fail"}),
    ):
        wrong_data = {**data, "trials": [{**first, place: wrong}, *data["trials"][1:]]}
        with pytest.raises(
            InputError, match=rf"this is no Study: \$\.trials\.0\.{place}.* must follow from the samples"
        ):
            study_from_dict(wrong_data)
    for wrong in (
        {"reliability": "splendid"},
        {"half_width": 9.0},
        {"sentence": None},
        {"half_width": True},
        {"more": 1},
    ):
        with pytest.raises(InputError, match=r"\$\.trust is .* must follow from the samples"):
            study_from_dict({**data, "trust": {**data["trust"], **wrong}})
    for earlier in ({"sentence": "As an earlier version worded it."}, {"reliability": "limited"}):
        assert study_from_dict({**data, "trust": {**data["trust"], **earlier}}) == STUDY
    for place in ("speedup", "plan_id"):
        del first[place]
    assert study_from_dict(data) == STUDY


# ---- derived figures


def test_a_measurement_derives_its_figures() -> None:
    assert MEASUREMENT.speedup == Interval(2.0, 2.0, 2.0)
    assert MEASUREMENT.candidate_time.mid == 1.0e-3
    assert MEASUREMENT.baseline_time.mid == 2.0e-3
    assert MEASUREMENT.launch_share == pytest.approx(0.5)


@pytest.mark.parametrize(("busy", "share"), [(None, 0.0), (0.25, 0.75), (1.0, 0.0), (3.0, 0.0), (0.0, 1.0)])
def test_the_share_of_waiting_is_a_share(busy: float | None, share: float) -> None:
    assert Measurement((1.0,), (1.0,), busy_s=busy).launch_share == share


def checks(*outcomes: Outcome) -> Verdict:
    return Verdict(tuple(Check(f"check {i}", outcome, "detail") for i, outcome in enumerate(outcomes)))


@pytest.mark.parametrize(
    ("verdict", "outcome", "reason"),
    [
        (checks(Outcome.PASS, Outcome.PASS), Outcome.PASS, "2 checks passed"),
        (checks(Outcome.PASS, Outcome.FAIL), Outcome.FAIL, "check 1: detail"),
        (checks(Outcome.PASS, Outcome.NOT_COMPARABLE), Outcome.NOT_COMPARABLE, "check 1: detail"),
        (checks(Outcome.NOT_COMPARABLE, Outcome.FAIL), Outcome.FAIL, "check 1: detail"),
        (checks(Outcome.FAIL, Outcome.NOT_COMPARABLE, Outcome.FAIL), Outcome.FAIL, "check 0: detail"),
        (checks(), Outcome.NOT_COMPARABLE, "0 checks passed"),
    ],
)
def test_a_verdict_is_its_worst_check(verdict: Verdict, outcome: Outcome, reason: str) -> None:
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


def test_the_error_of_a_verdict_is_the_largest() -> None:
    assert PASSED.error == 1e-7
    assert checks(Outcome.PASS).error is None
    assert Verdict((*FAILED.checks, *checks(Outcome.PASS).checks, *PASSED.checks)).error == 0.3


@pytest.mark.parametrize(
    "changes",
    [
        *({"state": state} for state in TrialState if state is not TrialState.COMPLETE),
        {"measurement": None},
        {"costs": None},
        {"verdict": None},
        {"verdict": FAILED},
        {"verdict": NOT_COMPARABLE},
        {"verdict": Verdict(())},
    ],
    ids=str,
)
def test_a_trial_is_proven_only_when_all_of_it_is_there(changes: dict[str, Any]) -> None:
    proven = a_trial(INDUCTOR)
    assert proven.is_verified
    assert not replace(proven, **changes).is_verified


def test_states_that_are_finished() -> None:
    finished = {state for state in TrialState if state.is_finished}
    assert finished == {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}


def test_a_failure_in_words() -> None:
    assert str(Failure(FailureKind.TIMED_OUT, "compile", "after 600 s")) == "timed out in compile: after 600 s"


def test_an_inspection_has_the_traits_that_choices_ask_for() -> None:
    again = codec.from_json(codec.to_json(STUDY.inspection), Inspection)
    assert isinstance(again.traits, frozenset)
    assert "gemm" in again.traits


def test_an_interval_without_an_end_comes_back_from_json() -> None:
    never = Interval(1200.0, 5000.0, float("inf"))
    decision = replace(DECISION, break_even_calls=never)
    assert Decision.from_json(decision.to_json()).break_even_calls == never
    with pytest.raises(InputError, match=r"\$\.saved_s is null, but must be a number"):
        Decision.from_json(replace(decision, saved_s=float("inf")).to_json())


@pytest.mark.parametrize("shares", [{"gemm": 0.85, "conv": 0.84}, {"gemm": 0.9, "conv": 0.3, "launch": 0.8}, {}])
def test_the_parts_of_a_call_are_no_more_than_the_call(shares: dict[str, float]) -> None:
    parts = an_inspection(1e-3, shares=shares).time_by_kind
    assert set(parts) == set(shares)
    assert sum(parts.values()) <= 1 + 1e-9
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
