"""The plan as one tenant may see it: its own datasets and jobs, and only the total space of all others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.api.v1.job_documents import ImportanceInForce, PlanDocument, PlannedDataset, PlannedJob
from gateway.policies.space.forecast import Forecast, forecasts
from gateway.policies.space.orders import ImportanceOrder, JobOrder
from gateway.policies.space.plan import Plan


def plan_document(
    plan: Plan, history: Sequence[Mapping[str, Any]], tenant: str, datasets: Collection[str], capacity: int
) -> PlanDocument:
    """The part of a plan that concerns a tenant.

    Args:
        plan: in force.
        history: changes, newest first.
        tenant: the caller's.
        datasets: the ids of the datasets that the tenant has registered or has jobs on.
        capacity: of the fleet, in bytes.
    """
    of_datasets, expected = _inputs(plan), forecasts(plan)
    return PlanDocument(
        version=plan.version,
        capacity=capacity,
        granted=sum(order.target for order in plan.datasets.values()),
        datasets={
            dataset: PlannedDataset(
                caching=order.caching.value,
                why=order.why.value,
                granted=order.target,
                order=order.eviction,
                importance=_importance(order.importance, tenant),
                inputs=of_datasets.get(dataset, {}),
            )
            for dataset, order in plan.datasets.items()
            if dataset in datasets
        },
        jobs={
            name.rpartition("/")[2]: _job(order, expected.get(name))
            for name, order in plan.jobs.items()
            if _is_of(name, tenant)
        },
        history=[_told(event, tenant) for event in history if _concerns(event, tenant, datasets)],
    )


def _job(order: JobOrder, expected: Forecast | None) -> PlannedJob:
    job = PlannedJob(cache=order.cache, phase=order.phase.value, benefit=order.benefit)
    if expected is not None:
        job.t_hit, job.t_predicted, job.t_with_more = expected.measured, expected.predicted, expected.more
    return job


def _importance(order: ImportanceOrder | None, tenant: str) -> ImportanceInForce | None:
    if order is None:
        return None
    mine = {name.rpartition("/")[2]: weight.share for name, weight in order.jobs.items() if _is_of(name, tenant)}
    others = sum(weight.share for name, weight in order.jobs.items() if not _is_of(name, tenant))
    return ImportanceInForce(threshold=order.threshold, partial=order.partial, jobs=mine, others=round(others, 3))


def _inputs(plan: Plan) -> Mapping[str, Any]:
    inputs = plan.inputs.get("datasets", {})
    return inputs if isinstance(inputs, Mapping) else {}


def _is_of(name: str, tenant: str) -> bool:
    """Whether a job belongs to the tenant; tenant names may contain slashes, job names do not."""
    return name.rpartition("/")[0] == tenant


def _concerns(event: Mapping[str, Any], tenant: str, datasets: Collection[str]) -> bool:
    if "job" in event:
        return _is_of(str(event["job"]), tenant)
    return event.get("dataset") in datasets


def _told(event: Mapping[str, Any], tenant: str) -> dict[str, Any]:
    document = dict(event)
    if "job" in document:
        document["job"] = str(document["job"]).rpartition("/")[2]
    if "jobs" in document:
        names = [str(name) for name in document["jobs"]]
        document["jobs"] = [name.rpartition("/")[2] for name in names if _is_of(name, tenant)]
        document["others"] = len(names) - len(document["jobs"])
    return document
