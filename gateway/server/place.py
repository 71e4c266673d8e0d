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
"""Scope key of a request's ``RequestPlace``; absent until its caller is known, and where requests are not limited."""
SOON = {"Retry-After": "1"}
"""Headers of a refusal because a share is used up."""


class RequestPlace:
    """A place of a verified caller.

    Args:
        shares: the places of the edge, of which the holder has just taken one.
        holder: the caller's account.
    """

    __slots__ = ("_held", "_holder", "_shares")

    def __init__(self, shares: Shares, holder: Holder) -> None:
        self._shares = shares
        self._holder = holder
        self._held: bool | None = True  # None: given up for good

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
