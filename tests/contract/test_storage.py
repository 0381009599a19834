"""The storages keep the contract, and so do their ways out of rows that cannot be read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from postgres_server import PostgresServer
from torchwise.errors import StorageError
from torchwise.plan import Plan
from torchwise.records import Approval, Study, Trial, TrialState
from torchwise.records.explanation import Explanation
from torchwise.store import Storage, StudyKey, open_storage
from torchwise.testing.records import (
    INDUCTOR,
    TUNED,
    claim_trial,
    complete_trial,
    conclude_study,
    create_study,
    make_approval,
    make_explanation,
)
from torchwise.testing.storage import StorageContract
from torchwise.testing.storage_studies import ELSEWHERE


def spoil(storage: Storage, statement: str) -> None:
    storage._database.write(lambda connection: connection.execute(text(statement)))


def pass_by(storage: Storage, seconds: float) -> None:
    """Have time pass for all owners. The store itself decides whose clock counts."""
    spoil(storage, f"UPDATE torchwise_trials SET heartbeat = heartbeat - {seconds}")


class DatabaseContract(StorageContract):
    @pytest.fixture
    def storage(self, url: str) -> Iterator[Storage]:
        with open_storage(url) as storage:
            yield storage

    def test_another_host_is_dead_after_ten_minutes_without_a_heartbeat(self, storage: Storage, study: Study) -> None:
        later = replace(ELSEWHERE, pid=2, started=2e9)
        claim_trial(storage, study.id, INDUCTOR, ELSEWHERE)
        claim_trial(storage, study.id, TUNED, replace(later, started=1e9))
        pass_by(storage, 590)
        assert storage.release_dead_claims(study.id) == []
        storage.heartbeat(ELSEWHERE)
        storage.heartbeat(later)  # a later process of the same number
        pass_by(storage, 40)
        assert storage.release_dead_claims(study.id) == [TUNED]
        pass_by(storage, 570)
        assert storage.release_dead_claims(study.id) == [INDUCTOR]

    # Rows that cannot be read

    def test_a_broken_ruling_or_explanation_is_named_with_its_way_out(self, storage: Storage) -> None:
        storage.store_approval(make_approval())
        kept = storage.keep_explanation(make_explanation())
        for table in ("rulings", "reports"):
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
        storage.finish_trial(study.id, complete_trial(claim_trial(storage, study.id)))
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
        claim_trial(storage, study.id)
        conclude_study(storage, study.id)
        spoil(storage, f"UPDATE torchwise_{table} SET format = 'torchwise.newer/9'")
        with pytest.raises(StorageError, match=rf"study {study.id} has format 'torchwise.newer/9', but this version"):
            storage.get_study(study.id)
        assert len(storage.list_studies()) == 1

    def test_what_a_plan_may_not_be_is_refused_in_a_row(self, storage: Storage, study: Study) -> None:
        claim_trial(storage, study.id)
        spoil(storage, """UPDATE torchwise_trials SET record = replace(record, '"native"', '"nonsense"')""")
        with pytest.raises(StorageError, match=rf"trial 0 of study {study.id} cannot be read: .*nonsense"):
            storage.get_study(study.id)


class Careless(Storage):
    """Gives every plan to everyone, and loses results."""

    def claim_trial(self, study_id: int, plan: Plan, *_args: object, **_options: object) -> Trial:
        return Trial(0, plan, TrialState.RUNNING)

    def store_outcome(self, study_id: int, **_outcome: object) -> None: ...

    def store_approval(self, approval: Approval) -> None: ...

    def keep_explanation(self, explanation: Explanation) -> int:
        return super().keep_explanation(replace(explanation, notes=("lost",)))

    def find_study(self, key: StudyKey, target: str | None = None) -> Study | None:
        return None


SEEN = [
    StorageContract.test_a_study_comes_back_as_it_was,
    StorageContract.test_a_plan_in_hand_or_finished_is_not_claimed,
    StorageContract.test_a_conclusion_adds_time_and_replaces_the_rest,
    StorageContract.test_a_ruling_replaces_the_one_on_the_same_plan,
    StorageContract.test_an_explanation_comes_back_as_it_was,
]


@pytest.mark.parametrize("check", SEEN, ids=lambda check: check.__name__)
def test_a_storage_that_breaks_the_contract_is_seen(check: Callable[..., None], tmp_path: Path) -> None:
    with open_storage(str(tmp_path / "careless.db")) as storage:
        careless = Careless(storage._database)
        wanted = inspect.signature(check).parameters
        given = {"storage": careless, **({"study": create_study(careless)} if "study" in wanted else {})}
        with pytest.raises(AssertionError):
            check(StorageContract(), **given)


class TestSqlite(DatabaseContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'torchwise.db'}"


class TestPostgres(DatabaseContract):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.store()
