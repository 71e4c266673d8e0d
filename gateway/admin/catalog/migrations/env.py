"""Run by Alembic: migrations use the connection and the transaction of the caller."""

from alembic import context

from gateway.admin.catalog.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
