"""Which objects were forgotten a short while ago, so that nobody else's copy of them is believed.

The gateways of a fleet forget a written object one after the other. One that has forgotten it could ask another that has not
(``handover.py``), get the old bytes, and keep them: no announcement is left to correct it.
The same holds for objects that the origin showed to have changed, because other nodes are not told and their copies count as
fresh; for purged objects, which a node that was away still has; and for grants: an announcement of the rights in a bucket
(``rights_in``) stands for all objects in it.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.model.keys import ObjectKey, rights_in

WITHIN = 600.0
"""Seconds; as long as homes count as moved (gateway/fleet/nodes/membership.py)."""
_MOST = 16_384
_MOST_PREFIXES = 64


class RecentlyInvalidated:
    """The objects that were forgotten within the last ``WITHIN`` seconds; while they are too many to tell apart, all are.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._when: OrderedDict[ObjectKey, float] = OrderedDict()
        self._prefixes: dict[tuple[str, str], float] = {}
        self._all_until = -math.inf

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

    def note_prefix(self, bucket: str, prefix: str) -> None:
        """All of a bucket below a prefix is forgotten now."""
        now = self._clock()
        self._prefixes = {place: when for place, when in self._prefixes.items() if now - when < WITHIN}
        self._prefixes[bucket, prefix] = now
        if len(self._prefixes) > _MOST_PREFIXES:
            self._prefixes.clear()
            self.note_all()

    def note_all(self) -> None:
        """Everything is forgotten now."""
        self._all_until = self._clock() + WITHIN

    def __contains__(self, key: ObjectKey) -> bool:
        now = self._clock()
        if now < self._all_until:
            return True
        when = self._when
        if when and now - max(when.get(key, -math.inf), when.get(rights_in(key), -math.inf)) < WITHIN:
            return True
        for (bucket, prefix), noted in self._prefixes.items():
            if now - noted < WITHIN and bucket == key.bucket and key.key.startswith(prefix):
                return True
        return False
