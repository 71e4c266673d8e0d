"""The table of purges, for nodes that are down when a purge is made."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "purges",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
