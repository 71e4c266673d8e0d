"""In which order blobs leave when room is needed, as far as the fleet's plan has a say in it.

Eviction takes the least recently used (gateway/policies/eviction.py). The plan speaks through the time of last use: what it gave
space to counts as used in the far future, so that plain reads share what is left and push nothing of it out; what it took space
from counts as never used, and goes first. All else, a dataset whose jobs have gone included, counts as it was used. An item is
ranked once, and again when its dataset's standing changes or it was stored anew; a little at a time, because a dataset may
have ten million. Nothing of this is needed for what is read to be right: a node that was restarted takes every rank back before
it gives new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from gateway.policies.datasets import CachingMode
from gateway.policies.eviction import GRANTED
from gateway.policies.plan import DatasetOrder, WhyCaching
from gateway.store.datasets.content import RESIDENT, VERIFIED, Content
from gateway.store.store import Store

_EVERY = 10
_BATCH = 512
_AT_ONCE = 16 * _BATCH


class Standing(Enum):
    """What the plan has to say about a dataset's items."""

    GIVEN = "given"
    PLAIN = "plain"
    TAKEN = "taken"


def standing_of(order: DatasetOrder | None) -> Standing:
    """What an order says, if there is one."""
    if order is None or order.why is WhyCaching.NO_JOBS:
        return Standing.PLAIN
    return Standing.TAKEN if order.caching is CachingMode.NONE else Standing.GIVEN


@dataclass(slots=True)
class _Ranked:
    """One content: the standing, and which items have it already, as the files that they were then (``ItemStates.stamp``)."""

    standing: Standing
    done: NDArray[np.bool_]
    stamps: NDArray[np.uint32]


class Standings:
    """The ranks that one node's keeper gives.

    Args:
        store: of the node.
        now: seconds since the epoch.
    """

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._ranked: dict[str, _Ranked] = {}
        self._levelled = False
        self._turns = 0
        self._more = False

    async def turn(self, contents: Sequence[Content], orders: Mapping[str, DatasetOrder]) -> None:
        """Rank some of the items that are not ranked as the plan says.

        Args:
            contents: what is open here.
            orders: the plan, by dataset.
        """
        if not self._levelled:
            self._levelled = not await self._store.room.level(self._now())
            return
        changed = self._compare(contents, orders)
        self._turns += 1
        if not changed and not self._more and self._turns % _EVERY:
            return
        self._more = False
        given = [content for content in contents if standing_of(orders.get(content.id)) is Standing.GIVEN]
        for content in contents:
            if content.tag in self._ranked:
                await self._rank(content, self._ranked[content.tag], given)

    def _compare(self, contents: Sequence[Content], orders: Mapping[str, DatasetOrder]) -> bool:
        """Note the standing of each content; whether any is new."""
        changed = False
        tags = {content.tag for content in contents}
        self._ranked = {tag: ranked for tag, ranked in self._ranked.items() if tag in tags}
        for content in contents:
            standing = standing_of(orders.get(content.id))
            known = self._ranked.get(content.tag)
            if (Standing.PLAIN if known is None else known.standing) is not standing:
                self._ranked[content.tag] = _Ranked(
                    standing, np.zeros(content.items, dtype=np.bool_), np.zeros(content.items, dtype=np.uint32)
                )
                changed = True
        return changed

    async def _rank(self, content: Content, ranked: _Ranked, given: Sequence[Content]) -> None:
        flags = content.states.flags
        resident = (flags == RESIDENT) | (flags == VERIFIED)
        ranked.done &= resident & (ranked.stamps == content.states.stamp)
        pending = np.flatnonzero(resident & ~ranked.done)
        if not len(pending):
            if ranked.standing is Standing.PLAIN:
                del self._ranked[content.tag]
            return
        self._more = self._more or len(pending) > _AT_ONCE
        others = [other for other in given if other.id != content.id]
        for start in range(0, min(len(pending), _AT_ONCE), _BATCH):
            page = pending[start : start + _BATCH]
            digests = [content.digest(int(index)) for index in page]
            if ranked.standing is not Standing.GIVEN:
                digests = [one for one in digests if not any(len(other.indices_of(one)) for other in others)]
            await self._store.room.rank(digests, self._moment(ranked.standing))
            ranked.stamps[page] = content.states.stamp[page]
            ranked.done[page] = True

    def _moment(self, standing: Standing) -> float:
        moments = {Standing.GIVEN: self._now() + GRANTED, Standing.PLAIN: self._now(), Standing.TAKEN: 0.0}
        return moments[standing]
