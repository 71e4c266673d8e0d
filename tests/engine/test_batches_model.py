"""Random batches against a simple model, with any mix of resident, missing, wrong and failing items.

The model knows two facts about each item: the origin's answer (right bytes, wrong bytes, nothing, a refusal, a passing failure)
and whether the item is cached. They determine the items that may and must be delivered and the status of the rest.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.model.frames import ItemFlag, ItemStatus
from gateway.policies.items.batch import BatchMode
from gateway.policies.items.datasets import CachingMode
from gateway.store.files.threads import closer
from gateway.store.items import close_files
from rig.origin_faults import Refuse
from tests.effort import examples
from tests.engine.datasets import BUCKET, Batch, Data, Shelf, blobs_open, bodies_of, shelved, until

ITEMS = 16
FATES = {
    "gone": ItemStatus.MISSING,
    "wrong": ItemStatus.CHANGED,
    "denied": ItemStatus.REFUSED,
    "fails": ItemStatus.ORIGIN_ERROR,
}

fates = st.lists(
    st.sampled_from(["good", "good", "good", "gone", "wrong", "denied", "fails"]), min_size=ITEMS, max_size=ITEMS
)
residency = st.lists(st.booleans(), min_size=ITEMS, max_size=ITEMS)
modes = st.sampled_from(list(CachingMode))


class World:
    """A bench for all examples, in its own event loop."""

    def __init__(self, home: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._context = shelved(home)
        self.shelf: Shelf = self.loop.run_until_complete(self._context.__aenter__())
        self.data: Data = self.loop.run_until_complete(self.shelf.dataset([b"", *bodies_of(ITEMS - 1)]))
        self.files = 0

    def close(self) -> None:
        """End it."""
        self.loop.run_until_complete(self._context.__aexit__(None, None, None))
        self.loop.close()

    def prepare(self, fate: list[str], resident: list[bool], caching: CachingMode) -> None:
        """Exactly these items in the cache, and the origin as said."""
        self.data.caching = CachingMode.FULL
        self._restore()
        self.loop.run_until_complete(self.data.warm(range(ITEMS)))
        for index, here in enumerate(resident):
            if not here:
                self.loop.run_until_complete(self._evict(index))
        self.data.caching = caching
        origin = self.shelf.bench.origin
        for index, kind in enumerate(fate):
            if kind == "gone":
                origin.delete(BUCKET, self.data.key(index))
            elif kind == "wrong":
                origin.put(BUCKET, self.data.key(index), bytes(len(self.data.bodies[index])))
            elif kind == "denied":
                origin.deny(self.shelf.bench.identity.access_key_id, f"{BUCKET}/{self.data.key(index)}")
            elif kind == "fails":
                origin.inject(Refuse(path=self.data.path(index), times=10**6))

    def run(self, mode: BatchMode, indices: list[int], take: int | None, ordered: bool) -> Batch:
        """One batch to its end; nothing is left over from it."""
        return self.loop.run_until_complete(self._run(mode, indices, take, ordered))

    async def _run(self, mode: BatchMode, indices: list[int], take: int | None, ordered: bool) -> Batch:
        batch = await self.shelf.drain(self.data.ask(mode, indices, take, ordered=ordered))
        await until(lambda: not self.shelf.batches.fetches.active)
        await until(self._all_given_back)
        return batch

    def _all_given_back(self) -> bool:
        """True if no memory for items is in use. The loop refers to a finished task for some more turns; afterwards a reference
        cycle with the task's error may keep it alive."""
        if self.shelf.batches.fetches._memory.used:
            gc.collect()
        return not self.shelf.batches.fetches._memory.used

    def _restore(self) -> None:
        origin = self.shelf.bench.origin
        origin.heal()
        origin.allow_again()
        for index, body in enumerate(self.data.bodies):
            origin.put(BUCKET, self.data.key(index), body)

    async def _evict(self, index: int) -> None:
        digest = self.data.registration.content.digest(index)
        store = self.shelf.bench.store
        await store._disk.write(lambda connection: connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,)))
        self.data.blob(index).unlink(missing_ok=True)
        store.items.gone([digest])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Returns one world for all examples; objects of earlier tests are frozen, so that no example's collection scans them."""
    made = World(tmp_path_factory.mktemp("model"))
    gc.collect()
    gc.freeze()
    yield made
    gc.unfreeze()
    made.close()


@pytest.fixture(autouse=True, scope="module")
def impatient() -> Iterator[None]:
    """Retries of the fetches without pauses: they only cost time here."""
    patch = pytest.MonkeyPatch()
    patch.setattr(random, "uniform", lambda low, high: 0.0)
    yield
    patch.undo()


def may_come(data: Data, index: int, fate: str, here: bool, caching: CachingMode) -> bool:
    """True if the item can be delivered; an empty one always can, since it needs no read."""
    return (here and caching is not CachingMode.NONE) or fate == "good" or not data.bodies[index]


@settings(max_examples=examples(60))
@given(fates, residency, modes, st.lists(st.integers(0, ITEMS - 1), max_size=24), st.booleans())
def test_an_exact_batch(
    world: World, fate: list[str], resident: list[bool], caching: CachingMode, wanted: list[int], ordered: bool
) -> None:
    """Rule: each position ends exactly once: with its bytes if they are available, else with the reason."""
    world.prepare(fate, resident, caching)
    batch = world.run(BatchMode.EXACT, wanted, None, ordered)
    came = Counter(one.position for one in batch.came)
    assert set(came.values()) <= {1}
    untried = set(range(len(wanted))) - set(came)
    assert not untried or batch.status is ItemStatus.ORIGIN_ERROR
    for one in batch.came:
        index = wanted[one.position]
        if may_come(world.data, index, fate[index], resident[index], caching):
            assert one.data == world.data.bodies[index]
        else:
            assert one.status is FATES[fate[index]]
    if ordered:
        assert [one.position for one in batch.came] == sorted(came)
    here = [resident[index] and caching is not CachingMode.NONE for index in wanted]
    assert batch.count(ItemFlag.HIT) >= sum(here)


@settings(max_examples=examples(60))
@given(fates, residency, modes, st.sets(st.integers(0, ITEMS - 1)), st.integers(1, ITEMS + 3), st.randoms())
def test_a_substitutable_batch(
    world: World,
    fate: list[str],
    resident: list[bool],
    caching: CachingMode,
    candidates: set[int],
    take: int,
    chance: random.Random,
) -> None:
    """Rule: as many as wanted and possible; resident ones first; fewer only with the origin's failure in the status."""
    world.prepare(fate, resident, caching)
    wanted = sorted(candidates)
    chance.shuffle(wanted)
    batch = world.run(BatchMode.SUBSTITUTE, wanted, take, False)
    possible = [may_come(world.data, index, fate[index], resident[index], caching) for index in wanted]
    assert {one.position for one in batch.came} <= set(range(len(wanted)))
    assert len({one.position for one in batch.came}) == len(batch.came)
    for position, body in batch.delivered.items():
        assert possible[position]
        assert body == world.data.bodies[wanted[position]]
    for position, status in batch.failed.items():
        assert status is FATES[fate[wanted[position]]]
        assert status is not ItemStatus.ORIGIN_ERROR
    assert len(batch.delivered) <= take
    if batch.status is ItemStatus.OK:
        assert len(batch.delivered) == min(take, sum(possible))
    else:
        assert any(fate[index] == "fails" for index in wanted)
    hits = sum(resident[index] for index in wanted) if caching is not CachingMode.NONE else 0
    assert batch.count(ItemFlag.HIT) == min(take, hits)


@settings(max_examples=examples(25))
@given(residency, modes, st.lists(st.integers(0, ITEMS - 1), max_size=24), st.integers(0, 24))
@example([True] * ITEMS, CachingMode.FULL, [*range(ITEMS)], 0)
@example([True] * ITEMS, CachingMode.FULL, [], 0)
def test_a_batch_that_is_left(
    world: World, resident: list[bool], caching: CachingMode, wanted: list[int], after: int
) -> None:
    """Rule: left after any number of arrivals, a batch gives back its memory and its descriptors."""
    world.prepare(["good"] * ITEMS, resident, caching)

    async def leave() -> None:
        answer = await world.shelf.batches.open(world.data.ask(BatchMode.EXACT, wanted))
        if hasattr(answer, "arrivals"):
            for _ in range(min(after, len(wanted))):
                arrival = await anext(answer.arrivals)
                if hasattr(arrival.content, "fd"):
                    close_files([arrival.content])
                del arrival
            await answer.aclose()
        else:
            answer.close()
        del answer
        await until(lambda: not world.shelf.batches.fetches.active)

    world.loop.run_until_complete(leave())
    room = world.shelf.batches._room.left
    assert room == world.files or not world.files
    world.files = room
    world.loop.run_until_complete(until(lambda: world.shelf.batches.fetches._memory.used == 0))
    # Threads close the descriptors of writers, and of blobs that nobody reads any more.
    world.loop.run_until_complete(closer.done())
    store = world.shelf.bench.store
    world.loop.run_until_complete(until(lambda: blobs_open(world.shelf) <= store.status().open_files))
    assert np.count_nonzero(world.data.flags == 3) == 0
