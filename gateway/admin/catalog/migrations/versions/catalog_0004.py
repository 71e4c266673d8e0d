"""Named admin tokens with roles."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create their table."""
    op.create_table(
        "tokens",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("expires", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("secrets", sa.Text, nullable=False),
    )
