"""Rights that were taken away, as they travel beside the catalog: to a gateway that cannot read it at the moment.

A change that revokes a key, or switches a tenant off, is kept in the catalog like any other. It is also said through Redis, where
it stays for a day, so that a gateway whose way to the database is cut, and that would go on by what it read last, refuses the key
at once. What is heard can only take away: a key that it names is refused until the catalog was read at the version of that change
or a later one, and from then on the catalog alone counts. So nothing that is lost in Redis makes a key valid, and nothing that is
written there makes one valid either. In a fleet each is signed with ``fleet.secret``, for one zone: whoever may only write to
Redis cannot shut clients out.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic_core import from_json, to_json

from gateway.admin.catalog.records import TenantRecord
from gateway.admin.catalog.snapshot import RevocationRow, Snapshot
from gateway.model.peer_auth import proof

KEY = "key"
TENANT = "tenant"
_KIND = "withdrawal"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A key, or a tenant with all of its keys, is refused.

    Args:
        what: ``KEY`` or ``TENANT``.
        name: the access key's, or the tenant's.
        version: of the catalog with the change that says so.
        at: when that was, in seconds since the epoch.
    """

    what: str
    name: str
    version: int
    at: float

    def to_text(self, secret: str, place: str) -> str:
        """How it is written in Redis at ``place``; ``secret`` is the fleet's, empty where there is none."""
        told: dict[str, Any] = asdict(self)
        if secret:
            told["proof"] = proof(secret, {**told, "place": place}, _KIND)
        return to_json(told).decode()

    @classmethod
    def from_text(cls, text: bytes | str, secret: str, place: str) -> Withdrawal | None:
        """The reverse; ``None`` for what no gateway of this fleet has written."""
        try:
            told = from_json(text)
            claimed = str(told.pop("proof", ""))
            found = cls(str(told["what"]), str(told["name"]), int(told["version"]), float(told["at"]))
            right = not secret or hmac.compare_digest(
                claimed.encode(), proof(secret, {**told, "place": place}, _KIND).encode()
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None
        return found if right and found.what in (KEY, TENANT) else None


class Withdrawn:
    """The withdrawals that the catalog, as it was read last, does not know of yet."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Withdrawal] = {}

    def hold(self, withdrawals: Iterable[Withdrawal], known: int) -> list[Withdrawal]:
        """Refuse them; those of them that are new, and later than the version ``known``."""
        new = []
        for each in withdrawals:
            before = self._held.get((each.what, each.name))
            if each.version > max(known, before.version if before else 0):
                self._held[each.what, each.name] = each
                new.append(each)
        return new

    def over(self, snapshot: Snapshot) -> Snapshot:
        """What the catalog said at a moment, without the rights that were taken away after it."""
        later = [each for each in self._held.values() if each.version > snapshot.version]
        if not later:
            return snapshot
        revocations, tenants = dict(snapshot.revocations), dict(snapshot.tenants)
        for each in later:
            if each.what == KEY:
                revocations.setdefault(each.name, RevocationRow(each.at, each.version))
                continue
            known = tenants.get(each.name) or TenantRecord.model_construct(
                name=each.name, created_at=each.at, revision=each.version
            )
            tenants[each.name] = known.changed(enabled=False)
        return replace(snapshot, revocations=revocations, tenants=tenants)

    def settle(self, version: int) -> None:
        """Forget what a catalog of this version says itself."""
        self._held = {place: each for place, each in self._held.items() if each.version > version}
