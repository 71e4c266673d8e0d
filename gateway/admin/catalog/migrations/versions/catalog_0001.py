"""The first tables.

Spelled out instead of imported from schema.py: a released migration must never change.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _text(name: str, *, nullable: bool = False, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable, primary_key=primary_key)


def _time(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=nullable)


def _revision() -> sa.Column[int]:
    return sa.Column("revision", sa.BigInteger, nullable=False)


def upgrade() -> None:
    """Create them."""
    meta = op.create_table("meta", _text("name", primary_key=True), _text("value"))
    op.bulk_insert(meta, [{"name": "version", "value": "0"}, {"name": "rules", "value": "0"}])
    op.create_table(
        "tenants",
        _text("name", primary_key=True),
        _text("description"),
        sa.Column("enabled", sa.Boolean, nullable=False),
        _time("created_at"),
        _revision(),
    )
    _create_credentials()
    _create_origins_and_rules()
    _create_operations()
    _create_audit()


def _create_credentials() -> None:
    op.create_table(
        "credentials",
        _text("access_key_id", primary_key=True),
        _text("tenant"),
        _text("origin"),
        _text("description"),
        _text("origin_access_key_id"),
        _text("allow"),
        sa.Column("read_only", sa.Boolean, nullable=False),
        _text("expires"),
        _text("previous_expires"),
        _time("created_at"),
        _time("rotated_at", nullable=True),
        _revision(),
        _text("secrets"),
    )
    op.create_table("revocations", _text("access_key_id", primary_key=True), _time("revoked_at"), _revision())


def _create_origins_and_rules() -> None:
    op.create_table(
        "origins",
        _text("name", primary_key=True),
        _text("endpoint"),
        _text("region"),
        _text("access_key_id"),
        sa.Column("connect_timeout", sa.Double, nullable=False),
        sa.Column("read_timeout", sa.Double, nullable=False),
        sa.Column("max_connections", sa.BigInteger, nullable=False),
        _time("created_at"),
        _revision(),
        _text("secrets"),
    )
    op.create_table(
        "rules",
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        _text("rule"),
    )


def _create_operations() -> None:
    op.create_table(
        "overrides",
        _text("dataset", primary_key=True),
        _text("mode", nullable=True),
        sa.Column("quota", sa.BigInteger),
        _time("changed_at"),
        _revision(),
    )
    op.create_table(
        "warmups",
        _text("id", primary_key=True),
        _text("request"),
        _text("state"),
        _text("progress"),
        _text("owner"),
        _time("created_at"),
        _time("updated_at"),
        _revision(),
    )


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        _time("at"),
        _text("actor"),
        _text("address"),
        _text("action"),
        _text("target"),
        _text("before", nullable=True),
        _text("after", nullable=True),
        _text("request_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_target", "audit", ["target", "id"])
    op.create_table("idempotency", _text("key", primary_key=True), _text("fingerprint"), _text("answer"), _time("at"))
    op.create_index("idempotency_by_age", "idempotency", ["at"])
