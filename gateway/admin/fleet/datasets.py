"""``/-/admin/datasets``: registered datasets, how they are cached, and operators' overrides.

An override is stored in the catalog; the manager reads it from the catalog's snapshot (``overrides.py``).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi import Path as PathParameter
from pydantic import Field

from gateway.admin.catalog.fields import RequestModel
from gateway.admin.fleet.overrides import Decision, decision_of, note_sizes, replace_override
from gateway.admin.http.parts import etag_of
from gateway.admin.http.requests import Changer, Cursor, IfMatch, Limit, Page, Parts, Reader, paged
from gateway.admin.state.documents import DatasetSummary, JobDocument
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import SHORT, dataset_ids, dataset_summary, datasets_of, jobs_of
from gateway.edge.documents import ResponseModel
from gateway.edge.problems import refusals
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.datasets import ApiError

router = APIRouter(tags=["datasets"])

_DIGITS = r"^[0-9a-f]{12,64}$"
DatasetId = Annotated[
    str, PathParameter(pattern=_DIGITS, description="id of the dataset, or at least its first 12 digits")
]
_TWO_DAYS = 48 * 3600
"""Seconds of the timeline."""


class Registered(ResponseModel):
    """A tenant's name for a dataset."""

    tenant: str = Field(examples=["vision"])
    name: str = Field(examples=["imagenet-train"])
    listing: Literal["forward", "immutable"] = Field(
        description="who answers listings of its folders: the origin, or a recorded one", examples=["forward"]
    )


class Override(RequestModel):
    """An operator's override of the plan for one dataset."""

    mode: Literal["pin", "never"] | None = Field(
        description="pin: space before all other datasets, whole if it fits; never: no space; null: the manager decides",
        examples=["pin"],
    )
    quota: Annotated[int, Field(ge=1, le=2**60)] | None = Field(
        None,
        description="most bytes that it may take, whatever its jobs gain; null: no limit",
        examples=[40_000_000_000],
    )


class OverrideDocument(ResponseModel):
    """An override in force."""

    mode: Literal["pin", "never"] | None = Field(description="null: the manager decides", examples=["pin"])
    quota: int | None = Field(description="most bytes that it may take; null: no limit", examples=[40_000_000_000])
    changed_at: str | None = Field(description="ISO 8601; null: never", examples=["2026-03-01T09:30:00.000Z"])
    etag: str = Field(description="for If-Match", examples=['"17"'])


class DatasetDocument(DatasetSummary):
    """A dataset in detail."""

    full_id: str = Field(
        description="SHA-256 over the digests of its items",
        examples=["33108813043581e677d5c9eb047b1f7a3bccdeccac3aa28a09be4e528862199d"],
    )
    registered: list[Registered] = Field(description="by tenant and name")
    override: OverrideDocument
    inputs: dict[str, Any] = Field(
        description="the manager's inputs: size, gain, jobs, wishes; empty if it does not plan the dataset",
        examples=[{"size": 147_900_000_000, "gain": 11.68, "jobs": 4, "requested": "auto"}],
    )
    jobs: list[JobDocument] = Field(description="that train on it")


@router.get("/datasets", summary="List datasets")
async def list_datasets(
    _caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = ""
) -> Page[DatasetSummary]:
    """The datasets of all tenants, by id."""
    summaries = datasets_of(await operations.fleet.look())
    return paged(summaries, lambda dataset: dataset.id, limit, cursor)


@router.get(
    "/datasets/{dataset}",
    summary="Show a dataset",
    responses=refusals({409: "Conflict: the digits begin several ids"}),
)
async def show_dataset(
    dataset: DatasetId, _caller: Reader, operations: Ops, parts: Parts, response: Response
) -> DatasetDocument:
    """One dataset: its plan and the reason, and its jobs."""
    reading = await operations.fleet.look()
    full_id = _full_id(reading, dataset)
    override = override_document(await decision_of(parts.catalog, full_id))
    response.headers["ETag"] = override.etag
    inputs = reading.plan.inputs.get("datasets", {})
    registered = sorted(name for name, identity in reading.datasets.items() if identity == full_id)
    return DatasetDocument(
        **dataset_summary(reading, full_id).model_dump(),
        full_id=full_id,
        registered=[
            Registered(tenant=tenant, name=name, listing="immutable" if (tenant, name) in reading.listed else "forward")
            for tenant, name in registered
        ],
        override=override,
        inputs=dict(inputs.get(full_id, {})),
        jobs=[
            job for job, known in zip(jobs_of(reading), reading.jobs, strict=True) if known.record.dataset == full_id
        ],
    )


@router.put("/datasets/{dataset}/override", summary="Override the plan for a dataset")
async def override_dataset(
    dataset: DatasetId,
    caller: Changer,
    operations: Ops,
    parts: Parts,
    asked: Override,
    response: Response,
    if_match: IfMatch = None,
) -> OverrideDocument:
    """Pin a dataset, deny it space, or set a quota; it takes effect with the next plan, a heartbeat later. Omitted fields are
    reset, so `{"mode": null}` lets the manager decide again."""
    reading = await operations.fleet.look()
    full_id = _full_id(reading, dataset)
    decision = Decision(asked.mode, asked.quota)
    document = override_document(
        await replace_override(caller, operations, parts, "datasets.override", full_id, decision, if_match)
    )
    with suppress(*DOWN):  # the override is stored, and ``report_sizes`` repeats this
        await note_sizes(operations.fleet.sources.coordination, reading, [full_id])
    response.headers["ETag"] = document.etag
    return document


def _full_id(reading: FleetReading, digits: str) -> str:
    """The id that begins with ``digits``."""
    matching = sorted(full_id for full_id in dataset_ids(reading) if full_id.startswith(digits))
    if not matching:
        raise ApiError("UnknownDataset", f"Unknown dataset {digits[:SHORT]}; larder-gateway datasets lists them.")
    if len(matching) > 1:
        raise ApiError("Conflict", f"The digits {digits} begin {len(matching)} ids; give more digits.")
    return matching[0]


def override_document(decision: Decision) -> OverrideDocument:
    """An override as the API represents it."""
    return OverrideDocument(
        mode=decision.known_mode,
        quota=decision.quota,
        changed_at=decision.changed,
        etag=etag_of(decision.revision),
    )
