"""The statements of `Storage` for approvals. Each runs in the caller's transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from torchwise.records import Approval, Standing
from torchwise.records.decision import APPROVAL_SCHEMA as FORMAT
from torchwise.store.claims import now
from torchwise.store.engines import write_alone
from torchwise.store.schema import dump, load, rulings, state_of

_PINNED = Standing.PINNED.value
_WAY_OUT = "withdraw it, or read it with the version of Torchwise that wrote it"


def put(connection: Connection, approval: Approval) -> None:
    """Store an approval, and replace an earlier one of the plan. If it is a pin, an earlier pin becomes approved."""
    write_alone(connection, rulings.name)
    approval = replace(approval, at=approval.at or now(connection))
    row = {
        "target": approval.target,
        "mode": approval.mode,
        "hardware": approval.hardware,
        "plan_id": approval.plan.id,
        "standing": approval.standing.value,
        "ruled_at": approval.at,
        "format": FORMAT,
        "record": dump(approval),
    }
    _put(connection, row)


def rows(connection: Connection) -> list[dict[str, Any]]:
    """Return all rows as they are, oldest first."""
    return [dict(row) for row in connection.execute(select(rulings).order_by(rulings.c.ruled_at)).mappings()]


def merge(connection: Connection, row: dict[str, Any]) -> None:
    """Copy a row of another store, unless its plan has a later one. An older pin becomes approved."""
    write_alone(connection, rulings.name)
    existing = connection.execute(select(rulings).where(*_scope(row["target"], row["mode"], row["hardware"]))).all()
    later = [one for one in existing if one.ruled_at >= row["ruled_at"]]
    if any(one.plan_id == row["plan_id"] for one in later):
        return
    if row["standing"] == _PINNED and any(one.standing == _PINNED for one in later):
        row = {**row, "standing": Standing.APPROVED.value}
    _put(connection, row)


def _put(connection: Connection, row: dict[str, Any]) -> None:
    """Store a row, and replace an earlier one of the same plan. If it is a pin, an earlier pin becomes approved."""
    scope = _scope(row["target"], row["mode"], row["hardware"])
    connection.execute(delete(rulings).where(*scope, rulings.c.plan_id == row["plan_id"]))
    if row["standing"] == _PINNED:
        pinned = update(rulings).where(*scope, rulings.c.standing == _PINNED)
        connection.execute(pinned.values(standing=Standing.APPROVED.value))
    connection.execute(insert(rulings).values(row))


def remove(connection: Connection, target: str, mode: str, hardware: str, plan_id: str) -> bool:
    """Delete the approval of a plan. Return False if there is none."""
    this = (*_scope(target, mode, hardware), rulings.c.plan_id == plan_id)
    return connection.execute(delete(rulings).where(*this)).rowcount > 0


def read(connection: Connection, target: str | None, mode: str | None, hardware: str | None) -> list[Approval]:
    """Read approvals, newest first."""
    query = select(rulings).order_by(rulings.c.ruled_at.desc(), rulings.c.plan_id)
    return [_read(row) for row in connection.execute(query.where(*_scope(target, mode, hardware)))]


def _scope(target: str | None, mode: str | None, hardware: str | None) -> list[Any]:
    filters = {"target": target, "mode": mode, "hardware": hardware}
    return [rulings.c[name] == value for name, value in filters.items() if value is not None]


def _read(row: Row[Any]) -> Approval:
    name = f"the approval of plan {row.plan_id} of {row.target}"
    approval = load(row.record, Approval, row=name, written=row.format, known=FORMAT, way_out=_WAY_OUT)
    return replace(approval, standing=state_of(row.standing, Standing, row=name, way_out=_WAY_OUT), at=row.ruled_at)
