"""``/-/admin/warmups``: load objects or datasets into the cache before they are needed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Depends, Response
from fastapi import Path as PathParameter
from pydantic import Field

from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.http.parts import etag_of
from gateway.admin.http.requests import (
    Changer,
    Cursor,
    Idempotent,
    IfMatch,
    Limit,
    Page,
    Parts,
    Reader,
    change_once,
    cursor_of,
    invalid_cursor,
    located,
    place_of,
)
from gateway.admin.state.operations import principal_of
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import dataset_ids
from gateway.edge.documents import ResponseModel, moment
from gateway.edge.endpoints import of_state
from gateway.operate.warm.warmups import Warmup, WarmupRequest, Warmups

router = APIRouter(tags=["warm-ups"])

_ID = "5f2c7d1e0c3b4a6f8e9d0a1b2c3d4e5f"
_AT = "2026-03-02T14:30:00.000Z"
_HEX = frozenset("0123456789abcdef")
Service = Annotated[Warmups, Depends(of_state("warmups"))]
WarmupId = Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$", description="of the warm-up")]
State = Literal["queued", "running", "done", "failed", "refused", "cancelled"]


class Failure(ResponseModel):
    """An object or item that could not be loaded."""

    key: str = Field(description="the object's key, or the item", examples=["imagenet/val/0007.jpg"])
    why: str = Field(examples=["the origin refuses it to this credential"])


class WarmupDocument(ResponseModel):
    """A warm-up. Bytes that were evicted since are not subtracted."""

    id: str = Field(examples=[_ID])
    access_key_id: str = Field(examples=["GWVISION"])
    bucket: str | None = Field(examples=["training-data"])
    prefix: str | None = Field(examples=["imagenet/val/"])
    key: str | None = Field(examples=[None])
    dataset: str | None = Field(examples=[None])
    profile: str | None = Field(examples=[None])
    state: State = Field(examples=["running"])
    node: str | None = Field(
        description="the gateway that runs it or ran it last; null while queued or cancelled",
        examples=["gw-2"],
    )
    failure: str = Field(description="why it was not completed; empty if it was", examples=[""])
    total: int | None = Field(description="objects or items; null while they are counted", examples=[50_000])
    total_bytes: int | None = Field(examples=[6_400_000_000])
    done: int = Field(description="of total, processed", examples=[21_400])
    done_bytes: int = Field(description="of them, in the cache now", examples=[2_740_000_000])
    there: int = Field(description="of them, in the cache before", examples=[120])
    failed: int = Field(description="of them, not readable", examples=[1])
    examples: list[Failure] = Field(description="some that could not be loaded")
    created_at: str = Field(description="ISO 8601", examples=[_AT])
    updated_at: str = Field(description="time of the last progress", examples=[_AT])
    etag: str = Field(description="for If-Match; progress does not change it", examples=['"17"'])


@router.post("/warmups", summary="Start a warm-up", status_code=202)
async def start_warmup(
    asked: WarmupRequest,
    caller: Changer,
    operations: Ops,
    warmups: Service,
    parts: Parts,
    once: Idempotent,
    response: Response,
) -> WarmupDocument:
    """Load a prefix, an object, a dataset or a profile into the caches of the fleet, at a lower priority than reads. One gateway
    runs it (`node`); if that gateway dies, another one continues. A warm-up larger than all caches together is refused: a dataset
    or a profile at once, a prefix after it was counted.
    """
    principal_of(operations, asked.access_key_id)
    dataset = _full_id(await operations.fleet.look(), asked.dataset or "")
    request = asked.model_copy(update={"dataset": dataset or None})
    await warmups.judge(request)

    async def work(change: CatalogChange) -> WarmupDocument:
        return _document(await warmups.add(change, request))

    document = await change_once(parts.catalog, caller, "warmups.start", once, WarmupDocument, work)
    located(response, f"warmups/{document.id}")
    return document


@router.get("/warmups", summary="List warm-ups")
async def list_warmups(
    _caller: Reader, warmups: Service, limit: Limit = 100, cursor: Cursor = ""
) -> Page[WarmupDocument]:
    """Newest first."""
    place = place_of(cursor, list)
    before = None
    if place is not None:
        ours = len(place) == 2 and isinstance(place[0], float) and isinstance(place[1], str)
        if not ours or not _HEX.issuperset(place[1]):
            raise invalid_cursor()
        before = (place[0], place[1])
    listed = await warmups.page(before, limit + 1)
    last = listed[limit - 1] if len(listed) > limit else None
    following = None if last is None else cursor_of([last.created_at, last.id])
    return Page(items=[_document(warmup) for warmup in listed[:limit]], next=following)


@router.get("/warmups/{warmup}", summary="Show a warm-up")
async def show_warmup(warmup: WarmupId, _caller: Reader, warmups: Service, response: Response) -> WarmupDocument:
    """A warm-up and its progress, which is updated every second."""
    document = _document(await warmups.find(warmup))
    response.headers["ETag"] = document.etag
    return document


@router.post("/warmups/{warmup}/cancel", summary="Cancel a warm-up")
async def cancel_warmup(
    warmup: WarmupId, caller: Changer, warmups: Service, parts: Parts, if_match: IfMatch = None
) -> WarmupDocument:
    """The warm-up ends within two seconds. Loaded objects stay, and it can be resumed."""
    async with parts.catalog.changes.change(caller, "warmups.cancel", warmup) as change:
        return _document(await warmups.cancel(change, warmup, if_match))


@router.post("/warmups/{warmup}/resume", summary="Resume a warm-up")
async def resume_warmup(
    warmup: WarmupId, caller: Changer, warmups: Service, parts: Parts, if_match: IfMatch = None
) -> WarmupDocument:
    """A cancelled or failed warm-up continues where it stopped; a finished one checks everything again."""
    async with parts.catalog.changes.change(caller, "warmups.resume", warmup) as change:
        return _document(await warmups.resume(change, warmup, if_match))


def _full_id(reading: FleetReading, dataset: str) -> str:
    """The full id for the first digits of an id, as lists show them; any other text unchanged."""
    if len(dataset) >= 12 and _HEX.issuperset(dataset):
        ids = [identity for identity in dataset_ids(reading) if identity.startswith(dataset)]
        return ids[0] if len(ids) == 1 else dataset
    return dataset


def _document(warmup: Warmup) -> WarmupDocument:
    request = warmup.request
    return WarmupDocument.of(
        request,
        **asdict(warmup.progress),
        id=warmup.id,
        prefix=request.prefix if request.bucket and request.key is None else None,
        state=warmup.state if warmup.state in get_args(State) else "failed",
        node=warmup.node or None,
        failure=warmup.message,
        created_at=moment(warmup.created_at),
        updated_at=moment(warmup.updated_at),
        etag=etag_of(warmup.revision),
    )
