"""Withdrawn rights, announced through Redis to gateways that cannot reach the catalog.

A change that revokes a key or a token, or disables a tenant, is in the catalog like any other. It is also kept in Redis for a
day, so that a gateway without a connection to the database refuses the key at once. A withdrawal can only take rights away:
the key is refused until the catalog has been read at the version of the change or a later one; from then on the catalog
decides. So neither losing nor writing data in Redis can make a key valid. In a fleet, withdrawals are signed with
``fleet.secret`` for one zone: write access to Redis is not enough to lock clients out.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic_core import from_json, to_json

from gateway.admin.catalog.records import TenantRecord
from gateway.admin.catalog.snapshot import RevocationRow, Snapshot
from gateway.model.peer.auth import proof

KEY = "key"
TENANT = "tenant"
TOKEN = "token"  # noqa: S105  # a kind
_KIND = "withdrawal"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The withdrawal of a key, of a tenant with all of its keys, or of an admin token.

    Args:
        what: ``KEY``, ``TENANT`` or ``TOKEN``.
        name: the access key's, the tenant's, or the token's.
        version: of the catalog after the change.
        at: time of the change, in seconds since the epoch.
    """

    what: str
    name: str
    version: int
    at: float

    def to_text(self, secret: str, place: str) -> str:
        """The text for Redis at ``place``; ``secret`` is the fleet's; empty: unsigned."""
        document: dict[str, Any] = asdict(self)
        if secret:
            document["proof"] = proof(secret, {**document, "place": place}, _KIND)
        return to_json(document).decode()

    @classmethod
    def from_text(cls, text: bytes | str, secret: str, place: str) -> Withdrawal | None:
        """Parse ``to_text``; ``None`` unless a gateway of this fleet wrote it."""
        try:
            document = from_json(text)
            claimed = str(document.pop("proof", ""))
            withdrawal = cls(
                str(document["what"]), str(document["name"]), int(document["version"]), float(document["at"])
            )
            right = not secret or hmac.compare_digest(
                claimed.encode(), proof(secret, {**document, "place": place}, _KIND).encode()
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None
        return withdrawal if right and withdrawal.what in (KEY, TENANT, TOKEN) else None


class Withdrawn:
    """Withdrawals that the last snapshot does not include."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Withdrawal] = {}

    def hold(self, withdrawals: Iterable[Withdrawal], known: int) -> list[Withdrawal]:
        """Add withdrawals; returns those that are new and later than the version ``known``."""
        new = []
        for withdrawal in withdrawals:
            before = self._held.get((withdrawal.what, withdrawal.name))
            if withdrawal.version > max(known, before.version if before else 0):
                self._held[withdrawal.what, withdrawal.name] = withdrawal
                new.append(withdrawal)
        return new

    def over(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without the rights that were withdrawn after it."""
        later = [withdrawal for withdrawal in self._held.values() if withdrawal.version > snapshot.version]
        if not later:
            return snapshot
        revocations, tenants, tokens = dict(snapshot.revocations), dict(snapshot.tenants), dict(snapshot.tokens)
        for withdrawal in later:
            if withdrawal.what == KEY:
                revocations.setdefault(withdrawal.name, RevocationRow(withdrawal.at, withdrawal.version))
                continue
            if withdrawal.what == TOKEN:
                tokens.pop(withdrawal.name, None)
                continue
            known = tenants.get(withdrawal.name) or TenantRecord.model_construct(
                name=withdrawal.name, created_at=withdrawal.at, revision=withdrawal.version
            )
            tenants[withdrawal.name] = known.changed(enabled=False)
        return replace(snapshot, revocations=revocations, tenants=tenants, tokens=tokens)

    def settle(self, version: int) -> None:
        """Forget withdrawals that a catalog of this version includes."""
        self._held = {place: withdrawal for place, withdrawal in self._held.items() if withdrawal.version > version}
