"""``/-/admin/plan/what-if``: what caches of another size would save."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from gateway.admin.http.requests import Reader
from gateway.admin.state.documents import Savings
from gateway.admin.state.parameters import Ops
from gateway.admin.state.view import dataset_names
from gateway.edge.documents import ResponseModel
from gateway.policies.space.prices import DAY, HOUR
from gateway.policies.space.what_if import WhatIf, as_planned, what_if

router = APIRouter()


class DatasetOutcome(ResponseModel):
    """A dataset now, and with caches of the other size."""

    id: str = Field(examples=["33108813"])
    names: list[str] = Field(description="under which it is registered", examples=[["imagenet-train"]])
    granted: int = Field(description="bytes now", examples=[29_580_000_000])
    granted_then: int = Field(description="bytes then", examples=[59_160_000_000])
    saved: float = Field(description="share of its jobs' reads that these bytes save now", examples=[0.25])
    saved_then: float = Field(examples=[0.5])


class JobOutcome(ResponseModel):
    """A job now, and with caches of the other size; seconds of a mini-batch, as predicted."""

    job: str = Field(description="tenant/job", examples=["vision/resnet50-17"])
    seconds: float = Field(examples=[0.342])
    seconds_then: float = Field(examples=[0.286])


class PlanWhatIf(ResponseModel):
    """What the caches save now, and would save with another size, judging by the jobs' reports."""

    capacity: int = Field(description="of the caches of all members now, in bytes", examples=[20_000_000_000_000])
    capacity_then: int = Field(examples=[40_000_000_000_000])
    datasets: list[DatasetOutcome]
    jobs: list[JobOutcome] = Field(description="those whose times are known")
    saves: Savings | None = Field(description="now; null: no price is set")
    saves_then: Savings | None
    gpu_seconds: float | None = Field(
        description="for which GPUs do not wait in an hour, thanks to the space; null: with prices", examples=[5400.0]
    )
    gpu_seconds_then: float | None = Field(examples=[7200.0])
    unmeasured: int = Field(
        description="jobs whose benefit is not measured yet; what is saved leaves them out", examples=[1]
    )


@router.get("/plan/what-if", summary="Show what another capacity would save", tags=["plan"])
async def show_what_if(
    _caller: Reader,
    operations: Ops,
    capacity: Annotated[int, Query(ge=0, le=2**62, description="bytes of all caches together")],
) -> PlanWhatIf:
    """Space, speed and savings with caches of another size. Streams and results keep the space that they have."""
    reading = await operations.fleet.look()
    now, then = as_planned(reading.plan), what_if(reading.plan, capacity)
    names = dataset_names(reading)
    currency = str(reading.plan.inputs.get("currency", ""))
    return PlanWhatIf(
        capacity=reading.capacity,
        capacity_then=capacity,
        datasets=[
            DatasetOutcome(
                id=name,
                names=names.get(name, []),
                granted=space.granted,
                granted_then=then.datasets[name].granted,
                saved=space.saved,
                saved_then=then.datasets[name].saved,
            )
            for name, space in now.datasets.items()
        ],
        jobs=[
            JobOutcome(job=name, seconds=forecast.predicted, seconds_then=then.jobs[name].predicted)
            for name, forecast in now.jobs.items()
        ],
        saves=_money(now, currency),
        saves_then=_money(then, currency),
        gpu_seconds=None if currency else now.worth,
        gpu_seconds_then=None if currency else then.worth,
        unmeasured=now.unmeasured,
    )


def _money(outcome: WhatIf, currency: str) -> Savings | None:
    if not currency:
        return None
    return Savings(per_hour=outcome.worth, per_day=DAY / HOUR * outcome.worth, currency=currency)
