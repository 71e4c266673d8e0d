"""Profiles: the reads of a job, to be replayed as a warm-up."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create their tables."""
    op.create_table(
        "profiles",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("access_key_id", sa.Text, nullable=False),
        sa.Column("bucket", sa.Text, nullable=False),
        sa.Column("prefix", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "profile_parts",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("reads", sa.BigInteger, nullable=False),
        sa.Column("span", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("profile_parts_by_profile", "profile_parts", ["profile", "id"])
