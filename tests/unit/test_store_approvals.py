"""Approvals when several hold at once, and a look at them that waits for nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from postgres_server import PostgresServer
from store_samples import INDUCTOR, TUNED, a_ruling, create
from torchwise.errors import StorageError
from torchwise.records import Standing
from torchwise.store import approvals, database, db_errors, engines, open_storage, read_storage
from torchwise.store.engines import postgres_engine
from torchwise.store.location import locate


def test_a_pin_that_another_process_sets_at_the_same_time_is_no_second_one(postgres: PostgresServer) -> None:
    with open_storage(postgres.store()) as storage:
        with storage._database._engine.connect() as other:  # has pinned it, and not committed when the next one pins
            approvals.put(other, a_ruling(INDUCTOR, Standing.PINNED))
            threading.Timer(0.3, other.commit).start()
            storage.store_approval(a_ruling(TUNED, Standing.PINNED, at=2e9))
        assert [ruling.standing for ruling in storage.approvals()] == [Standing.PINNED, Standing.APPROVED]


def test_a_look_does_not_wait_for_a_server_that_goes_meanwhile(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_errors.Outage, "wait", lambda *_: pytest.fail("it waits"))
    looked_into = database.Database(locate(postgres.store()), prompt_s=2.0)
    looked_into.read(lambda connection: approvals.read(connection, None, None, None))
    looked_into._engine = postgres_engine(locate("postgresql://nobody@127.0.0.1:1/nothing"), 2.0)
    with pytest.raises(StorageError, match="cannot be reached"):
        looked_into.read(lambda connection: approvals.read(connection, None, None, None))


def test_a_look_does_not_wait_for_a_file_that_somebody_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    with open_storage(str(path)) as storage:
        create(storage)
    monkeypatch.setattr("torchwise.store.storage.PROMPT_S", 0.05)
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(database.time, "sleep", lambda _: pytest.fail("it tries again"))
    writer = engines.connect(path)
    writer.execute("PRAGMA journal_mode=DELETE")  # in which readers are locked out, unlike in the write-ahead log
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match="is locked by another process"):
        read_storage(str(path))
    writer.close()
    assert read_storage(str(path)) is not None
