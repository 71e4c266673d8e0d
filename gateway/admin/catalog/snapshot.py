"""What the catalog says at one moment, as values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.admin.catalog.schema import credentials, meta, origins, revocations, rules, tenants
from gateway.admin.catalog.vault import Vault
from gateway.config import Credential, Origin, Rule
from gateway.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant; while it is not ``enabled``, none of its keys is valid."""

    name: str
    description: str
    enabled: bool
    created_at: float
    revision: int


@dataclass(frozen=True, slots=True)
class CredentialRow:
    """A credential with what the configuration has no place for; ``sealed`` are its secrets as the catalog has them."""

    credential: Credential
    description: str
    created_at: float
    rotated_at: float | None
    revision: int
    sealed: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class OriginRow:
    """An origin with what the configuration has no place for."""

    origin: Origin
    created_at: float
    revision: int


@dataclass(frozen=True, slots=True)
class RevocationRow:
    """When a key was revoked."""

    revoked_at: float
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The catalog at one moment; ``version`` is the number of its last change, ``rules_revision`` that of the rules'.

    ``mark`` is the last change's own: numbers come again after a backup, or a standby that was behind, took the place of the
    catalog. ``purge`` is the name of the last purge; empty for none.
    """

    version: int
    tenants: Mapping[str, TenantRow] = field(default_factory=dict)
    credentials: Mapping[str, CredentialRow] = field(default_factory=dict)
    revocations: Mapping[str, RevocationRow] = field(default_factory=dict)
    origins: Mapping[str, OriginRow] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    rules_revision: int = 0
    mark: str = ""
    purge: str = ""


EMPTY = Snapshot(0)
"""A catalog that nobody has written to."""


async def mark_of(connection: AsyncConnection) -> tuple[int, str]:
    """The number of the last change, and its mark."""
    known = await _noted(connection)
    return int(known.get("version", 0)), known.get("mark", "")


async def _noted(connection: AsyncConnection) -> dict[str, str]:
    rows = await connection.execute(
        select(meta.c.name, meta.c.value).where(meta.c.name.in_(("version", "mark", "rules", "purge")))
    )
    return {row.name: row.value for row in rows}


async def read_snapshot(connection: AsyncConnection, vault: Vault, last: Snapshot) -> Snapshot:
    """Read the catalog.

    Args:
        connection: in a transaction that sees one moment.
        vault: opens what is sealed.
        last: what was read before, if anything; credentials that are as they were then are not made again.

    Raises:
        ConfigError: something in it is not what this version of Larder, or this key, can read.
    """
    rows = {}
    for table in (tenants, credentials, revocations, origins, rules):
        rows[table.name] = [dict(row) for row in (await connection.execute(select(table))).mappings()]
    noted = await _noted(connection)
    try:
        return Snapshot(
            version=int(noted.get("version", 0)),
            mark=noted.get("mark", ""),
            purge=noted.get("purge", ""),
            tenants={row["name"]: TenantRow(**row) for row in rows["tenants"]},
            credentials=_by_name(_credential(row, vault, last) for row in rows["credentials"]),
            revocations={row.pop("access_key_id"): RevocationRow(**row) for row in rows["revocations"]},
            origins={row["name"]: _origin(row, vault) for row in rows["origins"]},
            rules=tuple(
                Rule(**json.loads(row["rule"])) for row in sorted(rows["rules"], key=lambda row: row["position"])
            ),
            rules_revision=int(noted.get("rules", 0)),
        )
    except (ValidationError, ValueError) as error:
        raise ConfigError(f"the catalog cannot be read by this version of Larder: {type(error).__name__}") from None


def _by_name(rows: Iterable[CredentialRow]) -> dict[str, CredentialRow]:
    return {row.credential.access_key_id: row for row in rows}


def _credential(row: dict[str, Any], vault: Vault, last: Snapshot) -> CredentialRow:
    before = last.credentials.get(row["access_key_id"])
    # What is sealed again is another text, so equal texts are of one and the same change.
    if before is not None and (before.sealed, before.revision) == (row["secrets"], row["revision"]):
        return before
    own = ("access_key_id", "tenant", "origin", "origin_access_key_id", "read_only", "expires", "previous_expires")
    fields = {name: row[name] for name in own} | {"allow": tuple(json.loads(row["allow"]))}
    credential = Credential(**fields, **vault.open(f"credentials/{row['access_key_id']}", row["secrets"]))
    kept = {name: row[name] for name in ("description", "created_at", "rotated_at", "revision")}
    return CredentialRow(credential, **kept, sealed=row["secrets"])


def _origin(row: dict[str, Any], vault: Vault) -> OriginRow:
    own = ("name", "endpoint", "region", "access_key_id", "connect_timeout", "read_timeout", "max_connections")
    origin = Origin(**{name: row[name] for name in own}, **vault.open(f"origins/{row['name']}", row["secrets"]))
    return OriginRow(origin, row["created_at"], row["revision"])
