"""Which objects were forgotten a short while ago, so that nobody else's copy of them is believed.

The gateways of a fleet forget a written object one after the other. Between the first and the last of them, one that has
forgotten already could ask one that has not (gateway/engine/moves.py), get the old bytes, and keep them, with nobody left to tell
it. The same holds for what the origin showed to have changed, of which others are not told at all: their copies count as fresh.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.model.keys import ObjectKey

WITHIN = 600.0
"""Seconds; as long as homes count as moved (gateway/fleet/membership.py)."""
_MOST = 16_384


class Lately:
    """The objects that were forgotten within the last ``WITHIN`` seconds; while they are too many to tell apart, all are.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._when: OrderedDict[ObjectKey, float] = OrderedDict()
        self._all_until = float("-inf")

    def note(self, keys: Iterable[ObjectKey]) -> None:
        """These are forgotten now."""
        now = self._clock()
        for key in keys:
            self._when[key] = now
            self._when.move_to_end(key)
        while self._when and now - next(iter(self._when.values())) >= WITHIN:
            self._when.popitem(last=False)
        if len(self._when) > _MOST:
            self._when.clear()
            self._all_until = now + WITHIN

    def __contains__(self, key: ObjectKey) -> bool:
        now = self._clock()
        return now < self._all_until or now - self._when.get(key, float("-inf")) < WITHIN
