"""Whether a job may register: its name is free or has the same dataset, and zone and tenant have room for a new job."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class JobLimits(NamedTuple):
    """The most jobs of a zone, and of one tenant, so that one tenant cannot exhaust the table."""

    zone: int = 10_000
    tenant: int = 1_000


class Registering(Enum):
    """The outcome of a registration."""

    NEW = auto()
    JOINS = auto()
    """The job is known; a rank of it registers, or registers again."""
    OTHER_DATASET = auto()
    ZONE_FULL = auto()
    TENANT_FULL = auto()


def registering(dataset: str, known: str | None, jobs: int, of_tenant: int, limits: JobLimits) -> Registering:
    """Decide on a registration.

    Args:
        dataset: of the job.
        known: dataset of the registered job with the same tenant and name; ``None`` if there is none.
        jobs: of the zone.
        of_tenant: jobs of the tenant.
        limits: of both.
    """
    if known is not None:
        return Registering.JOINS if known == dataset else Registering.OTHER_DATASET
    if jobs >= limits.zone:
        return Registering.ZONE_FULL
    return Registering.TENANT_FULL if of_tenant >= limits.tenant else Registering.NEW
