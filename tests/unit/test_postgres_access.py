"""Permissions on a PostgreSQL server: who may do which things, the refusals, and whose clock counts."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, text

from postgres_server import GUARDED, PostgresServer
from store_samples import INDUCTOR, TUNED, a_decision, a_study, claim, complete_trial, create
from torchwise.errors import StorageError
from torchwise.records import StudyState
from torchwise.store import LeaseOwner, Storage, open_storage

SECRET = "geheim%40"  # an @ in a URL


@pytest.fixture(scope="module")
def user(postgres: PostgresServer) -> Iterator[str]:
    """Return a user whom the server asks for a password, and who may read everything and write nothing."""
    postgres.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'geheim@' IN ROLE pg_read_all_data")
    yield GUARDED
    postgres.execute(f"DROP ROLE {GUARDED}")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.store()


def as_user(url: str, user: str, secret: str = SECRET) -> str:
    return url.replace("postgres@", f"{user}:{secret}@")


def get_error(url: str, caplog: pytest.LogCaptureFixture) -> str:
    """Return the error of opening `url`, after a search for the password in all output that a user could see."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StorageError) as caught:
        open_storage(url)
    seen = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "geheim" not in seen
    assert "falsch" not in seen
    return str(caught.value)


def test_a_password_opens_and_is_shown_nowhere(url: str, user: str) -> None:
    with open_storage(as_user(url, user)) as storage:
        assert storage.place.startswith(f"postgresql://{user}:***@/")
    given = as_user(url, user).replace(f":{SECRET}@", "@") + f"&password={SECRET}&application_name=me"
    with open_storage(given) as storage:
        assert storage.place == url.replace("postgres@", f"{user}@").replace("=/tmp/", "=%2Ftmp%2F")


@pytest.mark.parametrize("secret", ["falsch", ""])
def test_a_wrong_password_is_said_and_not_shown(
    url: str, user: str, secret: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/dev/null")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    said = get_error(as_user(url, user, secret), caplog)
    assert "refuses this user or password; set the password in the URL, in PGPASSWORD or in ~/.pgpass" in said


def test_an_unknown_user_and_a_missing_database_are_said(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "refuses this user or password" in get_error(url.replace("postgres@", "nobody:falsch@"), caplog)
    missing = url.replace("/test", "/not_test")
    assert "names a database that does not exist, or that this user may not open; createdb" in get_error(
        missing, caplog
    )


def test_an_unreachable_host_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert "cannot be reached: check that the server runs" in get_error("postgresql://me:geheim@127.0.0.1:1/db", caplog)


def test_who_may_not_make_tables_is_told_so(
    user: str, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    empty = postgres.database()
    with open_administration(empty) as connection:
        connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))  # as PostgreSQL 15 and later have it
    assert "denies this user a permission; have its owner GRANT it" in get_error(as_user(empty, user), caplog)


def test_who_may_only_read_can_read(url: str, user: str) -> None:
    with open_storage(url) as storage:
        study = create(storage)
        trial = claim(storage, study.id)
    with open_storage(as_user(url, user)) as storage:
        assert storage.get_study(study.id).trials == (trial,)
        assert len(storage.list_studies()) == 1
        for change in (
            lambda: storage.finish_trial(study.id, complete_trial(trial)),
            lambda: storage.delete_study(study.id),
            lambda: storage.heartbeat(LeaseOwner.current()),
        ):
            with pytest.raises(StorageError, match="denies this user a permission"):
                change()


def test_a_replica_can_be_read(url: str) -> None:
    with open_storage(url) as storage:
        study = create(storage)
    with open_administration(url) as connection:
        name = connection.execute(text("SELECT current_database()")).scalar()
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    with open_storage(url) as storage:
        assert storage.get_study(study.id) == study
        with pytest.raises(
            StorageError, match="is read-only, such as a replica, but this command writes; give the URL"
        ):
            claim(storage, study.id)


def test_what_is_read_is_one_state_and_reading_writes_nothing(url: str) -> None:
    with open_storage(url) as storage:
        study = create(storage)

        def look_twice(connection: Connection) -> list[int]:
            looks = []
            for plan in (INDUCTOR, TUNED):
                looks.append(connection.execute(text("SELECT count(*) FROM torchwise_trials")).scalar_one())
                claim(storage, study.id, plan)
            return looks

        assert storage._database.read(look_twice) == [0, 0]
        with pytest.raises(StorageError, match="is read-only"):
            storage._database.read(lambda c: c.execute(text("DELETE FROM torchwise_trials")))


def test_the_server_s_clock_counts_and_not_this_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = LeaseOwner("another-host", 1, 1e9)
    now = time.time()
    with open_storage(url) as storage:
        study, other = create(storage), create(storage, a_study("2d" * 8))
        monkeypatch.setattr(time, "time", lambda: now - 7200)  # of a host whose clock is two hours slow
        trial = claim(storage, study.id, owner=elsewhere)
        decide(storage, study.id, "1d" * 8)
        monkeypatch.setattr(time, "time", lambda: now + 7200)
        assert storage.release_dead_claims(study.id) == []
        assert storage.claim_trial(study.id, INDUCTOR, "", LeaseOwner.current()) is None
        monkeypatch.setattr(time, "time", lambda: now - 9000)
        storage.heartbeat(elsewhere)
        decide(storage, other.id, "2d" * 8)
        monkeypatch.setattr(time, "time", lambda: now)
        assert storage.release_dead_claims(study.id) == []
        assert storage.get_study(study.id).trials == (trial,)
        assert [decision.identity for decision in storage.decisions()] == ["2d" * 8, "1d" * 8]


def decide(storage: Storage, study_id: int, identity: str) -> None:
    decision = a_decision(identity=identity)
    storage.store_outcome(study_id, state=StudyState.DECIDED, decision=decision, excluded=[], seconds=1)


def open_administration(url: str) -> Connection:
    """Return a connection of the administrator that writes at once."""
    from sqlalchemy import create_engine

    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    return engine.connect()
