"""The statements of `Storage` for studies and decisions. Each runs in the caller's transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, literal, select, union, update

from torchwise.errors import StorageError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Decision, Interval, Study, StudyState
from torchwise.records.answer import Answer
from torchwise.records.decision import DECISION_SCHEMA as DECISION_FORMAT
from torchwise.records.study import SCHEMA as STUDY_FORMAT
from torchwise.store.claims import add_finished, now, read_trials, require
from torchwise.store.schema import StudyKey, StudySummary, decisions, dump, load, state_of, studies, trials

INCONCLUSIVE = f'"answer":"{Answer.INCONCLUSIVE}"'
"""The part of a stored decision that says so. No text in it has these quotes as they are."""


def find(connection: Connection, key: StudyKey) -> int | None:
    """Return the id of the study under `key`."""
    same = (studies.c[name] == value for name, value in asdict(key).items())
    return connection.execute(select(studies.c.id).where(*same)).scalar()


def find_or_add(connection: Connection, key: StudyKey, study: Study) -> int:
    """Return the id of the study under `key`. If there is none, insert `study` without its trials and decision."""
    found = find(connection, key)
    if found is not None:
        return found
    created_at = study.created_at or time.time()
    row = {
        **asdict(key),
        "target": study.workload.target,
        "state": study.state.value,
        "created_at": created_at,
        "seconds": study.seconds,
        "excluded": json.dumps(study.excluded),
        "format": STUDY_FORMAT,
        "record": dump(replace(study, trials=(), decision=None, created_at=created_at)),
    }
    inserted = connection.execute(insert(studies).values(row)).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])


def insert_study(connection: Connection, study: Study, records: Sequence[dict[str, Any]]) -> int:
    """Insert a study with its finished trials, whose `record_of` are `records`, and its decision."""
    key = StudyKey.from_study(study)
    if (existing := find(connection, key)) is not None:
        raise StorageError(
            f"study {existing} has the same model, machine and settings as this one of {study.workload.target}, "
            f"but the store can hold only one of them; delete study {existing} first, or keep it"
        )
    study_id = find_or_add(connection, key, study)
    for trial, record in zip(study.trials, records, strict=True):
        if trial.state.is_finished:
            add_finished(connection, study_id, trial.number, record)
    state = StudyState.DECIDED if study.state is StudyState.DECIDED else StudyState.INTERRUPTED
    if study.decision is not None:
        decide(connection, study_id, study.decision, state)
    update_search(connection, study_id, state, study.excluded, 0.0)
    return study_id


def get(connection: Connection, study_id: int, target: str | None = None) -> Study:
    """Read a study with its trials, and the last decision, or `target`'s decision and search state."""
    require(connection, study_id)
    row = connection.execute(select(studies).where(studies.c.id == study_id)).one()
    study = replace(
        load(row.record, Study, row=f"study {study_id}", written=row.format, known=STUDY_FORMAT),
        id=study_id,
        state=state_of(row.state, StudyState, row=f"the state of study {study_id}"),
        trials=read_trials(connection, study_id),
        excluded=_load_excluded(row),
        seconds=row.seconds,
    )
    which = _last_target(study_id) if target is None else target
    query = select(decisions).where(decisions.c.study_id == study_id, decisions.c.target == which)
    decided = connection.execute(query).one_or_none()
    if decided is None:
        return study
    decision = _read_decision(decided)
    if target is None:
        return replace(study, decision=decision)
    state = state_of(decided.state, StudyState, row=f"the state of study {study_id}")
    return replace(study, decision=decision, workload=decision.workload, state=state)


def _load_excluded(row: Any) -> tuple[str, ...]:
    name = f"the list of excluded plans of study {row.id}"
    return load(row.excluded, tuple[str, ...], row=name, written=row.format, known=STUDY_FORMAT)


def _last_target(study_id: Any) -> Any:
    """Return the query for the target of a study's last decision."""
    table = decisions.alias()
    query = select(table.c.target).where(table.c.study_id == study_id)
    return query.order_by(table.c.decided_at.desc(), table.c.target.desc()).limit(1).scalar_subquery()


def summaries(connection: Connection, target: str | None, limit: int | None) -> list[StudySummary]:
    """List studies, newest first, without reading their records.

    With `target`, list those whose last request or a decision was for it, with the decisions for it.
    """
    count = select(func.count()).where(trials.c.study_id == studies.c.id).scalar_subquery()
    which = _last_target(studies.c.id) if target is None else literal(target)
    query = (
        select(
            studies.c.id,
            (studies.c.target if target is None else which).label("target"),
            studies.c.device,
            studies.c.mode,
            (studies.c.state if target is None else func.coalesce(decisions.c.state, studies.c.state)).label("state"),
            studies.c.created_at,
            decisions.c.plan,
            decisions.c.speedup_low,
            decisions.c.speedup_mid,
            decisions.c.speedup_high,
            decisions.c.record.contains(INCONCLUSIVE).label("is_inconclusive"),
            count.label("trials"),
        )
        .select_from(studies)
        .outerjoin(decisions, and_(decisions.c.study_id == studies.c.id, decisions.c.target == which))
        .order_by(studies.c.created_at.desc(), studies.c.id.desc())
        .limit(limit)
    )
    if target is not None:
        requested = select(studies.c.id).where(studies.c.target == target)
        decided = select(decisions.c.study_id).where(decisions.c.target == target)
        query = query.where(studies.c.id.in_(union(requested, decided)))
    return [_summary(row) for row in connection.execute(query)]


def latest(connection: Connection) -> int | None:
    """Return the id of the study that was decided last, or of the newest if none has a decision."""
    decided_at = select(func.max(decisions.c.decided_at)).where(decisions.c.study_id == studies.c.id).scalar_subquery()
    # 0 replaces NULL, which SQLite and PostgreSQL sort to different ends.
    query = select(studies.c.id).order_by(
        func.coalesce(decided_at, 0.0).desc(), studies.c.created_at.desc(), studies.c.id.desc()
    )
    return connection.execute(query.limit(1)).scalar()


def count(connection: Connection) -> tuple[int, int]:
    """Count studies and trials."""
    counts = (connection.execute(select(func.count()).select_from(table)).scalar_one() for table in (studies, trials))
    return next(counts), next(counts)


def _summary(row: Any) -> StudySummary:
    has_speedup = row.speedup_mid is not None
    return StudySummary(
        id=row.id,
        target=row.target,
        device=row.device,
        mode=row.mode,
        state=state_of(row.state, StudyState, row=f"the state of study {row.id}"),
        trials=row.trials,
        plan=row.plan,
        speedup=Interval(row.speedup_low, row.speedup_mid, row.speedup_high) if has_speedup else None,
        created_at=row.created_at,
        is_inconclusive=bool(row.is_inconclusive),
    )


def update_search(
    connection: Connection, study_id: int, state: StudyState, excluded: Sequence[str], seconds: float
) -> None:
    """Set the state and the excluded plans of a search, and add to its time."""
    changed = {"state": state.value, "excluded": json.dumps(list(excluded)), "seconds": studies.c.seconds + seconds}
    connection.execute(update(studies).where(studies.c.id == study_id).values(changed))


def update_request(connection: Connection, study_id: int, workload: WorkloadSpec, effort: str) -> None:
    """Record the study's last request: its target, calls, restarts and effort are not in its key."""
    row = connection.execute(select(studies).where(studies.c.id == study_id)).one()
    study = load(row.record, Study, row=f"study {study_id}", written=row.format, known=STUDY_FORMAT)
    changed = {"target": workload.target, "record": dump(replace(study, workload=workload, effort=effort))}
    connection.execute(update(studies).where(studies.c.id == study_id).values(changed))


def decide(connection: Connection, study_id: int, decision: Decision, state: StudyState) -> None:
    """Store `decision`, and replace the study's earlier one for the same target."""
    interval = decision.speedup
    row = {
        "study_id": study_id,
        "target": decision.workload.target,
        "identity": decision.identity,
        "decided_at": now(connection),
        "plan": str(decision.plan),
        "speedup_low": interval.low if interval else None,
        "speedup_mid": interval.mid if interval else None,
        "speedup_high": interval.high if interval else None,
        "format": decision.schema,
        "record": dump(decision),
        "state": state.value,
    }
    same = (decisions.c.study_id == study_id, decisions.c.target == row["target"])
    connection.execute(delete(decisions).where(*same))
    connection.execute(insert(decisions).values(row))


def read_decisions(connection: Connection, target: str | None, identity: str | None) -> list[Decision]:
    """Read decisions, newest first."""
    query = select(decisions).order_by(
        decisions.c.decided_at.desc(), decisions.c.study_id.desc(), decisions.c.target.desc()
    )
    if target is not None:
        query = query.where(decisions.c.target == target)
    if identity is not None:
        query = query.where(decisions.c.identity == identity)
    return [_read_decision(row) for row in connection.execute(query)]


def _read_decision(row: Any) -> Decision:
    """Read one row of decisions."""
    name = f"the decision of study {row.study_id}"
    return load(row.record, Decision, row=name, written=row.format, known=DECISION_FORMAT)


def remove(connection: Connection, study_id: int) -> None:
    """Delete a study, along with its trials and its decisions."""
    require(connection, study_id, lock=True)
    connection.execute(delete(studies).where(studies.c.id == study_id))
