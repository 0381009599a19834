"""A PostgreSQL server that is stopped, killed or broken off from: finished work stays, and is done once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, func, select, text
from test_study import GOOD, Table, request

from postgres_server import PostgresServer
from store_samples import INDUCTOR, TUNED, a_decision, a_study, claim, complete_trial, create, fail_trial
from torchwise.errors import StorageError
from torchwise.plan import Plan
from torchwise.records import StudyState, TrialState
from torchwise.records.listener import Listener
from torchwise.store import LeaseOwner, Storage, StudyKey, database, db_errors, engines, open_storage, schema
from torchwise.study import run_study
from torchwise.trial import Job

ME = LeaseOwner.current()
PLANS = tuple(Plan(threads=threads) for threads in range(1, 5))


@pytest.fixture
def storage(postgres: PostgresServer) -> Iterator[Storage]:
    with open_storage(postgres.store()) as storage:
        yield storage


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """Return the server, and see to it that the next test has one that runs."""
    yield postgres
    postgres.start()


class Losing(Table):
    """A launcher during whose second trial the server goes. It comes back some time after the trial's end."""

    def __init__(self, lose: Callable[[], None], come_back: Callable[[], None]) -> None:
        super().__init__()
        self.known = dict.fromkeys(PLANS, (2.0, 1.0, GOOD))
        self._lose = lose
        self._back = threading.Timer(0.7, come_back)

    def run(self, job: Job, *others: Any) -> Any:
        if job.task == "try" and job.plan == PLANS[1]:
            self._lose()
            self._back.start()
        return super().run(job, *others)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_study_goes_on_when_the_server_is_back(
    storage: Storage, postgres: PostgresServer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Losing(getattr(postgres, how), postgres.start)
    study = run_study(request(plans=PLANS), storage, table, Listener())
    assert study.state is StudyState.DECIDED
    assert table.list_tried() == list(PLANS)
    assert [(trial.plan, trial.state) for trial in study.trials] == [(plan, TrialState.COMPLETE) for plan in PLANS]
    said = [record.getMessage() for record in caplog.records if record.name == "torchwise.store"]
    assert len(said) == 2
    assert said[0].startswith(f"store {storage.place} cannot be reached: check that the server runs")
    assert said[0].endswith("waiting for the server, at most 300 s")
    assert said[1].startswith(f"store {storage.place} is back after ")


def test_the_wait_ends_and_is_not_begun_again(
    storage: Storage, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    study = create(storage)
    monkeypatch.setattr(db_errors, "PATIENCE_S", 0.4)
    server.stop()
    started = time.monotonic()
    with pytest.raises(
        StorageError, match=r"cannot be reached: .*; it did not return within 0 s; the same command continues"
    ):
        storage.list_studies()
    assert 0.4 <= time.monotonic() - started < 15
    with pytest.raises(StorageError, match="cannot be reached") as caught:
        storage.release_trial(study.id, 0)
    assert "waited" not in str(caught.value)
    assert caplog.text.count("waiting for the server") == 1
    server.start()
    assert len(storage.list_studies()) == 1
    server.stop()
    with pytest.raises(StorageError, match="it did not return within"):
        storage.list_studies()


def test_who_gives_up_waiting_need_not_give_up_twice(
    storage: Storage, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = create(storage)
    server.kill()

    def raise_interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(db_errors.time, "sleep", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            storage.get_study(study.id)
        with pytest.raises(StorageError, match="cannot be reached"):  # as a search that ends takes back its claim
            storage.release_trial(study.id, 0)


def test_a_heartbeat_waits_for_nothing_and_the_next_one_counts(
    storage: Storage, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = LeaseOwner("another-host", 1, 1e9)
    study = create(storage)
    trial = claim(storage, study.id, owner=elsewhere)
    storage._database.write(lambda c: c.execute(text("UPDATE torchwise_trials SET heartbeat = 0")))
    server.stop()
    storage.heartbeat(elsewhere)
    assert not caplog.records
    server.start()
    storage.heartbeat(elsewhere)
    assert storage.release_dead_claims(study.id) == []
    assert storage.get_study(study.id).trials == (trial,)


def test_a_server_that_never_answered_is_not_waited_for(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.database()
    server.stop()
    with pytest.raises(
        StorageError, match=r"cannot be reached: check that the server runs, and check host, port and network"
    ):
        open_storage(url)
    assert not caplog.records


# The connection breaks while a transaction is committed: the server may have done it, or not.


def lose_answer(connection: Any) -> None:
    REAL_COMMIT(connection)
    raise psycopg.OperationalError("server closed the connection unexpectedly")


def lose_order(connection: Any) -> None:
    connection.close()
    raise psycopg.OperationalError("server closed the connection unexpectedly")


REAL_COMMIT = psycopg.Connection.commit


@pytest.fixture(params=[lose_answer, lose_order], ids=["committed", "not committed"])
def commit_is_lost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes the next commit of a writing transaction get lost."""

    def lose_next() -> None:
        losses = [request.param]

        def commit(connection: Any) -> None:
            losses.pop()(connection) if losses else REAL_COMMIT(connection)

        monkeypatch.setattr(psycopg.Connection, "commit", commit)

    return lose_next


def test_a_claim_whose_commit_was_lost_is_had_once(storage: Storage, commit_is_lost: Callable[[], None]) -> None:
    study = create(storage)
    commit_is_lost()
    trial = storage.claim_trial(study.id, INDUCTOR, "", ME)
    assert trial is not None
    assert storage.get_study(study.id).trials == (trial,)
    commit_is_lost()
    storage.finish_trial(study.id, complete_trial(trial))
    assert storage.get_study(study.id).trials == (complete_trial(trial),)


def test_what_is_added_is_added_once(storage: Storage, commit_is_lost: Callable[[], None]) -> None:
    study = create(storage)
    commit_is_lost()
    storage.store_outcome(study.id, state=StudyState.DECIDED, decision=a_decision(), excluded=[], seconds=2.5)
    assert storage.get_study(study.id).seconds == 2.5
    whole = storage.get_study(study.id)
    storage.delete_study(study.id)
    commit_is_lost()
    assert storage.import_study(whole).decision == a_decision()
    assert len(storage.list_studies()) == 1


def test_a_transaction_that_is_still_being_committed_is_waited_for(storage: Storage) -> None:
    with storage._database._engine.connect() as first:
        assert database.is_new(first, "a", ())
        threading.Timer(0.3, first.commit).start()
        assert not storage._database.write(lambda connection: database.is_new(connection, "a", ()))
    assert storage._database.write(lambda connection: database.is_new(connection, "b", ()))


def test_a_crash_before_the_commit_loses_nothing_though_the_number_is_given_again(
    storage: Storage, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = create(storage)
    trial = claim(storage, study.id)
    postgres.execute("CHECKPOINT")
    crashes = [True]

    def commit(connection: Any) -> None:
        if crashes and connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
            crashes.clear()
            postgres.kill()
            postgres.start()
            storage.delete_study(create(storage, a_study("2d" * 8)).id)  # as somebody else who was quicker
        REAL_COMMIT(connection)

    monkeypatch.setattr(psycopg.Connection, "commit", commit)
    storage.finish_trial(study.id, complete_trial(trial))
    assert storage.get_study(study.id).trials == (complete_trial(trial),)


def test_few_tokens_are_left(storage: Storage) -> None:
    for _ in range(5):
        storage.heartbeat(ME)
    count = select(func.count()).select_from(schema.writes)
    assert storage._database.read(lambda connection: connection.execute(count).scalar()) == 1
    storage._database.write(lambda connection: connection.execute(schema.writes.update().values(at=0.0)))
    storage._database._known.clear()  # as if its process had died
    storage.heartbeat(ME)
    assert storage._database.read(lambda connection: connection.execute(count).scalar()) == 1


# Within a transaction


def test_a_connection_that_is_broken_off_is_made_anew(storage: Storage) -> None:
    study = create(storage)
    tries = []

    def work(connection: Connection) -> None:
        connection.execute(text("UPDATE torchwise_studies SET seconds = seconds + 1"))
        tries.append(connection)
        if len(tries) == 1:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    storage._database.write(work)
    assert (len(tries), storage.get_study(study.id).seconds) == (2, 1.0)


def test_a_process_that_was_stopped_too_long_lost_its_locks_and_does_its_work_anew(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = create(storage)
    monkeypatch.setattr(engines, "_LIMITS", ("SET LOCAL idle_in_transaction_session_timeout = '100ms'",))
    tries = []

    def work(connection: Connection) -> None:
        connection.execute(text("UPDATE torchwise_studies SET seconds = seconds + 1"))
        tries.append(connection)
        if len(tries) == 1:
            time.sleep(0.4)  # stopped, as by SIGSTOP or a laptop's lid

    storage._database.write(work)
    assert (len(tries), storage.get_study(study.id).seconds) == (2, 1.0)


def test_a_lock_that_is_never_given_back_is_given_up_after_the_stated_tries(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = create(storage)
    tries = []
    monkeypatch.setattr(engines, "_LIMITS", ("SET LOCAL lock_timeout = '50ms'",))
    monkeypatch.setattr(engines, "_begin_on_server", None)
    with storage._database._engine.connect() as other:
        other.execute(text("SELECT * FROM torchwise_studies FOR UPDATE"))
        assert len(storage.list_studies()) == 1  # readers never wait

        def work(connection: Connection) -> None:
            tries.append(connection)
            connection.execute(text("UPDATE torchwise_studies SET seconds = 1"))

        with pytest.raises(StorageError, match="is locked by another process; wait for it, end it, or give"):
            storage._database.write(work)
    assert len(tries) == 3
    storage.finish_trial(study.id, fail_trial(claim(storage, study.id, TUNED)))


@pytest.mark.parametrize("code", ["40001", "40P01"], ids=["serialisation failure", "deadlock"])
def test_what_the_server_cannot_put_in_order_is_tried_again_and_then_given_up(storage: Storage, code: str) -> None:
    tries = []

    def fails(connection: Connection, times: int) -> int:
        tries.append(times)
        if len(tries) <= times:
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'verklemmt' USING ERRCODE = '{code}'; END $$"))
        return len(tries)

    assert storage._database.write(lambda connection: fails(connection, 2)) == 3
    tries.clear()
    with pytest.raises(StorageError, match=r"is locked by another process; .*\(verklemmt"):
        storage._database.write(lambda connection: fails(connection, 99))
    assert len(tries) == 3


def test_two_who_add_the_same_study_get_the_same(storage: Storage) -> None:
    study = a_study()
    with storage._database._engine.connect() as other:  # has added it, and not committed when the second one looks
        from torchwise.store import studies

        added = studies.find_or_add(other, StudyKey.from_study(study), study)
        threading.Timer(0.3, other.commit).start()
        assert create(storage, study).id == added
