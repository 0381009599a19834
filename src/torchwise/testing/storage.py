"""The contract of a storage (`torchwise.store.Storage`), for another database or another way to reach one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from torchwise.errors import StorageError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Approval, Standing, Study, StudyState
from torchwise.records.benchmark import Benchmark
from torchwise.store import ReportKind, ReportSummary, Storage, StudyKey
from torchwise.testing.records import (
    HERE,
    INDUCTOR,
    TUNED,
    conclude_study,
    create_study,
    make_approval,
    make_decision,
    make_explanation,
    make_study,
)
from torchwise.testing.storage_studies import StudyContract, TrialContract


class DecisionContract:
    """Each target of a study keeps its own decision and the state of its own search. The last one counts."""

    def test_a_conclusion_adds_time_and_replaces_the_rest(self, storage: Storage, study: Study) -> None:
        conclude_study(storage, study.id)
        found = storage.get_study(study.id)
        assert (found.state, found.excluded, found.seconds) == (StudyState.DECIDED, ("bf16: not allowed",), 2.5)
        assert found.decision == make_decision()
        storage.store_outcome(study.id, state=StudyState.INTERRUPTED, decision=None, excluded=[], seconds=1.5)
        found = storage.get_study(study.id)
        assert (found.state, found.excluded, found.seconds) == (StudyState.INTERRUPTED, (), 4.0)
        assert found.decision == make_decision()
        conclude_study(storage, study.id, TUNED)
        assert storage.get_study(study.id).decision == make_decision(TUNED)

    def test_decisions_are_newest_first_and_by_target_and_identity(self, storage: Storage, study: Study) -> None:
        other = create_study(storage, make_study("2d" * 8))
        app: dict[str, Any] = {"workload": WorkloadSpec("app:factory"), "identity": "2d" * 8}
        conclude_study(storage, other.id, **app)
        conclude_study(storage, study.id)
        assert storage.decisions() == [make_decision(), make_decision(**app)]
        conclude_study(storage, other.id, TUNED, **app)
        assert storage.decisions() == [make_decision(TUNED, **app), make_decision()]
        assert storage.decisions(target="app:factory") == [make_decision(TUNED, **app)]
        assert storage.decisions(identity="1d" * 8) == [make_decision()]
        assert storage.decisions(target="app:factory", identity="1d" * 8) == []

    def test_each_target_of_a_study_keeps_its_decision(self, storage: Storage, study: Study) -> None:
        app = WorkloadSpec("app:factory", calls=7)
        conclude_study(storage, study.id)
        asked = (app, "quick")
        mine = make_decision(TUNED, workload=app)
        storage.store_outcome(study.id, state=StudyState.DECIDED, decision=mine, excluded=[], seconds=0, asked=asked)
        assert storage.decisions(target="zoo:tutorial.fusion_demo") == [make_decision()]
        assert storage.decisions() == [mine, make_decision()]
        last, first = storage.get_study(study.id), storage.get_study(study.id, "zoo:tutorial.fusion_demo")
        assert (last.workload, last.decision) == (app, mine)
        assert (first.workload, first.decision) == (make_decision().workload, make_decision())
        assert storage.get_study(study.id, "app:none") == replace(last, decision=None)
        assert storage.find_study(StudyKey.from_study(study), "zoo:tutorial.fusion_demo") == first
        listed = [storage.list_studies(target) for target in (None, "app:factory", "zoo:tutorial.fusion_demo")]
        assert [[(row.id, row.target, row.plan) for row in rows] for rows in listed] == [
            [(study.id, "app:factory", str(TUNED))],
            [(study.id, "app:factory", str(TUNED))],
            [(study.id, "zoo:tutorial.fusion_demo", str(INDUCTOR))],
        ]
        conclude_study(storage, study.id, EAGER)
        assert storage.decisions() == [make_decision(EAGER), mine]
        assert storage.get_study(study.id).decision == make_decision(EAGER)
        storage.delete_study(study.id)
        assert storage.decisions() == []

    def test_each_target_of_a_study_keeps_how_its_search_ended(self, storage: Storage, study: Study) -> None:
        mine, app = make_decision(), WorkloadSpec("app:factory")
        other = make_decision(TUNED, workload=app)
        ended, stopped = StudyState.DECIDED, StudyState.INTERRUPTED
        for decision, workload, state, states in (
            (mine, mine.workload, stopped, None),
            (other, app, ended, [ended, stopped, ended]),
            (mine, mine.workload, ended, [ended, ended, ended]),
            (other, app, stopped, [stopped, ended, stopped]),
            (None, mine.workload, stopped, [stopped, ended, stopped]),  # it left the earlier decision
        ):
            asked = (workload, "quick")
            storage.store_outcome(study.id, state=state, decision=decision, excluded=[], seconds=0, asked=asked)
            targets = (None, mine.workload.target, "app:factory")
            assert states in (None, [storage.get_study(study.id, target).state for target in targets])
            assert states in (None, [row.state for target in targets for row in storage.list_studies(target)])


class StorageContract(StudyContract, DecisionContract, TrialContract):
    """Records come back as they were stored, and every method is one transaction.

    Whatever raises has written nothing. A target has at most one pin, also if several are set at once. Of explanations,
    the last one of a plan on a machine is kept.
    """

    @pytest.fixture
    def storage(self) -> Storage:
        """Override it: return an open storage that holds nothing."""
        raise NotImplementedError("define a fixture `storage` that returns an open storage that holds nothing")

    @pytest.fixture
    def study(self, storage: Storage) -> Study:
        """Return a study of the storage, without trials."""
        return create_study(storage)

    def test_rulings_come_back_as_they_were_newest_first(self, storage: Storage) -> None:
        rulings = [
            make_approval(),
            make_approval(TUNED, Standing.REJECTED, at=3e9, by="h\u00f6he", reason="\x00"),
            make_approval(EAGER, target="app:factory", at=2e9),
            make_approval(EAGER, mode="training", at=1.5e9, reason=""),
            make_approval(EAGER, hardware="another machine", at=1.25e9),
        ]
        for ruling in rulings:
            storage.store_approval(ruling)
        assert storage.approvals() == sorted(rulings, key=lambda ruling: -ruling.at)
        assert storage.approvals(target="app:factory") == [rulings[2]]
        assert storage.approvals(mode="training") == [rulings[3]]
        assert storage.approvals(hardware="another machine") == [rulings[4]]
        assert storage.approvals("zoo:tutorial.fusion_demo", "inference", HERE.hardware) == [rulings[1], rulings[0]]
        assert storage.approvals("app:none") == []

    def test_a_ruling_without_a_time_gets_the_store_s(self, storage: Storage) -> None:
        before = time.time()
        storage.store_approval(make_approval(at=0.0))
        (ruling,) = storage.approvals()
        assert before - 60 <= ruling.at <= time.time() + 60  # a server has a clock of its own

    def test_a_ruling_replaces_the_one_on_the_same_plan(self, storage: Storage) -> None:
        storage.store_approval(make_approval())
        storage.store_approval(make_approval(TUNED))
        rejected = make_approval(standing=Standing.REJECTED, by="ann", at=2e9)
        storage.store_approval(rejected)
        assert storage.approvals() == [rejected, make_approval(TUNED)]

    def test_a_new_pin_makes_the_older_an_approval(self, storage: Storage) -> None:
        elsewhere = make_approval(INDUCTOR, Standing.PINNED, hardware="another machine")
        storage.store_approval(elsewhere)
        storage.store_approval(make_approval(INDUCTOR, Standing.PINNED))
        storage.store_approval(make_approval(EAGER, Standing.REJECTED))
        storage.store_approval(make_approval(TUNED, Standing.PINNED, at=2e9))
        assert standings(storage.approvals(hardware=HERE.hardware)) == {
            INDUCTOR: "approved",
            EAGER: "rejected",
            TUNED: "pinned",
        }
        assert storage.approvals(hardware="another machine") == [elsewhere]

    def test_a_ruling_is_withdrawn_once(self, storage: Storage) -> None:
        ruling = make_approval()
        storage.store_approval(ruling)
        for other in (("app:none", "inference", HERE.hardware), (ruling.target, "training", HERE.hardware)):
            assert not storage.withdraw_approval(*other, INDUCTOR.id)
        assert not storage.withdraw_approval(ruling.target, ruling.mode, ruling.hardware, TUNED.id)
        assert storage.approvals() == [ruling]
        assert storage.withdraw_approval(ruling.target, ruling.mode, ruling.hardware, INDUCTOR.id)
        assert not storage.withdraw_approval(ruling.target, ruling.mode, ruling.hardware, INDUCTOR.id)
        assert storage.approvals() == []

    def test_of_pins_that_come_at_once_one_stays(self, storage: Storage) -> None:
        plans = [Plan(threads=count) for count in range(1, 9)]
        with ThreadPoolExecutor(len(plans)) as pool:
            list(pool.map(lambda plan: storage.store_approval(make_approval(plan, Standing.PINNED)), plans))
        assert sorted(standings(storage.approvals()).values()) == [*["approved"] * 7, "pinned"]

    def test_an_explanation_comes_back_as_it_was(self, storage: Storage) -> None:
        told = make_explanation(TUNED, notes=("\x00 and \u00e9",))
        kept = storage.keep_explanation(told)
        assert storage.get_explanation(kept) == told
        assert storage.explanations() == [
            ReportSummary(kept, told.workload.target, "cpu", "inference", TUNED.id, str(TUNED), HERE.fingerprint, 1e9)
        ]

    def test_the_last_explanation_of_a_plan_on_a_machine_is_kept(self, storage: Storage) -> None:
        other = replace(HERE, torch="2.14.0")
        for told in (make_explanation(), make_explanation(TUNED, created_at=3e9), make_explanation(environment=other)):
            storage.keep_explanation(told)
        first, second = storage.keep_explanation(make_explanation()), storage.keep_explanation(make_explanation())
        assert first < second
        found = [(summary.plan, summary.fingerprint) for summary in storage.explanations()]
        assert found == [(str(TUNED), HERE.fingerprint), (None, HERE.fingerprint), (None, other.fingerprint)]
        assert storage.explanations()[1].id == second
        assert storage.explanations()[1].plan_id is None

    def test_explanations_are_listed_by_target_and_up_to_a_limit(self, storage: Storage) -> None:
        app = make_explanation(workload=WorkloadSpec("app:factory", mode="training"), created_at=0.5e9)
        kept = storage.keep_explanation(app)
        storage.keep_explanation(make_explanation())
        assert [summary.id for summary in storage.explanations("app:factory")] == [kept]
        assert [summary.mode for summary in storage.explanations(limit=1)] == ["inference"]
        assert storage.explanations("app:none") == []

    def test_a_missing_explanation_is_named_with_those_there_are(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="there is no explanation 7; the store holds none yet: torchwise expl"):
            storage.get_explanation(7)
        kept = storage.keep_explanation(make_explanation())
        with pytest.raises(StorageError, match=f"there is no explanation 4711; the newest are {kept}"):
            storage.get_explanation(4711)

    def test_reports_of_other_kinds_are_kept_beside_explanations(self, storage: Storage) -> None:
        told, timed = make_explanation(), Benchmark(HERE, 2e9)
        kept, other = storage.keep_report(told), storage.keep_report(timed)
        assert storage.get_report(ReportKind.EXPLANATION, kept) == told
        assert storage.get_report(ReportKind.BENCHMARK, other) == timed
        found = [[summary.id for summary in storage.reports(kind)] for kind in ReportKind]
        assert found == [[kept], [], [other]]
        with pytest.raises(StorageError, match=f"there is no benchmark {kept}; the newest are {other}"):
            storage.get_report(ReportKind.BENCHMARK, kept)
        storage.keep_report(replace(timed, created_at=3e9))
        assert [summary.created_at for summary in storage.reports(ReportKind.BENCHMARK)] == [3e9]


def standings(rulings: list[Approval]) -> dict[Plan, str]:
    """Return the standing of each plan."""
    return {ruling.plan: ruling.standing.value for ruling in rulings}
