"""A bandwidth shared by several transfers: fairly, or in the order in which they began.

Fair (max-min) sharing gives each transfer an equal part, and distributes the unused rest among the other transfers. TCP does
roughly that among similar connections, and object stores among large requests. In-order sharing gives the first transfer all
that it can use, like a store that limits small requests per second. They synchronise jobs differently. A fair store completes
equal requests at the same time, so the jobs compute at the same time and leave it idle; with in-order sharing the jobs drift
apart, and it is never idle. Background transfers get the remaining bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf, ulp

from gateway.sim.jobs.scenario import OriginSpec
from gateway.sim.world.clock import Action, Clock

_NOTHING = 0.5
"""Bytes; a transfer with fewer left is complete, up to rounding errors."""
NO_LIMIT = 1e12
"""Bytes per second; more than any simulated store needs."""


@dataclass(slots=True, eq=False)
class Transfer:
    """One transfer in progress."""

    left: float
    cap: float
    background: bool
    done: Action
    rate: float = field(default=0.0)


class Link:
    """The connection to the origin.

    Args:
        clock: the time.
        bandwidth: bytes per second for all transfers together.
        latency: seconds before the first byte of a transfer.
        in_order: whether transfers share the bandwidth in order; otherwise fairly.
    """

    def __init__(self, clock: Clock, bandwidth: float, latency: float = 0.0, *, in_order: bool = False) -> None:
        self.sent = 0.0
        """Bytes of all transfers so far."""
        self._clock = clock
        self._bandwidth = bandwidth
        self._latency = latency
        self._fill = _in_turn if in_order else _fairly
        self._transfers: list[Transfer] = []
        self._since = 0.0
        self._version = 0

    def send(
        self, size: float, done: Action, *, cap: float = 0.0, background: bool = False, delay: float = 0.0
    ) -> Transfer:
        """Transfer ``size`` bytes at up to ``cap`` bytes per second (0: no limit), then call ``done``.

        ``delay``: seconds before the first byte, in addition to the latency.
        """
        self.sent += size
        transfer = Transfer(float(size), cap or inf, background, done)
        if self._latency or delay:
            self._clock.after(self._latency + delay, partial(self._begin, transfer))
        else:
            self._begin(transfer)
        return transfer

    def limit(self, bandwidth: float) -> None:
        """Change the bandwidth, also for transfers in progress."""
        self._advance()
        self._bandwidth = bandwidth
        self._share()

    def hurry(self, transfer: Transfer) -> None:
        """Turn a background transfer into a normal one without a cap, because a reader now waits for it."""
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
        left = self._fill([transfer for transfer in self._transfers if not transfer.background], self._bandwidth)
        self._fill([transfer for transfer in self._transfers if transfer.background], left)
        self._version += 1
        moving = [transfer.left / transfer.rate for transfer in self._transfers if transfer.rate > 0]
        if moving:
            self._clock.after(max(0.0, min(moving)), partial(self._finish, self._version))

    def _finish(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        # The resolution of the clock; a shorter wait would never end.
        instant = 2 * ulp(self._clock.now)
        finished = [transfer for transfer in self._transfers if transfer.left <= max(_NOTHING, transfer.rate * instant)]
        self._transfers = [transfer for transfer in self._transfers if transfer not in finished]
        self._share()
        for transfer in finished:
            transfer.done()


def origin_link(clock: Clock, origin: OriginSpec, bandwidth: float = 0.0) -> Link:
    """The connection to a scenario's store; ``bandwidth`` in bytes per second overrides the store's."""
    limit = bandwidth or origin.bandwidth
    link = Link(clock, limit, origin.latency, in_order=origin.sharing == "arrival")
    if origin.unlimited:
        since, until = origin.unlimited
        clock.after(since, partial(link.limit, NO_LIMIT))
        clock.after(until, partial(link.limit, limit))
    return link


def _fairly(transfers: list[Transfer], bandwidth: float) -> float:
    """Set fair rates, lowest cap first; returns the remaining bandwidth."""
    transfers.sort(key=lambda transfer: transfer.cap)
    for place, transfer in enumerate(transfers):
        transfer.rate = min(transfer.cap, bandwidth / (len(transfers) - place))
        bandwidth -= transfer.rate
    return bandwidth


def _in_turn(transfers: list[Transfer], bandwidth: float) -> float:
    """Set rates in the order of the transfers; returns the remaining bandwidth."""
    for transfer in transfers:
        transfer.rate = min(transfer.cap, bandwidth)
        bandwidth -= transfer.rate
    return bandwidth
