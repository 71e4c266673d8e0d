"""A bandwidth that several transfers share: fairly, or in the order in which they were begun.

Fairly (max-min) each gets an equal part, and what one cannot use goes to the others. That is what TCP does among connections of
one kind, roughly, and what object stores do among large requests. In order, the first gets all that it can use: a store that
allows so many small requests a second. The difference is one of step: a fair store serves jobs with equal requests at the same
time, so they compute at the same time and leave it idle; in order they drift apart, and the store never idles. Transfers in the
background get what the others leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf, ulp

from gateway.sim.clock import Action, Clock
from gateway.sim.jobs.scenario import OriginSpec

_NOTHING = 0.5
"""Bytes: what is left of a transfer that is complete, for all that sums of fractions can tell."""
NO_LIMIT = 1e12
"""Bytes per second that no simulated store needs all of."""


@dataclass(slots=True, eq=False)
class Transfer:
    """Bytes on their way."""

    left: float
    cap: float
    background: bool
    done: Action
    rate: float = field(default=0.0)


class Link:
    """The road to the origin.

    Args:
        clock: the time.
        bandwidth: bytes per second for all transfers together.
        latency: seconds before the first byte of a transfer.
        in_order: whether the first transfer goes before the others; otherwise all go side by side.
    """

    def __init__(self, clock: Clock, bandwidth: float, latency: float = 0.0, *, in_order: bool = False) -> None:
        self.sent = 0.0
        """Bytes of all transfers that were begun."""
        self._clock = clock
        self._bandwidth = bandwidth
        self._latency = latency
        self._fill = _in_turn if in_order else _fairly
        self._transfers: list[Transfer] = []
        self._since = 0.0
        self._version = 0

    def send(self, size: float, done: Action, *, cap: float = 0.0, background: bool = False) -> Transfer:
        """Transfer ``size`` bytes, at ``cap`` bytes per second at most (0: no limit of its own), and call ``done`` then."""
        self.sent += size
        transfer = Transfer(float(size), cap or inf, background, done)
        if self._latency:
            self._clock.after(self._latency, partial(self._begin, transfer))
        else:
            self._begin(transfer)
        return transfer

    def limit(self, bandwidth: float) -> None:
        """Be wider or narrower from now on, for what is on its way too."""
        self._advance()
        self._bandwidth = bandwidth
        self._share()

    def hurry(self, transfer: Transfer) -> None:
        """Somebody waits for a transfer that was begun in the background: it goes on like any other, without a cap."""
        if transfer.background:
            self._advance()
            transfer.background = False
            transfer.cap = inf
            self._share()

    def _begin(self, transfer: Transfer) -> None:
        self._advance()
        self._transfers.append(transfer)
        self._share()

    def _advance(self) -> None:
        elapsed = self._clock.now - self._since
        self._since = self._clock.now
        for transfer in self._transfers:
            transfer.left -= transfer.rate * elapsed

    def _share(self) -> None:
        left = self._fill([each for each in self._transfers if not each.background], self._bandwidth)
        self._fill([each for each in self._transfers if each.background], left)
        self._version += 1
        moving = [each.left / each.rate for each in self._transfers if each.rate > 0]
        if moving:
            self._clock.after(max(0.0, min(moving)), partial(self._finish, self._version))

    def _finish(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        # The clock cannot tell times apart that are closer than this; a shorter wait would never end.
        instant = 2 * ulp(self._clock.now)
        finished = [each for each in self._transfers if each.left <= max(_NOTHING, each.rate * instant)]
        self._transfers = [each for each in self._transfers if each not in finished]
        self._share()
        for transfer in finished:
            transfer.done()


def origin_link(clock: Clock, origin: OriginSpec, bandwidth: float = 0.0) -> Link:
    """The road to a store as a scenario describes it; ``bandwidth`` in bytes per second replaces the store's."""
    limit = bandwidth or origin.bandwidth
    link = Link(clock, limit, origin.latency, in_order=origin.sharing == "arrival")
    if origin.unlimited:
        since, until = origin.unlimited
        clock.after(since, partial(link.limit, NO_LIMIT))
        clock.after(until, partial(link.limit, limit))
    return link


def _fairly(transfers: list[Transfer], bandwidth: float) -> float:
    """Give each its fair rate, the narrowest first; returns what is left of the bandwidth."""
    transfers.sort(key=lambda each: each.cap)
    for place, transfer in enumerate(transfers):
        transfer.rate = min(transfer.cap, bandwidth / (len(transfers) - place))
        bandwidth -= transfer.rate
    return bandwidth


def _in_turn(transfers: list[Transfer], bandwidth: float) -> float:
    """Give each what it can use, the first first; returns what is left of the bandwidth."""
    for transfer in transfers:
        transfer.rate = min(transfer.cap, bandwidth)
        bandwidth -= transfer.rate
    return bandwidth
