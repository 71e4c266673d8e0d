"""Jobs that follow their orders in the engine: the cache keeps what is used next, over all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from gateway.engine.items.answers import BatchAsk
from gateway.model.reader import ReadingJob
from gateway.policies.items.batch import BatchMode
from gateway.policies.items.epoch_order import positions_of
from tests.engine.datasets import Data, equal_bodies, shelved, until

ITEMS, SIZE, BATCH = 120, 1000, 6


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[Data]:
    """Returns a dataset of which a cache can hold two fifths, and does."""
    async with shelved(tmp_path, 48 * SIZE) as shelf:
        made = await shelf.dataset(equal_bodies(ITEMS, SIZE), "part")
        await made.fill(range(ITEMS))
        await stored(made)
        yield made


async def stored(data: Data) -> None:
    """Wait until all that was read is stored, or has passed through."""
    demand, store = data.shelf.batches.fetches.demand, data.shelf.bench.store
    await until(lambda: not demand._entering and not store.status().filling)


def order_of(name: str, epoch: int) -> list[int]:
    """The items of an epoch."""
    order: list[int] = np.argsort(positions_of(name, ITEMS, epoch)).tolist()
    return order


async def read(data: Data, indices: list[int], reader: ReadingJob) -> None:
    """An exact batch for a job; its orders are known afterwards."""
    plain = data.ask(BatchMode.EXACT, indices)
    ask = BatchAsk(
        plain.registration, plain.identity, plain.caching, plain.mode, plain.indices, plain.take, reader=reader
    )
    assert not (await data.shelf.drain(ask)).failed
    table = data.registration.content.demand()
    assert table is not None
    await until(lambda: table.unknown(reader, table.bit_of(reader)) is None)


async def epochs(data: Data, orders: dict[str, str], count: int) -> list[int]:
    """Let jobs read in turn, by name and order; returns the reads of the origin after each epoch."""
    reads = []
    for epoch in range(count):
        upcoming = {name: order_of(order, epoch) for name, order in orders.items()}
        for start in range(0, ITEMS, BATCH):
            for name, order in orders.items():
                await read(data, upcoming[name][start : start + BATCH], ReadingJob("t", name, epoch, order))
        reads.append(data.reads())
    return reads


def min_reads(orders: list[str], count: int, room: int) -> list[int]:
    """The reads of MIN with bypass after each epoch, of the same jobs in turn."""
    steps = [
        item
        for epoch in range(count + 1)
        for start in range(0, ITEMS, BATCH)
        for order in orders
        for item in order_of(order, epoch)[start : start + BATCH]
    ]
    following, later = [0] * len(steps), dict.fromkeys(range(ITEMS), len(steps))
    for place in range(len(steps) - 1, -1, -1):
        following[place], later[steps[place]] = later[steps[place]], place
    held: dict[int, int] = {}
    reads, counts = 0, []
    for place, item in enumerate(steps, 1):
        use = following[place - 1]
        if item not in held:
            reads += 1
            last = max(held, key=held.__getitem__) if len(held) == room else None
            if last is not None and held[last] > use:
                del held[last]
            if len(held) < room:
                held[item] = use
        else:
            held[item] = use
        if place % (ITEMS * len(orders)) == 0:
            counts.append(reads)
    return counts[:count]


async def test_jobs_with_known_orders_read_as_seldom_as_min(data: Data) -> None:
    """Rule: two jobs with orders of their own read the origin at most a fiftieth more often than Belady's MIN, by reads saved."""
    orders = {"one": "shuffled:1", "other": "shuffled:2"}
    room = len(data.resident)
    reads = await epochs(data, orders, 5)
    best = min_reads(list(orders.values()), 5, room)
    hits, most = (2 * 4 * ITEMS - (counts[-1] - counts[0]) for counts in (reads, best))
    assert hits >= 0.98 * most
    assert len(data.resident) >= room - 2
    assert data.shelf.bench.store.status().bytes <= 48 * SIZE


async def test_a_job_alone_replaces_nothing(data: Data) -> None:
    """Rule: one job uses each item once per epoch, so that nothing is gained by writing others to disk."""
    before = data.resident
    await epochs(data, {"one": "shuffled:1"}, 2)
    assert data.resident == before


async def test_what_is_used_last_is_not_stored(data: Data) -> None:
    """Rule: an item that is used later than all residents passes through, whatever the paces of the jobs."""
    before = data.resident
    # Both jobs use all residents in this epoch, and what they have consumed in the next.
    consumed = next(item for item in order_of("shuffled:1", 0) if item not in before)
    for name in ("one", "other", "one"):
        await read(data, [consumed], ReadingJob("t", name, 0, "shuffled:1"))
    await stored(data)
    assert data.resident == before
