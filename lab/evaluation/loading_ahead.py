"""A design that Larder does not use, in the simulator: the fleet loads ahead items that all jobs of a dataset still need.

Under residency by demand, the first job that needs an item loads it, and waits. Here each delivery makes the fleet load items
that all jobs need in place of items that all have consumed, and every job gets them as offers. ``make`` is a way of caching for a
scenario's ``mode``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.manager import ManagerParams
from gateway.policies.space.probing import ProbeSettings
from gateway.sim.jobs.items import Numbers, SimulatedItems, SimulatedSpace
from gateway.sim.jobs.job import JobRun
from gateway.sim.jobs.managed import PER_ITEM, Managed, Managing
from gateway.sim.world.clock import Clock

BATCHES = 2
"""Mini-batches per job that are loaded ahead at once."""


class LoadingAhead(Managed):
    """The plan's caching, with loads ahead for datasets held in part."""

    def __init__(self, clock: Clock, space: SimulatedSpace, managing: Managing, jobs: Sequence[JobRun]) -> None:
        super().__init__(clock, space, managing, jobs)
        self._underway = dict.fromkeys(space.datasets, 0)
        self._ahead = {name: np.zeros(items.count, np.bool_) for name, items in space.datasets.items()}

    def offers(self, job: JobRun, take: int) -> Numbers:
        """Items that others have consumed, then items loaded ahead."""
        offered = super().offers(job, take)
        if self._caching(job.items) is not CachingMode.PART or not self.serves(job):
            return offered
        items, left = job.items, max(0, PER_ITEM * take - len(offered))
        needed = self._demand_of(job).needed_by(job.name)
        fresh = np.flatnonzero(self._ahead[items.spec.name] & items.resident & needed)
        fresh = self._generator.permutation(fresh)[:left]
        return np.concatenate([offered, np.setdiff1d(fresh, offered)])

    def delivered(self, job: JobRun, numbers: Numbers) -> None:
        """Load items ahead in place of those that no job needs any more."""
        super().delivered(job, numbers)
        if self._caching(job.items) is CachingMode.PART and self.serves(job):
            self._load(job.items, job)

    def _load(self, items: SimulatedItems, job: JobRun) -> None:
        name, demand = items.spec.name, self._demand_of(job)
        readers = sum(other.running and other.items is items for other in self._jobs)
        wanted = BATCHES * job.batch_items * job.spec.grouped * readers - self._underway[name]
        if wanted <= 0:
            return
        needed = np.flatnonzero(~items.resident & ~items.fetching & demand.needed_by_all())
        leaving = [index for index, _ in demand.least_needed(1, wanted)][:wanted]
        count = min(len(leaving), len(needed))
        if not count:
            return
        chosen = self._generator.choice(needed, count, replace=False)
        left = np.array(leaving[:count], np.int64)
        self._ahead[name][left] = False
        self._space.remove(items, left)
        items.reserved += count
        self._space.reserved += count * items.size
        self._underway[name] += count
        fetch = items.begin(chosen)

        def loaded() -> None:
            self._underway[name] -= count
            self._ahead[name][chosen] = True
            self.keep(items, chosen)
            items.end(fetch)

        items.link.send(count * items.size, loaded, cap=0.0)


def make(space: SimulatedSpace, clock: Clock, jobs: Sequence[JobRun]) -> LoadingAhead:
    """The caching of a run, with the settings of Figure 6's scenario."""
    settings = ManagerParams(probe=ProbeSettings(every=86_400.0))
    return LoadingAhead(clock, space, Managing(settings, 5.0, dict.fromkeys(space.datasets, "auto"), 0), jobs)
