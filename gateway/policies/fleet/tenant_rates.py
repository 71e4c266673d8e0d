"""Limits of tenants: the share of one worker, and the time that a request must wait.

A limit is for the fleet. Every worker has a token bucket with its share of it, and shares follow demand: once a second a worker
reports how many requests it received, admitted or not, and takes the same share of the limit as of all requests. Raghavan et al.
share by flows (Cloud Control with Distributed Rate Limiting, SIGCOMM 2007, section 3.3).

A worker that has no reports of others has the whole limit. So a tenant that starts at several workers at once may get the limit
from each of them for about two seconds, until they have each other's reports. The alternative, a reserve for workers without
requests, would refuse clients that stay below their limit.

Bytes are charged after the answer, as they are not known before: an answer that exceeds the limit makes the next requests wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

BURST = 2.0
"""Seconds of the limit that a tenant may use at once after a pause."""
LEAST_SHARE = 0.01
"""The smallest share of a worker, however few requests it received."""


class RateLimit(NamedTuple):
    """Requests and bytes of answers per second; 0 for no limit."""

    requests: float = 0.0
    bytes: float = 0.0


class TenantBucket:
    """The token bucket of one tenant in one worker.

    Attributes:
        share: of the limit, above 0 and at most 1.
        asked: requests since the owner last set it to 0.

    Args:
        limit: of the fleet.
        now: seconds of any clock.
    """

    def __init__(self, limit: RateLimit, now: float) -> None:
        self.limit = limit
        self.share = 1.0
        self.asked = 0
        self._at = now
        self._requests, self._bytes = self._most()

    def wait(self, now: float) -> float:
        """Seconds until a request may be made again; 0: it may be made now, and is counted."""
        self.asked += 1
        self._fill(now)
        waits = [0.0]
        if self.limit.requests and self._requests < 1:
            waits.append((1 - self._requests) / (self.share * self.limit.requests))
        if self.limit.bytes and self._bytes <= 0:
            waits.append((1 - self._bytes) / (self.share * self.limit.bytes))
        longest = max(waits)
        if longest == 0:
            self._requests -= 1
        return longest

    def spend(self, size: int) -> None:
        """Count the bytes of an answer."""
        self._bytes -= size

    def _most(self) -> tuple[float, float]:
        # With room for less than one request, none could ever be made.
        return max(1.0, BURST * self.share * self.limit.requests), BURST * self.share * self.limit.bytes

    def _fill(self, now: float) -> None:
        seconds, self._at = max(0.0, now - self._at), now
        most = self._most()
        self._requests = min(most[0], self._requests + seconds * self.share * self.limit.requests)
        self._bytes = min(most[1], self._bytes + seconds * self.share * self.limit.bytes)


def share_of(mine: int, others: Iterable[int]) -> float:
    """The share of a worker that received ``mine`` requests while the other workers received ``others``."""
    everywhere = mine + sum(others)
    return max(LEAST_SHARE, mine / everywhere) if everywhere else 1.0
