"""A job that is refused hits: its reads come from the origin, are stored, and count as consumption."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.engine.items.answers import BatchAsk
from gateway.model.frames import ItemFlag
from gateway.model.reader import ReadingJob
from gateway.policies.items.batch import BatchMode
from tests.engine.datasets import Data, Shelf, equal_bodies, shelved

SIZE = 1000
ONE, OTHER = ReadingJob("t", "one", 0), ReadingJob("t", "other", 0)


@pytest.fixture
async def roomy(tmp_path: Path) -> AsyncIterator[Shelf]:
    """A cache with room for a hundred items."""
    async with shelved(tmp_path, 100 * SIZE) as opened:
        yield opened


@pytest.fixture
async def data(roomy: Shelf) -> Data:
    """Returns a dataset of sixty items, half of which are cached."""
    made = await roomy.dataset(equal_bodies(60, SIZE), "part")
    await made.fill(range(30))
    return made


def refused(data: Data, mode: BatchMode, indices: range, take: int = 0) -> BatchAsk:
    """A batch for a job that is refused hits."""
    offers = 0 if mode is BatchMode.SUBSTITUTE else None
    return replace(data.ask(mode, indices, take or None), reader=ONE, offers=offers, refused=True)


@pytest.mark.parametrize("mode", [BatchMode.EXACT, BatchMode.SUBSTITUTE])
async def test_it_has_no_hits_and_what_it_loads_is_stored(data: Data, mode: BatchMode) -> None:
    """Rule: cached items are read from the origin as well; those that were not cached are kept."""
    batch = await data.shelf.drain(refused(data, mode, range(20, 40), 20))
    assert not batch.failed
    assert not any(ItemFlag(flags) & ItemFlag.HIT for flags in (one.flags for one in batch.came))
    assert data.resident == set(range(40))


async def test_its_reads_count_as_consumption(data: Data) -> None:
    """Rule: others are offered what it has read, cached or loaded."""
    await data.shelf.drain(refused(data, BatchMode.EXACT, range(20, 40)))
    ask = replace(data.ask(BatchMode.EXACT, range(1)), reader=OTHER)
    offered = await data.shelf.batches.known.offers(ask, 100)
    assert set(offered.tolist()) == set(range(20, 40))


async def test_it_is_offered_nothing(data: Data) -> None:
    """Rule: offers are cached items, which it would not get."""
    await data.shelf.drain(replace(data.ask(BatchMode.EXACT, range(30)), reader=OTHER))
    ask = refused(data, BatchMode.EXACT, range(1))
    assert not len(await data.shelf.batches.known.offers(ask, 100))
