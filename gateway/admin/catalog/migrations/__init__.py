"""The migrations of the catalog, by Alembic's rules."""
