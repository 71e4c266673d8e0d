"""Read-ahead replays recorded profiles: the same listings and loads, in the same order, as when they were recorded.

``python -m tests.engine.test_recorded_loads`` records them again.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import OrderedDict
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.base.metrics import STREAM_PREFETCHED
from gateway.engine.operations.warm_objects import Span, Warmed
from gateway.engine.space.stream_learner import HAND_OVER, ahead_of, whole_streams
from gateway.engine.space.stream_prefetch import PrefetchLinks
from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.origin.listing import ListedObject, ListingPage, ListingRefused
from gateway.policies.lane import LoadClass
from gateway.policies.reads.rules import Rules
from gateway.policies.streams.instructions import LoadRights
from gateway.policies.streams.prefetch import PoolRoom
from gateway.policies.streams.tree import AccessStreamTree
from tests.engine.read_profiles import BLOCK, SMALL, Profile, profiles

RECORDED = Path(__file__).parent / "recorded" / "loads.json"
WINDOW = 20
PAGE = 50
PROFILES = dict(profiles())


class TimedStore:
    """A store, a cache and a clock: listings and loads end when their time has come. ``log`` has all of them."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.now = 0.0
        self.log: list[str] = []
        self._keys = sorted(profile.objects)
        self._cached: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def blocks(self, key: str) -> int:
        """How many blocks an object has."""
        return max(1, -(-self.profile.objects[key] // BLOCK))

    def read(self, key: str, block: int) -> bool:
        """Whether a reader hits; then, or once loaded, the block is cached."""
        hit = (key, block) in self._cached
        self._keep(key, block)
        return hit

    async def load(
        self, key: ObjectKey, _tenant: str, _identity: OriginIdentity, span: Span, _kind: LoadClass, _pool: str
    ) -> Warmed:
        """See ``WarmObjects``."""
        self._note(key.key if span is None else f"{key.key}#{span[0] // BLOCK}")
        await self._answer()
        begin, end = self.profile.failing
        if begin <= self.now < end or key.key not in self.profile.objects:
            return Warmed(failure="busy")
        numbers = range(self.blocks(key.key)) if span is None else [span[0] // BLOCK]
        there = all((key.key, number) in self._cached for number in numbers)
        for number in numbers:
            self._keep(key.key, number)
        return Warmed(min(self.profile.objects[key.key], BLOCK * len(numbers)), there)

    async def list_page(
        self,
        _identity: OriginIdentity,
        _bucket: str,
        prefix: str,
        *,
        delimiter: str = "",
        start_after: str = "",
        token: str = "",
    ) -> ListingPage:
        """See ``Listings``."""
        self._note(f"list {prefix} {delimiter} after {start_after}")
        await self._answer()
        if not self.profile.listing:
            raise ListingRefused(403)
        names: dict[str, bool] = {}
        for key in self._keys:
            folder, slash, _ = key[len(prefix) :].partition("/") if delimiter else ("", "", "")
            name = f"{prefix}{folder}/" if slash else key
            if key.startswith(prefix) and name > start_after:
                names[name] = bool(slash)
        page = list(names)[:PAGE]
        objects = tuple(ListedObject(name, self.profile.objects[name]) for name in page if not names[name])
        return ListingPage(objects, tuple(name for name in page if names[name]), len(names) > PAGE, "")

    def rooms(self) -> dict[str, PoolRoom]:
        """The pools of streams, and what they hold."""
        rooms: Mapping[str, int] = {}
        for since, targets in self.profile.rooms.items():
            rooms = targets if self.now >= since else rooms
        held = {
            name: sum(min(BLOCK, self.profile.objects[key]) for key, _ in self._cached if f"b/{key}".startswith(name))
            for name in rooms
        }
        return {name: PoolRoom(target, held[name]) for name, target in rooms.items()}

    async def advance(self, now: float) -> None:
        """End what ends until then, each before what follows from it."""
        while self._waiting and self._waiting[0][0] <= now:
            self.now, _, answer = heapq.heappop(self._waiting)
            answer.set_result(None)
            await quiet()
        self.now = now

    def _keep(self, key: str, block: int) -> None:
        self._cached[key, block] = None
        self._cached.move_to_end((key, block))
        if len(self._cached) > self.profile.capacity:
            self._cached.popitem(last=False)

    async def _answer(self) -> None:
        answer = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + self.profile.latency, next(self._numbers), answer))
        await answer

    def _note(self, what: str) -> None:
        self.log.append(f"{self.now:.2f} {what}")


async def quiet() -> None:
    """Let every task run until it waits for the store."""
    for _ in range(20):
        await asyncio.sleep(0)


async def replayed(profile: Profile) -> list[str]:
    """What is listed and loaded for a profile, and in the end the bytes that were loaded, used and wasted."""
    store: Any = TimedStore(profile)
    principal = Principal("GWA", "a", OriginIdentity("default", "A"))
    tree = AccessStreamTree(window=WINDOW)
    links = PrefetchLinks(
        store,
        store,
        LoadRights(
            lambda _: principal if store.now < profile.withdrawn else None,
            lambda: Rules([rule for since, rules in profile.rules.items() if store.now >= since for rule in rules]),
        ),
        BLOCK,
        40 * SMALL,
    )
    ahead, whole = ahead_of(tree, links), whole_streams(tree, links)
    before = counted()
    heard: list[tuple[ObjectRead, int]] = []
    turn = HAND_OVER

    async def turns(until: float) -> None:
        nonlocal turn
        while turn <= until:
            await store.advance(turn)
            for read, block in heard:
                blocks = store.blocks(read.key.key)
                ahead.machine.read("b", read, block, blocks)
                size = read.stop - read.start
                stream = tree.record("b", read.key.key, block, blocks, read.time, read.client, read.hit, size)
                whole.machine.read(stream, read, block)
            heard.clear()
            ahead.run_once()
            whole.run_once()
            if turn % 1.0 == 0.0:
                whole.machine.look(store.rooms())
            await quiet()
            turn += HAND_OVER

    for time, client, key, block in profile.reads:
        await turns(time)
        await store.advance(time)
        size = profile.objects[key]
        start, stop = block * BLOCK, min(size, (block + 1) * BLOCK)
        hit = store.read(key, block)
        heard.append((ObjectRead(ObjectKey("default", "b", key), start, stop, size, hit, time, "GWA", client), block))
    await turns(store.now + 4 * profile.latency + 1.0)
    await ahead.close()
    await whole.close()
    return [*store.log, *(f"{result} {size - before[result]:.0f}" for result, size in counted().items())]


def counted() -> dict[str, float]:
    """Bytes loaded ahead so far, used, and wasted."""
    return {result: STREAM_PREFETCHED.labels(result)._value.get() for result in ("loaded", "used", "wasted")}


@pytest.mark.parametrize("name", PROFILES)
async def test_a_recorded_profile_gives_the_same_loads(name: str) -> None:
    """Rule: a profile's listings and loads are those of its recording: which bytes, in which order, when."""
    assert await replayed(PROFILES[name]) == json.loads(RECORDED.read_text())[name]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: asyncio.run(replayed(PROFILES[name])) for name in PROFILES}, indent=0) + "\n")
