"""The catalog's tables, alike on SQLite and PostgreSQL.

``meta`` has a row ``version``, incremented by every change, and a row ``mark``, unique to the last change, because versions
repeat after a restored backup. Gateways poll both. Changes lock ``version``, so they are serialized. A row that a change touches
gets the change's number as ``revision``, the source of its entity tag; the rules have theirs in ``meta``. Times are seconds since
the epoch. ``secrets`` columns are sealed (vault.py); nothing else is secret.

``purges`` (gateway/operate/purge/remembered.py) is for nodes that were down; ``place`` is bucket and prefix as JSON, or
bucket and key if the purge is ``exact``.

Profiles are recorded until ``until``; gateways add parts to them, which do not count as changes (profiles.py). ``prefix`` is JSON
too; ``span`` is the bytes that a part's ``reads`` name, ``body`` the reads themselves.

Revocations are permanent rows, also for keys of a configuration file and of deleted credentials: a revoked key never becomes
valid again, whatever is created or reloaded.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, LargeBinary, MetaData, Table, Text, false

from gateway.admin.catalog.records import CredentialRecord, OriginRecord, TenantRecord, TokenRecord

REVISION = "0007"
"""Revision of these tables, that of the last script in ``migrations``."""
metadata = MetaData()

_Number = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows only for a key of the type INTEGER."""

meta = Table("meta", metadata, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))

tenants = TenantRecord.table(metadata)

credentials = CredentialRecord.table(metadata)

tokens = TokenRecord.table(metadata)

purges = Table(
    "purges",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False, unique=True),
    Column("place", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("exact", Boolean, nullable=False, server_default=false()),
)

revocations = Table(
    "revocations",
    metadata,
    Column("access_key_id", Text, primary_key=True),
    Column("revoked_at", Double, nullable=False),
    Column("revision", BigInteger, nullable=False),
)

origins = OriginRecord.table(metadata)

rules = Table(
    "rules",
    metadata,
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("rule", Text, nullable=False),
)

overrides = Table(
    "overrides",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("mode", Text),
    Column("quota", BigInteger),
    Column("changed_at", Double, nullable=False),
    Column("revision", BigInteger, nullable=False),
)

warmups = Table(
    "warmups",
    metadata,
    Column("id", Text, primary_key=True),
    Column("request", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("progress", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("revision", BigInteger, nullable=False),
)

profiles = Table(
    "profiles",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("access_key_id", Text, nullable=False),
    Column("bucket", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("until", Double, nullable=False),
    Column("revision", BigInteger, nullable=False),
)

profile_parts = Table(
    "profile_parts",
    metadata,
    Column("id", _Number, primary_key=True, autoincrement=True),
    Column("profile", Text, nullable=False),
    Column("reads", BigInteger, nullable=False),
    Column("span", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("profile_parts_by_profile", "profile", "id"),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    Column("id", _Number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("request_id", Text, nullable=False),
    Index("audit_by_target", "target", "id"),
    sqlite_autoincrement=True,
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("idempotency_by_age", "at"),
)
