"""What caches of another size would save: the ledger, run again on the inputs of the plan in force.

The plan has the inputs of its datasets and the measurements of its jobs. It does not have the bids of streams and results, so
their pools keep what they have. Held bytes get no bonus, because a fleet of another size fills its caches again. The gain that
is assumed of jobs that are not measured yet shares out the space, as in the plan; it is no saving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.policies.space.allocation import Candidate, allocate
from gateway.policies.space.forecast import Forecast, forecast_at
from gateway.policies.space.plan import Plan
from gateway.policies.space.prices import HOUR
from gateway.policies.watermarks import GRANTABLE, turning


@dataclass(frozen=True, slots=True)
class DatasetSpace:
    """A dataset at one size of the caches.

    ``granted`` is in bytes, ``saved`` the share of its jobs' reads that these save, ``worth`` the hourly worth of that: money if
    the plan was made with prices, else seconds of GPU waiting.
    """

    granted: int
    saved: float
    worth: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The fleet at one size of the caches: ``datasets`` by id, ``jobs`` by ``tenant/job``, as far as their times are known.

    ``unmeasured`` is the number of jobs that use the cache and whose benefit is not measured yet.
    """

    datasets: Mapping[str, DatasetSpace]
    jobs: Mapping[str, Forecast]
    unmeasured: int = 0

    @property
    def worth(self) -> float:
        """The savings of all datasets in an hour, by the jobs that are measured."""
        return sum(space.worth for space in self.datasets.values())


def as_planned(plan: Plan) -> WhatIf:
    """The fleet as it is, under the plan in force."""
    return _outcome(plan, {name: order.target for name, order in plan.datasets.items()})


def what_if(plan: Plan, capacity: int) -> WhatIf:
    """The fleet with caches of ``capacity`` bytes, all nodes together."""
    others = sum(order.target for order in plan.pools.values()) - sum(order.target for order in plan.datasets.values())
    budget = int(GRANTABLE * capacity) - turning(others)
    allocations = allocate(list(_candidates(plan).values()), budget)
    return _outcome(plan, {name: allocation.granted for name, allocation in allocations.items()})


def _outcome(plan: Plan, granted: Mapping[str, int]) -> WhatIf:
    candidates, inputs = _candidates(plan), plan.inputs.get("datasets", {})
    datasets = {}
    for name, candidate in candidates.items():
        saved = candidate.saved(granted.get(name, 0))
        gain = inputs[name].get("measured_gain", candidate.gain)  # older leaders do not tell them apart
        datasets[name] = DatasetSpace(granted.get(name, 0), saved, HOUR * gain * saved)
    reading = {
        name: known
        for name, known in plan.memory.jobs.items()
        if name in plan.jobs and known.dataset in candidates and candidates[known.dataset].size
    }
    readers = Counter(known.dataset for known in reading.values())
    jobs = {
        name: forecast_at(known.probe, _share(candidates[known.dataset], granted), readers[known.dataset])
        for name, known in reading.items()
    }
    known = {name: forecast for name, forecast in jobs.items() if forecast is not None}
    return WhatIf(
        datasets, known, sum(facts["jobs"] - facts.get("measured", facts["jobs"]) for facts in inputs.values())
    )


def _share(candidate: Candidate, granted: Mapping[str, int]) -> float:
    return min(1.0, granted.get(candidate.dataset, 0) / candidate.size)


def _candidates(plan: Plan) -> dict[str, Candidate]:
    """The plan's datasets as candidates for space, from the inputs of the plan."""
    measured = {known.dataset for known in plan.memory.jobs.values() if known.probe.benefit > 0}
    inputs: Mapping[str, Mapping[str, Any]] = plan.inputs.get("datasets", {})
    return {
        name: Candidate(
            name,
            facts["size"],
            facts["gain"],
            facts["jobs"],
            override=facts.get("override", ""),
            requested=facts.get("requested", "auto"),
            quota=facts.get("quota"),
            measured=name in measured,
        )
        for name, facts in inputs.items()
    }
