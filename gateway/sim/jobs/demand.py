"""The demand for one dataset's items: the shipped rules (``policies/items/demand.py``) on simulated items.

One home decides about all items; in a fleet each home decides about its own items, by the same rules. A simulated item may
represent many (``DatasetSpec.item``): the rules know needs and places, not bytes, so a hundred images that are read, kept and
replaced together can be one item. Only the granularity changes: a batch has fewer items, and less room is in transit at any
moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.policies.items.batch import Choice
from gateway.policies.items.demand import JOBS, SILENT, Needs, Outlook, SwapRoom, choose, need_of, offered, victims
from gateway.policies.items.next_use import NextUses, TakingJob, replaced
from gateway.sim.jobs.items import Numbers, SimulatedItems
from gateway.sim.jobs.job import JobRun
from gateway.sim.world.clock import Clock
from larder.planner import Candidates

WINDOW = 65_536
"""Items examined for victims and offers, as on a node (``engine/items/demand.py``)."""
_SPARE_VICTIMS = 8


class SimulatedDemand:
    """The items of a dataset that jobs have consumed in their current epochs, and the resulting demand."""

    def __init__(self, items: SimulatedItems, clock: Clock, generator: np.random.Generator) -> None:
        self._items = items
        self._clock = clock
        self._generator = generator
        self._bits = np.zeros(items.count, np.uint16)
        self._slots: list[str] = [""] * JOBS
        self._seen = [0.0] * JOBS
        self._jobs: dict[str, JobRun] = {}

    # --- who reads

    def active(self) -> int:
        """The bits of the jobs that are active."""
        since = self._clock.now - SILENT
        pairs = zip(self._slots, self._seen, strict=True)
        return sum(1 << slot for slot, (name, seen) in enumerate(pairs) if name and seen > since)

    def bit_of(self, job: str) -> int:
        """The bit of a job that reads now; 0 if there are too many jobs."""
        if job not in self._slots:
            since = self._clock.now - SILENT
            pairs = zip(self._slots, self._seen, strict=True)
            free = [slot for slot, (name, seen) in enumerate(pairs) if not name or seen <= since]
            if not free:
                return 0
            self._slots[free[0]] = job
            self._clear(free[0])
        slot = self._slots.index(job)
        self._seen[slot] = self._clock.now
        return 1 << slot

    def begin(self, job: JobRun) -> None:
        """Begin an epoch of a job, which now needs all items."""
        self._jobs[job.name] = job
        if bit := self.bit_of(job.name):
            self._clear(bit.bit_length() - 1)

    def leave(self, job: str) -> None:
        """Remove a job that has ended."""
        if job in self._slots:
            self._slots[self._slots.index(job)] = ""

    def consumed(self, job: str, numbers: Numbers) -> None:
        """Record that items were delivered to a job."""
        self._bits[numbers] |= np.uint16(self.bit_of(job))

    def needed_by(self, job: str) -> NDArray[np.bool_]:
        """By item, whether a job has yet to consume it in its epoch."""
        needed: NDArray[np.bool_] = (self._bits & np.uint16(self.bit_of(job))) == 0
        return needed

    def needed_by_all(self) -> NDArray[np.bool_]:
        """By item, whether no active job has yet consumed it in its epoch."""
        needed: NDArray[np.bool_] = (self._bits & np.uint16(self.active())) == 0
        return needed

    def _clear(self, slot: int) -> None:
        self._bits &= np.uint16(0xFFFF & ~(1 << slot))

    # --- what a batch takes

    def offers(self, job: str, most: int) -> Numbers:
        """Residents that other jobs have consumed and this job has not."""
        bit, active = self.bit_of(job), self.active()
        if not active & ~bit:
            return np.zeros(0, np.int64)
        start, stop = self._window()
        bits, resident = self._bits[start:stop], self._items.resident[start:stop]
        return start + offered(bits, resident, bit, active, self._generator)[:most]

    def choose(self, job: str, candidates: Candidates, resident: np.ndarray, free: int) -> Choice:
        """Which candidates a batch takes. ``resident``: by position; ``free``: items that fit without an eviction."""
        indices = candidates.indices.astype(np.int64)
        fetching = self._items.fetching[indices]
        active = self.active()
        need = need_of(self._bits[indices], active & ~self.bit_of(job))
        outlook = Outlook(need, np.zeros(len(indices), np.int16), [SwapRoom(free, self._held(active))])
        return choose(candidates.take, candidates.offers, resident, fetching, outlook)

    def _held(self, active: int) -> Sequence[int]:
        start, stop = self._window()
        need = need_of(self._bits[start:stop][self._items.resident[start:stop]], active)
        counts: Sequence[int] = (np.bincount(need, minlength=JOBS + 1) * (self._items.count // (stop - start))).tolist()
        return counts

    # --- what stays

    def need_after(self, job: str, numbers: Numbers) -> Needs:
        """How many jobs need items once this job has read them."""
        return need_of(self._bits[numbers], self.active() & ~self.bit_of(job))

    def replace(self, needs: Sequence[int]) -> list[list[int]]:
        """For each incoming need, the greatest first, the items that leave; none if the incoming item must not be stored."""
        residents = deque((index, less, 1) for index, less in self.least_needed(needs[0], len(needs)))
        return [victims(need, 1, residents) for need in needs]

    def next_uses(self) -> NextUses | None:
        """The next uses of items; ``None`` unless a job follows its order, and another job is active."""
        active = self.active()
        reading = [(1 << slot, self._jobs[name]) for slot, name in enumerate(self._slots) if active >> slot & 1]
        followers = [job.follower(bit) for bit, job in reading if job.exact]
        if not followers or len(reading) < 2:
            return None
        resident = self._bits[self._items.resident]
        takers = [
            TakingJob(bit, np.count_nonzero((resident & np.uint16(bit)) == 0) / (2 * job.reading))
            for bit, job in reading
            if not job.exact
        ]
        return NextUses(followers, takers)

    def replace_by_use(self, job: str, uses: NextUses, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Of the items that a job reads, those that are stored; and the residents that leave for them."""
        start, stop = self._window()
        places = self._generator.permutation(start + np.flatnonzero(self._items.resident[start:stop]))
        later = uses.of(places, self._bits[places])
        last = np.argsort(-later, kind="stable")[: len(numbers)]
        residents = deque((int(places[place]), float(later[place]), 1) for place in last)
        use = uses.of(numbers, self._bits[numbers] | np.uint16(self.bit_of(job)))
        order = np.argsort(use, kind="stable")
        leaving = [replaced(float(use[at]), 1, residents) for at in order]
        stored = numbers[order[[bool(chosen) for chosen in leaving]]] if leaving else numbers
        return stored, np.array([index for chosen in leaving for index in chosen], np.int64)

    def least_needed(self, below: int, count: int) -> list[tuple[int, int]]:
        """Residents that are needed less than ``below``, the least needed first, ties at random: item and need."""
        start, stop = self._window()
        places = start + np.flatnonzero(self._items.resident[start:stop])
        need = need_of(self._bits[places], self.active())
        most = _SPARE_VICTIMS + 2 * count
        chosen: list[tuple[int, int]] = []
        for level in range(below):
            if len(chosen) >= most:
                break
            equal = places[need == level]
            if len(equal):
                picked = self._generator.choice(equal, min(most, len(equal)), replace=False)
                chosen += [(index, level) for index in picked.tolist()]
        return chosen

    def _window(self) -> tuple[int, int]:
        """A part of the dataset: all of it, or a random stretch of a large one."""
        count = self._items.count
        start = int(self._generator.integers(count - WINDOW + 1)) if count > WINDOW else 0
        return start, min(count, start + WINDOW)
