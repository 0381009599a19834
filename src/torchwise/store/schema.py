"""The tables, the key of a study, and records as text.

A change to a table needs a migration, a new `HEAD`, and a dump of the old form as a fixture. Records are stored as JSON
text. Only fields that queries use have their own column. Every name begins with "torchwise_", so that a PostgreSQL
database can also hold tables of other programs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import Column, Double, ForeignKey, Index, Integer, MetaData, Table, Text, UniqueConstraint

from torchwise.environment import Environment
from torchwise.errors import InputError, StorageError
from torchwise.parsing import parse_json
from torchwise.plan import Numerics
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval, Study, StudyState, codec
from torchwise.records.answer import Answer

T = TypeVar("T")
State = TypeVar("State", bound=StrEnum)

WAY_OUT = "delete the study, or read it with the version of Torchwise that wrote it"

HEAD = "0005"
"""The newest migration: the schema that this version reads and writes."""

VERSION_TABLE = "torchwise_schema"

metadata = MetaData()

studies = Table(
    "torchwise_studies",
    metadata,
    Column("id", Integer, primary_key=True),
    # The key, in the order of `StudyKey`.
    Column("identity", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("objective", Text, nullable=False),
    Column("allow", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("excluded", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("record", Text, nullable=False),  # the study as created; the columns above have later changes
    UniqueConstraint("identity", "fingerprint", "device", "mode", "objective", "allow", name="torchwise_studies_key"),
    Index("torchwise_studies_created", "created_at", "id"),
    Index("torchwise_studies_target", "target", "created_at"),
    sqlite_autoincrement=True,  # the number of a deleted study is never reused
)

trials = Table(
    "torchwise_trials",
    metadata,
    Column("study_id", Integer, ForeignKey("torchwise_studies.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("plan_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("owner_host", Text, nullable=False),
    Column("owner_pid", Integer, nullable=False),
    Column("owner_started", Double, nullable=False),
    Column("heartbeat", Double, nullable=False),
    Column("speedup", Double),
    Column("format", Text, nullable=False),
    Column("record", Text, nullable=False),
    UniqueConstraint("study_id", "plan_id", name="torchwise_trials_plan"),
    Index("torchwise_trials_state", "state"),
)

decisions = Table(
    "torchwise_decisions",
    metadata,
    # The last decision of each target of a study: targets of one structure share the measurements.
    Column("study_id", Integer, ForeignKey("torchwise_studies.id", ondelete="CASCADE"), primary_key=True),
    Column("target", Text, primary_key=True),
    Column("identity", Text, nullable=False),
    Column("decided_at", Double, nullable=False),
    Column("plan", Text, nullable=False),
    Column("speedup_low", Double),
    Column("speedup_mid", Double),
    Column("speedup_high", Double),
    Column("format", Text, nullable=False),
    Column("record", Text, nullable=False),
    Column("state", Text, nullable=False),  # of the search for this target; the study has the state of the last search
    Index("torchwise_decisions_target", "target", "decided_at"),
    Index("torchwise_decisions_identity", "identity"),
)

rulings = Table(
    "torchwise_rulings",
    metadata,
    Column("target", Text, primary_key=True),
    Column("mode", Text, primary_key=True),
    Column("hardware", Text, primary_key=True),
    Column("plan_id", Text, primary_key=True),
    Column("standing", Text, nullable=False),  # overrides the record: a later pin changes it
    Column("ruled_at", Double, nullable=False),
    Column("format", Text, nullable=False),
    Column("record", Text, nullable=False),
)

reports = Table(
    "torchwise_reports",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("plan_id", Text, nullable=False),  # "" for torch.compile with its defaults, and benchmarks
    Column("plan", Text),
    Column("fingerprint", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("format", Text, nullable=False),
    Column("record", Text, nullable=False),
    UniqueConstraint("kind", "target", "mode", "fingerprint", "plan_id", name="torchwise_reports_key"),
    Index("torchwise_reports_created", "created_at"),
    sqlite_autoincrement=True,  # as with studies
)

writes = Table(
    "torchwise_writes",
    metadata,
    Column("token", Text, primary_key=True),
    Column("at", Double, nullable=False),
)


@dataclass(frozen=True, slots=True)
class StudyKey:
    """The key of a study. A second request with an equal key resumes the study of the first.

    The key lacks the target's name, the number of calls and restarts, and the effort. They change the decision or the
    number of trials, but not the measurements.

    Attributes:
        identity: the model and inputs, as in `torchwise.workload.identity`.
        fingerprint: the machine and software, as in `Environment.fingerprint`.
        allow: the loosest numerics allowed, by `Numerics.former_name`.
    """

    identity: str
    fingerprint: str
    device: str
    mode: str
    objective: str
    allow: str

    @classmethod
    def from_study(cls, study: Study) -> StudyKey:
        """Return the key of `study`."""
        return cls.from_workload(study.inspection.identity, study.environment, study.workload, study.allow)

    @classmethod
    def from_workload(cls, identity: str, environment: Environment, workload: WorkloadSpec, allow: str) -> StudyKey:
        """Return the key of the study of a workload with this identity."""
        return cls(
            identity=identity,
            fingerprint=environment.fingerprint,
            device=workload.device,
            mode=workload.mode,
            # Calls are timed otherwise under a limit of latency, whichever it is.
            objective=workload.objective + ("" if workload.latency_limit is None else " under a latency limit"),
            allow=Numerics.of(allow).former_name,
        )


@dataclass(frozen=True, slots=True)
class StudySummary:
    """A study in one line, without its samples.

    Attributes:
        target: the target of the last request. In a list of one target's studies, it is that target.
        state: whether the search has ended. In a list of one target's studies, it is that target's state.
        trials: number of trials, running ones included.
        plan: the decided plan as text, or None while undecided.
        speedup: of the decided plan, or None while undecided, and for eager.
        created_at: seconds since the epoch.
        is_inconclusive: whether eager is decided for only as the measurements do not show if a plan is faster.
    """

    id: int
    target: str
    device: str
    mode: str
    state: StudyState
    trials: int
    plan: str | None
    speedup: Interval | None
    created_at: float
    is_inconclusive: bool = False

    @property
    def decided(self) -> str | None:
        """The decided plan as lists name it: with a word before it if the decision is inconclusive."""
        return f"{Answer.INCONCLUSIVE}: {self.plan}" if self.plan and self.is_inconclusive else self.plan


def dump(record: Any) -> str:
    """Return a record as JSON text. It may contain Infinity and NaN, which Python reads, but strict JSON lacks."""
    return json.dumps(codec.to_builtins(record), separators=(",", ":"))


def load(text: str, kind: type[T], *, row: str, written: str, known: str, way_out: str = WAY_OUT) -> T:
    """Read the output of `dump`.

    Args:
        row: name of the row in a message, such as "trial 3 of study 1".
        written: the row's format.
    """
    if written != known:
        raise StorageError(f"{row} has format {written!r}, but this version reads {known!r}; {way_out}")
    try:
        return codec.from_builtins(parse_json(text, constants=True), kind, stored=True)
    except InputError as error:
        raise StorageError(f"{row} cannot be read: {error}; {way_out}") from error


def state_of(text: str, kind: type[State], *, row: str, way_out: str = WAY_OUT) -> State:
    """Read a state from its own column."""
    try:
        return kind(text)
    except ValueError:
        raise StorageError(f"{row} is {text!r}, but this version knows {', '.join(kind)}; {way_out}") from None
