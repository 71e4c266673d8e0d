"""Origins that accept the charges of requester-pays buckets."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; origins that exist accept no charges."""
    op.add_column("origins", sa.Column("requester_pays", sa.Boolean, nullable=False, server_default=sa.false()))
