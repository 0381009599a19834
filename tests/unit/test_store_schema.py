"""The tables: the migrations lead to what the code expects, and old stores still open."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from store_samples import FASTER, INDUCTOR, PASSED, TUNED, a_decision, claim, create
from torchwise.plan import EAGER
from torchwise.records import FailureKind, Interval, StudyState, TrialState
from torchwise.store import migrate, open_storage
from torchwise.store.schema import HEAD, VERSION_TABLE, metadata

DUMPS = sorted((Path(__file__).parents[1] / "fixtures").glob("store_v*.sql"))


def restore(dump: Path, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()


def test_the_newest_migration_is_the_head() -> None:
    assert ScriptDirectory(str(migrate.SCRIPTS)).get_heads() == [HEAD]


def test_the_migrations_lead_to_the_tables_of_the_code(tmp_path: Path) -> None:
    def differences(connection: Connection) -> list[object]:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    with open_storage(str(tmp_path / "new.db")) as storage:
        assert storage._database.read(differences) == []


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new.db"
    with monkeypatch.context() as broken:
        broken.setattr("alembic.op.create_index", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_storage(str(path))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()
    with open_storage(str(path)) as storage:
        create(storage)


def test_a_migration_of_another_process_is_waited_for_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    from torchwise.errors import StorageError

    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_S", 0.05)
    path = tmp_path / "new.db"
    with FileLock(f"{path}.lock"), pytest.raises(StorageError, match="being migrated by another process"):
        open_storage(str(path))


def test_there_is_a_dump_of_every_schema() -> None:
    revisions = [script.revision for script in ScriptDirectory(str(migrate.SCRIPTS)).walk_revisions()]
    assert [dump.name for dump in DUMPS] == [f"store_v{int(revision)}.sql" for revision in sorted(revisions)]


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)
def test_an_old_store_still_opens(dump: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    restore(dump, path)
    with open_storage(str(path)) as storage:
        newer, older = storage.list_studies()
        assert (newer.target, newer.plan, newer.speedup) == ("app:factory", "eager", None)
        assert (older.target, older.trials, older.speedup) == ("zoo:tutorial.fusion_demo", 3, Interval(1.75, 2.0, 2.25))
        study = storage.get_study(older.id)
        done, failed, running = study.trials
        assert (done.plan, done.measurement, done.verdict) == (TUNED, FASTER, PASSED)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.DIED
        assert failed.failure.traceback.endswith("\u00e9 and \x00")
        assert running.state is TrialState.RUNNING
        assert (study.state, study.excluded, study.seconds) == (StudyState.DECIDED, ("bf16: not allowed",), 9.0)
        assert [decision.plan for decision in storage.decisions()] == [EAGER, TUNED]
        assert study.decision == a_decision(TUNED)
        assert storage.reclaim(older.id) == [INDUCTOR]
        assert claim(storage, older.id).number == 2
