"""What lists and hints ask for is found without reading whole tables, however many studies there are."""

from alembic import op

revision = "0002"
down_revision = "0001"

INDEXES = (
    ("torchwise_studies_created", "torchwise_studies", ["created_at", "id"]),
    ("torchwise_studies_target", "torchwise_studies", ["target", "created_at"]),
    ("torchwise_decisions_target", "torchwise_decisions", ["target", "decided_at"]),
    ("torchwise_decisions_identity", "torchwise_decisions", ["identity"]),
)


def upgrade() -> None:
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)


def downgrade() -> None:
    for name, table, _columns in INDEXES:
        op.drop_index(name, table)
