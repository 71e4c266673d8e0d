"""Admits each signed request from another node once, whichever workers of this node receive it.

Two workers may get the same request at once. The lease of its signature (leases.py) lets one worker at a time consult their
shared table (seen.py), and record the signature there.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.model.keys import ObjectKey
from gateway.store.shared.leases import FillLeases
from gateway.store.shared.seen import SeenRequests


class OnlyOnce:
    """Admits each signed request once on a node.

    Args:
        seen: the table in use.
        leases: of this worker.
        now: seconds since the epoch.
    """

    def __init__(self, seen: Callable[[], SeenRequests], leases: FillLeases, now: Callable[[], float]) -> None:
        self._seen = seen
        self._leases = leases
        self._now = now

    def __call__(self, signature: bytes, expires: float) -> bool:
        """Whether this is the first request with this signature, which is invalid after ``expires``."""
        lease = ObjectKey("", "", signature.hex())
        if not self._leases.acquire(lease, 0, 0):
            return False
        try:
            return self._seen().add(signature, expires, self._now())
        finally:
            self._leases.release(lease, 0, 0)
