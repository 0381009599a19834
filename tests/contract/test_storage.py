"""The contract of every storage: a new database inherits `StorageContract` and gives it a URL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text

from postgres_server import PostgresServer
from store_samples import (
    FASTER,
    HERE,
    INDUCTOR,
    TUNED,
    a_decision,
    a_ruling,
    a_study,
    an_explanation,
    claim,
    complete_trial,
    create,
    fail_trial,
)
from torchwise.errors import StorageError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Approval,
    Duel,
    Failure,
    FailureKind,
    Interval,
    Standing,
    Study,
    StudyState,
    Trial,
    TrialState,
)
from torchwise.store import ExplanationSummary, LeaseOwner, Storage, StudyKey, open_storage

ME = LeaseOwner.current()
ELSEWHERE = LeaseOwner("another-host", 1, 1e9)
GONE = replace(ME, started=ME.started - 3600)  # this process's number, held by an earlier process


def conclude_study(storage: Storage, study_id: int, plan: Plan = INDUCTOR, **changes: object) -> None:
    decision = a_decision(plan, **changes)
    storage.store_outcome(
        study_id, state=StudyState.DECIDED, decision=decision, excluded=["bf16: not allowed"], seconds=2.5
    )


def spoil(storage: Storage, statement: str) -> None:
    storage._database.write(lambda connection: connection.execute(text(statement)))


def pass_by(storage: Storage, seconds: float) -> None:
    """Have time pass for all owners. The store itself decides whose clock counts."""
    spoil(storage, f"UPDATE torchwise_trials SET heartbeat = heartbeat - {seconds}")


class StorageContract:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        raise NotImplementedError

    @pytest.fixture
    def storage(self, url: str) -> Iterator[Storage]:
        with open_storage(url) as storage:
            yield storage

    @pytest.fixture
    def study(self, storage: Storage) -> Study:
        return create(storage)

    # Studies

    def test_a_study_comes_back_as_it_was(self, storage: Storage) -> None:
        before = time.time()
        study = create(storage)
        assert study == a_study(id=study.id, created_at=study.created_at)
        assert before <= study.created_at <= time.time()
        assert storage.get_study(study.id) == study
        assert storage.find_study(StudyKey.from_study(study)) == study

    def test_a_given_time_is_kept(self, storage: Storage) -> None:
        assert create(storage, a_study(created_at=1e9)).created_at == 1e9

    def test_the_same_key_is_the_same_study(self, storage: Storage, study: Study) -> None:
        again = create(storage, a_study(target="another:name", effort="thorough"))
        assert again == study
        assert len(storage.list_studies()) == 1

    @pytest.mark.parametrize(
        "other",
        [
            a_study("2d" * 8),
            a_study(environment=replace(HERE, torch="2.14.0")),
            a_study(workload=WorkloadSpec("zoo:tutorial.fusion_demo", device="cuda")),
            a_study(workload=WorkloadSpec("zoo:tutorial.fusion_demo", mode="training")),
            a_study(workload=WorkloadSpec("zoo:tutorial.fusion_demo", objective="memory")),
            a_study(allow="exact"),
        ],
        ids=["identity", "fingerprint", "device", "mode", "objective", "allow"],
    )
    def test_each_part_of_the_key_tells_studies_apart(self, storage: Storage, study: Study, other: Study) -> None:
        assert storage.find_study(StudyKey.from_study(other)) is None
        assert create(storage, other).id != study.id
        assert StudyKey.from_study(other) != StudyKey.from_study(study)

    def test_trials_and_decision_of_a_new_study_are_not_taken(self, storage: Storage) -> None:
        assert create(storage, a_study(id=77, decision=a_decision())).decision is None
        assert 77 not in [summary.id for summary in storage.list_studies()]

    def test_a_missing_study_is_named_with_those_there_are(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="there is no study 7; the store holds none yet"):
            storage.get_study(7)
        study = create(storage)
        with pytest.raises(StorageError, match=f"there is no study 4711; the newest are {study.id}"):
            storage.get_study(4711)
        for number in (-1, 2**31, 2**63, 10**30):
            with pytest.raises(StorageError, match=f"there is no study {number}; the newest are {study.id}"):
                storage.get_study(number)

    def test_nothing_is_written_for_a_missing_study(self, storage: Storage, study: Study) -> None:
        for act in (
            lambda: storage.claim_trial(4711, INDUCTOR, "", ME),
            lambda: storage.finish_trial(4711, complete_trial(claim(storage, study.id))),
            lambda: storage.keep_duel(4711, INDUCTOR, Duel(TUNED)),
            lambda: storage.keep_repeat(4711, INDUCTOR, FASTER),
            lambda: storage.release_dead_claims(4711),
            lambda: storage.delete_study(4711),
            lambda: conclude_study(storage, 4711),
        ):
            with pytest.raises(StorageError, match="there is no study 4711"):
                act()

    def test_the_list_is_newest_first_and_by_target(self, storage: Storage) -> None:
        ids = [create(storage, a_study(f"{at}", f"app:{at}", created_at=at)).id for at in (2e9, 3e9, 1e9)]
        assert [summary.id for summary in storage.list_studies()] == [ids[1], ids[0], ids[2]]
        assert [summary.id for summary in storage.list_studies("app:1000000000.0")] == [ids[2]]
        assert storage.list_studies("app:none") == []
        assert [summary.id for summary in storage.list_studies(limit=2)] == [ids[1], ids[0]]
        assert [summary.id for summary in storage.list_studies("app:1000000000.0", limit=2)] == [ids[2]]

    def test_the_list_tells_what_a_study_holds(self, storage: Storage, study: Study) -> None:
        storage.finish_trial(study.id, complete_trial(claim(storage, study.id)))
        claim(storage, study.id, TUNED)
        (summary,) = storage.list_studies()
        assert (summary.state, summary.trials, summary.plan, summary.speedup) == (StudyState.RUNNING, 2, None, None)
        conclude_study(storage, study.id)
        (summary,) = storage.list_studies()
        assert (summary.target, summary.device, summary.mode) == ("zoo:tutorial.fusion_demo", "cpu", "inference")
        assert (summary.state, summary.plan) == (StudyState.DECIDED, "inductor")
        assert summary.speedup == Interval(1.75, 2.0, 2.25)
        conclude_study(storage, study.id, EAGER, speedup=None)
        (summary,) = storage.list_studies()
        assert (summary.plan, summary.speedup) == ("eager", None)

    def test_a_deleted_study_takes_its_trials_along_and_its_id_is_not_used_again(
        self, storage: Storage, study: Study
    ) -> None:
        other = create(storage, a_study("2d" * 8))
        claim(storage, other.id)
        claim(storage, study.id)
        conclude_study(storage, other.id)
        storage.delete_study(other.id)
        assert [summary.id for summary in storage.list_studies()] == [study.id]
        assert storage.decisions() == []
        assert len(storage.get_study(study.id).trials) == 1
        assert create(storage, a_study("2d" * 8)).id > other.id

    # Trials

    def test_a_claim_is_a_running_trial_with_the_next_number(self, storage: Storage, study: Study) -> None:
        before = time.time()
        first, second = claim(storage, study.id), claim(storage, study.id, TUNED)
        assert (first.number, first.plan, first.state) == (0, INDUCTOR, TrialState.RUNNING)
        assert first.reason == "it is worth a try"
        assert before <= first.started_at <= time.time()
        assert second.number == 1
        assert storage.get_study(study.id).trials == (first, second)

    def test_numbers_and_plans_are_a_study_s_own(self, storage: Storage, study: Study) -> None:
        claim(storage, study.id)
        assert claim(storage, create(storage, a_study("2d" * 8)).id).number == 0

    @pytest.mark.parametrize("end", [complete_trial, fail_trial], ids=["complete", "failed"])
    def test_a_finished_trial_comes_back_as_it_was(self, storage: Storage, study: Study, end: object) -> None:
        trial = end(claim(storage, study.id, TUNED))  # type: ignore[operator]
        storage.finish_trial(study.id, trial)
        assert storage.get_study(study.id).trials == (trial,)

    def test_a_finished_trial_has_one_duel(self, storage: Storage, study: Study) -> None:
        other = complete_trial(claim(storage, study.id, TUNED))
        trial = complete_trial(claim(storage, study.id))
        duel, later = Duel(TUNED, FASTER, seconds=3.0), Duel(TUNED, seconds=9.0)
        storage.keep_duel(study.id, trial.plan, duel)
        assert storage.get_study(study.id).trials[1].state is TrialState.RUNNING, "a claim is no finished trial"
        for each in (other, trial):
            storage.finish_trial(study.id, each)
        for held in (duel, later):
            assert storage.keep_duel(study.id, trial.plan, held) == duel, "the one that counts"
            assert storage.get_study(study.id).trials == (other, replace(trial, duel=duel))

    def test_a_finished_trial_has_what_further_processes_found(self, storage: Storage, study: Study) -> None:
        trial = complete_trial(claim(storage, study.id))
        assert storage.keep_repeat(study.id, trial.plan, FASTER) is None, "a claim is no finished trial"
        storage.finish_trial(study.id, trial)
        for many in (1, 2):
            kept = storage.keep_repeat(study.id, trial.plan, FASTER)
            assert kept is not None
            assert kept.repeats == (FASTER,) * many
            assert storage.get_study(study.id).trials == (kept,)
        failure = Failure(FailureKind.DIED, "measure", "SIGSEGV")
        storage.keep_repeat(study.id, trial.plan, failure)
        assert storage.get_study(study.id).trials[0].failure == failure
        assert storage.get_study(study.id).trials[0].state is TrialState.FAIL

    def test_infinity_comes_back(self, storage: Storage, study: Study) -> None:
        measurement = replace(FASTER, candidate_s=(float("inf"), 1e-300, 0.1))
        trial = replace(complete_trial(claim(storage, study.id)), measurement=measurement)
        storage.finish_trial(study.id, trial)
        assert storage.get_study(study.id).trials == (trial,)

    def test_a_plan_in_hand_or_finished_is_not_claimed(self, storage: Storage, study: Study) -> None:
        trial = claim(storage, study.id)
        assert storage.claim_trial(study.id, INDUCTOR, "", ME) is None
        assert storage.claim_trial(study.id, INDUCTOR, "", ELSEWHERE) is None
        storage.finish_trial(study.id, fail_trial(trial))
        assert storage.claim_trial(study.id, INDUCTOR, "", ME) is None
        storage.finish_trial(study.id, fail_trial(claim(storage, study.id, TUNED, GONE)))
        assert storage.claim_trial(study.id, TUNED, "", ME) is None

    @pytest.mark.parametrize("ended", [fail_trial, complete_trial])
    def test_what_is_finished_is_claimed_again_where_that_is_asked_for(
        self, storage: Storage, study: Study, ended: Callable[[Trial], Trial]
    ) -> None:
        seen = ended(claim(storage, study.id))
        storage.finish_trial(study.id, seen)
        trial = storage.claim_trial(study.id, INDUCTOR, "once more", ME, again=seen)
        assert trial is not None
        assert (trial.number, trial.reason, trial.state) == (0, "once more", TrialState.RUNNING)
        assert storage.claim_trial(study.id, INDUCTOR, "", ELSEWHERE, again=seen) is None
        storage.finish_trial(study.id, replace(complete_trial(trial), started_at=trial.started_at))
        assert storage.claim_trial(study.id, INDUCTOR, "", ME, again=seen) is None, "another process had it again"

    def test_a_dead_owner_s_trial_is_taken_over_under_its_number(self, storage: Storage, study: Study) -> None:
        claim(storage, study.id, owner=GONE)
        claim(storage, study.id, TUNED)
        trial = storage.claim_trial(study.id, INDUCTOR, "once more", ME)
        assert trial is not None
        assert (trial.number, trial.reason) == (0, "once more")
        assert storage.release_dead_claims(study.id) == []
        assert len(storage.get_study(study.id).trials) == 2

    def test_only_a_finished_trial_finishes(self, storage: Storage, study: Study) -> None:
        with pytest.raises(StorageError, match="trial 0 is running, but must be complete, pruned or fail to finish"):
            storage.finish_trial(study.id, claim(storage, study.id))

    def test_the_first_result_of_a_plan_stays(self, storage: Storage, study: Study) -> None:
        trial = claim(storage, study.id)
        storage.finish_trial(study.id, complete_trial(trial))
        storage.finish_trial(study.id, fail_trial(trial))
        assert storage.get_study(study.id).trials == (complete_trial(trial),)

    def test_a_result_whose_claim_was_taken_away_is_kept(self, storage: Storage, study: Study) -> None:
        trial = claim(storage, study.id)
        storage.release_trial(study.id, trial.number)
        other = claim(storage, study.id, TUNED)
        storage.finish_trial(study.id, complete_trial(trial))
        assert storage.get_study(study.id).trials == (other, replace(complete_trial(trial), number=1))

    def test_a_released_trial_is_as_if_never_claimed(self, storage: Storage, study: Study) -> None:
        storage.release_trial(study.id, claim(storage, study.id).number)
        assert storage.get_study(study.id).trials == ()
        assert claim(storage, study.id).number == 0
        storage.release_trial(study.id, 99)

    def test_a_finished_trial_is_not_released(self, storage: Storage, study: Study) -> None:
        trial = complete_trial(claim(storage, study.id))
        storage.finish_trial(study.id, trial)
        storage.release_trial(study.id, trial.number)
        assert storage.get_study(study.id).trials == (trial,)

    # Owners

    def test_the_dead_are_reclaimed_and_the_living_are_not(self, storage: Storage, study: Study) -> None:
        done = complete_trial(claim(storage, study.id, Plan(threads=1), GONE))
        storage.finish_trial(study.id, done)
        claim(storage, study.id, INDUCTOR, GONE)
        mine, theirs = claim(storage, study.id, TUNED), claim(storage, study.id, Plan(threads=2), ELSEWHERE)
        claim(storage, study.id, Plan(threads=3), replace(ME, pid=find_free_pid()))
        other = create(storage, a_study("2d" * 8))
        claim(storage, other.id, INDUCTOR, GONE)
        assert storage.release_dead_claims(study.id) == [INDUCTOR, Plan(threads=3)]
        assert storage.get_study(study.id).trials == (done, mine, theirs)
        assert len(storage.get_study(other.id).trials) == 1
        assert storage.release_dead_claims(study.id) == []

    def test_another_host_is_dead_after_ten_minutes_without_a_heartbeat(self, storage: Storage, study: Study) -> None:
        later = replace(ELSEWHERE, pid=2, started=2e9)
        claim(storage, study.id, INDUCTOR, ELSEWHERE)
        claim(storage, study.id, TUNED, replace(later, started=1e9))
        pass_by(storage, 590)
        assert storage.release_dead_claims(study.id) == []
        storage.heartbeat(ELSEWHERE)
        storage.heartbeat(later)  # a later process of the same number
        pass_by(storage, 40)
        assert storage.release_dead_claims(study.id) == [TUNED]
        pass_by(storage, 570)
        assert storage.release_dead_claims(study.id) == [INDUCTOR]

    # Ends

    def test_a_conclusion_adds_time_and_replaces_the_rest(self, storage: Storage, study: Study) -> None:
        conclude_study(storage, study.id)
        found = storage.get_study(study.id)
        assert (found.state, found.excluded, found.seconds) == (StudyState.DECIDED, ("bf16: not allowed",), 2.5)
        assert found.decision == a_decision()
        storage.store_outcome(study.id, state=StudyState.INTERRUPTED, decision=None, excluded=[], seconds=1.5)
        found = storage.get_study(study.id)
        assert (found.state, found.excluded, found.seconds) == (StudyState.INTERRUPTED, (), 4.0)
        assert found.decision == a_decision()
        conclude_study(storage, study.id, TUNED)
        assert storage.get_study(study.id).decision == a_decision(TUNED)

    def test_decisions_are_newest_first_and_by_target_and_identity(self, storage: Storage, study: Study) -> None:
        other = create(storage, a_study("2d" * 8))
        app = {"workload": WorkloadSpec("app:factory"), "identity": "2d" * 8}
        conclude_study(storage, other.id, **app)
        conclude_study(storage, study.id)
        assert storage.decisions() == [a_decision(), a_decision(**app)]
        conclude_study(storage, other.id, TUNED, **app)
        assert storage.decisions() == [a_decision(TUNED, **app), a_decision()]
        assert storage.decisions(target="app:factory") == [a_decision(TUNED, **app)]
        assert storage.decisions(identity="1d" * 8) == [a_decision()]
        assert storage.decisions(target="app:factory", identity="1d" * 8) == []

    def test_each_target_of_a_study_keeps_its_decision(self, storage: Storage, study: Study) -> None:
        app = WorkloadSpec("app:factory", calls=7)
        conclude_study(storage, study.id)
        asked = (app, "quick")
        mine = a_decision(TUNED, workload=app)
        storage.store_outcome(study.id, state=StudyState.DECIDED, decision=mine, excluded=[], seconds=0, asked=asked)
        assert storage.decisions(target="zoo:tutorial.fusion_demo") == [a_decision()]
        assert storage.decisions() == [mine, a_decision()]
        last, first = storage.get_study(study.id), storage.get_study(study.id, "zoo:tutorial.fusion_demo")
        assert (last.workload, last.decision) == (app, mine)
        assert (first.workload, first.decision) == (a_decision().workload, a_decision())
        assert storage.get_study(study.id, "app:none") == replace(last, decision=None)
        assert storage.find_study(StudyKey.from_study(study), "zoo:tutorial.fusion_demo") == first
        listed = [storage.list_studies(target) for target in (None, "app:factory", "zoo:tutorial.fusion_demo")]
        assert [[(row.id, row.target, row.plan) for row in rows] for rows in listed] == [
            [(study.id, "app:factory", str(TUNED))],
            [(study.id, "app:factory", str(TUNED))],
            [(study.id, "zoo:tutorial.fusion_demo", str(INDUCTOR))],
        ]
        conclude_study(storage, study.id, EAGER)
        assert storage.decisions() == [a_decision(EAGER), mine]
        assert storage.get_study(study.id).decision == a_decision(EAGER)
        storage.delete_study(study.id)
        assert storage.decisions() == []

    def test_each_target_of_a_study_keeps_how_its_search_ended(self, storage: Storage, study: Study) -> None:
        mine, app = a_decision(), WorkloadSpec("app:factory")
        other = a_decision(TUNED, workload=app)
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

    # From elsewhere

    def test_an_imported_study_comes_whole(self, storage: Storage, study: Study) -> None:
        done = complete_trial(claim(storage, study.id))
        storage.finish_trial(study.id, done)
        running = claim(storage, study.id, TUNED)
        conclude_study(storage, study.id)
        whole = storage.get_study(study.id)
        assert whole.trials == (done, running)
        with pytest.raises(StorageError, match=f"study {study.id} has the same model, machine and settings"):
            storage.import_study(whole)
        storage.delete_study(study.id)
        added = storage.import_study(whole)
        assert added == replace(whole, id=added.id, trials=(done,))
        assert added.id != study.id

    def test_a_study_that_was_not_decided_is_imported_as_interrupted(self, storage: Storage) -> None:
        assert storage.import_study(a_study()).state is StudyState.INTERRUPTED

    def test_an_import_with_a_plan_twice_adds_nothing(self, storage: Storage, study: Study) -> None:
        done = complete_trial(claim(storage, study.id))
        with pytest.raises(StorageError, match="two trials of one plan or number"):
            storage.import_study(a_study("2d" * 8, trials=(done, replace(done, number=1))))
        assert len(storage.list_studies()) == 1

    # Rulings

    def test_rulings_come_back_as_they_were_newest_first(self, storage: Storage) -> None:
        rulings = [
            a_ruling(),
            a_ruling(TUNED, Standing.REJECTED, at=3e9, by="h\u00f6he", reason="\x00"),
            a_ruling(EAGER, target="app:factory", at=2e9),
            a_ruling(EAGER, mode="training", at=1.5e9, reason=""),
            a_ruling(EAGER, hardware="another machine", at=1.25e9),
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
        storage.store_approval(a_ruling(at=0.0))
        (ruling,) = storage.approvals()
        assert before - 60 <= ruling.at <= time.time() + 60  # a server has a clock of its own

    def test_a_ruling_replaces_the_one_on_the_same_plan(self, storage: Storage) -> None:
        storage.store_approval(a_ruling())
        storage.store_approval(a_ruling(TUNED))
        rejected = a_ruling(standing=Standing.REJECTED, by="ann", at=2e9)
        storage.store_approval(rejected)
        assert storage.approvals() == [rejected, a_ruling(TUNED)]

    def test_a_new_pin_makes_the_older_an_approval(self, storage: Storage) -> None:
        elsewhere = a_ruling(INDUCTOR, Standing.PINNED, hardware="another machine")
        storage.store_approval(elsewhere)
        storage.store_approval(a_ruling(INDUCTOR, Standing.PINNED))
        storage.store_approval(a_ruling(EAGER, Standing.REJECTED))
        storage.store_approval(a_ruling(TUNED, Standing.PINNED, at=2e9))
        assert standings(storage.approvals(hardware=HERE.hardware)) == {
            INDUCTOR: "approved",
            EAGER: "rejected",
            TUNED: "pinned",
        }
        assert storage.approvals(hardware="another machine") == [elsewhere]

    def test_a_ruling_is_withdrawn_once(self, storage: Storage) -> None:
        ruling = a_ruling()
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
            list(pool.map(lambda plan: storage.store_approval(a_ruling(plan, Standing.PINNED)), plans))
        assert sorted(standings(storage.approvals()).values()) == [*["approved"] * 7, "pinned"]

    # Explanations

    def test_an_explanation_comes_back_as_it_was(self, storage: Storage) -> None:
        told = an_explanation(TUNED, notes=("\x00 and \u00e9",))
        kept = storage.keep_explanation(told)
        assert storage.get_explanation(kept) == told
        assert storage.explanations() == [
            ExplanationSummary(
                kept, told.workload.target, "cpu", "inference", TUNED.id, str(TUNED), HERE.fingerprint, 1e9
            )
        ]

    def test_the_last_explanation_of_a_plan_on_a_machine_is_kept(self, storage: Storage) -> None:
        other = replace(HERE, torch="2.14.0")
        for told in (an_explanation(), an_explanation(TUNED, created_at=3e9), an_explanation(environment=other)):
            storage.keep_explanation(told)
        first, second = storage.keep_explanation(an_explanation()), storage.keep_explanation(an_explanation())
        assert first < second
        found = [(summary.plan, summary.fingerprint) for summary in storage.explanations()]
        assert found == [(str(TUNED), HERE.fingerprint), (None, HERE.fingerprint), (None, other.fingerprint)]
        assert storage.explanations()[1].id == second
        assert storage.explanations()[1].plan_id is None

    def test_explanations_are_listed_by_target_and_up_to_a_limit(self, storage: Storage) -> None:
        app = an_explanation(workload=WorkloadSpec("app:factory", mode="training"), created_at=0.5e9)
        kept = storage.keep_explanation(app)
        storage.keep_explanation(an_explanation())
        assert [summary.id for summary in storage.explanations("app:factory")] == [kept]
        assert [summary.mode for summary in storage.explanations(limit=1)] == ["inference"]
        assert storage.explanations("app:none") == []

    def test_a_missing_explanation_is_named_with_those_there_are(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="there is no explanation 7; the store holds none yet: torchwise expl"):
            storage.get_explanation(7)
        kept = storage.keep_explanation(an_explanation())
        with pytest.raises(StorageError, match=f"there is no explanation 4711; the newest are {kept}"):
            storage.get_explanation(4711)

    # Rows that cannot be read

    def test_a_broken_ruling_or_explanation_is_named_with_its_way_out(self, storage: Storage) -> None:
        storage.store_approval(a_ruling())
        kept = storage.keep_explanation(an_explanation())
        for table in ("rulings", "explanations"):
            spoil(storage, f"UPDATE torchwise_{table} SET record = '{{}}'")
        with pytest.raises(
            StorageError, match=rf"the approval of plan {INDUCTOR.id} of zoo:.* cannot be .*withdraw it"
        ):
            storage.approvals()
        with pytest.raises(StorageError, match=rf"^explanation {kept} cannot be read: .*explain the target again"):
            storage.get_explanation(kept)
        assert len(storage.explanations()) == 1
        spoil(storage, "UPDATE torchwise_rulings SET format = 'torchwise.newer/9'")
        with pytest.raises(StorageError, match=r"has format 'torchwise.newer/9', but this version reads"):
            storage.approvals()

    def test_a_broken_row_is_named_and_spoils_no_list(self, storage: Storage, study: Study) -> None:
        storage.finish_trial(study.id, complete_trial(claim(storage, study.id)))
        conclude_study(storage, study.id)
        spoil(storage, "UPDATE torchwise_trials SET record = '{\"number\": 0'")
        with pytest.raises(StorageError, match=rf"trial 0 of study {study.id} cannot be read"):
            storage.get_study(study.id)
        spoil(storage, "UPDATE torchwise_decisions SET record = '{}'")
        with pytest.raises(StorageError, match=rf"the decision of study {study.id} cannot be read: .*plan"):
            storage.decisions()
        spoil(storage, "UPDATE torchwise_studies SET record = ''")
        with pytest.raises(StorageError, match=rf"^study {study.id} cannot be read"):
            storage.get_study(study.id)
        assert [summary.plan for summary in storage.list_studies()] == ["inductor"]
        storage.delete_study(study.id)
        assert storage.list_studies() == []

    @pytest.mark.parametrize("table", ["studies", "trials", "decisions"])
    def test_a_row_of_a_newer_format_is_named(self, storage: Storage, study: Study, table: str) -> None:
        claim(storage, study.id)
        conclude_study(storage, study.id)
        spoil(storage, f"UPDATE torchwise_{table} SET format = 'torchwise.newer/9'")
        with pytest.raises(StorageError, match=rf"study {study.id} has format 'torchwise.newer/9', but this version"):
            storage.get_study(study.id)
        assert len(storage.list_studies()) == 1

    def test_what_a_plan_may_not_be_is_refused_in_a_row(self, storage: Storage, study: Study) -> None:
        claim(storage, study.id)
        spoil(storage, """UPDATE torchwise_trials SET record = replace(record, '"native"', '"nonsense"')""")
        with pytest.raises(StorageError, match=rf"trial 0 of study {study.id} cannot be read: .*nonsense"):
            storage.get_study(study.id)


def standings(rulings: list[Approval]) -> dict[Plan, str]:
    return {ruling.plan: ruling.standing.value for ruling in rulings}


def find_free_pid() -> int:
    return next(pid for pid in range(2**22 - 1, 1, -1) if not psutil.pid_exists(pid))


class TestSqlite(StorageContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'torchwise.db'}"


class TestPostgres(StorageContract):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.store()
