"""May these cached bytes be served to this reader now, or must the origin be asked first?

Two facts are needed, and both come from the origin: that the object has not changed (freshness, shared by all readers) and that
this reader may read it (a grant, one per origin identity). One request renews both. A third fact concerns the fleet: while the
invalidation channel is broken, another gateway may have accepted a write without this one's knowledge, so confirmations from
before the channel's last repair prove nothing. Rules marked immutable are exempt from freshness and channel, never from the
grant.

A time in the future proves nothing: the clock was ahead when it was recorded, or is behind now. A time more than ``AHEAD``
seconds in the future is ignored; ``AHEAD`` covers the small corrections of a synchronised clock.

When the origin cannot be reached, both times may be stretched by ``stale_if_error`` (RFC 5861, section 4), except when the client
itself demanded a check, which is then impossible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gateway.policies.reads.rules import IMMUTABLE, Caching

AHEAD = 5.0
"""Seconds by which a confirmation or a grant may be in the future."""


class Verdict(Enum):
    """The decision on a read whose object is in the cache."""

    SERVE = "serve"
    CHECK = "check"


@dataclass(frozen=True, slots=True)
class EntryState:
    """The state of a cached object and a reader, in seconds since the epoch; ``granted_at`` is ``None`` without a grant."""

    confirmed_at: float
    granted_at: float | None
    trusted_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Validity:
    """When a state is valid: from ``since`` on and before ``until``, while the channel was whole since ``vouched``."""

    since: float
    until: float
    vouched: float

    def holds(self, now: float, trusted_since: float) -> bool:
        """Whether the bytes may be served now."""
        return self.since <= now < self.until and trusted_since <= self.vouched


def good(standing: EntryState, rule: Caching) -> Validity:
    """The validity of a state under a rule; it may be kept until the state, the rule or the grant changes."""
    granted = -IMMUTABLE if standing.granted_at is None else standing.granted_at
    immutable = rule.freshness == IMMUTABLE
    return Validity(
        since=(granted if immutable else max(granted, standing.confirmed_at)) - AHEAD,
        until=min(granted + rule.grant, standing.confirmed_at + rule.freshness),
        vouched=IMMUTABLE if immutable else standing.confirmed_at,
    )


def decide(standing: EntryState, rule: Caching, now: float, *, forced: bool = False) -> Verdict:
    """Serve from the cache, or check with the origin first.

    Args:
        standing: the state of the object and the reader.
        rule: the rule that holds for the object.
        now: seconds since the epoch.
        forced: the client sent ``Cache-Control: no-cache``.
    """
    holds = not forced and good(standing, rule).holds(now, standing.trusted_since)
    return Verdict.SERVE if holds else Verdict.CHECK


def may_serve_stale(standing: EntryState, rule: Caching, now: float, *, forced: bool = False) -> bool:
    """Whether the bytes may be served although the origin could not be asked."""
    granted = standing.granted_at
    if forced or granted is None or rule.stale_if_error <= 0:
        return False
    stretched = replace(rule, grant=rule.grant + rule.stale_if_error, freshness=rule.freshness + rule.stale_if_error)
    return good(standing, stretched).holds(now, trusted_since=-IMMUTABLE)


def latest(before: float, after: float, now: float) -> float:
    """The later of two times of confirmation, leaving out any later than ``now``; ``after`` replaces one that is."""
    return after if before > now + AHEAD else max(before, after)
