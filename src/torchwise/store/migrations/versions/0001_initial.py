"""Studies, trials and decisions. Written out, not taken from `schema`, which goes on changing."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "torchwise_studies",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("objective", sa.Text, nullable=False),
        sa.Column("allow", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("excluded", sa.Text, nullable=False),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.UniqueConstraint(
            "identity", "fingerprint", "device", "mode", "objective", "allow", name="torchwise_studies_key"
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "torchwise_trials",
        sa.Column("study_id", sa.Integer, sa.ForeignKey("torchwise_studies.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("plan_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("owner_host", sa.Text, nullable=False),
        sa.Column("owner_pid", sa.Integer, nullable=False),
        sa.Column("owner_started", sa.Double, nullable=False),
        sa.Column("heartbeat", sa.Double, nullable=False),
        sa.Column("speedup", sa.Double),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.UniqueConstraint("study_id", "plan_id", name="torchwise_trials_plan"),
    )
    op.create_index("torchwise_trials_state", "torchwise_trials", ["state"])
    op.create_table(
        "torchwise_decisions",
        sa.Column("study_id", sa.Integer, sa.ForeignKey("torchwise_studies.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("decided_at", sa.Double, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("speedup_low", sa.Double),
        sa.Column("speedup_mid", sa.Double),
        sa.Column("speedup_high", sa.Double),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
