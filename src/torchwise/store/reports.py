"""The statements of `Storage` for explanations, analyses and benchmarks. Each runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from torchwise.errors import StorageError
from torchwise.records.analysis import Analysis
from torchwise.records.benchmark import Benchmark
from torchwise.records.explanation import Explanation
from torchwise.store.engines import write_alone
from torchwise.store.schema import dump, load, reports

Report = Explanation | Analysis | Benchmark
Row = dict[str, Any]


class ReportKind(StrEnum):
    """A kind of result that is neither a study nor an approval."""

    EXPLANATION = "explanation"
    ANALYSIS = "analysis"
    BENCHMARK = "benchmark"


TYPES: dict[ReportKind, type[Report]] = {
    ReportKind.EXPLANATION: Explanation,
    ReportKind.ANALYSIS: Analysis,
    ReportKind.BENCHMARK: Benchmark,
}
COMMANDS = {ReportKind.EXPLANATION: "explain", ReportKind.ANALYSIS: "analyze", ReportKind.BENCHMARK: "bench"}
"""The command that creates each kind."""


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """A stored explanation, analysis or benchmark in one line.

    Attributes:
        target: the target, or all targets of a benchmark, comma-separated.
        plan_id: id of the plan, or None for a benchmark, and for `torch.compile` with its defaults.
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


def row_of(report: Report) -> Row:
    """Return a report as columns. It is called before the transaction that writes them."""
    workloads = report.workloads if isinstance(report, Benchmark) else (report.workload,)
    plan = None if isinstance(report, Benchmark) else report.plan
    return {
        "kind": next(kind.value for kind, its_type in TYPES.items() if isinstance(report, its_type)),
        "target": ", ".join(dict.fromkeys(workload.target for workload in workloads)),
        "device": next((workload.device for workload in workloads), ""),
        "mode": next((workload.mode for workload in workloads), ""),
        "plan_id": plan.id if plan else "",
        "plan": str(plan) if plan else None,
        "fingerprint": report.environment.fingerprint,
        "created_at": report.created_at,
        "format": report.schema,
        "record": dump(report),
    }


def keep(connection: Connection, row: Row) -> int:
    """Store a `row_of`, replace an older one of the same key, and return its id."""
    write_alone(connection, reports.name)
    connection.execute(delete(reports).where(*_same(row)))
    key = connection.execute(insert(reports).values(row)).inserted_primary_key
    assert key is not None
    return int(key[0])


def rows(connection: Connection) -> list[Row]:
    """Return all rows as they are, without their ids, oldest first."""
    columns = [column for column in reports.c if column.name != "id"]
    return [dict(row) for row in connection.execute(select(*columns).order_by(reports.c.id)).mappings()]


def merge(connection: Connection, row: Row) -> None:
    """Copy a row of another store, unless there is a later one of its key."""
    write_alone(connection, reports.name)
    created_at = connection.execute(select(reports.c.created_at).where(*_same(row))).scalar()
    if created_at is None or created_at < row["created_at"]:
        keep(connection, row)


def _same(row: Row) -> list[Any]:
    return [reports.c[name] == row[name] for name in ("kind", "target", "mode", "fingerprint", "plan_id")]


def summaries(connection: Connection, kind: ReportKind, target: str | None, limit: int | None) -> list[ReportSummary]:
    """List reports of a kind, newest first, without reading their records."""
    columns = [reports.c[name] for name in ReportSummary.__slots__]
    query = select(*columns).where(reports.c.kind == kind.value)
    query = query.order_by(reports.c.created_at.desc(), reports.c.id.desc()).limit(limit)
    if target is not None:
        query = query.where(reports.c.target == target)
    found = connection.execute(query).mappings()
    return [ReportSummary(**{**row, "plan_id": row["plan_id"] or None}) for row in found]


def get(connection: Connection, kind: ReportKind, report_id: int) -> Report:
    """Read one report."""
    same = (reports.c.kind == kind.value, reports.c.id == report_id)
    row = connection.execute(select(reports).where(*same)).one_or_none()
    name = f"{kind} {report_id}"
    if row is None:
        raise StorageError(f"there is no {name}; {_describe_newest(kind, summaries(connection, kind, None, 10))}")
    way_out = f"{COMMANDS[kind]} the target again, or read it with the version of Torchwise that wrote it"
    known = next(str(field.default) for field in fields(TYPES[kind]) if field.name == "schema")
    return load(row.record, TYPES[kind], row=name, written=row.format, known=known, way_out=way_out)


def _describe_newest(kind: ReportKind, newest: Sequence[ReportSummary]) -> str:
    named = ", ".join(str(summary.id) for summary in newest)
    none_yet = f"the store holds none yet: torchwise {COMMANDS[kind]} TARGET creates one"
    return f"the newest are {named}" if named else none_yet
