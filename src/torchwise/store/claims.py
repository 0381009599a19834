"""The statements of `Storage` for trials and for their owners. Each runs in the caller's transaction."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from torchwise.errors import StorageError
from torchwise.plan import Plan
from torchwise.records import Duel, Failure, Measurement, Trial, TrialState
from torchwise.records.study import SCHEMA as FORMAT
from torchwise.records.trial import with_repeat
from torchwise.store.schema import dump, load, studies, trials

MAX_ID = 2**31 - 1
"""Maximum id of a study. Databases raise their own errors for larger ones."""
HEARTBEAT_LIMIT_S = 600.0
"""Seconds without a heartbeat after which a process on another host counts as dead."""
_START_TOLERANCE_S = 0.05  # Linux counts starts in ticks of 0.01 s
_EPOCH_S = 1e9  # no machine runs for so many seconds: this is a time of day, of another system or an earlier version
_RUNNING = TrialState.RUNNING.value


def require(connection: Connection, study_id: int, *, lock: bool = False) -> None:
    """Check that a study exists. With `lock`, other writers to it wait for the end of this transaction.

    SQLite has no locks on rows. Its writers wait for each other anyway.
    """
    query = select(studies.c.id).where(studies.c.id == study_id)
    is_possible = 0 <= study_id <= MAX_ID
    if not is_possible or connection.execute(query.with_for_update() if lock else query).one_or_none() is None:
        newest = connection.execute(select(studies.c.id).order_by(studies.c.id.desc()).limit(10)).scalars().all()
        known = f"the newest are {', '.join(map(str, newest))}" if newest else "the store holds none yet"
        raise StorageError(f"there is no study {study_id}; {known}")


def claim(
    connection: Connection, study_id: int, plan: Plan, reason: str, owner: LeaseOwner, *, again: Trial | None = None
) -> Trial | None:
    """Insert a RUNNING trial, or take over a dead owner's. Return None if the plan is finished or claimed.

    `again` is a finished trial to take over as well, unless another process has repeated it meanwhile.
    """
    require(connection, study_id, lock=True)
    row = _find(connection, study_id, plan)
    at = now(connection)
    if row is not None and not _is_free(row, at, again):
        return None
    number = row.number if row is not None else _next_number(connection, study_id)
    trial = Trial(number, plan, TrialState.RUNNING, reason, started_at=time.time())
    values = {**_owner_values(owner, at), **record_of(trial)}
    if row is None:
        connection.execute(insert(trials).values(study_id=study_id, number=number, **values))
    else:
        connection.execute(_restrict_to_trial(update(trials), study_id, number).values(values))
    return trial


def _is_free(row: Row[Any], at: float, again: Trial | None) -> bool:
    if row.state == _RUNNING:
        return not _owner(row).is_alive(at - row.heartbeat)
    return again is not None and _read(row).started_at == again.started_at


def finish(connection: Connection, study_id: int, trial: Trial, record: dict[str, Any]) -> None:
    """Store a finished trial with its `record_of`. If another process has finished it meanwhile, its record stays."""
    require(connection, study_id, lock=True)
    row = _find(connection, study_id, trial.plan)
    if row is None:  # the claim expired, such as on a machine that was suspended: the result is still valid
        add_finished(connection, study_id, _next_number(connection, study_id), record)
    elif row.state == _RUNNING:
        connection.execute(_restrict_to_trial(update(trials), study_id, row.number).values(record))


def keep_duel(connection: Connection, study_id: int, plan: Plan, duel: Duel) -> Duel:
    """Add a duel to the finished trial of a plan, and return it. A duel from another process stays."""
    trial = _add(connection, study_id, plan, lambda trial: replace(trial, duel=trial.duel or duel))
    return trial.duel or duel if trial else duel


def keep_repeat(
    connection: Connection, study_id: int, plan: Plan, found: Measurement | Failure, warm_s: float | None
) -> Trial | None:
    """Add the result of another process to the finished trial of a plan. Return the trial, or None if there is none."""
    return _add(connection, study_id, plan, lambda trial: with_repeat(trial, found, warm_s))


def _add(connection: Connection, study_id: int, plan: Plan, change: Callable[[Trial], Trial]) -> Trial | None:
    """Change the finished trial of a plan, and return it, or None if there is none."""
    require(connection, study_id, lock=True)
    row = _find(connection, study_id, plan)
    if row is None or row.state == _RUNNING:
        return None
    found = _read(row)
    changed = change(found)
    if changed != found:
        connection.execute(_restrict_to_trial(update(trials), study_id, row.number).values(record_of(changed)))
    return changed


def add_finished(connection: Connection, study_id: int, number: int, record: dict[str, Any]) -> None:
    """Insert a finished trial without a claim, with its `record_of`."""
    owner = _owner_values(LeaseOwner.current(), now(connection))
    connection.execute(insert(trials).values(study_id=study_id, number=number, **owner, **record))


def record_of(trial: Trial) -> dict[str, Any]:
    """Return a trial as columns. It is called before the transaction that writes them."""
    speedup = trial.speedup.mid if trial.speedup else None
    return {
        "plan_id": trial.plan.id,
        "state": trial.state.value,
        "speedup": speedup if speedup is not None and math.isfinite(speedup) else None,
        "format": FORMAT,
        "record": dump(trial),
    }


def release(connection: Connection, study_id: int, number: int) -> None:
    """Delete a RUNNING trial. A finished one stays."""
    connection.execute(_restrict_to_trial(delete(trials), study_id, number).where(trials.c.state == _RUNNING))


def reclaim(connection: Connection, study_id: int) -> list[Plan]:
    """Delete the RUNNING trials of dead owners, and return their plans in the order of their numbers."""
    require(connection, study_id, lock=True)
    running = select(trials).where(trials.c.study_id == study_id, trials.c.state == _RUNNING)
    rows = connection.execute(running.order_by(trials.c.number)).all()
    at = now(connection) if rows else 0.0
    dead = [row for row in rows if not _owner(row).is_alive(at - row.heartbeat)]
    plans = [_read(row).plan for row in dead]
    for row in dead:
        release(connection, study_id, row.number)
    return plans


def touch(connection: Connection, owner: LeaseOwner) -> None:
    """Set the heartbeat of the owner's RUNNING trials to now."""
    own = (
        trials.c.state == _RUNNING,
        trials.c.owner_host == owner.host,
        trials.c.owner_pid == owner.pid,
        trials.c.owner_started == owner.started,
    )
    connection.execute(update(trials).where(*own).values(heartbeat=now(connection)))


def read_trials(connection: Connection, study_id: int) -> tuple[Trial, ...]:
    """Read a study's trials in the order of their numbers."""
    query = select(trials).where(trials.c.study_id == study_id).order_by(trials.c.number)
    return tuple(_read(row) for row in connection.execute(query))


def _find(connection: Connection, study_id: int, plan: Plan) -> Row[Any] | None:
    same = (trials.c.study_id == study_id, trials.c.plan_id == plan.id)
    return connection.execute(select(trials).where(*same)).one_or_none()


def _next_number(connection: Connection, study_id: int) -> int:
    highest = connection.execute(select(func.max(trials.c.number)).where(trials.c.study_id == study_id)).scalar()
    return 0 if highest is None else highest + 1


def _restrict_to_trial(statement: Any, study_id: int, number: int) -> Any:
    return statement.where(trials.c.study_id == study_id, trials.c.number == number)


def _owner_values(owner: LeaseOwner, heartbeat: float) -> dict[str, Any]:
    return {
        "owner_host": owner.host,
        "owner_pid": owner.pid,
        "owner_started": owner.started,
        "heartbeat": heartbeat,
    }


def _read(row: Row[Any]) -> Trial:
    name = f"trial {row.number} of study {row.study_id}"
    trial = load(row.record, Trial, row=name, written=row.format, known=FORMAT)
    return replace(trial, number=row.number)


def _owner(row: Row[Any]) -> LeaseOwner:
    return LeaseOwner(row.owner_host, row.owner_pid, row.owner_started)


@cache
def this_host() -> str:
    """Return this machine's name, with a suffix that distinguishes it from other machines of the same name.

    The suffix is a hash of the machine's id, as machine-id(5) forbids publishing the id itself.
    """
    try:
        machine = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        machine = b""
    mark = hashlib.sha256(b"torchwise " + machine).hexdigest()[:8]
    return f"{platform.node()}/{mark}" if machine else platform.node()


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A process, distinguished from a later one with the same process id.

    Attributes:
        started: when the process started, on Linux in seconds since the machine's boot, elsewhere since the epoch. On
            Linux the latter moves when the clock is set, as after a virtual machine was suspended.
    """

    host: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> LeaseOwner:
        """Return this process."""
        return cls(this_host(), os.getpid(), _read_start(psutil.Process()))

    def is_alive(self, silent_s: float) -> bool:
        """Whether the process is alive.

        On this host, the process table decides. The process is dead if it does not exist, is a zombie, or has another
        start time. On another host, it is dead if its last heartbeat was over `HEARTBEAT_LIMIT_S` ago.

        Args:
            silent_s: seconds since its last heartbeat, by the store's clock.
        """
        if self.host != this_host():
            return silent_s <= HEARTBEAT_LIMIT_S
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if self.started >= _EPOCH_S:
                return abs(process.create_time() - self.started) <= 1.0  # which is corrected by fractions of a second
            return abs(_read_start(process) - self.started) <= _START_TOLERANCE_S
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:  # it exists and belongs to another user, so its start time is unknown
            return True


def _read_start(process: psutil.Process) -> float:
    """Return when a process started: on Linux in seconds since boot, elsewhere in seconds since the epoch.

    psutil adds the kernel's boot time, which moves when the clock is set (`starttime` of proc_pid_stat(5) does not).
    """
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # another system, or the process has ended
        return process.create_time()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def now(connection: Connection) -> float:
    """Return seconds since the epoch: by the server's clock, since its clients' clocks differ, or by this host's."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
