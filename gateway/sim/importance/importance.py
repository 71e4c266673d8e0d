"""Training by importance on a recorded trace: each cache's hits, its origin reads, and the items that an epoch leaves unseen.

The trace has each item's loss in each epoch of a real run. A sampler draws an epoch's list from the scores so far; a drawn item
gets the trace's loss for that epoch. The trace's model was trained on all items equally, so the simulation shows how such lists
affect caches, not how they affect a model.

With any sampler, N items are read per epoch. If a cache holds a share c and its content does not change during the epoch, D
distinct items in the list cost at least D - cN origin reads, so a hit ratio h leaves at least h - c of the items unseen.

Lists by rank come from the loader's planner; eviction orders and admission come from the gateway (``gateway/policies``).
Belady's MIN and the paper's priority queues exist only here.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from gateway.model.access import Access
from gateway.policies.eviction.order import BlobFacts, EvictionOrder
from gateway.policies.items.importance import JobWeight, PoolLevel, ahead, due, may_enter, needed
from gateway.policies.pools import ORDERS
from gateway.sim.importance.score_scenario import Losses, ScoreRunSpec, ScoreScenario, losses_of
from gateway.sim.world.pooled import CachedBlock, SimulatedPool
from larder.planner.draw import DrawRule
from larder.planner.importance import ImportancePlan

_NEVER = 2**62
_ALONE = JobWeight(1.0, 1.0)

Items = NDArray[np.int64]
Scores = NDArray[np.float32]
Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ScoreRunResult:
    """One run with one cache size. All values are shares of the items that an epoch reads, averaged over the measured epochs and
    the jobs.

    ``hits``: found in the cache; ``read``: from the origin by a miss; ``ahead``: loaded from the origin ahead; ``unseen``: not in
    the list; ``by_job``: the hits of each job; ``deviation``: the standard deviation of a full mini-batch's misses.
    """

    run: ScoreRunSpec
    share: float
    hits: float
    read: float
    ahead: float
    unseen: float
    by_job: tuple[float, ...] = ()
    deviation: float = 0.0

    @property
    def bound(self) -> float:
        """Lower bound of the share of unseen items: h - c; loading ahead counts as a read, like a miss."""
        return max(0.0, self.hits - self.ahead - self.share)


def closed_form(run: ScoreRunSpec, share: float) -> float | None:
    """The theoretical hit ratio; ``None`` where there is no formula.

    With each item once per epoch, LRU hits items that are read again before others fill the cache, c + (1 - c) ln(1 - c); a cache
    that never evicts, and MIN, hit c. A list that leaves u unseen and whose repeats are cached hits c + u at most.
    """
    if run.jobs > 1:
        return None
    if run.sampler == "uniform":
        if run.cache == "lru":
            return float(share + (1 - share) * np.log(1 - share))
        return share if run.cache in ("never-evict", "min") else None
    return None if run.unseen is None else min(1.0, share + run.unseen)


def simulate_scores(scenario: ScoreScenario, seed: int | None = None) -> list[ScoreRunResult]:
    """Simulate all runs with all cache sizes, each with the same random numbers.

    Raises:
        ConfigError: the trace cannot be used.
    """
    losses, results = losses_of(scenario), []
    for run in scenario.runs:
        for share in scenario.shares:
            rng = np.random.default_rng(scenario.seed if seed is None else seed)
            results.append(_simulate(scenario, run, share, losses, rng))
    return results


def _simulate(
    scenario: ScoreScenario, run: ScoreRunSpec, share: float, losses: Losses, rng: Generator
) -> ScoreRunResult:
    epochs, items = losses.shape
    room, jobs = round(share * items), range(run.jobs)
    trainings = [_training(run, np.roll(losses, items * job // run.jobs, axis=1), rng) for job in jobs]
    cache = _cache(run, room, rng)
    # Without scores, nothing that is learned changes a list, so Belady's MIN may know all lists.
    known = [trainings[0].draw(epoch, None) for epoch in range(epochs)] if run.cache == "min" else []
    cache.expect(np.concatenate(known) if known else np.empty(0, dtype=np.int64))
    hits = np.zeros(run.jobs)
    ahead_reads = unseen = 0
    misses: list[int] = []
    for epoch in range(epochs):
        lists = known[epoch : epoch + 1] or [training.draw(epoch, cache.cached(items)) for training in trainings]
        counted = epoch >= scenario.warm_up
        brought = 0
        for job in jobs:
            cache.begin(lists[job], trainings[job].scores, job, loads=run.prefetch and epoch > 0)
        scores = [training.scores for training in trainings]
        for start in range(0, items, scenario.batch):
            brought += cache.load(start / items, scores[0])
            for job in jobs:
                batch = lists[job][start : start + scenario.batch]
                came = sum(cache.read(int(item), scores[job], job) for item in batch)
                if counted:
                    hits[job] += came
                    misses += [len(batch) - came] * (len(batch) == scenario.batch)
                changed = trainings[job].learn(epoch, batch)
                if run.cache != "importance":
                    # The paper's caches learn scores at once; a job of Larder sends its scores once per epoch.
                    scores[job] = trainings[job].scores
                    cache.rank(changed, scores[job])
        if run.cache != "importance":
            cache.rank(np.arange(items), trainings[0].scores)
        if counted:
            ahead_reads += brought
            unseen += sum(items - len(np.unique(listed)) for listed in lists)
    of_job = items * (epochs - scenario.warm_up)
    total, mean = of_job * run.jobs, float(hits.mean() / of_job)
    by_job = tuple((hits / of_job).tolist())
    return ScoreRunResult(
        run, share, mean, 1 - mean, ahead_reads / total, unseen / total, by_job, float(np.std(misses))
    )


def _training(run: ScoreRunSpec, losses: Losses, rng: Generator) -> _Training:
    return _Sampled(run, losses, int(rng.integers(2**31))) if run.sampler == "shade" else _Drawing(run, losses, rng)


class _Training(Protocol):
    """A job: its scores so far, and its next reads."""

    @property
    def scores(self) -> Scores:
        """The scores by item; NaN without a score."""

    def draw(self, epoch: int, cached: Marks | None) -> Items:
        """The list of an epoch; ``cached``: by item, whether a cache that follows lists holds it now."""

    def learn(self, epoch: int, batch: Items) -> Items:
        """Score the distinct items of a trained mini-batch."""


class _Drawing:
    """Draws without scores, or by the mean loss of the last mini-batch that contained an item."""

    def __init__(self, run: ScoreRunSpec, losses: Losses, rng: Generator) -> None:
        self.scores: Scores = np.full(losses.shape[1], np.nan, dtype=np.float32)
        self._coarse = run.sampler == "coarse"
        self._losses = losses
        self._rng = rng

    def draw(self, epoch: int, cached: Marks | None) -> Items:
        """A shuffle of all items; with scores, as many draws with replacement, in proportion to the scores."""
        count, known = len(self.scores), ~np.isnan(self.scores)
        if not known.any():
            return self._rng.permutation(count)
        weights = np.where(known, self.scores, self.scores[known].mean()).astype(np.float64) + 1e-9
        return self._rng.choice(count, count, p=weights / weights.sum())

    def learn(self, epoch: int, batch: Items) -> Items:
        """Score the mini-batch as a whole."""
        if not self._coarse:
            return batch[:0]
        self.scores[batch] = self._losses[epoch, batch].mean()
        return np.unique(batch)


class _Sampled:
    """Uses the loader's own planner, which scores single samples by their rank (Eq. 6)."""

    def __init__(self, run: ScoreRunSpec, losses: Losses, seed: int) -> None:
        self._plan = ImportancePlan(losses.shape[1], DrawRule(run.unseen), seed=seed, guard=False)
        self._losses = losses

    @property
    def scores(self) -> Scores:
        """The scores as sent to gateways."""
        return self._plan.scores.astype(np.float32)

    def draw(self, epoch: int, cached: Marks | None) -> Items:
        """The list of an epoch, with a single rank."""
        return self._plan.begin(epoch, cached=cached).astype(np.int64)

    def learn(self, epoch: int, batch: Items) -> Items:
        """Score each sample."""
        self._plan.update(batch, self._losses[epoch, batch])
        return np.unique(batch)


def _cache(run: ScoreRunSpec, room: int, rng: Generator) -> _Cache:
    if run.cache == "min":
        return _Farthest(room)
    orders: dict[str, EvictionOrder] = {
        "random": _RandomOrder(rng),
        "never-evict": ORDERS["uniform"],
        "pq": ORDERS["importance"],
        "pq-lfu": ORDERS["importance"],
        "app": ORDERS["importance"],
    }
    admission = {"never-evict": "room", "app": "score", "importance": "score"}.get(run.cache, "all")
    order = orders.get(run.cache) or ORDERS[run.cache]
    if run.cache == "importance":
        return _ByNeed(room, order, admission, run.jobs)
    return _OnePool(room, order, admission, by_reads=run.cache == "pq-lfu")


class _Cache(Protocol):
    """A cache of items of size 1."""

    def cached(self, items: int) -> Marks | None:
        """By item, whether it is cached; ``None`` from a cache that does not follow lists."""
        return None

    def begin(self, listed: Items, scores: Scores, job: int, *, loads: bool) -> None:
        """Begin a job's epoch, whose most needed items may be loaded ahead."""
        return

    def load(self, passed: float, scores: Scores) -> int:
        """Load the items ahead that are due when a part of the epoch has passed; returns how many."""
        return 0

    def read(self, item: int, scores: Scores, job: int) -> bool:
        """Read an item for a job, and cache it if it is admitted; returns whether it was cached."""

    def rank(self, items: Items, scores: Scores) -> None:
        """Update the scores of items."""

    def expect(self, order: Items) -> None:
        """Learn all future reads, for a cache that knows them."""


class _RandomOrder(EvictionOrder):
    """Evicts in random order."""

    name = "random"

    def __init__(self, rng: Generator) -> None:
        self._rng = rng

    def rank(self, access: Access, facts: BlobFacts, now: float) -> float:
        """A random number between 0 and 1, drawn when the blob enters."""
        return float(self._rng.random()) if facts.rank is None else facts.rank


class _OnePool(_Cache):
    """One pool in one of the gateway's orders."""

    def __init__(self, room: int, order: EvictionOrder, admission: str, *, by_reads: bool = False) -> None:
        self._room = room
        self._pool = SimulatedPool(order, room)
        self._admission = admission
        self._by_reads = by_reads
        self._scored = order.name == "importance"
        self._reads: dict[int, int] = {}
        self._now = 0.0

    def read(self, item: int, scores: Scores, job: int) -> bool:
        self._now += 1
        self._reads[item] = self._reads.get(item, 0) + 1
        if _block(item) in self._pool:
            self._pool.use(_block(item), self._now)
            if self._by_reads:
                self._pool.rank(_block(item), self._score(item, scores) or 0.0)
            return True
        self._take(item, scores, 1)
        return False

    def rank(self, items: Items, scores: Scores) -> None:
        for item in items.tolist() if self._scored else ():
            if _block(item) in self._pool and (score := self._score(item, scores)) is not None:
                self._pool.rank(_block(item), score)

    def expect(self, order: Items) -> None:
        """Ignored: an order does not know the future."""

    def _take(self, item: int, scores: Scores, reads: int) -> bool:
        score = self._score(item, scores)
        level = PoolLevel(self._pool.size, self._room, self._pool.least())
        full = level.size + 1 > self._room
        if full and (self._admission == "room" or not self._room):
            return False
        if self._admission == "score" and not may_enter(score, 1, level):
            return False
        if full:
            self._pool.evict()
        self._pool.enter(_block(item), 1, self._now, reads, score)
        return True

    def _score(self, item: int, scores: Scores) -> float | None:
        """The rank of an item; if reads count, the less often read of two items with equal scores leaves first."""
        if not self._scored or np.isnan(scores[item]):
            return None
        tie = 1e-6 * self._reads.get(item, 0) if self._by_reads else 0.0
        return float(scores[item]) + tie


class _ByNeed(_OnePool):
    """Larder's: the draws that the jobs' lists have left, then the scores with which they were drawn."""

    def __init__(self, room: int, order: EvictionOrder, admission: str, jobs: int) -> None:
        super().__init__(room, order, admission)
        self._jobs: list[tuple[NDArray[np.float16], NDArray[np.uint16], JobWeight]] = []
        self._share = 1 / jobs
        self._needs: Scores = np.zeros(0, np.float32)
        self._wanted: list[int] = []
        self._begun = 0

    def cached(self, items: int) -> Marks:
        return np.array([_block(item) in self._pool for item in range(items)])

    def begin(self, listed: Items, scores: Scores, job: int, *, loads: bool) -> None:
        items, mean = len(scores), float(np.nan_to_num(scores).mean()) or 1.0
        weight = JobWeight(self._share, 1.0 if self._share == 1 else self._share / mean)
        draws = np.bincount(listed, minlength=items).astype(np.uint16)
        self._jobs[job : job + 1] = [(scores.astype(np.float16), draws, weight)]
        self._needs = needed(self._jobs, items)
        self.rank(np.arange(items), scores)
        self._wanted, self._begun = [], 0
        if loads:
            most = np.maximum.reduce([of_job for _, of_job, _ in self._jobs])
            lengths = np.ones(items, np.uint64)
            self._wanted = ahead(self._needs, most, lengths, self.cached(items), self._room).tolist()

    def load(self, passed: float, scores: Scores) -> int:
        now = due(len(self._wanted), passed)
        begin, self._begun = self._wanted[self._begun : now], now
        return sum(self._take(item, scores, 0) for item in begin if _block(item) not in self._pool)

    def read(self, item: int, scores: Scores, job: int) -> bool:
        self._jobs[job][1][item] -= 1
        self._needs[item] = needed(self._of(item), 1)[0]
        hit = super().read(item, scores, job)
        self.rank(np.array([item]), scores)
        return hit

    def _score(self, item: int, scores: Scores) -> float | None:
        need = float(self._needs[item])
        return None if np.isnan(need) else need

    def _of(self, item: int) -> list[tuple[NDArray[np.float16], NDArray[np.uint16], JobWeight]]:
        return [(known[item : item + 1], draws[item : item + 1], weight) for known, draws, weight in self._jobs]


class _Farthest(_Cache):
    """Belady's MIN: evicts the item read furthest in the future, and does not admit one read later than all cached ones."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._next: dict[int, deque[int]] = {}
        self._held: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def expect(self, order: Items) -> None:
        for place, item in enumerate(order.tolist()):
            self._next.setdefault(item, deque()).append(place)

    def read(self, item: int, scores: Scores, job: int) -> bool:
        self._next[item].popleft()
        there = item in self._held
        if there or len(self._held) < self._room:
            self._use(item)
            return there
        while self._heap and self._held.get(self._heap[0][1]) != -self._heap[0][0]:
            heapq.heappop(self._heap)
        if self._heap and -self._heap[0][0] > self._when(item):
            del self._held[heapq.heappop(self._heap)[1]]
            self._use(item)
        return False

    def rank(self, items: Items, scores: Scores) -> None:
        """Ignored."""

    def _when(self, item: int) -> int:
        return self._next[item][0] if self._next[item] else _NEVER

    def _use(self, item: int) -> None:
        self._held[item] = self._when(item)
        heapq.heappush(self._heap, (-self._held[item], item))


def _block(item: int) -> CachedBlock:
    return CachedBlock("", item)
