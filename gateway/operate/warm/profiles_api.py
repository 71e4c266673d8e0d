"""``/-/admin/profiles``: recorded reads of a job, replayed as a warm-up."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from fastapi import Path as PathParameter
from pydantic import Field

from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.catalog.profiles import ProfileRow
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
    located,
    paged,
    sliced,
)
from gateway.admin.state.operations import principal_of
from gateway.admin.state.parameters import Ops
from gateway.edge.documents import ResponseModel, moment
from gateway.edge.endpoints import of_state
from gateway.model.datasets import ApiError
from gateway.operate.warm.profiles import ProfileRequest, Profiles

router = APIRouter(tags=["profiles"])

Service = Annotated[Profiles, Depends(of_state("profiles"))]
ProfileName = Annotated[str, PathParameter(min_length=1, max_length=128, description="of the profile")]


class ProfileDocument(ResponseModel):
    """A profile. A block recorded by several gateways counts several times until it is replayed."""

    name: str = Field(examples=["imagenet-eval"])
    tenant: str = Field(description="of the access key; only its keys may replay it", examples=["vision"])
    access_key_id: str = Field(description="whose reads are recorded", examples=["GWVISION"])
    bucket: str = Field(examples=["training-data"])
    prefix: str = Field(examples=["imagenet/val/"])
    state: Literal["recording", "full", "done"] = Field(
        description="full: the maximum of reads is reached", examples=["done"]
    )
    reads: int = Field(description="objects, or runs of blocks of objects", examples=[50_000])
    bytes: int = Field(description="bytes that a warm-up would load", examples=[6_400_000_000])
    created_at: str = Field(description="ISO 8601", examples=["2026-03-02T14:30:00.000Z"])
    until: str = Field(description="when recording ends, or ended", examples=["2026-03-02T15:30:00.000Z"])
    etag: str = Field(description="for If-Match; recording does not change it", examples=['"17"'])


class ProfileReadDocument(ResponseModel):
    """One read of a profile, widened to whole blocks."""

    at: str = Field(description="ISO 8601", examples=["2026-03-02T14:30:01.250Z"])
    key: str = Field(examples=["imagenet/val/0007.jpg"])
    start: int = Field(description="first byte", examples=[0])
    stop: int = Field(description="the byte after the last one", examples=[110_000])
    size: int = Field(description="of the object, when it was read", examples=[110_000])


@router.post("/profiles", summary="Record a profile", status_code=201)
async def record_profile(
    asked: ProfileRequest,
    caller: Changer,
    operations: Ops,
    profiles: Service,
    parts: Parts,
    once: Idempotent,
    response: Response,
) -> ProfileDocument:
    """Every gateway of this catalog records the reads of the access key below the prefix, starting within a second:
    the first read of each block, in order. Recording ends by itself; at most 100,000 reads are kept.
    """
    principal = principal_of(operations, asked.access_key_id)
    if not parts.effective().streams.enabled:
        raise ApiError(
            "Conflict",
            "The setting streams.enabled is false, so gateways do not observe reads; set it and restart them.",
        )

    async def work(change: CatalogChange) -> ProfileDocument:
        return _document(profiles, await profiles.add(change, asked, principal))

    document = await change_once(parts.catalog, caller, "profiles.record", once, ProfileDocument, work)
    located(response, f"profiles/{document.name}", document.etag)
    return document


@router.get("/profiles", summary="List profiles")
async def list_profiles(
    _caller: Reader, profiles: Service, limit: Limit = 100, cursor: Cursor = ""
) -> Page[ProfileDocument]:
    """List the profiles by name."""
    documents = [_document(profiles, row) for row in await profiles.all()]
    return paged(documents, lambda profile: profile.name, limit, cursor)


@router.get("/profiles/{profile}", summary="Show a profile")
async def show_profile(profile: ProfileName, _caller: Reader, profiles: Service, response: Response) -> ProfileDocument:
    """A profile, with the number of recorded reads; gateways add to it once a second."""
    document = _document(profiles, await profiles.show(profile))
    response.headers["ETag"] = document.etag
    return document


@router.get("/profiles/{profile}/reads", summary="List the reads of a profile")
async def list_profile_reads(
    profile: ProfileName, _caller: Reader, profiles: Service, limit: Limit = 100, cursor: Cursor = ""
) -> Page[ProfileReadDocument]:
    """The reads, in the order in which a warm-up loads them."""
    recorded = await profiles.find(profile)
    if recorded is None:
        raise ApiError("NotFound", "There is no such profile; larder-gateway profiles lists them.")
    page = sliced(recorded.reads, limit, cursor)
    return Page(items=[ProfileReadDocument.of(read, at=moment(read.at)) for read in page.items], next=page.next)


@router.post("/profiles/{profile}/stop", summary="End a recording")
async def stop_profile(
    profile: ProfileName, caller: Changer, profiles: Service, parts: Parts, if_match: IfMatch = None
) -> ProfileDocument:
    """Stop recording. Reads of the last second may still be added."""
    async with parts.catalog.changes.change(caller, "profiles.stop", profile) as change:
        return _document(profiles, await profiles.stop(change, profile, if_match))


@router.delete("/profiles/{profile}", summary="Delete a profile", status_code=204)
async def delete_profile(
    profile: ProfileName, caller: Changer, profiles: Service, parts: Parts, if_match: IfMatch = None
) -> None:
    """Delete the profile; its objects stay in the cache. A warm-up that replays it continues with the reads it has loaded."""
    async with parts.catalog.changes.change(caller, "profiles.delete", profile) as change:
        await profiles.delete(change, profile, if_match)


def _document(profiles: Profiles, row: ProfileRow) -> ProfileDocument:
    ended = "full" if row.full else "done"
    return ProfileDocument.of(
        row,
        state="recording" if profiles.recording(row) else ended,
        bytes=row.span,
        created_at=moment(row.created_at),
        until=moment(row.until),
        etag=etag_of(row.revision),
    )
