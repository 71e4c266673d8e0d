"""The plan as one tenant may see it: its own datasets and jobs, and of all others only how much space they have together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.api.v1.job_documents import ChunksInForce, PlanDocument, PlannedDataset, PlannedJob
from gateway.policies.plan import Plan


def plan_document(
    plan: Plan, history: Sequence[Mapping[str, Any]], tenant: str, datasets: Collection[str], capacity: int
) -> PlanDocument:
    """What concerns a tenant.

    Args:
        plan: what is in force.
        history: changes, newest first.
        tenant: who asks.
        datasets: the ids of those that the tenant has registered, or has jobs on.
        capacity: of the fleet, in bytes.
    """
    prefix = f"{tenant}/"
    of_datasets, of_jobs = _inputs(plan, "datasets"), _inputs(plan, "jobs")
    return PlanDocument(
        version=plan.version,
        capacity=capacity,
        granted=sum(order.granted for order in plan.datasets.values()),
        datasets={
            dataset: PlannedDataset(
                caching=order.caching.value,
                partitions=order.partitions,
                units=order.units,
                why=order.why.value,
                granted=order.granted,
                chunks=ChunksInForce(
                    complete=list(order.chunks.complete),
                    loading=order.chunks.loading,
                    active=order.chunks.active,
                    marked=list(order.chunks.marked),
                ),
                inputs=of_datasets.get(dataset, {}),
            )
            for dataset, order in plan.datasets.items()
            if dataset in datasets
        },
        jobs={
            name.removeprefix(prefix): PlannedJob(
                cache=order.cache, phase=order.phase.value, benefit=order.benefit, inputs=of_jobs.get(name, {})
            )
            for name, order in plan.jobs.items()
            if _is_of(name, tenant)
        },
        history=[_told(event, prefix) for event in history if _concerns(event, tenant, datasets)],
    )


def _inputs(plan: Plan, kind: str) -> Mapping[str, Any]:
    found = plan.inputs.get(kind, {})
    return found if isinstance(found, Mapping) else {}


def _is_of(name: str, tenant: str) -> bool:
    """Whether a job is the tenant's; a tenant's name may have slashes, a job's has none."""
    return name.rpartition("/")[0] == tenant


def _concerns(event: Mapping[str, Any], tenant: str, datasets: Collection[str]) -> bool:
    if "job" in event:
        return _is_of(str(event["job"]), tenant)
    return event.get("dataset") in datasets


def _told(event: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {**event, "job": str(event["job"]).removeprefix(prefix)} if "job" in event else dict(event)
