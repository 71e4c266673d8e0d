"""Loads ahead of objects that are too short to be streams, and the queue in which all loads ahead wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.engine.operations.warm_objects import Span, Warmed, WarmObjects
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.policies.lane import LoadClass
from gateway.policies.streams import ahead
from gateway.policies.streams.ahead import AT_ONCE
from gateway.policies.streams.prefetch import DEPTH
from rig.origin_faults import Hang
from tests.engine.conftest import BLOCK, benched
from tests.engine.test_prefetcher import NAMES, CountedListings, Reading, counted, put
from tests.fleet.conftest import until

SIZE = 9 * BLOCK


class StuckLoads(WarmObjects):
    """Loads that end when ``gate`` is opened."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[tuple[str, Span]] = []

    async def load(
        self,
        key: ObjectKey,
        tenant: str,
        identity: OriginIdentity,
        span: Span = None,
        kind: LoadClass = LoadClass.WARMUP,
        pool: str = "",
    ) -> Warmed:
        """Note it."""
        self.asked.append((key.key, span))
        await self.gate.wait()
        return Warmed(1, False)


@pytest.fixture
async def reading(tmp_path: Path) -> AsyncIterator[Reading]:
    """A client of objects of nine blocks."""
    async with benched(tmp_path / "cache", max_fills=64) as bench:
        made = Reading(bench, CountedListings(bench.engine.services.origin), Principal("GWA", "a", bench.identity))
        yield made
        await made.ahead.close()


@pytest.fixture
async def stuck(reading: Reading) -> StuckLoads:
    """All loads of ``reading`` are stuck."""
    reading.objects = made = StuckLoads()
    reading.__post_init__()
    return made


def read_run(reading: Reading, key: str, *blocks: int) -> None:
    """Reads of these blocks, and the turn of the keeper after them."""
    for block in blocks:
        reading.hear(key, block * BLOCK, SIZE, (block + 1) * BLOCK)
    reading.ahead.run_once()


async def settled(reading: Reading, stuck: StuckLoads, loads: int) -> None:
    """Open the gate when so many loads are under way, and wait until none waits."""
    await until(lambda: len(stuck.asked) == loads)
    stuck.gate.set()
    await reading.run_once()


async def test_an_object_of_few_blocks_is_loaded_ahead_after_four_in_a_row(reading: Reading) -> None:
    """Rule: a file that is too short to be a stream is loaded ahead as well, block by block, each once."""
    size = 9 * BLOCK
    reading.bench.origin.put("b", "file", bytes(size))
    before = counted("loaded"), counted("used")
    for block in range(3):
        await reading.read("file", block * BLOCK, size, (block + 1) * BLOCK)
    assert reading.fetched() == []
    for block in range(3, 9):
        await reading.read("file", block * BLOCK, size, (block + 1) * BLOCK)
    spans = [seen.header("range") for seen in reading.bench.origin.seen if seen.method == "GET"]
    assert sorted(spans) == [f"bytes={block * BLOCK}-{(block + 1) * BLOCK - 1}" for block in range(4, 9)]
    assert (counted("loaded") - before[0], counted("used") - before[1]) == (5 * BLOCK, 5 * BLOCK)


async def test_the_blocks_of_a_run_are_loaded_at_the_same_time(reading: Reading) -> None:
    """Rule: no block waits for the one before it, or it would come no earlier than its reader does."""
    size = 9 * BLOCK
    reading.bench.origin.put("b", "file", bytes(size))
    hang = reading.bench.origin.inject(Hang(path="/b/file", method="GET", times=DEPTH))
    for block in range(DEPTH):
        reading.hear("file", block * BLOCK, size, (block + 1) * BLOCK)
    reading.ahead.run_once()
    await until(lambda: len(reading.fetched()) == DEPTH)
    hang.gate.open()
    await reading.run_once()


async def test_a_read_of_a_whole_file_loads_none_of_it_ahead(reading: Reading) -> None:
    """Rule: a reader of all blocks gets them by one read of the origin."""
    reading.bench.origin.put("b", "file", bytes(9 * BLOCK))
    await reading.read("file", 0, 9 * BLOCK, 9 * BLOCK)
    assert reading.fetched() == []


async def test_a_file_that_is_cached_is_not_looked_for(reading: Reading) -> None:
    """Rule: a reader who finds everything in the cache has nothing loaded ahead."""
    reading.bench.origin.put("b", "file", bytes(SIZE))
    for block in range(9):
        await reading.read("file", block * BLOCK, SIZE, (block + 1) * BLOCK, hit=True)
    assert reading.bench.origin.seen == []


async def test_a_reader_who_finds_what_was_loaded_ahead_has_more_loaded(reading: Reading) -> None:
    """Rule: a hit of a block that was loaded ahead continues the run like a miss."""
    reading.bench.origin.put("b", "file", bytes(SIZE))
    for block in range(9):
        await reading.read("file", block * BLOCK, SIZE, (block + 1) * BLOCK, hit=block >= DEPTH)
    assert len(reading.fetched()) == 9 - DEPTH


async def test_loads_that_wait_are_bounded(
    reading: Reading, stuck: StuckLoads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: while no load goes on, those that are wanted last wait, and no others."""
    monkeypatch.setattr(ahead, "MOST_WAITING", 2 * DEPTH)
    before = len(asyncio.all_tasks())
    names = [f"{number * 7 % 40}/file" for number in range(40)]
    for name in names:
        read_run(reading, name, *range(DEPTH))
        await until(lambda: len(stuck.asked) == min(AT_ONCE, (names.index(name) + 1) * DEPTH))  # noqa: B023
    assert len(asyncio.all_tasks()) - before <= 2 * AT_ONCE
    await settled(reading, stuck, AT_ONCE)
    assert [key for key, _ in stuck.asked[AT_ONCE:]] == [names[-2]] * DEPTH + [names[-1]] * DEPTH


async def test_a_block_that_its_reader_has_passed_is_not_loaded(reading: Reading, stuck: StuckLoads) -> None:
    """Rule: of loads that have waited only those ahead of the reader are done; one who went elsewhere wants none."""
    for number in range(AT_ONCE // DEPTH):
        read_run(reading, f"first{number}", *range(DEPTH))
    read_run(reading, "on", *range(DEPTH))
    read_run(reading, "on", DEPTH)
    read_run(reading, "back", *range(DEPTH))
    read_run(reading, "back", 0)
    await settled(reading, stuck, AT_ONCE)
    ahead = [number * BLOCK for number in range(DEPTH + 1, 2 * DEPTH + 1)]
    assert [(key, span and span[0]) for key, span in stuck.asked[AT_ONCE:]] == [("on", start) for start in ahead]


async def test_a_sibling_that_its_reader_has_passed_is_not_loaded(reading: Reading, stuck: StuckLoads) -> None:
    """Rule: loads ahead of a stream that have waited until its readers passed them are left out."""
    put(reading.bench, NAMES)
    for name in NAMES[:100]:
        reading.hear(name)
        reading.ahead.run_once()
        await reading.ahead._pages.join()
    await settled(reading, stuck, AT_ONCE)
    assert [key for key, _ in stuck.asked[AT_ONCE:] if key <= NAMES[99]] == []
    assert len(stuck.asked) > AT_ONCE
