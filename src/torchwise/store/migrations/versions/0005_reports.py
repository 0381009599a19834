"""Analyses and benchmarks beside explanations, in one table."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

REPORTS, EXPLANATIONS = "torchwise_reports", "torchwise_explanations"
KEY = ("target", "mode", "fingerprint", "plan_id")
COLUMNS = "id, target, device, mode, plan_id, plan, fingerprint, created_at, format, record"


def upgrade() -> None:
    _create(REPORTS, "kind")
    op.execute(f"INSERT INTO {REPORTS} (kind, {COLUMNS}) SELECT 'explanation', {COLUMNS} FROM {EXPLANATIONS}")
    _drop(EXPLANATIONS, REPORTS)


def downgrade() -> None:
    _create(EXPLANATIONS)
    op.execute(f"INSERT INTO {EXPLANATIONS} ({COLUMNS}) SELECT {COLUMNS} FROM {REPORTS} WHERE kind = 'explanation'")
    _drop(REPORTS, EXPLANATIONS)


def _create(name: str, *first: str) -> None:
    op.create_table(
        name,
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(column, sa.Text, nullable=False) for column in first),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("plan_id", sa.Text, nullable=False),
        sa.Column("plan", sa.Text),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.UniqueConstraint(*first, *KEY, name=f"{name}_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(f"{name}_created", name, ["created_at"])


def _drop(old: str, new: str) -> None:
    """Drop a table, and have the other one number new rows after those that it took over."""
    op.drop_table(old)
    if op.get_bind().dialect.name == "postgresql":
        following = f"(SELECT coalesce(max(id), 0) + 1 FROM {new})"
        op.execute(f"SELECT setval(pg_get_serial_sequence('{new}', 'id'), {following}, false)")
