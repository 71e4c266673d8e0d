"""One training job: a loader that makes mini-batches ahead, and a GPU that consumes them.

The loader makes one mini-batch at a time. The client's own planner (``larder.planner``) decides which items it requests; the
kind of caching decides which it gets: it takes hits, joins fetches of other jobs, and fetches the rest itself. With a
``prefetch`` of 0 it begins when the GPU has finished, so no loading is hidden; otherwise it is up to ``prefetch`` mini-batches
ahead. A mini-batch's time runs from the end of the previous one to its own end, as in a training loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.policies.items.epoch_order import ItemPositions
from gateway.policies.items.next_use import OrderedJob
from gateway.policies.space.orders import Phase
from gateway.sim.jobs.items import Numbers, SimulatedItems
from gateway.sim.jobs.scenario import JobSpec
from gateway.sim.world.clock import Clock
from larder.planner import Candidates, EpochOrder, EpochPlan, Layout, Shard

ALONE = Shard(0, 1, 0, 1)
"""One rank with one worker: a simulated job combines all its ranks."""


@dataclass(slots=True)
class Totals:
    """A job's counts in one phase; ``reads`` are the items that it fetched from the origin itself."""

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    items: int = 0
    hits: int = 0
    reads: int = 0


class Picked(NamedTuple):
    """The positions of the candidates that a batch takes: cached ones, and those to be read or joined."""

    hits: Numbers
    missing: Numbers


class Way(Protocol):
    """The kind of caching in a run."""

    substitutes: bool
    """Whether a batch may be filled with any available candidates."""
    shares: bool
    """Whether a job waits for an item that another job is already fetching."""

    def order(self, job: JobRun, epoch: int) -> EpochOrder:
        """The order of a job's epoch; called once, when the epoch begins, and one epoch earlier for Belady."""

    def begun(self, job: JobRun) -> None:
        """Record that a job begins an epoch."""

    def offers(self, job: JobRun, take: int) -> Numbers:
        """Items to take in preference to uncached items of the job's order, for a batch of ``take`` items."""

    def pick(self, job: JobRun, candidates: Candidates) -> Picked:
        """The candidates that a batch takes, up to the wanted number."""

    def reserve(self, job: JobRun, numbers: Numbers) -> Numbers:
        """Those of the items about to be read that will be kept."""

    def keep(self, items: SimulatedItems, numbers: Numbers) -> None:
        """Store items that were read from the origin and for which room was reserved."""

    def delivered(self, job: JobRun, numbers: Numbers) -> None:
        """Record that a job received items, from the cache or the origin."""

    def phase(self, job: JobRun) -> Phase:
        """The phase of a job's measurement."""

    def joined(self, job: JobRun) -> None:
        """Record that a job begins."""

    def left(self, job: JobRun) -> None:
        """Record that a job has ended."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What jobs share: the time, the kind of caching, and bytes per second of hits (0: no limit)."""

    clock: Clock
    way: Way
    hit_bandwidth: float
    seed: int


@dataclass(slots=True)
class _Loading:
    """A mini-batch in the making; ``number`` is the plan's, ``parts`` are the missing parts."""

    number: int
    size: int = 0
    hits: int = 0
    reads: int = 0
    parts: int = 0


@dataclass(slots=True)
class _Made:
    """Mini-batches that wait for the GPU, and the GPU's state."""

    ready: list[_Loading] = field(default_factory=list)
    loading: bool = False
    computing: bool = False
    idle_since: float = 0.0
    step_began: float = 0.0
    waited: float = 0.0


def shuffled(items: int, seed: int, epoch: int) -> EpochOrder:
    """The order of a loader without Larder: a shuffle of all items."""
    return EpochOrder(Layout(items, 1, 1, "shuffled"), seed=seed, epoch=epoch)


@dataclass(slots=True)
class _Epoch:
    """An epoch in progress: its number, order and plan."""

    number: int
    order: EpochOrder
    plan: EpochPlan

    @property
    def taken(self) -> int:
        """Number of items taken so far."""
        return len(self.plan.progress().done) if len(self.plan) else self.order.layout.items


class JobRun:
    """A job of a run. ``number`` identifies it within the run; its data order depends on number and seed."""

    def __init__(self, spec: JobSpec, number: int, index: int, items: SimulatedItems, around: Surroundings) -> None:
        self.spec = spec
        self.name = f"{spec.name}-{index}" if spec.count > 1 else spec.name
        self.items = items
        self.seed = around.seed * 2**16 + number
        """The seed of the job's orders."""
        self.joined_at = self.ended_at = 0.0
        self.running = False
        self.steps = 0
        """Number of finished mini-batches."""
        self.totals: dict[Phase, Totals] = {}
        self._around = around
        self._take = max(1, round(spec.batch * spec.grouped / items.size))
        self._made = _Made()
        self._epoch: _Epoch | None = None
        self._orders: dict[int, ItemPositions] = {}

    def begin(self) -> None:
        """Join the other jobs and load the first mini-batch."""
        now = self._around.clock.now
        self.running = True
        self.joined_at = self._made.idle_since = self._made.step_began = now
        self._around.way.joined(self)
        self._load()

    @property
    def batch_items(self) -> int:
        """Items of one mini-batch, rounded: a step may represent several, and an item many."""
        return max(1, round(self._take / self.spec.grouped))

    @property
    def exact(self) -> bool:
        """Whether the job follows its order exactly."""
        return self.spec.substitute == 1 or not self._around.way.substitutes

    def follower(self, bit: int = 1) -> OrderedJob:
        """The job's position in its order, and its average pace."""
        epoch, front = (0, 0) if self._epoch is None else (self._epoch.number, self._epoch.taken)
        return OrderedJob(
            bit, self.reading, front, self.items.count, self._positions(epoch), self._positions(epoch + 1)
        )

    def next_uses(self) -> NDArray[np.float64]:
        """Seconds until this job reads each item at its average pace, over this epoch and the next."""
        follower = self.follower()
        return follower.uses(np.arange(self.items.count), follower.this < follower.front)

    @property
    def reading(self) -> float:
        """Average items per second."""
        return self._take / self.pace()

    def pace(self) -> float:
        """Mean seconds per step so far; before the first step, the planned seconds."""
        steps = self.steps // self.spec.grouped
        if not steps:
            return self.spec.compute * self.spec.grouped
        return sum(totals.seconds for totals in self.totals.values()) / steps

    def _positions(self, epoch: int) -> ItemPositions:
        """Each item's position in an epoch."""
        if epoch not in self._orders:
            order = self._around.way.order(self, epoch).items(0, self.items.count)
            kept = {number: positions for number, positions in self._orders.items() if number >= epoch - 1}
            self._orders = {**kept, epoch: np.argsort(order).astype(np.uint32)}
        return self._orders[epoch]

    # --- loading

    def _load(self) -> None:
        epoch = self._epoch
        if epoch is None or not len(epoch.plan):
            number = 0 if epoch is None else epoch.number + 1
            if epoch is not None and number == self.spec.epochs:
                self._finish_if_idle()
                return
            epoch = self._epoch = self._begin_epoch(number)
        self._made.loading = True
        epoch.plan.offer(self._around.way.offers(self, self._take).astype(np.uint32))
        offered = epoch.plan.candidates()
        assert offered is not None
        self._ask(_Loading(offered.batch), offered)

    def _begin_epoch(self, number: int) -> _Epoch:
        way = self._around.way
        order = way.order(self, number)
        way.begun(self)
        substitute = self.spec.substitute if way.substitutes else 1
        return _Epoch(number, order, EpochPlan(order, ALONE, batch_size=self._take, substitute=substitute))

    def _ask(self, loading: _Loading, offered: Candidates) -> None:
        """Send one request for a batch; its answer may not complete the batch."""
        assert self._epoch is not None
        candidates = offered.indices.astype(np.int64)
        picked = self._around.way.pick(self, offered)
        self._epoch.plan.deliver(offered.indices[np.concatenate(picked)])
        self._fetch(loading, candidates[picked.hits], candidates[picked.missing])

    def _fetch(self, loading: _Loading, hits: Numbers, missing: Numbers) -> None:
        around, items = self._around, self.items
        shared = items.fetching[missing] if around.way.shares else np.zeros(len(missing), np.bool_)
        own = missing[~shared]
        loading.size += len(hits) + len(missing)
        loading.hits += len(hits)
        loading.reads += len(own)
        others = items.fetches(missing[shared])
        loading.parts = len(others) + bool(len(own)) + 1

        def came() -> None:
            loading.parts -= 1
            if not loading.parts:
                around.way.delivered(self, missing)
                self._came(loading)

        for fetch in others:
            fetch.waiting.append(came)
        if len(own):
            self._read(own, came)
        around.way.delivered(self, hits)
        rate = around.hit_bandwidth
        around.clock.after(len(hits) * items.size / rate if rate else 0.0, came)

    def _read(self, own: Numbers, came: Callable[[], None]) -> None:
        around, items = self._around, self.items
        kept = around.way.reserve(self, own)
        fetch = items.begin(own) if around.way.shares else None

        def read() -> None:
            around.way.keep(items, kept)
            if fetch is not None:
                items.end(fetch)
            came()

        items.link.send(len(own) * items.size, read, cap=self._cap())

    def _cap(self) -> float:
        """Bytes per second of this job's own reads at which a mini-batch of misses takes as long as the scenario says."""
        spec = self.spec
        if not spec.miss:
            return 0.0
        seconds = (spec.miss - (0.0 if spec.prefetch else spec.compute)) * spec.grouped
        return self._take * self.items.size / seconds

    def _came(self, loading: _Loading) -> None:
        """Handle an answer: complete the batch, or request the rest of it."""
        assert self._epoch is not None
        offered = self._epoch.plan.candidates()
        if offered is not None and offered.batch == loading.number:
            self._ask(loading, offered)
            return
        made = self._made
        made.loading = False
        made.ready.append(loading)
        if not made.computing:
            self._compute()
        elif len(made.ready) < self.spec.prefetch:
            self._load()

    # --- computing

    def _compute(self) -> None:
        made, clock = self._made, self._around.clock
        batch = made.ready.pop(0)
        made.waited += clock.now - made.idle_since
        made.computing = True
        seconds = self.spec.compute * self.spec.grouped * batch.size / self._take
        clock.after(seconds, lambda: self._computed(batch))
        if self.spec.prefetch and not made.loading and self._more():
            self._load()

    def _computed(self, batch: _Loading) -> None:
        made, now = self._made, self._around.clock.now
        made.computing = False
        totals = self.totals.setdefault(self._around.way.phase(self), Totals())
        totals.steps += self.spec.grouped
        totals.seconds += now - made.step_began
        totals.waited += made.waited
        totals.items += batch.size
        totals.hits += batch.hits
        totals.reads += batch.reads
        self.steps += self.spec.grouped
        made.step_began = made.idle_since = now
        made.waited = 0.0
        if made.ready:
            self._compute()
        elif not made.loading:
            self._load()

    def _more(self) -> bool:
        """Whether anything is left to load."""
        epoch = self._epoch
        return epoch is None or bool(len(epoch.plan)) or epoch.number + 1 != self.spec.epochs

    def _finish_if_idle(self) -> None:
        if not self._made.computing and not self._made.ready:
            self.running = False
            self.ended_at = self._around.clock.now
            self._around.way.left(self)
