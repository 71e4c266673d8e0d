"""Forecasts the time of a job's mini-batch with the space that its dataset has, and with more.

With a share *c* of a dataset cached, the jobs together read (1 - c) of its items in an epoch (decision 0047). So each of J jobs
has the share of hits 1 - (1 - c) / J, and its time follows from its measurements (``probing``). Jobs out of step, or of
different speeds, divide the reads in another way: the ratio of a job's misses to the expected ones is taken from its last window.
A job that has been measured once, because its dataset has no space, keeps its time; with more space it can save its waiting at
most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.policies.space.plan import Plan
from gateway.policies.space.probing import FEW_HITS, ProbeState

MORE = 0.1
"""Share of a dataset that is imagined as additional space."""
FILLED = 0.5
"""Share of the expected hits below which a job's last window counts as from the time when its space was still being filled."""
_MOST_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of a mini-batch: as last ``measured``, as ``predicted`` with the present space, and with ``more`` of it: a further
    tenth of the dataset.

    ``hits`` is the share of hits of the last window.
    """

    hits: float
    measured: float
    predicted: float
    more: float


def forecasts(plan: Plan) -> dict[str, Forecast]:
    """The forecasts of a plan's jobs, by ``tenant/job``; jobs whose times are not known are left out."""
    reading = {
        name: known
        for name, known in plan.memory.jobs.items()
        if (order := plan.jobs.get(name)) is not None and (order.cache or order.refused)
    }
    readers = Counter(known.dataset for known in reading.values())
    cached = {dataset: _cached(plan, dataset) for dataset in readers}
    expected = {
        name: forecast_at(known.probe, share, readers[known.dataset])
        for name, known in reading.items()
        if (share := cached[known.dataset]) is not None
    }
    return {name: forecast for name, forecast in expected.items() if forecast is not None}


def _cached(plan: Plan, dataset: str) -> float | None:
    """The share of a dataset that has room; ``None`` if its size is not known."""
    inputs = plan.inputs.get("datasets", {})
    size = inputs.get(dataset, {}).get("size", 0) if isinstance(inputs, Mapping) else 0
    pool = plan.of(dataset)
    return None if not size else 0.0 if pool is None else min(1.0, pool.target / size)


def forecast_at(state: ProbeState, cached: float, jobs: int) -> Forecast | None:
    """The forecast of a job, given the share of its dataset that is ``cached`` and the number of ``jobs`` that read it."""
    times, latest = state.times, state.latest
    if times is None or latest is None:
        return None
    expected = (1 - cached) / jobs
    if not times.known and 1 - expected > latest.share + FEW_HITS:
        return None
    # Without misses to compare, or while the space is still being filled, the expectation is kept.
    filled = latest.share >= FILLED * (1 - expected)
    factor = (1 - latest.share) / expected if expected > 0 and filled else 1.0
    factor = min(_MOST_FACTOR, factor) if factor > 0 else 1.0
    more = (1 - min(1.0, cached + MORE)) / jobs

    def seconds(misses: float) -> float:
        return times.at(1 - min(1.0, factor * misses))

    return Forecast(latest.share, latest.each, seconds(expected), seconds(more))
