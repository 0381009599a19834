"""Run by Alembic: migrate the connection that `torchwise.store.migrate` hands over, in its transaction."""

from alembic import context

from torchwise.store.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
