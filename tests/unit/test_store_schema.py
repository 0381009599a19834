"""The tables: the migrations lead to the schema that the code expects, and old stores still open."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from postgres_server import PostgresServer
from store_samples import (
    FASTER,
    HERE,
    INDUCTOR,
    PASSED,
    TUNED,
    a_decision,
    a_ruling,
    an_explanation,
    claim,
    complete_trial,
    create,
)
from torchwise.errors import StorageError
from torchwise.plan import EAGER
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import FailureKind, Interval, Standing, StudyState, TrialState
from torchwise.records.benchmark import Benchmark
from torchwise.store import ReportKind, downgrade_storage, migrate, open_storage
from torchwise.store.database import Database
from torchwise.store.location import locate
from torchwise.store.schema import HEAD, VERSION_TABLE, metadata

DUMPS = sorted((Path(__file__).parents[1] / "fixtures").glob("store_v*.sql"))


REVISIONS = sorted(script.revision for script in ScriptDirectory(str(migrate.SCRIPTS)).walk_revisions())


def restore(dump: Path, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()


def test_the_newest_migration_is_the_head() -> None:
    assert ScriptDirectory(str(migrate.SCRIPTS)).get_heads() == [HEAD]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the place of a store that does not exist yet."""
    if request.param == "sqlite":
        return str(tmp_path / "new.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


def differences(connection: Connection) -> list[object]:
    options = {"version_table": VERSION_TABLE, "compare_type": True}
    found: list[object] = list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))
    there = inspect(connection)
    for table in metadata.sorted_tables:  # primary keys, which Alembic does not compare
        keys = there.get_pk_constraint(table.name)["constrained_columns"] if there.has_table(table.name) else []
        if keys != [column.name for column in table.primary_key]:
            found.append((table.name, keys))
    return found


def test_the_migrations_lead_to_the_tables_of_the_code(url: str) -> None:
    with open_storage(url) as storage:
        assert storage._database.read(differences) == []


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO])
def test_alembic_stays_out_of_the_log_unless_the_user_asked_for_it(
    level: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alembic = logging.getLogger("alembic")
    monkeypatch.setattr(alembic, "level", level)
    with caplog.at_level(logging.INFO):
        open_storage(str(tmp_path / "s.db")).close()
    assert bool([record for record in caplog.records if record.name.startswith("alembic")]) is (level != logging.NOTSET)
    assert alembic.level == level


def test_alembic_stays_out_of_the_log_of_a_program_that_imports_it_by_the_store(tmp_path: Path) -> None:
    code = (
        "import logging, sys; logging.basicConfig(level=logging.INFO); import torchwise.store; "
        "torchwise.store.open_storage(sys.argv[1]).close(); assert 'alembic' in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s.db")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""


def test_a_migration_that_fails_leaves_nothing_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("alembic.op.create_index", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_storage(url)
    assert Database(locate(url)).read(lambda connection: inspect(connection).get_table_names()) == []
    with open_storage(url) as storage:
        create(storage)


def test_every_schema_is_gone_back_to_and_come_from_again_with_all_that_is_stored(url: str) -> None:
    with open_storage(url) as storage:
        study = create(storage)
        storage.finish_trial(study.id, complete_trial(claim(storage, study.id)))
        storage.store_outcome(study.id, state=StudyState.DECIDED, decision=a_decision(), excluded=[], seconds=1)
        study = storage.get_study(study.id)
    for revision in REVISIONS:
        assert downgrade_storage(url, revision) == storage.place
        found = storage._database.read(differences)
        assert bool(found) == (revision != HEAD)
        with open_storage(url) as again:
            assert again.get_study(study.id) == study
            assert again._database.read(differences) == []


def test_nothing_is_lost_on_the_way_back_unless_somebody_says_so(url: str) -> None:
    with open_storage(url) as storage:
        storage.store_approval(a_ruling())
        storage.keep_explanation(an_explanation())
        storage.keep_report(Benchmark(HERE, 1e9))
        with pytest.raises(
            StorageError,
            match=r"schema 0002 cannot hold .*: 1 approval, 1 explanation, 1 other report; .* --delete-data",
        ):
            downgrade_storage(url, "0002")
        assert storage.approvals() == [a_ruling()]
        assert storage.reports(ReportKind.BENCHMARK)
    downgrade_storage(url, "0004", lose=True)
    with pytest.raises(StorageError, match=r"schema 0002 cannot hold all data of .*: 1 approval, 1 explanation; .*"):
        downgrade_storage(url, "0002")
    with open_storage(url) as again:
        (told,) = again.explanations()
        assert again.get_explanation(told.id) == an_explanation()
        assert again.keep_explanation(an_explanation(TUNED)) > told.id
    downgrade_storage(url, "0002", lose=True)
    with open_storage(url) as again:
        assert again.approvals() == []


def test_decisions_of_further_targets_are_lost_on_the_way_back_only_if_somebody_says_so(url: str) -> None:
    last = a_decision(EAGER, workload=WorkloadSpec("app:factory"))
    with open_storage(url) as storage:
        study = create(storage)
        for decision in (a_decision(), a_decision(TUNED), last):
            storage.store_outcome(study.id, state=StudyState.DECIDED, decision=decision, excluded=[], seconds=1)
        with pytest.raises(
            StorageError, match=r"schema 0003 cannot hold all data of .*: 1 additional decision; .* --delete-data"
        ):
            downgrade_storage(url, "0003")
        assert storage.decisions() == [last, a_decision(TUNED)]
    downgrade_storage(url, "0003", lose=True)
    with open_storage(url) as again:
        assert again.decisions() == [last]
        assert again.get_study(study.id).decision == last
        again.delete_study(study.id)
        assert again.decisions() == []


@pytest.mark.parametrize("state", [StudyState.DECIDED, StudyState.INTERRUPTED])
def test_a_decision_that_does_not_say_how_its_search_ended_is_of_the_study_s_last(url: str, state: StudyState) -> None:
    with open_storage(url) as storage:
        study = create(storage)
        storage.store_outcome(study.id, state=state, decision=a_decision(), excluded=[], seconds=1)
    downgrade_storage(url, "0003")
    with open_storage(url) as again:
        assert again.get_study(study.id, a_decision().workload.target).state is state


@pytest.mark.parametrize("revision", ["base", "-1", "9999", ""])
def test_only_a_known_schema_is_gone_back_to(url: str, revision: str) -> None:
    said = rf"schema is '{revision}', but must be one of 0001, .*, which is "
    with pytest.raises(StorageError, match=f"{said}None"):
        downgrade_storage(url, revision)
    with open_storage(url) as storage:
        study = create(storage)
        with pytest.raises(StorageError, match=f"{said}'{HEAD}'"):
            downgrade_storage(url, revision)
        assert storage.get_study(study.id) == study


def test_a_newer_schema_is_refused_and_left_alone(url: str) -> None:
    with open_storage(url) as storage:
        study = create(storage)
        storage._database.write(lambda c: c.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")))
    said = rf"has schema '9999', but this version knows schemas up to '{HEAD}'; update Torchwise"
    with pytest.raises(StorageError, match=said):
        open_storage(url)
    with pytest.raises(StorageError, match="which is '9999'"):
        downgrade_storage(url, "0001")
    assert storage.get_study(study.id) == study


def test_the_tables_of_others_in_a_server_s_database_are_left_alone(postgres: PostgresServer) -> None:
    url = postgres.database()
    database = Database(locate(url))
    database.write(lambda connection: connection.execute(text("CREATE TABLE invoices (id INTEGER)")))
    with open_storage(url) as storage:
        create(storage)
    assert "invoices" in database.read(lambda connection: inspect(connection).get_table_names())


def test_a_migration_of_another_process_is_waited_for_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_S", 0.05)
    path = tmp_path / "new.db"
    with FileLock(f"{path}.lock"), pytest.raises(StorageError, match="being migrated by another process"):
        open_storage(str(path))


def test_there_is_a_dump_of_every_schema() -> None:
    assert [dump.name for dump in DUMPS] == [f"store_v{int(revision)}.sql" for revision in REVISIONS]


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
        assert storage.release_dead_claims(older.id) == [INDUCTOR]
        assert claim(storage, older.id).number == 2
        since = dump.stem >= "store_v3"
        assert storage.approvals() == ([a_ruling(TUNED, Standing.PINNED)] if since else [])
        told = [storage.get_explanation(summary.id) for summary in storage.explanations()]
        assert told == ([an_explanation(TUNED)] if since else [])
        assert len(storage.reports(ReportKind.BENCHMARK)) == (dump.stem >= "store_v5")
