"""Sends a worker's requests to operators who follow them live.

Without followers a request costs one look-up in an empty mapping, and the worker asks Redis once a second for followers. With
followers it sends requests four times a second. It drops and counts those beyond the limit. No request waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.fleet.nodes.live import LiveExchange
from gateway.model.live import LiveFilter, LiveRequest

FOLLOWERS = 8
"""Followers that are served at once."""
_MOST = 250
"""Requests that a worker keeps for a follower between two turns."""
_IDLE, _BUSY = 1.0, 0.25
"""Seconds between two turns, without followers and with some."""


class LiveRequests:
    """The followers of one worker's requests.

    Attributes:
        followers: the filters of the followers, by name; empty almost always.
    """

    def __init__(self, exchange: LiveExchange) -> None:
        self.followers: Mapping[str, LiveFilter] = {}
        self._exchange = exchange
        self._kept: dict[str, list[LiveRequest]] = {}
        self._dropped: dict[str, int] = {}

    def note(self, request: LiveRequest) -> None:
        """Keep a request for its followers."""
        for follower, wanted in self.followers.items():
            if wanted.matches(request):
                kept = self._kept.setdefault(follower, [])
                if len(kept) < _MOST:
                    kept.append(request)
                else:
                    self._dropped[follower] = self._dropped.get(follower, 0) + 1

    def pause(self) -> float:
        """Seconds until the next turn."""
        return _BUSY if self.followers else _IDLE

    async def run_once(self) -> None:
        """Send the kept requests, and update the followers. Raises one of ``DOWN`` if Redis is down."""
        kept, self._kept = self._kept, {}
        dropped, self._dropped = self._dropped, {}
        for follower, requests in kept.items():
            await self._exchange.add(follower, requests, dropped.get(follower, 0))
        followers = await self._exchange.followers()
        self.followers = {name: followers[name] for name in sorted(followers)[:FOLLOWERS]}
