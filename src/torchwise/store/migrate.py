"""Migrate a store to this version's schema, by Alembic, and refuse unknown schemas."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, func, inspect, select, table, text

from torchwise.errors import StorageError
from torchwise.store import engines
from torchwise.store.database import Database
from torchwise.store.schema import HEAD, VERSION_TABLE, decisions, reports, rulings

LOCK_TIMEOUT_S = 60.0
SCRIPTS = Path(__file__).parent / "migrations"

_ADVISORY_LOCK = 0x746F726368  # an arbitrary number that other programs are unlikely to use


def bring_to_head(database: Database) -> None:
    """Create or migrate the tables, once, even if many processes call this at the same time."""
    revision = database.read(revision_of)
    if revision == HEAD:
        return
    _refuse_unusable(database, revision)
    with _alone(database):
        if database.file:
            engines.use_write_ahead_log(database.file, database.place)
        database.write(lambda connection: _migrate(connection, HEAD))


def take_back(database: Database, revision: str, *, lose: bool = False) -> None:
    """Undo the migrations after `revision`, so that an older version of Torchwise can use the store.

    Opening it with this version migrates it to the head again.

    Raises:
        StorageError: the revision is unknown, or newer than the store's. Or the change would delete data, and `lose` is
            False.
    """
    known = sorted(_list_revisions())
    current = database.read(revision_of)
    if revision not in known or current not in known or revision > current:
        raise StorageError(
            f"schema is {revision!r}, but must be one of {', '.join(known)} and not above that of the store "
            f"{database.place}, which is {current!r}"
        )
    lost = [] if lose else database.read(lambda connection: _list_lost_data(connection, revision))
    if lost:
        raise StorageError(
            f"schema {revision} cannot hold all data of {database.place}: {', '.join(lost)}; copy the store first "
            "(torchwise store copy), or delete these data with --delete-data"
        )
    with _alone(database):
        database.write(lambda connection: _migrate(connection, revision, back=True))


def _list_lost_data(connection: Connection, revision: str) -> list[str]:
    """Return descriptions of the data of a store that the schema `revision` cannot hold."""
    existing = inspect(connection).get_table_names()
    is_explanation = reports.c.kind == "explanation"
    additional = func.count() - func.count(decisions.c.study_id.distinct())
    contents = (
        (rulings, func.count(), "approval", "0003"),
        (table("torchwise_explanations"), func.count(), "explanation", "0003"),  # up to schema 0004
        (reports, func.count().filter(is_explanation), "explanation", "0003"),
        (reports, func.count().filter(~is_explanation), "other report", "0005"),
        (decisions, additional, "additional decision", "0004"),
    )
    found = []
    for source, counted, noun, since in contents:
        if revision < since and source.name in existing:
            count = connection.execute(select(counted).select_from(source)).scalar_one()
            found += [f"{count} {noun}{'s' * (count > 1)}"] if count else []
    return found


def revision_of(connection: Connection) -> str | None:
    """Return the schema that a store has, or None if it has none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def _refuse_unusable(database: Database, revision: str | None) -> None:
    place = database.place
    if revision is not None and revision not in _list_revisions():
        raise StorageError(
            f"store {place} has schema {revision!r}, but this version knows schemas up to {HEAD!r}; "
            "update Torchwise, or give another store with --store"
        )
    if revision is None and database.file and (tables := database.read(_tables)):
        raise StorageError(
            f"store {place} is another program's database (it holds the table {tables[0]!r}), "
            "but must be a Torchwise store or not exist yet; give another with --store"
        )
    if not database.is_writable:
        schema = f"schema {revision!r}" if revision else "no schema"
        raise StorageError(
            f"store {place} has {schema} and is read-only, but this version needs schema {HEAD!r}; "
            "open it once with write permission"
        )


def _tables(connection: Connection) -> list[str]:
    return inspect(connection).get_table_names()


def _list_revisions() -> set[str]:
    with _quiet():
        from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory(str(SCRIPTS)).walk_revisions()}


def _migrate(connection: Connection, revision: str, *, back: bool = False) -> None:
    """Run the missing migrations. There are none if another process was faster."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    if revision_of(connection) == revision:
        return
    with _quiet():  # importing it logs as well
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
        config.attributes["connection"] = connection
        (command.downgrade if back else command.upgrade)(config, revision)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Alembic's information out of the user's log, unless the user has set the level of its logger."""
    logger = logging.getLogger("alembic")
    if logger.level != logging.NOTSET:
        yield
        return
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)


@contextmanager
def _alone(database: Database) -> Iterator[None]:
    """Hold the file's migration lock. PostgreSQL has a lock of its own, taken in `_migrate`."""
    if database.file is None:
        yield
        return
    from filelock import FileLock, Timeout

    try:
        with FileLock(f"{database.file}.lock", timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise StorageError(
            f"store {database.place} is still being migrated by another process after {LOCK_TIMEOUT_S:.0f} s; "
            "wait for it, or end it"
        ) from None
