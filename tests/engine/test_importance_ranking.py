"""A node ranks cached items by importance scores, reports them to the fleet, and drops them when their job stops sending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from gateway.engine.items.wanted import Purpose
from gateway.engine.space.importance_ranking import ImportanceLinks, ImportanceRanking
from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.job_readers import JobReaders
from gateway.engine.space.preload import Indices, Preloader, Reader
from gateway.engine.space.read_tally import ReadTally
from gateway.model.importance import decode
from gateway.model.keys import OriginIdentity
from gateway.model.reader import ReadingJob
from gateway.policies.eviction.importance import Importance
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.importance import DRAW, FIRST_INTERVAL, LIFETIME, SHORTEST_INTERVAL, JobWeight
from gateway.policies.pools import Pool, dataset_pool, with_default
from gateway.policies.space.importance import ScoreReport
from gateway.policies.space.orders import ImportanceOrder, JobOrder, Phase, PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan
from gateway.store.index.pool_rows import Entering
from gateway.store.shared.decile_reads import DecileReads
from gateway.store.shared.importance import DIRECT, ScoreTables
from tests.engine.conftest import alone
from tests.engine.datasets import Data, Shelf, equal_bodies, shelved
from tests.scored import Part
from tests.stores import entering, query

CAPACITY = 100_000
ITEMS = 20
JOB = "t/train"


@dataclass
class KnownReaders:
    """The readers of all datasets; at first none."""

    known: list[Reader] = field(default_factory=list)

    def look_again(self) -> None:
        """A turn begins."""

    async def readers(self, _dataset: str) -> list[Reader]:
        """Their rights."""
        return self.known


@dataclass
class BegunLoads:
    """A preloader that only notes what it shall load."""

    parts: asyncio.Queue[list[int]] = field(default_factory=asyncio.Queue)

    async def load(self, _readers: Sequence[Reader], indices: Indices, _purpose: Purpose) -> int:
        """Nothing was unavailable."""
        self.parts.put_nowait(indices.tolist())
        return 0


@dataclass
class Node:
    """A node's ranking, its clock, and its last report to the fleet."""

    shelf: Shelf
    data: Data
    home: Path
    jobs: dict[str, JobOrder] = field(default_factory=lambda: {JOB: JobOrder(True, Phase.STEADY)})
    pools: dict[str, PoolOrder] = field(default_factory=dict)
    now: float = 1000.0
    said: Mapping[str, ScoreReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin without scores."""
        self.tables = ScoreTables(self.home / "larder-0-abc")
        scores = ItemScores(self.tables, self.shelf.bench.store.pools, lambda: self.plan)
        tally = ReadTally(scores, DecileReads(self.home / "larder-0-abc"))
        links = ImportanceLinks(lambda: self.plan, alone(), self.shelf.registry.contents, self.hear, tally)
        self.readers, self.loads = KnownReaders(), BegunLoads()
        preloader, readers = cast(Preloader, self.loads), cast(JobReaders, self.readers)
        self.ranking = ImportanceRanking(self.shelf.bench.store, scores, preloader, readers, links, lambda: self.now)

    @property
    def plan(self) -> Plan:
        """A plan that knows jobs, and keeps nothing by importance unless a test says so."""
        return Plan(version=1, jobs=self.jobs, pools=self.pools)

    async def hear(self, report: Mapping[str, ScoreReport]) -> None:
        """Send the node's report to the fleet."""
        self.said = report

    def send(self, epoch: int, listed: Mapping[int, int] | None = None) -> None:
        """The job sends the scores of an epoch, and what its list draws."""
        content = self.data.registration.content
        part = decode(
            Part(epoch, epoch - 1, {1: 1.0, 2: 3.0}, dict(listed or {}), items=ITEMS, epoch=epoch).body, ITEMS
        )
        self.tables.receive(JOB, content.id, ITEMS, part, epoch, DIRECT, self.now)

    async def keep_by_importance(self) -> None:
        """The plan keeps the dataset by importance, in half of the cache."""
        pool = dataset_pool(self.data.registration.content.id)
        importance = ImportanceOrder({JOB: JobWeight(1.0, 1.0)})
        self.pools[pool] = PoolOrder(
            CachingMode.FULL, WhyCaching.REQUESTED, CAPACITY, order=Importance.name, importance=importance
        )
        pools = with_default([Pool(pool, CAPACITY // 2, Importance.name)], CAPACITY, "lru")
        await self.shelf.bench.store.pools.define(pools)

    async def after(self, seconds: float) -> set[str]:
        """The jobs whose scores the node still has, so many seconds later."""
        self.now += seconds
        await self.ranking.run_once()
        return {job for report in self.said.values() for job in report.jobs}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node with a dataset and a job that has sent nothing yet."""
    async with shelved(tmp_path, capacity=CAPACITY) as shelf:
        data = await shelf.dataset(equal_bodies(ITEMS, 1000, "scored"), "full")
        scores = tmp_path / "scores"
        scores.mkdir()
        yield Node(shelf, data, scores)


async def test_scores_of_a_job_that_stops_updating_are_forgotten(node: Node) -> None:
    """Rule: after three times the usual epoch time without updates, the node drops the job's scores and reports none."""
    node.send(1)
    assert await node.after(FIRST_INTERVAL) == {JOB}
    node.send(2)
    usual = max(FIRST_INTERVAL, SHORTEST_INTERVAL)
    assert await node.after(LIFETIME * usual - 1) == {JOB}
    assert await node.after(2) == set()
    assert node.tables.of(node.data.registration.content.id, ITEMS) == []


async def test_scores_of_a_job_that_the_plan_does_not_know_are_forgotten_soon(node: Node) -> None:
    """Rule: an ended job's scores are dropped; those of a job that is too new for the plan are kept for a minute."""
    node.jobs.clear()
    node.send(1)
    assert await node.after(59) == {JOB}
    assert await node.after(2) == set()


async def test_every_worker_counts_the_reads_of_a_list_from_its_arrival(node: Node) -> None:
    """Rule: a read takes a draw of its item at once, also on a worker that looked for lists just before another got it."""
    content, path = node.data.registration.content, node.home / "larder-0-abc"
    other = ItemScores(ScoreTables(path), node.shelf.bench.store.pools, lambda: node.plan)
    reader = ReadingJob("t", "train", 1)
    other.drawn(content, reader, np.array([2], np.uint32))
    part = decode(Part(1, 0, {}, {2: 3, 4: 1}, items=ITEMS).body, ITEMS)
    node.tables.receive(JOB, content.id, ITEMS, part, 1, DIRECT, node.now)
    other.drawn(content, reader, np.array([2, 2, 4, 5], np.uint32))
    table = node.tables.of_job(content.id, ITEMS, JOB)
    assert table is not None
    assert (table.draws[2], table.draws.sum()) == (1, 1)


async def test_an_item_without_a_row_is_ranked_once_it_has_one(node: Node) -> None:
    """Rule: an item that is resident, but has no row yet, gets the rank of the latest score once its row has an earlier one."""
    content, store = node.data.registration.content, node.shelf.bench.store
    pool = dataset_pool(content.id)
    await node.keep_by_importance()
    node.send(1)
    store.items.adopt(content)
    await store.items.ready(content)
    blob = store.begin(len(node.data.bodies[2]))
    ref = await blob.commit(node.data.bodies[2], content.digest(2))
    blob.end()
    assert node.data.resident == {2}
    await node.ranking.run_once()
    assert await store.keep_item(ref, Entering(entering(1.0).access, pool, 1, 9.0))
    await node.ranking.run_once()
    assert query(store.directory.root, "SELECT rank FROM blobs") == [(3.0 / DRAW,)]


async def test_items_are_loaded_ahead_at_a_constant_rate(node: Node) -> None:
    """Rule: when a list arrives of a job whose epochs take long, the item that it draws most is loaded, and the others follow
    over a quarter of the epoch; without a known epoch all are loaded at once."""
    registration = node.data.registration
    node.readers.known.append(Reader(registration, OriginIdentity("", "")))
    await node.keep_by_importance()
    node.shelf.bench.store.items.adopt(registration.content)
    await node.shelf.bench.store.items.ready(registration.content)
    listed = {number: 1 + number % 5 for number in range(ITEMS)}
    node.send(1, listed)
    await node.ranking.run_once()
    assert sorted(await node.loads.parts.get()) == list(range(ITEMS))
    node.now += 100_000
    node.send(2, listed)
    await node.ranking.run_once()
    assert await node.loads.parts.get() in ([4], [9], [14], [19])
    assert node.loads.parts.empty()
    await node.ranking.stop()
