"""Limits of tenants."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; tenants that exist have no limits."""
    op.add_column("tenants", sa.Column("requests_per_second", sa.Double, nullable=False, server_default="0"))
    op.add_column("tenants", sa.Column("bytes_per_second", sa.BigInteger, nullable=False, server_default="0"))
