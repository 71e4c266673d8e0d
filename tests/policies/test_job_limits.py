"""Registrations of jobs: names, and the room of zone and tenant."""

from __future__ import annotations

import pytest

from gateway.policies.fleet.job_limits import JobLimits, Registering, registering


@pytest.mark.parametrize(
    ("known", "jobs", "of_tenant", "expected"),
    [
        (None, 9, 2, Registering.NEW),
        (None, 10, 2, Registering.ZONE_FULL),
        (None, 9, 3, Registering.TENANT_FULL),
        ("d", 10, 3, Registering.JOINS),
        ("e", 1, 1, Registering.OTHER_DATASET),
    ],
)
def test_a_registration(known: str | None, jobs: int, of_tenant: int, expected: Registering) -> None:
    """Rule: a known job can be joined even at the limits, with its own dataset only; a new one needs room in zone and tenant."""
    assert registering("d", known, jobs, of_tenant, JobLimits(zone=10, tenant=3)) is expected
