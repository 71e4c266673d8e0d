"""The time-outs of the invalidation channel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. ``silence`` must not exceed ``answer``: see gateway/fleet/invalidations.py.

    ``publish``: for Redis to take an announcement. ``answer``: for the others to answer it, counted from then.
    ``heartbeat``: between two heartbeats. ``connect``: for opening a subscription. ``dead``: silence after which the
    connection is given up. ``retry``: between two attempts to subscribe.
    """

    publish: float = 0.5
    answer: float = 1.5
    silence: float = 1.5
    heartbeat: float = 0.4
    connect: float = 1.0
    dead: float = 5.0
    retry: float = 0.3
