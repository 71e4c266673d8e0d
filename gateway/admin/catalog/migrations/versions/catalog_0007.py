"""Purges of one object."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; purges that exist are of prefixes. Gateways of the previous version write rows without it."""
    op.add_column("purges", sa.Column("exact", sa.Boolean, nullable=False, server_default=sa.false()))
