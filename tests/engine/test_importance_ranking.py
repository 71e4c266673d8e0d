"""Importance scores of a node expire when their job stops sending, and the node reports that to the fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.engine.space.importance_ranking import ImportanceLinks, ImportanceRanking
from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.job_readers import JobReaders
from gateway.engine.space.preload import Preloader
from gateway.engine.space.read_tally import ReadTally
from gateway.model.importance import decode
from gateway.policies.items.importance import FIRST_INTERVAL, LIFETIME, SHORTEST_INTERVAL
from gateway.policies.space.importance import ScoreReport
from gateway.policies.space.orders import JobOrder, Phase
from gateway.policies.space.plan import Plan
from gateway.store.shared.decile_reads import DecileReads
from gateway.store.shared.importance import DIRECT, ScoreTables
from tests.engine.conftest import alone
from tests.engine.datasets import Data, Shelf, equal_bodies, shelved
from tests.scored import Part

CAPACITY = 100_000
ITEMS = 20
JOB = "t/train"


class NoReaders:
    """A prefetcher without readers."""

    def look_again(self) -> None:
        """A turn begins."""


@dataclass
class Node:
    """A node's ranking, its clock, and its last report to the fleet."""

    shelf: Shelf
    data: Data
    home: Path
    jobs: dict[str, JobOrder] = field(default_factory=lambda: {JOB: JobOrder(True, Phase.STEADY)})
    now: float = 1000.0
    said: Mapping[str, ScoreReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin without scores."""
        self.tables = ScoreTables(self.home / "larder-0-abc")
        scores = ItemScores(self.tables, self.shelf.bench.store.pools, lambda: self.plan)
        tally = ReadTally(scores, DecileReads(self.home / "larder-0-abc"))
        links = ImportanceLinks(lambda: self.plan, alone(), self.shelf.registry.contents, self.hear, tally)
        nobody: Any = NoReaders()
        self.ranking = ImportanceRanking(
            self.shelf.bench.store, scores, cast(Preloader, nobody), cast(JobReaders, nobody), links, lambda: self.now
        )

    @property
    def plan(self) -> Plan:
        """A plan that knows jobs, and keeps nothing by importance."""
        return Plan(version=1, jobs=self.jobs)

    async def hear(self, report: Mapping[str, ScoreReport]) -> None:
        """Send the node's report to the fleet."""
        self.said = report

    def send(self, epoch: int) -> None:
        """The job sends the scores of an epoch."""
        content = self.data.registration.content
        part = decode(Part(epoch, epoch - 1, {1: 1.0, 2: 3.0}, items=ITEMS, epoch=epoch).body, ITEMS)
        self.tables.receive(JOB, content.id, ITEMS, part, epoch, DIRECT, self.now)

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
