"""Registrations and heartbeats for tests of the job book."""

from __future__ import annotations

from gateway.fleet.jobs.jobs import Beat, JobRecord
from gateway.policies.space.orders import Phase
from gateway.policies.space.probing import PhaseTotals

D1, D2 = "1" * 64, "2" * 64
LONG = 1000.0
SHORT = 0.2


def record(job: str = "j", dataset: str = D1, tenant: str = "t", ranks: int = 2) -> JobRecord:
    """A registration."""
    return JobRecord(tenant, job, dataset, "name", 4, 32, ranks, "auto", "default", "key", 1000, 10, "auto")


def beat(rank: int = 0, epoch: int = 0, **totals: float) -> Beat:
    """A heartbeat; totals are of the steady phase."""
    counts = PhaseTotals(**totals) if totals else PhaseTotals()  # type: ignore[arg-type]
    return Beat(rank, epoch, {Phase.STEADY: counts})
