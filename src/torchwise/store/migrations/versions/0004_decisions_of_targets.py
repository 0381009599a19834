"""One decision for each target of a study, and how its search ended: targets of one structure share measurements alone."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

DECISIONS = "torchwise_decisions"
INDEXES = (("torchwise_decisions_target", ["target", "decided_at"]), ("torchwise_decisions_identity", ["identity"]))


def upgrade() -> None:
    of_the_study = "(SELECT state FROM torchwise_studies WHERE id = study_id)"
    _made_anew("study_id", "target", state=of_the_study)


def downgrade() -> None:
    # What was decided last stays.
    op.execute(
        f"DELETE FROM {DECISIONS} WHERE EXISTS (SELECT 1 FROM {DECISIONS} later "
        f"WHERE later.study_id = {DECISIONS}.study_id AND (later.decided_at > {DECISIONS}.decided_at "
        f"OR later.decided_at = {DECISIONS}.decided_at AND later.target > {DECISIONS}.target))"
    )
    _made_anew("study_id")


def _made_anew(*key: str, **added: str) -> None:
    """Make the table anew with another primary key, and columns filled by SQL: SQLite changes no key in place."""
    for name, _columns in INDEXES:
        op.drop_index(name, DECISIONS)
    anew = op.create_table(
        f"{DECISIONS}_anew",
        sa.Column("study_id", sa.Integer, sa.ForeignKey("torchwise_studies.id", ondelete="CASCADE"), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("decided_at", sa.Double, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("speedup_low", sa.Double),
        sa.Column("speedup_mid", sa.Double),
        sa.Column("speedup_high", sa.Double),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in added),
        # A name of its own: on PostgreSQL that of the table that is still there is taken.
        sa.PrimaryKeyConstraint(*key, name="_".join((DECISIONS, *key))),
    )
    columns = anew.c.keys()
    values = [added.get(name, name) for name in columns]
    op.execute(f"INSERT INTO {DECISIONS}_anew ({', '.join(columns)}) SELECT {', '.join(values)} FROM {DECISIONS}")
    op.drop_table(DECISIONS)
    op.rename_table(f"{DECISIONS}_anew", DECISIONS)
    for name, columns_of_index in INDEXES:
        op.create_index(name, DECISIONS, columns_of_index)
