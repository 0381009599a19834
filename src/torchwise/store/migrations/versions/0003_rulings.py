"""What people decided about plans, what `torchwise explain` told, and which transactions were committed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "torchwise_rulings",
        sa.Column("target", sa.Text, primary_key=True),
        sa.Column("mode", sa.Text, primary_key=True),
        sa.Column("hardware", sa.Text, primary_key=True),
        sa.Column("plan_id", sa.Text, primary_key=True),
        sa.Column("standing", sa.Text, nullable=False),
        sa.Column("ruled_at", sa.Double, nullable=False),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "torchwise_explanations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("plan_id", sa.Text, nullable=False),
        sa.Column("plan", sa.Text),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.UniqueConstraint("target", "mode", "fingerprint", "plan_id", name="torchwise_explanations_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("torchwise_explanations_created", "torchwise_explanations", ["created_at"])
    op.create_table(
        "torchwise_writes",
        sa.Column("token", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("torchwise_writes")
    op.drop_table("torchwise_explanations")
    op.drop_table("torchwise_rulings")
