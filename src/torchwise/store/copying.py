"""From one store to another, row by row: nothing is parsed, so whatever a row holds arrives as it was."""

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
from torchwise.store import explanations, rulings
from torchwise.store.claims import require
from torchwise.store.database import Database
from torchwise.store.keys import StudyKey
from torchwise.store.rows import dump
from torchwise.store.schema import decisions, studies, trials
from torchwise.store.studies import find

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied of one study.

    Attributes:
        study: its id in the store that it came from.
        target: what was tuned.
        is_new: whether the other store lacked it.
        trials: how many of its trials the other store lacked.
    """

    study: int
    target: str
    is_new: bool
    trials: int


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a study that are worth copying: what runs is its owner's affair, in the store where it runs."""

    study: Row
    trials: Sequence[Row]
    decisions: Sequence[Row]


def ids(connection: Connection) -> Sequence[int]:
    """Return all studies, oldest first."""
    return connection.execute(select(studies.c.id).order_by(studies.c.id)).scalars().all()


def read(connection: Connection, study_id: int) -> Found | None:
    """Read a study; None where it was deleted meanwhile."""
    held = _rows(connection, studies, studies.c.id == study_id)
    if not held:
        return None
    done = (trials.c.study_id == study_id, trials.c.state != TrialState.RUNNING.value)
    decided = _rows(connection, decisions, decisions.c.study_id == study_id)
    return Found(held[0], sorted(_rows(connection, trials, *done), key=_number), decided)


def write(database: Database, found: Found) -> Copied:
    """Add what `database` lacks of a study, in one transaction."""
    try:
        return database.write(partial(_merge, found=found))
    except IntegrityError:  # PostgreSQL: another process added the study between our look and our insert
        return database.write(partial(_merge, found=found))


def write_others(here: Database, there: Database) -> None:
    """Add what `there` lacks of rulings and explanations, or has from earlier; each is one transaction."""
    for kind in (rulings, explanations):
        for row in here.read(kind.rows):
            there.write(partial(kind.merge, row=row))


def _merge(connection: Connection, found: Found) -> Copied:
    key = StudyKey(**{field.name: found.study[field.name] for field in fields(StudyKey)})
    study_id = find(connection, key)
    is_new = study_id is None
    if study_id is None:
        made = connection.execute(insert(studies).values(_study(found))).inserted_primary_key
        assert made is not None
        study_id = int(made[0])
    require(connection, study_id, lock=True)
    added = _add_trials(connection, study_id, found.trials)
    _decide(connection, study_id, found)
    return Copied(found.study["id"], found.study["target"], is_new, added)


def _add_trials(connection: Connection, study_id: int, rows: Sequence[Row]) -> int:
    """Add the trials of plans that are not finished yet, under their numbers where those are free, and duels."""
    columns = ("number", "plan_id", "state", "format", "record")
    held = _rows(connection, trials, trials.c.study_id == study_id, columns=columns)
    finished = {row["plan_id"]: row for row in held if row["state"] != TrialState.RUNNING.value}
    lacking = [row for row in rows if row["plan_id"] not in finished]
    for row in rows:
        if (there := finished.get(row["plan_id"])) is not None:
            _add_duel(connection, study_id, there, row)
    plans = {row["plan_id"] for row in lacking}
    for row in held:
        if row["plan_id"] in plans:  # somebody tries it just now: the first result stays, which is this one
            connection.execute(delete(trials).where(trials.c.study_id == study_id, trials.c.number == row["number"]))
    numbers = {row["number"] for row in held}
    following = max([*numbers, *(row["number"] for row in rows)], default=-1) + 1
    placed = []
    for row in lacking:
        number = row["number"]
        if number in numbers:
            number, following = following, following + 1
        placed.append({**row, "study_id": study_id, "number": number})
    if placed:
        connection.execute(insert(trials), placed)
    return len(placed)


def _add_duel(connection: Connection, study_id: int, held: Row, row: Row) -> None:
    """Give a trial that is there the duel that it has here, and lacks there: the decision may go by it."""
    if held["format"] != row["format"]:
        return
    there, here = _record(held), _record(row)
    if there and there.get("duel") is None and here.get("duel") is not None:
        place = (trials.c.study_id == study_id, trials.c.number == held["number"])
        connection.execute(update(trials).where(*place).values(record=dump({**there, "duel": here["duel"]})))


def _record(row: Row) -> Row:
    """Return what a trial's row holds; nothing where it cannot be read, which whoever reads it is told."""
    try:
        found = parse_json(row["record"], constants=True)
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def _decide(connection: Connection, study_id: int, found: Found) -> None:
    """Take each target's decision unless there is a later one; with the last of all, where the search had come to."""
    rows = _rows(connection, decisions, decisions.c.study_id == study_id, columns=("target", "decided_at"))
    held = {row["target"]: row["decided_at"] for row in rows}
    later = [row for row in found.decisions if row["decided_at"] > held.get(row["target"], -math.inf)]
    for row in later:
        same = (decisions.c.study_id == study_id, decisions.c.target == row["target"])
        connection.execute(delete(decisions).where(*same))
        connection.execute(insert(decisions).values({**row, "study_id": study_id}))
    if any(row["decided_at"] > max(held.values(), default=-math.inf) for row in later):
        connection.execute(update(studies).where(studies.c.id == study_id).values(_study(found)))


def _study(found: Found) -> Row:
    """Return a study's row without its id; a search that runs elsewhere does not run here."""
    row = {name: value for name, value in found.study.items() if name != "id"}
    if row["state"] == StudyState.RUNNING.value:
        row["state"] = StudyState.INTERRUPTED.value
    return row


def _rows(connection: Connection, table: Table, *where: Any, columns: Sequence[str] | None = None) -> list[Row]:
    query = select(*(table.c[name] for name in columns or table.c.keys())).where(*where)
    return [dict(row) for row in connection.execute(query).mappings()]


def _number(row: Row) -> int:
    return int(row["number"])
