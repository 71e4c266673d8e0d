"""A request's place among those in progress, which it gives up while it waits for its client.

A place represents work. A request that waits for more of its body, or for its client to accept more of the answer, does no work:
the server stops counting it (``rest``), and counts it again when it continues. So slow clients occupy their connection, but
nothing that others need.
"""

from __future__ import annotations

from gateway.base import metrics
from gateway.model.datasets import ApiError
from gateway.model.holders import Holder
from gateway.policies.shares import Shares

PLACE = "larder.place"
"""Scope key of a request's ``RequestPlace``; absent where requests are not limited."""
SOON = {"Retry-After": "1"}
"""Headers of a refusal because a share is used up."""


class RequestPlace:
    """A place; it has no holder, and so is uncounted, until ``admit``.

    Args:
        shares: the places of the edge.
    """

    __slots__ = ("_held", "_holder", "_shares")

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._holder: Holder | None = None
        self._held: bool | None = None  # None: not admitted

    def admit(self, holder: Holder) -> bool:
        """Take the place on a holder's account; returns whether the holder's share allows it."""
        if self._held is not None:
            self.leave()  # of a form upload, whose signature is in its body
        if not self._shares.claim(holder):
            return False
        self._holder, self._held = holder, True
        return True

    def enter(self, holder: Holder) -> None:
        """Take the place, regardless of the share."""
        self._holder, self._held = holder, True
        self._shares.take(holder)

    def rest(self) -> None:
        """Stop counting the request while it waits for its client."""
        if self._held:
            self._held = False
            self._shares.give_back(self._holder)

    def go_on(self) -> None:
        """Count the request again: its wait for the client is over. A response that has begun continues regardless of shares."""
        if self._held is False:
            self._held = True
            self._shares.take(self._holder)

    def go_on_reading(self) -> None:
        """Count the request again, because more of the body has arrived.

        Raises:
            ApiError: SlowDown, because other requests have taken the holder's share in the meantime.
        """
        if self._held is False and not self._shares.allows(self._holder):
            metrics.SHED.labels("requests").inc()
            raise ApiError("SlowDown", "Too many requests of this caller at once; try again.", headers=SOON)
        self.go_on()

    def leave(self) -> None:
        """Give up the place: the request is answered."""
        if self._held:
            self._shares.give_back(self._holder)
        self._held = None
