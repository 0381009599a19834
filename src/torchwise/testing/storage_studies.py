"""The contract of a storage for studies and their trials: keys, lists, claims, results, and owners that died."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest

from torchwise.errors import StorageError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Duel, Failure, FailureKind, Interval, Study, StudyState, Trial, TrialState, WorkerStage
from torchwise.store import LeaseOwner, Storage, StudyKey
from torchwise.testing.records import (
    FASTER,
    HERE,
    INDUCTOR,
    TUNED,
    claim_trial,
    complete_trial,
    conclude_study,
    create_study,
    fail_trial,
    make_decision,
    make_study,
)

ME = LeaseOwner.current()
ELSEWHERE = LeaseOwner("another-host", 1, 1e9)
GONE = replace(ME, started=ME.started - 3600)  # this process's number, held by an earlier process


class TrialContract:
    """A plan has at most one trial in a study, and a claim belongs to one living owner.

    The first result of a plan stays. The claims of dead owners are released.
    """

    def test_a_claim_is_a_running_trial_with_the_next_number(self, storage: Storage, study: Study) -> None:
        before = time.time()
        first, second = claim_trial(storage, study.id), claim_trial(storage, study.id, TUNED)
        assert (first.number, first.plan, first.state) == (0, INDUCTOR, TrialState.RUNNING)
        assert first.reason == "it is worth a try"
        assert before <= first.started_at <= time.time()
        assert second.number == 1
        assert storage.get_study(study.id).trials == (first, second)

    def test_numbers_and_plans_are_a_study_s_own(self, storage: Storage, study: Study) -> None:
        claim_trial(storage, study.id)
        assert claim_trial(storage, create_study(storage, make_study("2d" * 8)).id).number == 0

    @pytest.mark.parametrize("end", [complete_trial, fail_trial], ids=["complete", "failed"])
    def test_a_finished_trial_comes_back_as_it_was(self, storage: Storage, study: Study, end: object) -> None:
        trial = end(claim_trial(storage, study.id, TUNED))  # type: ignore[operator]
        storage.finish_trial(study.id, trial)
        assert storage.get_study(study.id).trials == (trial,)

    def test_a_finished_trial_has_one_duel(self, storage: Storage, study: Study) -> None:
        other = complete_trial(claim_trial(storage, study.id, TUNED))
        trial = complete_trial(claim_trial(storage, study.id))
        duel, later = Duel(TUNED, FASTER, seconds=3.0), Duel(TUNED, seconds=9.0)
        storage.keep_duel(study.id, trial.plan, duel)
        assert storage.get_study(study.id).trials[1].state is TrialState.RUNNING, "a claim is no finished trial"
        for each in (other, trial):
            storage.finish_trial(study.id, each)
        for held in (duel, later):
            assert storage.keep_duel(study.id, trial.plan, held) == duel, "the one that counts"
            assert storage.get_study(study.id).trials == (other, replace(trial, duel=duel))

    def test_a_finished_trial_has_what_further_processes_found(self, storage: Storage, study: Study) -> None:
        trial = complete_trial(claim_trial(storage, study.id))
        assert storage.keep_repeat(study.id, trial.plan, FASTER) is None, "a claim is no finished trial"
        storage.finish_trial(study.id, trial)
        for many in (1, 2):
            kept = storage.keep_repeat(study.id, trial.plan, FASTER)
            assert kept is not None
            assert kept.repeats == (FASTER,) * many
            assert storage.get_study(study.id).trials == (kept,)
        failure = Failure(FailureKind.DIED, WorkerStage.MEASURE, "SIGSEGV")
        storage.keep_repeat(study.id, trial.plan, failure)
        assert storage.get_study(study.id).trials[0].failure == failure
        assert storage.get_study(study.id).trials[0].state is TrialState.FAIL

    def test_the_first_warm_start_of_a_finished_trial_counts(self, storage: Storage, study: Study) -> None:
        trial = complete_trial(claim_trial(storage, study.id))
        assert trial.costs is not None
        storage.finish_trial(study.id, replace(trial, costs=replace(trial.costs, warm_s=None)))
        for warm_s, counts in ((None, None), (0.5, 0.5), (9.0, 0.5)):
            kept = storage.keep_repeat(study.id, trial.plan, FASTER, warm_s)
            assert kept is not None
            assert kept.costs == replace(trial.costs, warm_s=counts)
            assert storage.get_study(study.id).trials == (kept,)

    def test_infinity_comes_back(self, storage: Storage, study: Study) -> None:
        measurement = replace(FASTER, candidate_s=(float("inf"), 1e-300, 0.1))
        trial = replace(complete_trial(claim_trial(storage, study.id)), measurement=measurement)
        storage.finish_trial(study.id, trial)
        assert storage.get_study(study.id).trials == (trial,)

    def test_a_plan_in_hand_or_finished_is_not_claimed(self, storage: Storage, study: Study) -> None:
        trial = claim_trial(storage, study.id)
        assert storage.claim_trial(study.id, INDUCTOR, "", ME) is None
        assert storage.claim_trial(study.id, INDUCTOR, "", ELSEWHERE) is None
        storage.finish_trial(study.id, fail_trial(trial))
        assert storage.claim_trial(study.id, INDUCTOR, "", ME) is None
        storage.finish_trial(study.id, fail_trial(claim_trial(storage, study.id, TUNED, GONE)))
        assert storage.claim_trial(study.id, TUNED, "", ME) is None

    @pytest.mark.parametrize("ended", [fail_trial, complete_trial])
    def test_what_is_finished_is_claimed_again_where_that_is_asked_for(
        self, storage: Storage, study: Study, ended: Callable[[Trial], Trial]
    ) -> None:
        seen = ended(claim_trial(storage, study.id))
        storage.finish_trial(study.id, seen)
        trial = storage.claim_trial(study.id, INDUCTOR, "once more", ME, again=seen)
        assert trial is not None
        assert (trial.number, trial.reason, trial.state) == (0, "once more", TrialState.RUNNING)
        assert storage.claim_trial(study.id, INDUCTOR, "", ELSEWHERE, again=seen) is None
        storage.finish_trial(study.id, replace(complete_trial(trial), started_at=trial.started_at))
        assert storage.claim_trial(study.id, INDUCTOR, "", ME, again=seen) is None, "another process had it again"

    def test_a_dead_owner_s_trial_is_taken_over_under_its_number(self, storage: Storage, study: Study) -> None:
        claim_trial(storage, study.id, owner=GONE)
        claim_trial(storage, study.id, TUNED)
        trial = storage.claim_trial(study.id, INDUCTOR, "once more", ME)
        assert trial is not None
        assert (trial.number, trial.reason) == (0, "once more")
        assert storage.release_dead_claims(study.id) == []
        assert len(storage.get_study(study.id).trials) == 2

    def test_only_a_finished_trial_finishes(self, storage: Storage, study: Study) -> None:
        with pytest.raises(StorageError, match="trial 0 is running, but must be complete, pruned or fail to finish"):
            storage.finish_trial(study.id, claim_trial(storage, study.id))

    def test_the_first_result_of_a_plan_stays(self, storage: Storage, study: Study) -> None:
        trial = claim_trial(storage, study.id)
        storage.finish_trial(study.id, complete_trial(trial))
        storage.finish_trial(study.id, fail_trial(trial))
        assert storage.get_study(study.id).trials == (complete_trial(trial),)

    def test_a_result_whose_claim_was_taken_away_is_kept(self, storage: Storage, study: Study) -> None:
        trial = claim_trial(storage, study.id)
        storage.release_trial(study.id, trial.number)
        other = claim_trial(storage, study.id, TUNED)
        storage.finish_trial(study.id, complete_trial(trial))
        assert storage.get_study(study.id).trials == (other, replace(complete_trial(trial), number=1))

    def test_a_released_trial_is_as_if_never_claimed(self, storage: Storage, study: Study) -> None:
        storage.release_trial(study.id, claim_trial(storage, study.id).number)
        assert storage.get_study(study.id).trials == ()
        assert claim_trial(storage, study.id).number == 0
        storage.release_trial(study.id, 99)

    def test_a_finished_trial_is_not_released(self, storage: Storage, study: Study) -> None:
        trial = complete_trial(claim_trial(storage, study.id))
        storage.finish_trial(study.id, trial)
        storage.release_trial(study.id, trial.number)
        assert storage.get_study(study.id).trials == (trial,)

    # Owners

    def test_the_dead_are_reclaimed_and_the_living_are_not(self, storage: Storage, study: Study) -> None:
        done = complete_trial(claim_trial(storage, study.id, Plan(threads=1), GONE))
        storage.finish_trial(study.id, done)
        claim_trial(storage, study.id, INDUCTOR, GONE)
        mine, theirs = claim_trial(storage, study.id, TUNED), claim_trial(storage, study.id, Plan(threads=2), ELSEWHERE)
        claim_trial(storage, study.id, Plan(threads=3), replace(ME, pid=find_free_pid()))
        other = create_study(storage, make_study("2d" * 8))
        claim_trial(storage, other.id, INDUCTOR, GONE)
        assert storage.release_dead_claims(study.id) == [INDUCTOR, Plan(threads=3)]
        assert storage.get_study(study.id).trials == (done, mine, theirs)
        assert len(storage.get_study(other.id).trials) == 1
        assert storage.release_dead_claims(study.id) == []


def find_free_pid() -> int:
    """Return a number that no process has."""
    return next(pid for pid in range(2**22 - 1, 1, -1) if not psutil.pid_exists(pid))


class StudyContract:
    """One study for each key, kept until it is deleted, and then with all that belongs to it.

    A study that does not exist is refused by its number, whatever is asked of it. The list is newest first.
    """

    def test_a_study_comes_back_as_it_was(self, storage: Storage) -> None:
        before = time.time()
        study = create_study(storage)
        assert study == make_study(id=study.id, created_at=study.created_at)
        assert before <= study.created_at <= time.time()
        assert storage.get_study(study.id) == study
        assert storage.find_study(StudyKey.from_study(study)) == study

    def test_a_given_time_is_kept(self, storage: Storage) -> None:
        assert create_study(storage, make_study(created_at=1e9)).created_at == 1e9

    def test_the_same_key_is_the_same_study(self, storage: Storage, study: Study) -> None:
        again = create_study(storage, make_study(target="another:name", effort="thorough"))
        assert again == study
        assert len(storage.list_studies()) == 1

    @pytest.mark.parametrize(
        "other",
        [
            make_study("2d" * 8),
            make_study(environment=replace(HERE, torch="2.14.0")),
            make_study(workload=WorkloadSpec("zoo:tutorial.fusion_demo", device="cuda")),
            make_study(workload=WorkloadSpec("zoo:tutorial.fusion_demo", mode="training")),
            make_study(workload=WorkloadSpec("zoo:tutorial.fusion_demo", objective="memory")),
            make_study(allow="exact"),
        ],
        ids=["identity", "fingerprint", "device", "mode", "objective", "allow"],
    )
    def test_each_part_of_the_key_tells_studies_apart(self, storage: Storage, study: Study, other: Study) -> None:
        assert storage.find_study(StudyKey.from_study(other)) is None
        assert create_study(storage, other).id != study.id
        assert StudyKey.from_study(other) != StudyKey.from_study(study)

    def test_trials_and_decision_of_a_new_study_are_not_taken(self, storage: Storage) -> None:
        assert create_study(storage, make_study(id=77, decision=make_decision())).decision is None
        assert 77 not in [summary.id for summary in storage.list_studies()]

    def test_a_missing_study_is_named_with_those_there_are(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="there is no study 7; the store holds none yet"):
            storage.get_study(7)
        study = create_study(storage)
        with pytest.raises(StorageError, match=f"there is no study 4711; the newest are {study.id}"):
            storage.get_study(4711)
        for number in (-1, 2**31, 2**63, 10**30):
            with pytest.raises(StorageError, match=f"there is no study {number}; the newest are {study.id}"):
                storage.get_study(number)

    def test_nothing_is_written_for_a_missing_study(self, storage: Storage, study: Study) -> None:
        for act in (
            lambda: storage.claim_trial(4711, INDUCTOR, "", ME),
            lambda: storage.finish_trial(4711, complete_trial(claim_trial(storage, study.id))),
            lambda: storage.keep_duel(4711, INDUCTOR, Duel(TUNED)),
            lambda: storage.keep_repeat(4711, INDUCTOR, FASTER),
            lambda: storage.release_dead_claims(4711),
            lambda: storage.delete_study(4711),
            lambda: conclude_study(storage, 4711),
        ):
            with pytest.raises(StorageError, match="there is no study 4711"):
                act()

    def test_the_list_is_newest_first_and_by_target(self, storage: Storage) -> None:
        ids = [create_study(storage, make_study(f"{at}", f"app:{at}", created_at=at)).id for at in (2e9, 3e9, 1e9)]
        assert [summary.id for summary in storage.list_studies()] == [ids[1], ids[0], ids[2]]
        assert [summary.id for summary in storage.list_studies("app:1000000000.0")] == [ids[2]]
        assert storage.list_studies("app:none") == []
        assert [summary.id for summary in storage.list_studies(limit=2)] == [ids[1], ids[0]]
        assert [summary.id for summary in storage.list_studies("app:1000000000.0", limit=2)] == [ids[2]]

    def test_the_list_tells_what_a_study_holds(self, storage: Storage, study: Study) -> None:
        storage.finish_trial(study.id, complete_trial(claim_trial(storage, study.id)))
        claim_trial(storage, study.id, TUNED)
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
        other = create_study(storage, make_study("2d" * 8))
        claim_trial(storage, other.id)
        claim_trial(storage, study.id)
        conclude_study(storage, other.id)
        storage.delete_study(other.id)
        assert [summary.id for summary in storage.list_studies()] == [study.id]
        assert storage.decisions() == []
        assert len(storage.get_study(study.id).trials) == 1
        assert create_study(storage, make_study("2d" * 8)).id > other.id

    def test_an_imported_study_comes_whole(self, storage: Storage, study: Study) -> None:
        done = complete_trial(claim_trial(storage, study.id))
        storage.finish_trial(study.id, done)
        running = claim_trial(storage, study.id, TUNED)
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
        assert storage.import_study(make_study()).state is StudyState.INTERRUPTED

    def test_an_import_with_a_plan_twice_adds_nothing(self, storage: Storage, study: Study) -> None:
        done = complete_trial(claim_trial(storage, study.id))
        with pytest.raises(StorageError, match="two trials of one plan or number"):
            storage.import_study(make_study("2d" * 8, trials=(done, replace(done, number=1))))
        assert len(storage.list_studies()) == 1
