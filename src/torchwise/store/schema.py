"""The tables. A change to one needs a migration, a new `HEAD`, and a dump of the old form as a fixture.

Records are stored as JSON text. Only fields that queries use have their own column. Every name begins with
"torchwise_", so that a PostgreSQL database can also hold tables of other programs.
"""

from __future__ import annotations

from sqlalchemy import Column, Double, ForeignKey, Index, Integer, MetaData, Table, Text, UniqueConstraint

HEAD = "0004"
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

explanations = Table(
    "torchwise_explanations",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("plan_id", Text, nullable=False),  # "" for torch.compile with its defaults
    Column("plan", Text),
    Column("fingerprint", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("format", Text, nullable=False),
    Column("record", Text, nullable=False),
    UniqueConstraint("target", "mode", "fingerprint", "plan_id", name="torchwise_explanations_key"),
    Index("torchwise_explanations_created", "created_at"),
    sqlite_autoincrement=True,  # as with studies
)

writes = Table(
    "torchwise_writes",
    metadata,
    Column("token", Text, primary_key=True),
    Column("at", Double, nullable=False),
)
