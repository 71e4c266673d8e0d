"""Run by Alembic: migrations go through the connection, and the transaction, of whoever asked for them."""

from alembic import context

from gateway.admin.catalog.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
