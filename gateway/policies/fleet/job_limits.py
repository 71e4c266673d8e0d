"""Whether a job may register: its name is free or has the same dataset, and zone and tenant have room for a new job."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class JobLimits(NamedTuple):
    """The most jobs of a zone, and of one tenant, so that one tenant cannot exhaust the table."""

    zone: int = 10_000
    tenant: int = 1_000
    ranks: int = 16_384
    """The limit for all jobs of a tenant together: the leader reads a few hundred bytes of each every second."""


class JobUsage(NamedTuple):
    """The present jobs of the zone and of a tenant, and the ranks that the tenant's jobs would have; 0 if no ranks are added."""

    jobs: int = 0
    of_tenant: int = 0
    ranks: int = 0


class Registering(Enum):
    """The outcome of a registration."""

    NEW = auto()
    JOINS = auto()
    """The job is known; a rank of it registers, or registers again."""
    OTHER_DATASET = auto()
    ZONE_FULL = auto()
    TENANT_FULL = auto()
    RANKS_FULL = auto()


def registering(dataset: str, known: str | None, used: JobUsage, limits: JobLimits) -> Registering:
    """Decide on a registration.

    Args:
        dataset: of the job.
        known: dataset of the registered job with the same tenant and name; ``None`` if there is none.
        used: jobs not counting this one, ranks including this one's.
        limits: of jobs and ranks.
    """
    if known is not None and known != dataset:
        return Registering.OTHER_DATASET
    if used.ranks > limits.ranks:
        return Registering.RANKS_FULL
    if known is not None:
        return Registering.JOINS
    if used.jobs >= limits.zone:
        return Registering.ZONE_FULL
    return Registering.TENANT_FULL if used.of_tenant >= limits.tenant else Registering.NEW
