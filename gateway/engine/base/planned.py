"""The plan in force: the fleet's plan where it covers the dataset or job, else this gateway's own decision.

The plan knows datasets that jobs have registered for. For all others each gateway decides by the registration, the dataset's
size and the capacity of the whole fleet (policies/items/datasets.py), so all gateways decide alike.

Demand decides which items of a dataset are kept in its space (policies/items/demand.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.model.datasets import is_job_name
from gateway.policies.items.datasets import PLAN, CachingMode, decide
from gateway.policies.space.orders import Phase
from gateway.policies.space.plan import Plan
from gateway.store.datasets.content import Content
from gateway.store.datasets.opened import Registration


@dataclass(frozen=True, slots=True)
class InForce:
    """Caching of a dataset, for one reader.

    ``caching`` is none if the reader's job does not use the cache (``cache``). A ``refused`` job gets no hits, but its reads are
    stored and shared as usual. ``planned`` says whether the fleet's plan decides; ``version`` of the plan.
    """

    caching: CachingMode
    planned: bool = False
    version: int = PLAN
    cache: bool = True
    phase: Phase = Phase.STEADY
    refused: bool = False


class Planned:
    """The plan and its fallback, as needed by the data path.

    Args:
        plan: returns the latest plan known to this worker.
        capacity: bytes of the caches of the whole fleet, now.
    """

    def __init__(self, plan: Callable[[], Plan], capacity: Callable[[], int]) -> None:
        self._plan = plan
        self._capacity = capacity

    @property
    def plan(self) -> Plan:
        """The plan; version 0 before the first one."""
        return self._plan()

    @property
    def capacity(self) -> int:
        """Bytes of the caches of the whole fleet."""
        return self._capacity()

    def of(self, registration: Registration, job: str = "") -> InForce:
        """The plan in force for a dataset, and for one of its tenant's jobs if a job is named."""
        plan = self._plan()
        version = max(PLAN, plan.version)
        order = plan.of(registration.content.id)
        # With a slash in it, it could be the name of another tenant's job.
        of_job = plan.jobs.get(f"{registration.tenant}/{job}") if is_job_name(job) else None
        cache, phase, refused = (True, Phase.STEADY, False)
        if of_job is not None:
            cache, phase, refused = of_job.cache, of_job.phase, of_job.refused
        if order is None:
            alone = decide(registration.caching, registration.content.size, self._capacity())
            mode = alone.caching if cache or refused else CachingMode.NONE
            return InForce(mode, version=version, cache=cache, phase=phase, refused=refused)
        mode = order.caching if cache or refused else CachingMode.NONE
        return InForce(mode, True, version, cache, phase, refused)

    def share(self, content: Content) -> float | None:
        """The share of each cache that the plan gives to a dataset, 0 to 1; ``None`` for a dataset outside the plan."""
        order = self._plan().of(content.id)
        return None if order is None else min(1.0, order.target / max(1, self._capacity()))

    def keeps(self, content: Content) -> bool:
        """Whether the plan has space for a dataset; a dataset outside the plan has some."""
        order = self._plan().of(content.id)
        return order is None or order.caching is not CachingMode.NONE
