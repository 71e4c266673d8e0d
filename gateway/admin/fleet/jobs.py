"""``/-/admin/jobs`` and ``/-/admin/plan``: training jobs, and the space that the manager gives to datasets."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from gateway.admin.http.requests import Changer, Cursor, Limit, Page, Parts, Reader, paged
from gateway.admin.state.documents import JobDocument, Savings
from gateway.admin.state.operations import through_redis
from gateway.admin.state.parameters import Ops
from gateway.admin.state.view import dataset_names, jobs_of, savings_of
from gateway.edge.documents import ResponseModel
from gateway.fleet.jobs.plans import plan_document
from gateway.model.datasets import ApiError
from gateway.policies.pools import dataset_pool
from gateway.policies.space.forecast import Forecast, forecasts

router = APIRouter()
_ORDER = {
    "caching": "part",
    "why": "benefit",
    "granted": 29_580_000_000,
    "target": 29_580_000_000,
    "minimum": 0,
    "eviction": "uniform",
    "saves": {"per_hour": 1.25, "per_day": 30.0, "currency": "USD"},
}
_JOB = {"cache": True, "phase": "steady", "benefit": 2.46, "t_hit": 0.351, "t_predicted": 0.342, "t_with_more": 0.305}
_CHANGE = {"at": 1772461800.0, "version": 17, "dataset": "33108813...", "what": "allocated", "caching": "part"}


class PlanShown(ResponseModel):
    """The plan in force, its inputs, and its history."""

    version: int = Field(description="incremented by every change", examples=[17])
    fence: int = Field(description="the token of the leader that made it", examples=[3])
    capacity: int = Field(description="of the caches of all members, in bytes", examples=[20_000_000_000_000])
    granted: int = Field(description="bytes that it gives to datasets", examples=[4_027_900_000_000])
    saves: Savings | None = Field(description="by these bytes, all datasets together; null: no price is set")
    datasets: dict[str, dict[str, Any]] = Field(
        description="by id: mode, reason, target of the pool (also as granted), its eviction order, the money saved",
        examples=[{"33108813...": _ORDER}],
    )
    names: dict[str, list[str]] = Field(
        description="under which datasets are registered, by id", examples=[{"33108813...": ["imagenet-train"]}]
    )
    jobs: dict[str, dict[str, Any]] = Field(
        description="by tenant/job: whether it uses the cache, phase, benefit; once known, the seconds of a mini-batch as "
        "measured last, as predicted with its present space, and with room for another tenth of the dataset",
        examples=[{"vision/resnet50-17": _JOB}],
    )
    inputs: dict[str, Any] = Field(description="the inputs that the plan was made from", examples=[{"datasets": {}}])
    memory: dict[str, Any] = Field(
        description="the manager's state, from which another leader continues", examples=[{"jobs": {}}]
    )
    overrides: dict[str, str] = Field(description="operators' overrides, by dataset", examples=[{"33108813...": "pin"}])
    quotas: dict[str, int] = Field(
        description="operators' quotas in bytes, by dataset",
        examples=[{"33108813...": 40_000_000_000}],
    )
    history: list[dict[str, Any]] = Field(description="recent changes, newest first", examples=[[_CHANGE]])


@router.get("/jobs", summary="List jobs", tags=["jobs"])
async def list_jobs(_caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = "") -> Page[JobDocument]:
    """The jobs of all tenants, by tenant and name."""
    jobs = jobs_of(await operations.fleet.look())
    return paged(jobs, lambda job: f"{job.tenant}/{job.job}", limit, cursor)


@router.delete("/jobs/{tenant:name}/{job}", summary="Remove a job", tags=["jobs"], status_code=204)
async def remove_job(tenant: str, job: str, caller: Changer, operations: Ops, parts: Parts) -> None:
    """Forget a job, as if it had timed out. A running job registers again with its next heartbeat."""
    fleet = operations.fleet
    async with parts.catalog.changes.change(caller, "jobs.remove", f"{tenant}/{job}"[:300]) as change:
        known = await through_redis(fleet.sources.coordination.jobs.find(f"{tenant}/{job}"))
        if known is None or not await through_redis(fleet.sources.coordination.jobs.remove(known.record.key)):
            raise ApiError(
                "UnknownJob", f"Unknown job {job[:128]!r} of {tenant[:128]!r}; larder-gateway jobs lists them."
            )
        change.before = {"dataset": known.record.dataset, "gpus": known.record.gpus, "epoch": known.epoch}
    fleet.stale()


@router.get("/plan", summary="Show the plan", tags=["plan"])
async def show_plan(_caller: Reader, operations: Ops) -> PlanShown:
    """The plan of the zone, with its inputs, its history, and the operators' overrides."""
    fleet = operations.fleet
    reading = await fleet.look()
    changes = await through_redis(fleet.sources.coordination.plans.history())
    plan, expected = plan_document(reading.plan), forecasts(reading.plan)
    return PlanShown(
        version=plan["version"],
        fence=plan["fence"],
        capacity=reading.capacity,
        granted=sum(order.target for order in reading.plan.datasets.values()),
        saves=savings_of(reading.plan, reading.plan.datasets),
        datasets={
            dataset: {
                **plan["pools"][dataset_pool(dataset)],
                "granted": order.target,
                "eviction": order.eviction,
                "saves": savings_of(reading.plan, [dataset]),
            }
            for dataset, order in reading.plan.datasets.items()
        },
        names=dict(dataset_names(reading)),
        jobs={name: {**stored, **_times(expected.get(name))} for name, stored in plan["jobs"].items()},
        inputs=plan["inputs"],
        memory=plan["memory"],
        overrides=dict(reading.overrides.modes),
        quotas=dict(reading.overrides.quotas),
        history=changes,
    )


def _times(expected: Forecast | None) -> dict[str, float]:
    """Measured and predicted seconds of a mini-batch."""
    if expected is None:
        return {}
    return {"t_hit": expected.measured, "t_predicted": expected.predicted, "t_with_more": expected.more}
