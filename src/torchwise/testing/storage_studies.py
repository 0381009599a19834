"""The contract of a storage for studies: keys, lists, and studies from elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from torchwise.errors import StorageError
from torchwise.plan import EAGER
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Duel, Interval, Study, StudyState
from torchwise.store import Storage, StudyKey
from torchwise.testing.records import (
    FASTER,
    HERE,
    INDUCTOR,
    TUNED,
    claim_trial,
    complete_trial,
    conclude_study,
    create_study,
    make_decision,
    make_study,
)
from torchwise.testing.storage_trials import ME


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
