"""A SQLite file that is not as it should be: each case says the fault and the way to fix it."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from store_samples import a_decision, claim, complete_trial, create
from torchwise.errors import StorageError
from torchwise.records import StudyState
from torchwise.store import LeaseOwner, Storage, engines, open_storage
from torchwise.store.db_errors import explain

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with one study and one finished trial."""
    path = tmp_path / "torchwise.db"
    with open_storage(str(path)) as storage:
        study = create(storage)
        storage.finish_trial(study.id, complete_trial(claim(storage, study.id)))
    return path


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a folder that other users may enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Give up root's right to write anything, for as long as this lasts."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def pragma(path: Path, name: str) -> object:
    connection = engines.connect(path)
    try:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]
    finally:
        connection.close()


def test_connections_are_durable_patient_and_keep_references(path: Path) -> None:
    assert pragma(path, "journal_mode") == "wal"
    assert pragma(path, "synchronous") == 2  # FULL
    assert pragma(path, "busy_timeout") == 30_000
    assert pragma(path, "foreign_keys") == 1


def test_a_text_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("Dear diary, today I tuned a model. " * 100)
    with pytest.raises(StorageError, match=r"store .*notes.db is no SQLite database, or is corrupt; move it away"):
        open_storage(str(path))
    assert path.read_text().startswith("Dear diary")


def test_a_damaged_file_says_so_when_the_damage_is_met(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 * 2 :] = b"\xa5" * (len(content) - 4096 * 2)  # the schema stays, the tables do not
    path.write_bytes(content)

    def use() -> None:
        with open_storage(str(path)) as storage:
            storage.list_studies()
            create(storage)

    with pytest.raises(StorageError, match="is no SQLite database, or is corrupt"):
        use()


def test_a_truncated_file_says_so(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StorageError, match="is no SQLite database, or is corrupt"):
        open_storage(str(path))


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StorageError, match=r"folder.db is a folder, but must be a file"):
        open_storage(str(tmp_path / "folder.db"))


def test_a_path_through_a_file_cannot_be_created(path: Path) -> None:
    with pytest.raises(StorageError, match=r"below.db cannot be created: .*; give another with --store"):
        open_storage(str(path / "below.db"))


def test_another_program_s_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE invoices (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"another program's database \(it holds the table 'invoices'\)"):
        open_storage(str(path))
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with open_storage(str(tmp_path / "empty.db")) as storage:
        assert storage.list_studies() == []


def changes(storage: Storage) -> list[object]:
    """Return one call for each method that writes."""
    owner = LeaseOwner.current()
    trial = complete_trial(storage.get_study(1).trials[0])
    decided = {"state": StudyState.DECIDED, "decision": a_decision(), "excluded": [], "seconds": 1.0}
    return [
        lambda: create(storage),
        lambda: storage.claim_trial(1, trial.plan, "", owner),
        lambda: storage.finish_trial(1, trial),
        lambda: storage.release_trial(1, 0),
        lambda: storage.release_dead_claims(1),
        lambda: storage.heartbeat(owner),
        lambda: storage.store_outcome(1, **decided),
        lambda: storage.delete_study(1),
        lambda: storage.import_study(storage.get_study(1)),
    ]


@pytest.mark.parametrize("folder_mode", [0o777, 0o555], ids=["folder writable", "folder read-only"])
def test_a_read_only_file_can_be_read(path: Path, public: Path, folder_mode: int) -> None:
    copy = public / "store.db"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o444)
    public.chmod(folder_mode)
    with ordinary_user(), open_storage(str(copy)) as storage:
        assert len(storage.list_studies()) == 1
        assert len(storage.get_study(1).trials) == 1
        assert storage.decisions() == []
        for change in changes(storage):
            with pytest.raises(
                StorageError, match=r"store.db is read-only, but this command writes: get write permission for the"
            ):
                change()  # type: ignore[operator]
    public.chmod(0o777)
    assert copy.read_bytes() == path.read_bytes()


def test_a_file_in_a_read_only_folder_can_be_read(path: Path, public: Path) -> None:
    copy = public / "store.db"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o666)
    with ordinary_user(), open_storage(str(copy)) as storage:
        assert len(storage.list_studies()) == 1
        with pytest.raises(StorageError, match="read-only"):
            create(storage)


def test_a_reader_without_rights_sees_what_a_live_writer_has_written(path: Path, public: Path) -> None:
    copy = public / "store.db"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o444)
    writer = engines.connect(copy)  # root's or the owner's: its write-ahead log holds more than the file so far
    if os.geteuid() != 0:
        pytest.skip("only root may write a read-only file")
    writer.execute("UPDATE torchwise_studies SET target = 'app:new'")
    for log in public.glob("store.db-*"):
        log.chmod(log.stat().st_mode | stat.S_IROTH)
    with ordinary_user(), open_storage(str(copy)) as storage:
        assert [summary.target for summary in storage.list_studies()] == ["app:new"]
    writer.close()


def test_a_log_left_behind_where_it_cannot_be_taken_in_is_never_read_past(path: Path, public: Path) -> None:
    writer = engines.connect(path)
    writer.execute("UPDATE torchwise_studies SET target = 'app:new'")
    for name in ("torchwise.db", "torchwise.db-wal"):
        (public / name).write_bytes((path.parent / name).read_bytes())
    writer.close()
    public.chmod(0o555)
    said = r"torchwise.db is read-only, and torchwise.db-wal has changes that are not merged yet"
    with ordinary_user(), pytest.raises(StorageError, match=said):
        open_storage(str(public / "torchwise.db"))


def test_nothing_stays_open_between_transactions(path: Path) -> None:
    with open_storage(str(path)) as storage:
        storage.heartbeat(LeaseOwner.current())
        storage.list_studies()
        assert [file.path for file in psutil.Process().open_files() if file.path.startswith(str(path))] == []


def test_a_file_that_may_not_be_read_says_so(path: Path, public: Path) -> None:
    copy = public / "store.db"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o000)
    with ordinary_user(), pytest.raises(StorageError, match=r"store.db is not readable for this user"):
        open_storage(str(copy))


def test_a_folder_that_may_not_be_written_holds_no_new_store(public: Path) -> None:
    with ordinary_user(), pytest.raises(StorageError, match=r"new.db cannot be created: Permission denied"):
        open_storage(str(public / "new.db"))


def test_an_empty_read_only_file_says_what_it_lacks(public: Path) -> None:
    (public / "store.db").touch()
    (public / "store.db").chmod(0o444)
    with ordinary_user(), pytest.raises(StorageError, match=r"has no schema and is read-only, but this version needs"):
        open_storage(str(public / "store.db"))


def test_a_store_deleted_while_open_is_not_made_anew(path: Path) -> None:
    with open_storage(str(path)) as storage:
        path.unlink()
        with pytest.raises(StorageError, match="is gone: it was deleted or moved while in use"):
            create(storage)
        with pytest.raises(StorageError, match="is gone"):
            storage.list_studies()
    assert not path.exists()


def test_a_store_that_stays_locked_is_given_up_after_the_stated_tries(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_S", 0.05)
    opened = []
    monkeypatch.setattr(engines, "_open", lambda *args, real=engines._open: opened.append(args) or real(*args))
    other = sqlite3.connect(path, isolation_level=None)
    with open_storage(str(path)) as storage:
        other.execute("BEGIN IMMEDIATE")
        assert len(storage.list_studies()) == 1  # readers never wait
        opened.clear()
        with pytest.raises(StorageError, match="is locked by another process; wait for it, end it, or give"):
            claim(storage, 1)
        assert len(opened) == 3
        monkeypatch.setattr("time.sleep", lambda _: other.in_transaction and other.execute("ROLLBACK"))
        other.execute("BEGIN IMMEDIATE") if not other.in_transaction else None
        storage.heartbeat(LeaseOwner.current())  # the second try finds it free
    other.close()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("attempt to write a readonly database", "is read-only"),
        ("database or disk is full", "the disk is full"),
        ("unable to open database file", "cannot be opened"),
        ("connection refused", "store /a.db cannot be used: connection refused"),
    ],
)
def test_what_sqlite_says_is_put_in_words(said: str, meant: str) -> None:
    assert meant in str(explain(sqlite3.OperationalError(said), "/a.db"))
