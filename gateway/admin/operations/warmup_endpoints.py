"""``/-/admin/warmups``: what will be needed is read into the cache before."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Response
from fastapi import Path as PathParameter
from pydantic import Field, model_validator

from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.fleet.board import FleetReading
from gateway.admin.fleet.view import dataset_ids
from gateway.admin.http.documents import RequestModel, ResponseModel, Text, moment
from gateway.admin.http.requests import (
    Cursor,
    Idempotent,
    IfMatch,
    Limit,
    Page,
    Parts,
    change_once,
    check_if_match,
    cursor_of,
    etag_of,
    invalid_cursor,
    located,
    place_of,
)
from gateway.admin.http.tokens import Admin, Reader
from gateway.admin.operations.parts import Operations, Ops, principal_of
from gateway.admin.operations.purge import Bucket, Prefix
from gateway.admin.operations.warmup_table import Request, Warmup
from gateway.admin.operations.warmups import not_found

router = APIRouter(tags=["warm-ups"])

_ID = "5f2c7d1e0c3b4a6f8e9d0a1b2c3d4e5f"
_AT = "2026-03-02T14:30:00.000Z"
_HEX = frozenset("0123456789abcdef")
WarmupId = Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$", description="of the warm-up")]
State = Literal["queued", "running", "done", "failed", "refused", "cancelled"]


class WarmupRequest(RequestModel):
    """What to load: the objects of a bucket below a prefix, or the items of a dataset."""

    access_key_id: Annotated[Text, Field(min_length=1, max_length=256)] = Field(
        description="with whose rights it is listed and read", examples=["GWVISION"]
    )
    bucket: Bucket | None = Field(None, examples=["training-data"])
    prefix: Prefix = Field("", description='what keys begin with; "" for the whole bucket', examples=["imagenet/val/"])
    dataset: Annotated[Text, Field(min_length=1, max_length=128)] | None = Field(
        None, description="name or id, of the tenant of the access key; instead of bucket and prefix", examples=[None]
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> WarmupRequest:
        if (self.bucket is None) == (self.dataset is None):
            raise ValueError("name either bucket (and prefix) or dataset")
        if self.dataset is not None and self.prefix:
            raise ValueError("prefix goes with bucket, not with dataset")
        return self


class Failure(ResponseModel):
    """One that could not be loaded."""

    key: str = Field(description="the object's key, or which item", examples=["imagenet/val/0007.jpg"])
    why: str = Field(examples=["the origin refuses it to this credential"])


class WarmupDocument(ResponseModel):
    """A warm-up. Bytes that the cache pushes out again are not subtracted."""

    id: str = Field(examples=[_ID])
    access_key_id: str = Field(examples=["GWVISION"])
    bucket: str | None = Field(examples=["training-data"])
    prefix: str | None = Field(examples=["imagenet/val/"])
    dataset: str | None = Field(examples=[None])
    state: State = Field(examples=["running"])
    node: str | None = Field(
        description="the gateway that runs it, or did when it ended; null while it waits for one, and once it is cancelled",
        examples=["gw-2"],
    )
    failure: str = Field(description="why it was not completed; empty if it was", examples=[""])
    total: int | None = Field(description="objects or items; null while they are counted", examples=[50_000])
    total_bytes: int | None = Field(examples=[6_400_000_000])
    done: int = Field(description="of total, looked at", examples=[21_400])
    done_bytes: int = Field(description="of them, in the cache now", examples=[2_740_000_000])
    there: int = Field(description="of them, in the cache before", examples=[120])
    failed: int = Field(description="of them, not to be had", examples=[1])
    examples: list[Failure] = Field(description="some that could not be loaded")
    created_at: str = Field(description="ISO 8601", examples=[_AT])
    updated_at: str = Field(description="when it was last heard of", examples=[_AT])
    etag: str = Field(description="for If-Match; progress does not change it", examples=['"17"'])


@router.post("/warmups", summary="Start a warm-up", status_code=202)
async def start(
    asked: WarmupRequest, caller: Admin, operations: Ops, parts: Parts, once: Idempotent, response: Response
) -> WarmupDocument:
    """Have the fleet read a prefix or a dataset into its caches, behind its readers. One gateway runs it (`node`);
    when that one dies, another goes on. What is larger than all caches together is refused: a dataset at once, a prefix when it
    has been counted.
    """
    principal_of(operations, asked.access_key_id)
    dataset = _full_id(await operations.board.look(), asked.dataset or "")
    request = Request(asked.access_key_id, asked.bucket or "", asked.prefix, dataset)
    await operations.warmups.judge(request)

    async def work(change: CatalogChange) -> WarmupDocument:
        return _document(await operations.warmups.add(change, request))

    document = await change_once(parts.catalog, caller, "warmups.start", once, WarmupDocument, work)
    located(response, f"warmups/{document.id}")
    return document


@router.get("/warmups", summary="List warm-ups")
async def list_warmups(
    _caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = ""
) -> Page[WarmupDocument]:
    """Newest first."""
    place = place_of(cursor, list)
    before = None
    if place is not None:
        ours = len(place) == 2 and isinstance(place[0], float) and isinstance(place[1], str)
        if not ours or not _HEX.issuperset(place[1]):
            raise invalid_cursor()
        before = (place[0], place[1])
    found = await operations.warmups.table.page(before, limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else cursor_of([last.created_at, last.id])
    return Page(items=[_document(one) for one in found[:limit]], next=following)


@router.get("/warmups/{warmup}", summary="Show a warm-up")
async def show(warmup: WarmupId, _caller: Reader, operations: Ops, response: Response) -> WarmupDocument:
    """How far it is; its progress is written down every second."""
    found = await operations.warmups.table.find(warmup)
    if found is None:
        raise not_found()
    document = _document(found)
    response.headers["ETag"] = document.etag
    return document


@router.post("/warmups/{warmup}/cancel", summary="End a warm-up")
async def cancel(
    warmup: WarmupId, caller: Admin, operations: Ops, parts: Parts, if_match: IfMatch = None
) -> WarmupDocument:
    """It ends within a second or two; what was loaded stays, and it can be resumed."""
    async with parts.catalog.changes.change(caller, "warmups.cancel", warmup) as change:
        await _check(operations, change, warmup, if_match)
        return _document(await operations.warmups.cancel(change, warmup))


@router.post("/warmups/{warmup}/resume", summary="Go on with a warm-up")
async def resume(
    warmup: WarmupId, caller: Admin, operations: Ops, parts: Parts, if_match: IfMatch = None
) -> WarmupDocument:
    """One that was cancelled or has failed goes on where it was; one that is done looks at everything again."""
    async with parts.catalog.changes.change(caller, "warmups.resume", warmup) as change:
        await _check(operations, change, warmup, if_match)
        return _document(await operations.warmups.resume(change, warmup))


async def _check(operations: Operations, change: CatalogChange, name: str, if_match: str | None) -> None:
    found = await operations.warmups.table.row(change.connection, name)
    if found is not None:
        check_if_match(if_match, etag_of(found.revision))


def _full_id(reading: FleetReading, dataset: str) -> str:
    """The id of which these are the first digits, as lists have them; any other text as it is."""
    if len(dataset) >= 12 and _HEX.issuperset(dataset):
        found = [each for each in dataset_ids(reading) if each.startswith(dataset)]
        return found[0] if len(found) == 1 else dataset
    return dataset


def _document(warmup: Warmup) -> WarmupDocument:
    request, progress = warmup.request, warmup.progress
    return WarmupDocument(
        id=warmup.id,
        access_key_id=request.access_key_id,
        bucket=request.bucket or None,
        prefix=None if request.dataset else request.prefix,
        dataset=request.dataset or None,
        state=_state(warmup.state),
        node=warmup.node or None,
        failure=warmup.message,
        total=progress.total,
        total_bytes=progress.total_bytes,
        done=progress.done,
        done_bytes=progress.done_bytes,
        there=progress.there,
        failed=progress.failed,
        examples=[Failure(key=each.get("key", ""), why=each.get("why", "")) for each in progress.examples],
        created_at=moment(warmup.created_at),
        updated_at=moment(warmup.updated_at),
        etag=etag_of(warmup.revision),
    )


def _state(state: str) -> State:
    known: dict[str, State] = {
        "queued": "queued", "running": "running", "done": "done", "refused": "refused", "cancelled": "cancelled",
    }  # fmt: skip
    return known.get(state, "failed")
