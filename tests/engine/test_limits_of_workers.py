"""Limits of tenants over the workers of a fleet."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.engine.operations.tenant_rates import TenantRates
from gateway.model.errors import RateLimited
from gateway.policies.fleet.tenant_rates import RateLimit


class Reports:
    """The reports of workers, in memory."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, int]] = {}

    async def send(self, node: str, report: dict[str, int]) -> None:
        """Keep a report."""
        self.told[node] = report

    async def all(self) -> Mapping[str, Mapping[str, int]]:
        """All reports."""
        return self.told


class Fleet:
    """Two workers with one clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reports = Reports()
        self.workers = [TenantRates(self.reports, name, lambda: self.now) for name in "ab"]
        for worker in self.workers:
            worker.replace([("t", RateLimit(requests=100))])

    async def second(self, *asked: int) -> list[int]:
        """A second in which the workers are asked so many requests each; how many they admit."""
        admitted = [0, 0]
        for number, (worker, count) in enumerate(zip(self.workers, asked, strict=True)):
            for _ in range(count):
                try:
                    worker.admit("t")
                    admitted[number] += 1
                except RateLimited:
                    pass
        for worker in self.workers:
            await worker.run_once()
        self.now += 1
        return admitted


async def test_workers_share_a_limit_by_demand() -> None:
    """Rule: once workers see each other, they admit the limit together, shared by demand."""
    fleet = Fleet()
    for _ in range(4):
        await fleet.second(300, 100)
    found = [await fleet.second(300, 100) for _ in range(10)]
    assert sum(map(sum, found)) == pytest.approx(1000, rel=0.05)
    assert sum(first for first, _ in found) == pytest.approx(750, rel=0.05)


async def test_a_worker_alone_has_the_whole_limit() -> None:
    """Rule: a worker gets the whole limit when the others have no more demand."""
    fleet = Fleet()
    await fleet.second(300, 300)
    for _ in range(4):
        await fleet.second(300, 0)
    assert (await fleet.second(300, 0))[0] == pytest.approx(100, abs=2)


async def test_workers_without_demand_say_nothing() -> None:
    """Rule: a limit far from being reached costs Redis nothing."""
    fleet = Fleet()
    await fleet.second(0, 0)
    assert fleet.reports.told == {}


def test_a_changed_limit_counts_at_once_and_others_stay_as_they_are() -> None:
    """Rule: a lifted limit refuses no request, and an unchanged one keeps its usage."""
    rates = TenantRates(Reports(), "a", lambda: 0.0)
    rates.replace([("t", RateLimit(requests=0.1)), ("u", RateLimit(requests=0.1))])
    rates.admit("t")
    rates.admit("u")
    rates.replace([("u", RateLimit(requests=0.1))])
    rates.admit("t")
    with pytest.raises(RateLimited) as refused:
        rates.admit("u")
    assert refused.value.headers == {"Retry-After": "10"}
