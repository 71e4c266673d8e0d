"""Importance on one node: rank cached items by their need, and load the items most drawn in the epoch.

The keeper does it once per heartbeat (SHADE, section 4.2.2). The scores are in memory that all workers share, whichever worker
received them (store/shared/importance.py).

- Resident items whose need has changed, by reads or by a new list, get their new rank, in pages of ``_PAGE`` rows and at most
  ``_PAGES`` pages a turn, so that neither the event loop nor a fill waits long. An item is resident before it has a row, and
  the row gets the rank of an earlier need; so an item without a row stays unranked until the next turn.
- When scores or the plan have changed, the most needed missing items of the list are loaded in the background lane, as many as
  fit into the pool's target, at a constant rate in the first part of an epoch. Each load is counted as a read of the origin.

The node reports to the fleet which scores of each job it has, and how its items' bytes are distributed over scores;
policies/space/importance.py derives one threshold from these reports.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.base import metrics
from gateway.base.tasks import stop
from gateway.engine.base.homes import keys_of
from gateway.engine.items.wanted import Purpose
from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.job_readers import JobReaders
from gateway.engine.space.preload import Preloader, Reader
from gateway.engine.space.read_tally import ReadTally
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.membership import Membership
from gateway.policies.items.importance import Scores, ScoreStep, ahead, due, freshness, steps_of
from gateway.policies.pools import dataset_pool
from gateway.policies.space.importance import JobReport, ScoreReport
from gateway.policies.space.orders import ImportanceOrder
from gateway.policies.space.plan import Plan
from gateway.store.datasets.content import UNKNOWN_LENGTH, Content
from gateway.store.shared.importance import JobTable
from gateway.store.store import Store

_PAGE = 500
_PAGES = 64
"""Blobs ranked in one transaction, and transactions in one turn."""
_TICK = 0.1
"""Seconds between the beginnings of loads ahead."""
_STRANGE = 60.0
"""Seconds after which the scores of a job that the plan does not know are forgotten."""

log = logging.getLogger("larder.importance")

Send = Callable[[dict[str, ScoreReport]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ImportanceLinks:
    """The rest of the gateway, as used here.

    The plan, the nodes, the datasets open here, where this node's reports go, and the tally of this worker's reads.
    """

    plan: Callable[[], Plan]
    membership: Membership
    contents: Callable[[], Iterable[Content]]
    send: Send
    tally: ReadTally


@dataclass(slots=True)
class _Ranked:
    """The ranking of one dataset.

    ``stamp`` identifies the parts, weights and homes from which the scores were combined; ``loaded`` is the stamp and the space
    for which items were last loaded ahead. ``ranks`` are those in the index, NaN for none; ``home`` marks the items whose home
    is this node.
    """

    scores: Scores
    ranks: Scores
    home: NDArray[np.bool_]
    stamp: object = None
    loaded: object = None
    homes: int = -1
    steps: tuple[ScoreStep, ...] = ()
    loads: list[asyncio.Task[None]] = field(default_factory=list)


class ImportanceRanking:
    """Ranks the pools of this node by importance.

    Args:
        store: of the node.
        scores: of the jobs.
        preloader: loads items.
        readers: the jobs whose rights are used.
        links: the rest of the gateway.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        scores: ItemScores,
        preloader: Preloader,
        readers: JobReaders,
        links: ImportanceLinks,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._scores = scores
        self._preloader = preloader
        self._readers = readers
        self._links = links
        self._now = now
        self._tally = links.tally
        self._ranked: dict[str, _Ranked] = {}
        self._reported: dict[str, ScoreReport] = {}

    async def run_once(self) -> None:
        """Run once per heartbeat. A worker without the node lock only counts its reads."""
        self._tally.count(self._links.contents())
        if not self._store.directory.locked:
            await self.stop()
            return
        self._readers.look_again()
        contents = {content.id: content for content in self._links.contents()}
        for dataset in [dataset for dataset in self._ranked if dataset not in contents]:
            await stop(self._ranked.pop(dataset).loads)
        report = {}
        for content in contents.values():
            tables = self._living(content)
            if tables:
                await self._keep(content, tables)
                report[content.id] = self._report(content, tables)
        metrics.SCORED_ITEMS.set(sum(job.scored for scored in report.values() for job in scored.jobs.values()))
        await self._say(report)

    async def stop(self) -> None:
        """Stop loading."""
        ranked, self._ranked = self._ranked, {}
        await stop([task for ranking in ranked.values() for task in ranking.loads])

    def _living(self, content: Content) -> list[JobTable]:
        """The tables of current jobs; drops tables that are too old, or whose job is gone."""
        living = []
        known = self._links.plan().jobs
        for table in self._scores.tables.of(content.id, content.items):
            age = self._now() - table.updated
            if freshness(age, table.interval) and (table.job in known or age < _STRANGE):
                living.append(table)
            else:
                self._scores.tables.drop(content.id, table.job)
        return living

    async def _keep(self, content: Content, tables: list[JobTable]) -> None:
        order = self._scores.order(content.id)
        known = self._ranked.get(content.id)
        if known is None:
            known = self._ranked[content.id] = _Ranked(_nothing(content), _nothing(content), np.ones(0, dtype=np.bool_))
        version = self._links.membership.version
        if known.homes != version:
            known.home = await asyncio.to_thread(self._at_home, content)
            known.homes = version
        stamp = (_weights(order), [(table.job, table.stamp) for table in tables], version)
        if stamp != known.stamp:
            self._scores.changed(content.id)
            await asyncio.to_thread(self._combine, content, tables, known)
            known.stamp = stamp
        if order is None:
            known.ranks[:] = np.nan
        else:
            await self._rank(content, known)
            await self._load(content, tables, known)

    def _at_home(self, content: Content) -> NDArray[np.bool_]:
        homes, _ = self._links.membership.homes(keys_of(content, np.arange(content.items, dtype=np.uint32)))
        at_home: NDArray[np.bool_] = homes < 0
        return at_home

    def _combine(self, content: Content, tables: list[JobTable], known: _Ranked) -> None:
        """The scores combined by the plan's weights; without weights yet, one job's scores give the distribution of bytes."""
        known.scores = (
            self._scores.all(content) if self._scores.of_jobs(content) else tables[0].scores.astype(np.float32)
        )
        known.steps = steps_of(np.where(known.home, known.scores, np.float32(np.nan)), _lengths(content))

    async def _rank(self, content: Content, known: _Ranked) -> None:
        believed = content.states.believed()
        known.ranks[~believed] = np.nan
        resident = np.flatnonzero(believed)
        needs = self._scores.needs(content, resident)
        stale = np.flatnonzero(~np.isnan(needs) & (known.ranks[resident] != needs))
        # The most needed first: their old ranks may be those of items that leave.
        stale = stale[np.argsort(-needs[stale], kind="stable")]
        for start in range(0, min(len(stale), _PAGES * _PAGE), _PAGE):
            page, ranks = resident[stale[start : start + _PAGE]], needs[stale[start : start + _PAGE]]
            digests = [content.digest(int(index)) for index in page]
            ranked = await self._store.pools.rank(
                dataset_pool(content.id), dict(zip(digests, ranks.tolist(), strict=True))
            )
            if ranked is None:
                return
            recorded = np.array([digest in ranked for digest in digests])
            known.ranks[page[recorded]] = ranks[recorded]

    async def _load(self, content: Content, tables: list[JobTable], known: _Ranked) -> None:
        """Load the most important items of the lists, replacing earlier loads."""
        level = await self._store.pools.level(dataset_pool(content.id))
        if level is None or known.loaded == (known.stamp, level.target) or not self._store.usable:
            return
        readers = await self._readers.readers(content.id)
        if not readers:
            return
        await stop(known.loads)
        known.loads.clear()
        known.loaded = known.stamp, level.target
        draws = np.maximum.reduce([table.draws for table in tables])
        needs = np.where(known.home, self._scores.needs(content, np.arange(content.items)), np.float32(np.nan))
        wanted = await asyncio.to_thread(
            ahead, needs, draws, _lengths(content), content.states.believed(), level.target
        )
        interval = min((table.interval for table in tables if table.interval), default=0.0)
        known.loads.append(asyncio.get_running_loop().create_task(self._bring(content, readers, wanted, interval)))

    async def _bring(
        self, content: Content, readers: list[Reader], wanted: NDArray[np.uint32], interval: float
    ) -> None:
        """Load items at a constant rate; ``interval``: seconds of an epoch, 0 if unknown."""
        loop, begun = asyncio.get_running_loop(), 0
        began = loop.time()
        try:
            same = [reader for reader in readers if reader.registration.content is content]
            while same and begun < len(wanted):
                now = due(len(wanted), (loop.time() - began) / interval if interval else 1.0)
                if begun < now:
                    await self._preloader.load(same, wanted[begun:now], Purpose.IMPORTANCE)
                    begun = now
                else:
                    await asyncio.sleep(_TICK)
        except Exception:
            log.exception("important items could not be loaded; those who need them read them")

    def _report(self, content: Content, tables: list[JobTable]) -> ScoreReport:
        now = self._now()
        jobs = {
            table.job: JobReport(
                max(0.0, now - table.updated), table.interval, table.scored, table.mean, table.stamp[0]
            )
            for table in tables
        }
        reads, hits = self._tally.reads.all(content.id).tolist()
        return ScoreReport(jobs, self._ranked[content.id].steps, tuple(reads), tuple(hits))

    async def _say(self, report: dict[str, ScoreReport]) -> None:
        if not report and not self._reported:
            return
        try:
            await self._links.send(report)
            self._reported = report
        except DOWN:
            return  # sent again with the next turn


def _nothing(content: Content) -> Scores:
    return np.full(content.items, np.nan, dtype=np.float32)


def _weights(order: ImportanceOrder | None) -> list[tuple[str, float]] | None:
    return None if order is None else sorted((job, weight.factor) for job, weight in order.jobs.items())


def _lengths(content: Content) -> NDArray[np.uint64]:
    """Lengths in bytes; 0 where the digest file has none."""
    lengths: NDArray[np.uint64] = content.lengths[:].copy()
    lengths[lengths == UNKNOWN_LENGTH] = 0
    return lengths
