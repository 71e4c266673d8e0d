"""Registrations, heartbeats and orders for tests of the job book."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.fleet.jobs.jobs import Beat, JobRecord, Jobs
from gateway.policies.space.chunk_order import Opening
from gateway.policies.space.orders import Phase
from gateway.policies.space.probing import PhaseTotals

D1, D2 = "1" * 64, "2" * 64
LONG = 1000.0
SHORT = 0.2


def record(job: str = "j", dataset: str = D1, tenant: str = "t", ranks: int = 2) -> JobRecord:
    """A registration."""
    return JobRecord(tenant, job, dataset, "name", 4, 32, ranks, "auto", "default", "key", 1000, 10, "auto")


async def order(
    jobs: Jobs, key: str, epoch: int, proposal: Sequence[int], begin: int | None, *, leads: bool = True
) -> list[int] | None:
    """The order that a job gets for an epoch."""
    found = await jobs.order(key, Opening(key, epoch, tuple(proposal), begin, leads))
    return None if found is None else list(found)


def beat(rank: int = 0, epoch: int = 0, upcoming: tuple[int, ...] = (1, 2, 0), left: int = 3, **totals: float) -> Beat:
    """A heartbeat; totals are of the steady phase."""
    counts = PhaseTotals(**totals) if totals else PhaseTotals()  # type: ignore[arg-type]
    return Beat(rank, epoch, upcoming, left, {Phase.STEADY: counts})
