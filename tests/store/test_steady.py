"""The bytes of datasets whose residents replace each other: noted by any worker, for all of them and for the next start."""

from __future__ import annotations

from pathlib import Path

from gateway.base.config import CacheSettings
from gateway.store.index import blob_rows
from gateway.store.store import Store

CAPACITY = 1_000_000


async def opened(home: Path, now: list[float]) -> Store:
    """A worker's store."""
    return await Store.open(CacheSettings(dir=str(home), capacity=CAPACITY, reserve=0), now=lambda: now[0])


async def noted(store: Store, since: float = 0.0) -> int:
    """What the index says, after all that this worker has written."""
    return await store._disk.write(lambda connection: blob_rows.steady(connection, since))


async def test_what_one_worker_notes_all_workers_and_the_next_start_know(tmp_path: Path) -> None:
    """Rule: the keeper evicts by the same marks as the worker that fills, also after a restart."""
    now = [1e9]
    one, other = await opened(tmp_path, now), await opened(tmp_path, now)
    one.note_steady("a", 300_000)
    one.note_steady("b", 200_000)
    assert await noted(one) == await noted(other) == 500_000
    await one.close()
    await other.close()
    again = await opened(tmp_path, now)
    assert again._space.steady == 500_000
    await again.close()


async def test_a_small_change_is_not_written(tmp_path: Path) -> None:
    """Rule: a note is written when it differs by more than 1/256 of the capacity, or is an hour old."""
    now = [1e9]
    store = await opened(tmp_path, now)
    store.note_steady("a", 300_000)
    store.note_steady("a", 301_000)
    assert await noted(store) == 300_000
    now[0] += 3700
    store.note_steady("a", 301_000)
    assert await noted(store) == 301_000
    await store.close()


async def test_a_dataset_that_nobody_reads_any_more_counts_for_a_day(tmp_path: Path) -> None:
    """Rule: what was noted long ago has turned over since, and needs strides again."""
    now = [1e9]
    store = await opened(tmp_path, now)
    store.note_steady("a", 300_000)
    assert await noted(store, now[0] + 1) == 0
    assert await noted(store, now[0]) == 300_000
    await store.close()
