"""Copy studies from one store to another, row by row and without parsing, so that rows stay unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from torchwise.errors import InputError
from torchwise.parsing import parse_json
from torchwise.records import StudyState, TrialState
from torchwise.store import approvals, reports
from torchwise.store.claims import require
from torchwise.store.database import Database
from torchwise.store.schema import StudyKey, decisions, dump, studies, trials
from torchwise.store.studies import find

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Result of copying one study.

    Attributes:
        study: its id in the store that it came from.
        is_new: whether the other store lacked it.
        trials: number of its trials that the other store lacked.
    """

    study: int
    target: str
    is_new: bool
    trials: int


@dataclass(frozen=True, slots=True)
class StudyRows:
    """The rows of a study to copy. Running trials are not copied, as their owners finish them in their own store."""

    study: Row
    trials: Sequence[Row]
    decisions: Sequence[Row]


def ids(connection: Connection) -> Sequence[int]:
    """Return all studies, oldest first."""
    return connection.execute(select(studies.c.id).order_by(studies.c.id)).scalars().all()


def read(connection: Connection, study_id: int) -> StudyRows | None:
    """Read a study, or None if it was deleted meanwhile."""
    study = _rows(connection, studies, studies.c.id == study_id)
    if not study:
        return None
    done = (trials.c.study_id == study_id, trials.c.state != TrialState.RUNNING.value)
    decided = _rows(connection, decisions, decisions.c.study_id == study_id)
    return StudyRows(study[0], sorted(_rows(connection, trials, *done), key=_number), decided)


def write(database: Database, found: StudyRows) -> CopyResult:
    """Add the rows of a study that `database` lacks, in one transaction."""
    try:
        return database.write(partial(_merge, found=found))
    except IntegrityError:  # PostgreSQL: another process added the study between our query and our insert
        return database.write(partial(_merge, found=found))


def write_others(here: Database, there: Database) -> None:
    """Add the approvals and reports that `there` lacks or has in an older version, one per transaction."""
    for kind in (approvals, reports):
        for row in here.read(kind.rows):
            there.write(partial(kind.merge, row=row))


def _merge(connection: Connection, found: StudyRows) -> CopyResult:
    key = StudyKey(**{field.name: found.study[field.name] for field in fields(StudyKey)})
    study_id = find(connection, key)
    is_new = study_id is None
    if study_id is None:
        made = connection.execute(insert(studies).values(_study(found))).inserted_primary_key
        assert made is not None
        study_id = int(made[0])
    require(connection, study_id, lock=True)
    times = _read_times(connection, study_id)
    is_newer = any(row["decided_at"] > max(times.values(), default=-math.inf) for row in found.decisions)
    added = _add_trials(connection, study_id, found.trials, is_newer=is_newer)
    _decide(connection, study_id, found.decisions, times)
    if is_newer:
        connection.execute(update(studies).where(studies.c.id == study_id).values(_study(found)))
    return CopyResult(found.study["id"], found.study["target"], is_new, added)


def _add_trials(connection: Connection, study_id: int, rows: Sequence[Row], *, is_newer: bool) -> int:
    """Add duels, and trials of plans that are not finished yet, under their own numbers if those are free.

    With a newer decision come the trials that it was made from, in place of those of the same plans.
    """
    columns = ("number", "plan_id", "state", "format", "record")
    existing = _rows(connection, trials, trials.c.study_id == study_id, columns=columns)
    finished = {row["plan_id"]: row for row in existing if row["state"] != TrialState.RUNNING.value}
    missing = [row for row in rows if row["plan_id"] not in finished]
    for row in rows:
        there = finished.get(row["plan_id"])
        if there is not None and is_newer:
            place = (trials.c.study_id == study_id, trials.c.number == there["number"])
            renewed = {**row, "study_id": study_id, "number": there["number"]}
            connection.execute(update(trials).where(*place).values(renewed))
        elif there is not None:
            _add_duel(connection, study_id, there, row)
    plans = {row["plan_id"] for row in missing}
    for row in existing:
        if row["plan_id"] in plans:  # another process is running it: the first result counts, which is this one
            connection.execute(delete(trials).where(trials.c.study_id == study_id, trials.c.number == row["number"]))
    numbers = {row["number"] for row in existing}
    next_number = max([*numbers, *(row["number"] for row in rows)], default=-1) + 1
    placed = []
    for row in missing:
        number = row["number"]
        if number in numbers:
            number, next_number = next_number, next_number + 1
        placed.append({**row, "study_id": study_id, "number": number})
    if placed:
        connection.execute(insert(trials), placed)
    return len(placed)


def _add_duel(connection: Connection, study_id: int, existing: Row, row: Row) -> None:
    """Add a duel to the other store's trial if it lacks one: the decision may depend on it."""
    if existing["format"] != row["format"]:
        return
    there, here = _record(existing), _record(row)
    if there and there.get("duel") is None and here.get("duel") is not None:
        place = (trials.c.study_id == study_id, trials.c.number == existing["number"])
        connection.execute(update(trials).where(*place).values(record=dump({**there, "duel": here["duel"]})))


def _record(row: Row) -> Row:
    """Return the contents of a trial's row, or nothing if it cannot be read. Reading the trial reports the error."""
    try:
        found = parse_json(row["record"], constants=True)
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def _read_times(connection: Connection, study_id: int) -> dict[str, float]:
    """Return when each target was decided."""
    rows = _rows(connection, decisions, decisions.c.study_id == study_id, columns=("target", "decided_at"))
    return {row["target"]: row["decided_at"] for row in rows}


def _decide(connection: Connection, study_id: int, rows: Sequence[Row], times: dict[str, float]) -> None:
    """Copy each target's decision unless there is a later one."""
    for row in rows:
        if row["decided_at"] > times.get(row["target"], -math.inf):
            same = (decisions.c.study_id == study_id, decisions.c.target == row["target"])
            connection.execute(delete(decisions).where(*same))
            connection.execute(insert(decisions).values({**row, "study_id": study_id}))


def _study(found: StudyRows) -> Row:
    """Return a study's row without its id. A running search becomes an interrupted one in the copy."""
    row = {name: value for name, value in found.study.items() if name != "id"}
    if row["state"] == StudyState.RUNNING.value:
        row["state"] = StudyState.INTERRUPTED.value
    return row


def _rows(connection: Connection, table: Table, *where: Any, columns: Sequence[str] | None = None) -> list[Row]:
    query = select(*(table.c[name] for name in columns or table.c.keys())).where(*where)
    return [dict(row) for row in connection.execute(query).mappings()]


def _number(row: Row) -> int:
    return int(row["number"])
