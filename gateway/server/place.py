"""The place of a request among those in progress, which it leaves while its client is waited for.

A place represents work. A request that waits for more of its body, or for its client to take more of the answer, does none: the
server takes it off the count (``rest``), and counts it again when it continues. So clients that send or read slowly hold their
connection, and nothing that others need.
"""

from __future__ import annotations

from gateway.base import metrics
from gateway.model.datasets import ApiError
from gateway.model.holders import Holder
from gateway.policies.shares import Shares

PLACE = "larder.place"
"""Scope key of a request's ``RequestPlace``; absent where requests are not limited."""
SOON = {"Retry-After": "1"}
"""Headers of a refusal for want of a share."""


class RequestPlace:
    """A place; without a holder, and so uncounted, until ``admit``.

    Args:
        shares: the places of the edge.
    """

    __slots__ = ("_held", "_holder", "_shares")

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._holder: Holder | None = None
        self._held: bool | None = None  # None: not admitted

    def admit(self, holder: Holder) -> bool:
        """Take the place on a holder's account; returns whether its share allows it."""
        if self._held is not None:
            self.leave()  # of a form, whose signature is in its body
        if not self._shares.claim(holder):
            return False
        self._holder, self._held = holder, True
        return True

    def enter(self, holder: Holder) -> None:
        """Take the place, whatever the share."""
        self._holder, self._held = holder, True
        self._shares.take(holder)

    def rest(self) -> None:
        """The client is waited for."""
        if self._held:
            self._held = False
            self._shares.give_back(self._holder)

    def go_on(self) -> None:
        """Count the request again: it no longer waits for the client. An answer that has begun continues regardless of shares."""
        if self._held is False:
            self._held = True
            self._shares.take(self._holder)

    def go_on_reading(self) -> None:
        """More of the body came.

        Raises:
            ApiError: SlowDown, because other requests have taken the holder's share in the meantime.
        """
        if self._held is False and not self._shares.allows(self._holder):
            metrics.SHED.labels("requests").inc()
            raise ApiError("SlowDown", "Too many requests of this caller at once; try again.", headers=SOON)
        self.go_on()

    def leave(self) -> None:
        """The request is answered."""
        if self._held:
            self._shares.give_back(self._holder)
        self._held = None
