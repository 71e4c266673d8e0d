"""``/-/admin/pipelines``: the input pipelines of jobs, what they store and why, and operators' overrides."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import Field

from gateway.admin.catalog.fields import RequestModel
from gateway.admin.fleet.overrides import Decision, decision_of, replace_override
from gateway.admin.http.parts import etag_of
from gateway.admin.http.requests import Changer, Cursor, IfMatch, Limit, Page, Parts, Reader, paged
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReader, FleetReading
from gateway.edge.documents import ResponseModel
from gateway.edge.pipelines import PipelineDocument, pipeline_documents
from gateway.edge.problems import refused_field
from gateway.model.datasets import ApiError
from gateway.policies.space.cache_mode import PIN, pinned_mark
from gateway.policies.space.overrides import pipeline_name

router = APIRouter(tags=["pipelines"])


class PipelineOverride(RequestModel):
    """An operator's override of the fleet's decision for one pipeline."""

    mode: Literal["pin", "never"] | None = Field(
        description="pin: results are stored at the cheapest mark, whatever that saves; never: nothing is stored; null: the "
        "fleet decides",
        examples=["pin"],
    )
    mark: int | None = Field(
        default=None,
        ge=1,
        le=999_999,
        description="with pin: the stage of the mark that is stored, if the pipeline has it; null: the cheapest",
        examples=[2],
    )


class PipelineOverrideDocument(ResponseModel):
    """An override in force."""

    mode: Literal["pin", "never"] | None = Field(description="null: the fleet decides", examples=["pin"])
    mark: int | None = Field(description="the stage of a mark that is pinned; null: none is named", examples=[2])
    changed_at: str | None = Field(description="ISO 8601; null: never", examples=["2026-03-01T09:30:00.000Z"])
    etag: str = Field(description="for If-Match", examples=['"17"'])


def pipelines_of(reading: FleetReading) -> list[PipelineDocument]:
    """The pipelines of the zone, by tenant and job."""
    records = (job.record for job in reading.jobs)
    return pipeline_documents(records, reading.pipelines, reading.scaling, reading.plan, reading.overrides.pipelines)


@router.get("/pipelines", summary="List pipelines")
async def list_pipelines(
    _caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = ""
) -> Page[PipelineDocument]:
    """The pipelines of all tenants' jobs, by tenant and job."""
    pipelines = pipelines_of(await operations.fleet.look())
    return paged(pipelines, lambda pipeline: f"{pipeline.tenant}/{pipeline.job}", limit, cursor)


@router.get("/pipelines/{tenant:name}/{job}", summary="Show a pipeline")
async def show_pipeline(
    tenant: str, job: str, _caller: Reader, operations: Ops, parts: Parts, response: Response
) -> PipelineDocument:
    """One pipeline: the costs of its stages, decisions with their numbers, and workers over time."""
    pipeline = await _pipeline(operations.fleet, tenant, job)
    decision = await decision_of(parts.catalog, pipeline_name(f"{pipeline.tenant}/{pipeline.job}"))
    response.headers["ETag"] = etag_of(decision.revision)
    return pipeline


@router.put("/pipelines/{tenant:name}/{job}/override", summary="Override the decision for a pipeline")
async def override_pipeline(
    tenant: str,
    job: str,
    caller: Changer,
    operations: Ops,
    parts: Parts,
    asked: PipelineOverride,
    response: Response,
    if_match: IfMatch = None,
) -> PipelineOverrideDocument:
    """Store the results of a pipeline whatever that saves, or never. Ranks learn of it with their next profile, and apply it from
    their next epoch on. `{"mode": null}` lets the fleet decide again."""
    if asked.mark is not None and asked.mode != PIN:
        raise refused_field("mark", "Only a pin names a mark; leave it out, or send the mode pin.")
    pipeline = await _pipeline(operations.fleet, tenant, job)
    name = pipeline_name(f"{pipeline.tenant}/{pipeline.job}")
    decision = Decision(asked.mode if asked.mark is None else f"{PIN}:{asked.mark}")
    after = await replace_override(caller, operations, parts, "pipelines.override", name, decision, if_match)
    document = PipelineOverrideDocument(
        mode=after.known_mode,
        mark=pinned_mark(after.mode or ""),
        changed_at=after.changed,
        etag=etag_of(after.revision),
    )
    response.headers["ETag"] = document.etag
    return document


async def _pipeline(fleet: FleetReader, tenant: str, job: str) -> PipelineDocument:
    if (
        document := await fleet.find(pipelines_of, lambda pipeline: (pipeline.tenant, pipeline.job) == (tenant, job))
    ) is None:
        raise ApiError(
            "NotFound", f"No pipeline of {tenant[:128]!r} and {job[:128]!r}; larder-gateway pipelines lists them."
        )
    return document
