"""What other nodes have is taken over by its home, and makes room where it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.engine.base.homes import PAGE
from gateway.model.frames import ItemFlag
from gateway.policies.pools import Pool
from tests.engine.datasets import until
from tests.engine.other_nodes import A, Answer, Asked, B, Place, placed


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A node and others."""
    async with placed(tmp_path) as place:
        yield place


async def test_neighbours_are_asked_by_the_page(place: Place) -> None:
    """Rule: before a home reads items from the origin it asks their former homes, once for a page of items."""
    data = await place.dataset(PAGE + 10)
    place.others.order = []
    place.others.earlier = B
    place.others.handler = lambda asked: Answer(bytes(-(-len(asked.body) // 256)))
    batch = await data.exact(range(PAGE + 10))
    assert len(batch.delivered) == PAGE + 10
    assert [(asked.node, len(asked.body) // 32) for asked in place.others.to("blobs/lookup")] == [
        ("b", PAGE),
        ("b", 10),
    ]
    assert data.reads() == PAGE + 10


async def test_what_a_neighbour_has_is_taken_over(place: Place) -> None:
    """Rule: an item of another node is taken over, verified and kept; one that it does not give comes from the origin."""
    data = await place.dataset(6)
    place.others.order = []
    place.others.earlier = B

    def handler(asked: Asked) -> Answer:
        if asked.path.endswith("lookup"):
            return Answer(bytes([0b011111]))
        index = next(at for at in range(6) if data.registration.content.digest(at).hex() == asked.path[-64:])
        replies = {3: Answer(b"x" * len(data.bodies[3])), 4: Answer(status=404)}
        return replies.get(index, Answer(data.bodies[index]))

    place.others.handler = handler
    batch = await data.exact(range(6))
    assert batch.delivered == dict(enumerate(data.bodies))
    assert batch.count(ItemFlag.HIT) == 3
    assert [data.reads(index) for index in range(6)] == [0, 0, 0, 1, 1, 1]
    assert data.resident == set(range(6))


@pytest.mark.parametrize(("caching", "taken"), [("part", [0, 1, 2]), ("full", [])])
async def test_a_home_says_what_it_has_taken_over(place: Place, caching: str, taken: list[int]) -> None:
    """Rule: where space is scarce, the node that gave an item away learns that its copy makes room; else both keep it."""
    data = await place.dataset(4, caching=caching)
    place.others.order = []
    place.others.earlier = B
    digests = [data.registration.content.digest(at) for at in range(4)]

    def handler(asked: Asked) -> Answer:
        if asked.method == "POST":
            return Answer(bytes([0b0111]) if asked.path.endswith("lookup") else b"")
        return Answer(data.bodies[next(at for at in range(4) if digests[at].hex() == asked.path[-64:])])

    place.others.handler = handler
    assert (await data.exact(range(4))).count(ItemFlag.HIT) == 3
    await until(lambda: sum(len(asked.body) for asked in place.others.to("taken")) == 32 * len(taken))
    told = b"".join(asked.body for asked in place.others.to("taken"))
    assert sorted(told[at : at + 32] for at in range(0, len(told), 32)) == sorted(digests[at] for at in taken)


async def test_copies_that_their_home_has_taken_over_make_room(place: Place) -> None:
    """Rule: they are dropped; what this node is the home of stays, even if another says that it took it."""
    data = await place.dataset(4, caching="part")
    place.others.order = []
    await data.fill(range(4))
    fetches = place.shelf.bench.engine.fetches
    await fetches.give_up([data.registration.content.digest(0)])
    assert data.resident == set(range(4))
    place.others.order = [A]
    await fetches.give_up([data.registration.content.digest(at) for at in (1, 3)])
    assert data.resident == {0, 2}
    assert place.shelf.bench.store.status().blobs == 2


async def test_pinned_copies_stay(place: Place) -> None:
    """Rule: an object in a prefix that an operator pinned stays here, though its bytes have another home."""
    data = await place.dataset(2, caching="part")
    place.others.order = []
    await data.fill(range(2))
    digests = [data.registration.content.digest(at) for at in range(2)]
    store = place.shelf.bench.store
    assert await store.pools.define((Pool("stream:pinned/", 1000, minimum=1000), Pool("default", 10_000)))
    assert await store.pools.charge(digests[:1], "stream:pinned/", {})
    place.others.order = [A]
    await place.shelf.bench.engine.fetches.give_up(digests)
    assert data.resident == {0}
