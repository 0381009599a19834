"""The statements of `Storage` for explanations. Each runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from torchwise.errors import StorageError
from torchwise.records.explanation import SCHEMA as FORMAT
from torchwise.records.explanation import Explanation
from torchwise.store.engines import write_alone
from torchwise.store.schema import dump, explanations, load

_WAY_OUT = "explain the target again, or read it with the version of Torchwise that wrote it"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExplanationSummary:
    """A stored explanation in one line.

    Attributes:
        plan_id: id of the explained plan, or None for `torch.compile` with its defaults.
        plan: that plan as text, or None likewise.
        created_at: seconds since the epoch.
    """

    id: int
    target: str
    device: str
    mode: str
    plan_id: str | None
    plan: str | None
    fingerprint: str
    created_at: float


def row_of(explanation: Explanation) -> Row:
    """Return an explanation as columns. It is called before the transaction that writes them."""
    plan, workload = explanation.plan, explanation.workload
    return {
        "target": workload.target,
        "device": workload.device,
        "mode": workload.mode,
        "plan_id": plan.id if plan else "",
        "plan": str(plan) if plan else None,
        "fingerprint": explanation.environment.fingerprint,
        "created_at": explanation.created_at,
        "format": FORMAT,
        "record": dump(explanation),
    }


def keep(connection: Connection, row: Row) -> int:
    """Store a `row_of`, replace an older one of the same key, and return its id."""
    write_alone(connection, explanations.name)
    connection.execute(delete(explanations).where(*_same(row)))
    key = connection.execute(insert(explanations).values(row)).inserted_primary_key
    assert key is not None
    return int(key[0])


def rows(connection: Connection) -> list[Row]:
    """Return all rows as they are, without their ids, oldest first."""
    columns = [column for column in explanations.c if column.name != "id"]
    return [dict(row) for row in connection.execute(select(*columns).order_by(explanations.c.id)).mappings()]


def merge(connection: Connection, row: Row) -> None:
    """Copy a row of another store, unless there is a later one of its key."""
    write_alone(connection, explanations.name)
    created_at = connection.execute(select(explanations.c.created_at).where(*_same(row))).scalar()
    if created_at is None or created_at < row["created_at"]:
        keep(connection, row)


def _same(row: Row) -> list[Any]:
    return [explanations.c[name] == row[name] for name in ("target", "mode", "fingerprint", "plan_id")]


def summaries(connection: Connection, target: str | None, limit: int | None) -> list[ExplanationSummary]:
    """List explanations, newest first, without reading their records."""
    columns = [explanations.c[name] for name in ExplanationSummary.__slots__]
    query = select(*columns).order_by(explanations.c.created_at.desc(), explanations.c.id.desc()).limit(limit)
    if target is not None:
        query = query.where(explanations.c.target == target)
    found = connection.execute(query).mappings()
    return [ExplanationSummary(**{**row, "plan_id": row["plan_id"] or None}) for row in found]


def get(connection: Connection, explanation_id: int) -> Explanation:
    """Read one explanation."""
    row = connection.execute(select(explanations).where(explanations.c.id == explanation_id)).one_or_none()
    if row is None:
        raise StorageError(
            f"there is no explanation {explanation_id}; {_describe_newest(summaries(connection, None, 10))}"
        )
    name = f"explanation {explanation_id}"
    return load(row.record, Explanation, row=name, written=row.format, known=FORMAT, way_out=_WAY_OUT)


def _describe_newest(newest: Sequence[ExplanationSummary]) -> str:
    named = ", ".join(str(summary.id) for summary in newest)
    return f"the newest are {named}" if named else "the store holds none yet: torchwise explain TARGET creates one"
