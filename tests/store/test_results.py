"""Results of pipelines over a real store: what may be put within the target of their pool."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from gateway.model.results import Collection, Element, PutResult
from gateway.policies.pools import Pool, results_pool, with_default
from gateway.store.store import Store

CAPACITY, SIZE = 200_000, 1000
A, B = (Collection("t", "d", letter * 64, "tag") for letter in "ab")


async def have(store: Store, **targets: int) -> None:
    """Define the pools of A and B."""
    assert await store.try_lock()
    pools = [
        Pool(results_pool(each.tenant, each.dataset, each.fingerprint), targets[name], "uniform")
        for name, each in (("a", A), ("b", B))
        if name in targets
    ]
    assert await store.pools.define(with_default(pools, CAPACITY // 2, "lru"))


def elements(count: int, first: int = 0, size: int = SIZE) -> dict[int, memoryview]:
    """An element for each item, none equal to another."""
    return {index: memoryview(f"{index:10}".encode() * (size // 10)) for index in range(first, first + count)}


async def put(store: Store, collection: Collection, given: Mapping[int, memoryview], **more: bool) -> list[PutResult]:
    """What becomes of each element."""
    sent = {index: Element(data, crc32(data)) for index, data in given.items()}
    done = await store.results.put(collection.name, sent, CAPACITY, **more)
    return [done[index] for index in given]


async def sizes(store: Store) -> list[int]:
    """Bytes of the pools of results, largest first."""
    return sorted((row.ledger.size for row in await store.pools.usage() if row.pool.order == "uniform"), reverse=True)


async def test_a_replacement_keeps_to_the_target(open_store) -> None:
    """Rule: equal results fit into a full pool again, and larger ones only as far as there is room for the rest."""
    store = await open_store(capacity=CAPACITY)
    await have(store, a=5 * SIZE)
    assert await put(store, A, elements(6)) == [PutResult.STORED] * 5 + [PutResult.FULL]
    assert await put(store, A, elements(5), replace=True) == [PutResult.STORED] * 5
    assert await put(store, A, elements(5, size=2 * SIZE), replace=True) == [PutResult.FULL] * 5
    assert await sizes(store) == [5 * SIZE]


async def test_blobs_of_another_pool_make_no_room(open_store) -> None:
    """Rule: replaced results that are charged to another pool free nothing in their own."""
    store = await open_store(capacity=CAPACITY)
    await have(store, a=20 * SIZE, b=20 * SIZE)
    assert await put(store, A, elements(20)) == [PutResult.STORED] * 20
    assert await put(store, B, elements(20)) == [PutResult.STORED] * 20
    assert await sizes(store) == [20 * SIZE, 0]
    await have(store, a=20 * SIZE, b=5 * SIZE)
    assert await put(store, B, elements(20), replace=True) == [PutResult.STORED] * 5 + [PutResult.FULL] * 15
    other = {index: memoryview(bytes(data)[::-1]) for index, data in elements(20).items()}
    assert await put(store, B, other, replace=True) == [PutResult.STORED] * 5 + [PutResult.FULL] * 15
    assert await sizes(store) == [20 * SIZE, 5 * SIZE]


async def test_what_something_else_needs_makes_no_room(open_store) -> None:
    """Rule: a blob that a result beside the replaced ones has stays, so it frees nothing."""
    store = await open_store(capacity=CAPACITY)
    (same,), other = elements(1).values(), elements(2, first=3)
    await have(store, a=2 * SIZE)
    assert await put(store, A, {1: same, 2: same}) == [PutResult.STORED] * 2
    await have(store, a=SIZE)
    assert await put(store, A, {1: other[3]}, replace=True) == [PutResult.FULL]
    assert await put(store, A, {1: other[3], 2: other[4]}, replace=True) == [PutResult.FULL] * 2
    assert await sizes(store) == [SIZE]
