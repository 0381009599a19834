"""Whether the search for a target had ended when it was decided for: targets that share a study are searched for apart."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

DECISIONS = "torchwise_decisions"


def upgrade() -> None:
    # A column that must have a value needs one for the rows that are there; it is put right at once.
    op.add_column(DECISIONS, sa.Column("state", sa.Text, nullable=False, server_default="decided"))
    op.execute(f"UPDATE {DECISIONS} SET state = (SELECT state FROM torchwise_studies WHERE id = study_id)")


def downgrade() -> None:
    with op.batch_alter_table(DECISIONS) as table:  # SQLite before 3.35 takes no column away
        table.drop_column("state")
