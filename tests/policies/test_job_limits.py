"""Registrations of jobs: names, and the room of zone and tenant."""

from __future__ import annotations

import pytest

from gateway.policies.fleet.job_limits import JobLimits, JobUsage, Registering, registering


@pytest.mark.parametrize(
    ("known", "used", "expected"),
    [
        (None, JobUsage(9, 2, 20), Registering.NEW),
        (None, JobUsage(10, 2, 20), Registering.ZONE_FULL),
        (None, JobUsage(9, 3, 20), Registering.TENANT_FULL),
        ("d", JobUsage(10, 3), Registering.JOINS),
        ("e", JobUsage(1, 1, 21), Registering.OTHER_DATASET),
        (None, JobUsage(1, 1, 21), Registering.RANKS_FULL),
        ("d", JobUsage(1, 1, 21), Registering.RANKS_FULL),
    ],
)
def test_a_registration(known: str | None, used: JobUsage, expected: Registering) -> None:
    """Rule: a known job can be joined even at the limits, with its own dataset only; a new one needs room in zone and
    tenant, and so do its ranks, and those that a known one gains."""
    assert registering("d", known, used, JobLimits(zone=10, tenant=3, ranks=20)) is expected
