"""Readings of the fleet while Redis comes and goes, by a clock of the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.admin.fleet.results import results_of
from gateway.admin.state.reading import FleetReader, FleetReading, FleetSources
from gateway.fleet.nodes.reports import ResultsUsed
from gateway.fleet.nodes.samples import Statuses
from gateway.model.counters import Counters
from gateway.operate.status.problems import problems_of
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.plan import Plan
from gateway.policies.streams.zone import PoolReport

AT = 1_800_000_000.0


class _Redis:
    """What a reading asks Redis for: nothing is known, or nothing answers."""

    def __init__(self) -> None:
        self.down = False
        self.of = self.remember = self._nothing
        self.plan = Plan()

    async def _nothing(self, *_: object) -> dict[str, Any]:
        return {}

    recent = mutes = workers_of = _nothing

    async def statuses(self) -> Statuses:
        """The state of a zone without nodes."""
        if self.down:
            raise ConnectionError
        return Statuses(AT, {}, {}, Counters())


class _Lists(_Redis):
    async def all(self) -> tuple[int, dict[str, Any]] | dict[str, Any]:
        """No entries."""
        return {}


class _Numbered(_Redis):
    async def all(self) -> tuple[int, dict[str, Any]]:
        """No entries, of version 0."""
        return 0, {}


def reader(redis: _Redis, clock: list[float]) -> FleetReader:
    """A reader of an empty zone."""
    lists, numbered = _Lists(), _Numbered()
    together = SimpleNamespace(
        jobs=numbered,
        plans=lists,
        reports=lists,
        streams=lists,
        scores=lists,
        pipelines=lists,
        results=lists,
        held=lists,
        misses=lists,
        begun=lists,
    )
    sources = SimpleNamespace(
        samples=redis,
        coordination=together,
        membership=SimpleNamespace(nodes={}, me="a"),
        watch=SimpleNamespace(document={}, recent=()),
        table=numbered,
        overrides=Overrides,
        probe_batches=100,
    )
    return FleetReader(cast(FleetSources, sources), lambda: clock[0])


async def test_time_goes_on_while_redis_is_lost_also_after_a_change() -> None:
    """Rule: without Redis a reading is as much later as time has passed since the last one, even one that a change made stale."""
    redis, clock = _Redis(), [100.0]
    fleet = reader(redis, clock)
    assert (await fleet.look()).at == AT
    redis.down = True
    clock[0] += 5
    fleet.stale()
    assert (await fleet.look()).at == AT + 5
    clock[0] += 5
    found = await fleet.look()
    assert found.at == AT + 10
    assert [each.kind for each in problems_of(found, fleet.lost_for)] == ["redis"]


@pytest.mark.parametrize(
    ("held", "least", "most"), [((), 0, 0), ((40,), 40, 40), ((40, 20), 40, 60), ((40, 40), 40, 60), ((60, 60), 60, 60)]
)
def test_copies_of_results_are_not_taken_for_elements(held: tuple[int, ...], least: int, most: int) -> None:
    """Rule: elements that two nodes report may be the same, so their number has two bounds, which are equal for one node."""
    pool, used = "results:9f", ResultsUsed("vision", "d" * 64, "f" * 64, items=60)
    reports = {f"gw-{number}": {pool: PoolReport(blobs=blobs)} for number, blobs in enumerate(held)}
    [document] = results_of(FleetReading(results={"9f": used}, held=reports))
    assert (document.blobs_least, document.blobs) == (least, most)
