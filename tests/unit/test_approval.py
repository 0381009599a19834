"""The effect of approvals on a decision: by whose word which plan is in force, and when none is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store_samples import (
    FASTER,
    HERE,
    INDUCTOR,
    TUNED,
    a_decision,
    a_ruling,
    a_study,
    claim,
    complete_trial,
    create,
    fail_trial,
)
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.records import Approval, Decision, Measurement, Standing, Study, StudyState, Trial
from torchwise.store import Storage, open_storage
from torchwise.study.apply_approvals import EffectiveDecision, apply_approvals

CAPTURED = Plan(capture="call")
SLOW = Plan(threads=1)
REDUCED = Plan(backend="inductor", precision="bf16")
DECISION = a_decision(INDUCTOR)


def finish_with_time(trial: Trial, seconds: float) -> Trial:
    return replace(complete_trial(trial), measurement=Measurement((seconds,) * 9, (1.0,) * 9))


def store_study(storage: Storage, study: Study, speeds: dict[Plan, float], decision: Decision | None) -> Study:
    made = create(storage, study)
    for plan, seconds in speeds.items():
        storage.finish_trial(made.id, finish_with_time(claim(storage, made.id, plan), seconds))
    storage.store_outcome(made.id, state=StudyState.DECIDED, decision=decision, excluded=[], seconds=0)
    return storage.get_study(made.id)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    """Return a store whose study decided for INDUCTOR, has verified TUNED and SLOW, and saw CAPTURED fail."""
    with open_storage(str(tmp_path / "store.db")) as storage:
        study = store_study(storage, a_study(), {INDUCTOR: 0.25, TUNED: 0.5, SLOW: 2.0}, DECISION)
        storage.finish_trial(study.id, fail_trial(claim(storage, study.id, CAPTURED)))
        yield storage


def rule(storage: Storage, *rulings: tuple[Plan, Standing], **changes: object) -> None:
    for plan, standing in rulings:
        storage.store_approval(a_ruling(plan, standing, **changes))


PINNED, APPROVED, REJECTED = Standing.PINNED, Standing.APPROVED, Standing.REJECTED


def test_a_ruling_comes_back_from_json_and_says_who_and_why() -> None:
    ruling = a_ruling(TUNED, PINNED)
    assert Approval.from_json(ruling.to_json()) == ruling
    assert ruling.describe() == "bob pinned it: it is calm"
    assert replace(ruling, reason="").describe("inductor") == "bob pinned inductor"
    with pytest.raises(InputError, match=r"schema is 'torchwise.ruling/9', but this version reads"):
        Approval.from_json(ruling.to_json().replace("ruling/1", "ruling/9"))
    with pytest.raises(InputError, match=r"this is no Approval: .*banished"):
        Approval.from_json(ruling.to_json().replace("pinned", "banished"))


@pytest.mark.parametrize(
    "rulings",
    [
        (),
        ((INDUCTOR, PINNED),),
        ((INDUCTOR, APPROVED), (TUNED, APPROVED)),
        ((TUNED, REJECTED), (CAPTURED, REJECTED)),
        ((INDUCTOR, PINNED), (TUNED, REJECTED)),
    ],
    ids=["none", "pinned", "approved", "others rejected", "pinned, others rejected"],
)
def test_a_permitted_plan_is_in_force_as_it_was_decided(
    storage: Storage, rulings: tuple[tuple[Plan, Standing], ...]
) -> None:
    rule(storage, *rulings)
    assert apply_approvals(DECISION, storage) == EffectiveDecision(DECISION)


@pytest.mark.parametrize(
    "elsewhere",
    [{"target": "app:factory"}, {"mode": "training"}, {"hardware": "another machine"}],
    ids=["target", "mode", "hardware"],
)
def test_rulings_hold_for_their_target_mode_and_hardware_alone(storage: Storage, elsewhere: dict[str, str]) -> None:
    rule(storage, (INDUCTOR, REJECTED), **elsewhere)
    rule(storage, (TUNED, PINNED), **elsewhere)
    assert apply_approvals(DECISION, storage) == EffectiveDecision(DECISION)


def test_a_pin_is_followed_by_what_the_study_measured_of_it(storage: Storage) -> None:
    rule(storage, (TUNED, PINNED))
    found = apply_approvals(DECISION, storage)
    assert found.refusal is None
    assert found.decision.plan == TUNED
    assert found.decision.reason.startswith(f"Run {TUNED}: bob pinned it: it is calm. ")
    assert found.decision.speedup is not None
    assert found.decision.speedup.mid == 2.0
    assert (found.decision.cold_s, found.decision.warm_s, found.decision.error) == (10.0, 2.5, 1e-7)
    assert found.decision.inputs == DECISION.inputs
    assert found.decision.structure == DECISION.structure


def test_a_pin_is_followed_where_it_does_not_pay(storage: Storage) -> None:
    rule(storage, (SLOW, PINNED))
    decision = apply_approvals(DECISION, storage).decision
    assert decision.plan == SLOW
    assert decision.break_even_calls is None or decision.break_even_calls.mid == float("inf")
    assert decision.saved_s < 0


def test_a_pin_leads_away_from_eager_too(storage: Storage) -> None:
    rule(storage, (TUNED, PINNED))
    assert apply_approvals(a_decision(EAGER, speedup=None), storage).decision.plan == TUNED


def test_eager_may_be_pinned(storage: Storage) -> None:
    rule(storage, (EAGER, PINNED))
    found = apply_approvals(DECISION, storage)
    assert (found.decision.plan, found.refusal) == (EAGER, None)
    assert found.decision.reason == "Stay with eager: bob pinned it: it is calm."
    assert (found.decision.speedup, found.decision.saved_s, found.decision.error) == (None, 0.0, None)


def test_eager_is_permitted_unless_another_is_pinned(storage: Storage) -> None:
    eager = a_decision(EAGER, speedup=None)
    rule(storage, (TUNED, APPROVED), (EAGER, REJECTED))
    assert apply_approvals(eager, storage) == EffectiveDecision(eager)


@pytest.mark.parametrize("plan", [CAPTURED, REDUCED], ids=["failed", "never tried"])
def test_a_pin_that_was_not_proven_here_is_refused(storage: Storage, plan: Plan) -> None:
    rule(storage, (plan, PINNED))
    found = apply_approvals(DECISION, storage)
    said = f"plan inductor is refused (bob pinned {plan}: it is calm), and no permitted plan is verified here"
    assert found.refusal == said
    assert found.decision.plan == EAGER
    assert said in found.decision.reason


def test_what_is_rejected_gives_way_to_the_best_of_the_others(storage: Storage) -> None:
    rule(storage, (INDUCTOR, REJECTED))
    found = apply_approvals(DECISION, storage)
    assert (found.decision.plan, found.refusal) == (TUNED, None)
    assert found.decision.reason.startswith(f"Run {TUNED}: 2 [1.69, 2.36] times eager's speed")
    assert found.decision.reason.endswith(" Not inductor: bob rejected it: it is calm.")


def test_where_all_that_pays_is_rejected_eager_is_decided_for(storage: Storage) -> None:
    rule(storage, (INDUCTOR, REJECTED), (TUNED, REJECTED))
    found = apply_approvals(DECISION, storage)
    assert (found.decision.plan, found.refusal) == (EAGER, None)
    assert found.decision.reason.startswith("Stay with eager: ")
    assert "Not inductor: bob rejected it" in found.decision.reason


def test_where_all_that_is_proven_is_rejected_the_decision_is_refused(storage: Storage) -> None:
    rule(storage, (INDUCTOR, REJECTED), (TUNED, REJECTED), (SLOW, REJECTED))
    found = apply_approvals(DECISION, storage)
    assert found.decision.plan == EAGER
    assert found.refusal is not None
    assert found.refusal.startswith("plan inductor is refused (bob rejected it: it is calm)")


def test_only_what_is_approved_runs_where_something_is(storage: Storage) -> None:
    rule(storage, (TUNED, APPROVED))
    found = apply_approvals(DECISION, storage)
    assert (found.decision.plan, found.refusal) == (TUNED, None)
    assert found.decision.reason.endswith(f"Not inductor: it is not approved, while bob approved {TUNED}: it is calm.")


@pytest.mark.parametrize(
    "changes",
    [{"identity": "2d" * 8}, {"environment": replace(HERE, torch="2.14.0")}],
    ids=["another model", "another torch"],
)
def test_what_was_proven_for_another_model_or_software_proves_nothing(
    storage: Storage, changes: dict[str, object]
) -> None:
    rule(storage, (INDUCTOR, REJECTED))
    assert apply_approvals(replace(DECISION, **changes), storage).refusal is not None  # type: ignore[arg-type]


def wide(storage: Storage) -> None:
    """Store a study of the same model that allowed a lower precision."""
    speeds = {INDUCTOR: 0.25, REDUCED: 0.125}
    store_study(storage, a_study(allow="lower-precision"), speeds, a_decision(REDUCED))


def test_a_rejection_allows_no_more_than_was_asked_for(storage: Storage) -> None:
    wide(storage)
    rule(storage, (INDUCTOR, REJECTED))
    assert apply_approvals(DECISION, storage).decision.plan == TUNED
    rule(storage, (TUNED, REJECTED), (SLOW, REJECTED))
    assert apply_approvals(DECISION, storage).refusal is not None


def test_the_study_of_a_decision_is_known_also_when_it_was_asked_for_another_target_since(storage: Storage) -> None:
    wide(storage)
    mine = a_decision(INDUCTOR, reason="of the study that allowed more")
    other = a_decision(REDUCED, workload=replace(mine.workload, target="app:other"))
    for decision in (mine, other):
        store_study(storage, a_study(allow="lower-precision"), {}, decision)
    rule(storage, (INDUCTOR, REJECTED))
    assert apply_approvals(mine, storage).decision.plan == REDUCED


def test_what_somebody_names_may_come_from_a_study_that_allowed_more(storage: Storage) -> None:
    wide(storage)
    rule(storage, (REDUCED, APPROVED))
    assert apply_approvals(DECISION, storage).decision.plan == REDUCED
    rule(storage, (REDUCED, PINNED))
    assert apply_approvals(DECISION, storage).decision.plan == REDUCED


def test_a_trial_that_failed_its_checks_is_never_decided_for(storage: Storage) -> None:
    study = create(storage, a_study())
    wrong = replace(complete_trial(claim(storage, study.id, Plan(threads=3))), verdict=None, measurement=FASTER)
    storage.finish_trial(study.id, wrong)
    rule(storage, (Plan(threads=3), PINNED))
    assert apply_approvals(DECISION, storage).refusal is not None
