"""The content of the catalog at one moment, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import select

from gateway.admin.catalog.profiles import read_recordings
from gateway.admin.catalog.records import CredentialRecord, OriginRecord, Record, TenantRecord, TokenRecord
from gateway.admin.catalog.schema import credentials, meta, origins, overrides, revocations, rules, tenants, tokens
from gateway.admin.catalog.vault import Vault
from gateway.base.config import Rule
from gateway.model.errors import ConfigError
from gateway.policies.space.overrides import Overrides
from gateway.policies.streams.profile import ProfileRecording

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

R = TypeVar("R", bound=Record)
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RevocationRow:
    """When a key was revoked."""

    revoked_at: float
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The catalog at one moment; ``version`` is the number of its last change, ``rules_revision`` that of the last change of
    rules.

    ``mark`` identifies the last change: numbers repeat when a backup, or a standby that lagged, replaces the catalog. ``purge``
    is the name of the last purge; empty if there was none. ``recordings`` are the profiles being recorded, and recent ones.
    ``overrides`` are those of the manager's decisions.
    """

    version: int
    tenants: Mapping[str, TenantRecord] = field(default_factory=dict)
    credentials: Mapping[str, CredentialRecord] = field(default_factory=dict)
    revocations: Mapping[str, RevocationRow] = field(default_factory=dict)
    origins: Mapping[str, OriginRecord] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    rules_revision: int = 0
    mark: str = ""
    purge: str = ""
    recordings: tuple[ProfileRecording, ...] = ()
    tokens: Mapping[str, TokenRecord] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=Overrides)


EMPTY = Snapshot(0)
"""A catalog without any change."""


Noted = Mapping[str, str]
"""Rows of ``meta`` by name: ``version`` and ``mark`` of the last change, ``rules`` and ``purge``."""
_NOTED = select(meta.c.name, meta.c.value).where(meta.c.name.in_(("version", "mark", "rules", "purge")))
_OVERRIDES = select(overrides.c.dataset, overrides.c.mode, overrides.c.quota)


async def read_noted(connection: AsyncConnection) -> Noted:
    """The rows of ``meta``."""
    return {row.name: row.value for row in await connection.execute(_NOTED)}


def mark_of(noted: Noted) -> tuple[int, str]:
    """Number and mark of the last change, which identify it."""
    return int(noted.get("version", 0)), noted.get("mark", "")


async def read_snapshot(connection: AsyncConnection, noted: Noted, vault: Vault, last: Snapshot) -> Snapshot:
    """Read the catalog.

    Args:
        connection: in a transaction with a consistent view.
        noted: rows of ``meta``, read in that transaction.
        vault: opens sealed secrets.
        last: the snapshot read before; its unchanged credentials are reused.

    Raises:
        ConfigError: this version of Larder, or this key, cannot read it.
    """
    rows = {}
    for table in (tenants, credentials, revocations, origins, rules, tokens):
        rows[table.name] = [dict(row) for row in (await connection.execute(select(table))).mappings()]
    try:
        return Snapshot(
            version=mark_of(noted)[0],
            mark=mark_of(noted)[1],
            purge=noted.get("purge", ""),
            tenants=_records(TenantRecord, rows, vault, last.tenants),
            credentials=_records(CredentialRecord, rows, vault, last.credentials),
            revocations={row.pop("access_key_id"): RevocationRow(**row) for row in rows["revocations"]},
            origins=_records(OriginRecord, rows, vault, last.origins),
            rules=tuple(
                Rule.model_validate_json(row["rule"]) for row in sorted(rows["rules"], key=lambda row: row["position"])
            ),
            rules_revision=int(noted.get("rules", 0)),
            recordings=await read_recordings(connection),
            tokens=_records(TokenRecord, rows, vault, last.tokens),
            overrides=Overrides.of((row.dataset, row.mode, row.quota) for row in await connection.execute(_OVERRIDES)),
        )
    except (ValidationError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigError(f"the catalog cannot be read by this version of Larder: {type(error).__name__}") from None


def _records(kind: type[R], rows: Mapping[str, Rows], vault: Vault, before: Mapping[str, R]) -> dict[str, R]:
    return {row[kind.key]: kind.from_row(row, vault, before.get(row[kind.key])) for row in rows[kind.plural]}
