"""The keeper reports results of pipelines, and does not ask the index while there can be none."""

from __future__ import annotations

import pytest

from gateway.engine.space.held_results import HeldReporter
from gateway.policies.pools import RESULTS, Pool, with_default
from gateway.policies.streams.zone import PoolReport
from tests.engine.conftest import Bench, asked_of

NAME = f"{RESULTS}5e5e"


class Heard:
    """The reports of a node."""

    def __init__(self) -> None:
        self.reports: list[dict[str, PoolReport]] = []

    async def send(self, report: dict[str, PoolReport]) -> None:
        """Hear a report."""
        self.reports.append(report)


async def define(bench: Bench, *names: str) -> None:
    """Define the pools of a node."""
    await bench.store.pools.define(with_default([Pool(name, 10**6) for name in names], 10**7, "lru"))


async def test_results_are_reported_as_soon_as_their_pool_is_defined(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a keeper without pools of results reads the index once, and again when pools were defined; with some, every turn."""
    heard, asked = Heard(), asked_of(bench.store, monkeypatch)
    reporter = HeldReporter(bench.store, heard.send)
    await define(bench)
    for _ in range(5):
        await reporter.run_once()
    assert (len(asked), heard.reports) == (1, [])
    await define(bench, NAME)
    for _ in range(3):
        await reporter.run_once()
    assert len(asked) == 4
    assert [set(report) for report in heard.reports] == [{NAME}] * 3


async def test_the_end_of_the_last_results_is_reported_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: after the last pool of results has ended, one empty report replaces the previous one; then the node is silent."""
    heard, asked = Heard(), asked_of(bench.store, monkeypatch)
    reporter = HeldReporter(bench.store, heard.send)
    await define(bench, NAME)
    await reporter.run_once()
    await define(bench)
    for _ in range(5):
        await reporter.run_once()
    assert [set(report) for report in heard.reports] == [{NAME}, set()]
    assert len(asked) == 2
