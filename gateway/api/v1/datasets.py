"""``/-/v1/datasets``: register, show, list and remove datasets. Control requests, hence FastAPI; app.py has the data paths.

A registration belongs to a tenant. Other tenants cannot find out that it exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Query, Request, Response
from pydantic_core import to_json

from gateway.api.v1.documents import (
    MOST_ITEMS,
    CachingWanted,
    Chunks,
    Dataset,
    Datasets,
    Items,
    ListingWanted,
    SourceRequest,
)
from gateway.api.v1.identity import Caller
from gateway.api.v1.openapi import REGISTER_BODY
from gateway.api.v1.ownership import require_writer
from gateway.api.v1.requests import WITHOUT_BODY, Asking, parsed, v1_router
from gateway.base import metrics
from gateway.base.config import Settings
from gateway.edge.documents import moment
from gateway.edge.endpoints import of_state
from gateway.edge.problems import refusals, refused_field
from gateway.engine.base.planned import Planned
from gateway.engine.items.registrations import Registrations
from gateway.fleet.nodes.held_elsewhere import HeldElsewhere
from gateway.model.datasets import ApiError, UnknownDataset, check_name
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, Principal, is_bucket_name
from gateway.origin.client import OriginClient
from gateway.policies.shares import WEIGHT, Shares
from gateway.server.received import request_body
from gateway.store.datasets.content import UNKNOWN_LENGTH
from gateway.store.datasets.incoming import Incoming, incoming
from gateway.store.datasets.opened import Registration
from gateway.store.datasets.registry import DigestSource

_PIECE = 250
_BY_CONTENT = "register it as {name}-{first 16 digits of its id}, which is unique, and expires when unused"
_LISTING = (
    "who answers listings of the items' folder in each bucket: the origin (forward), or, for the tenant's readers, until a write "
    "through the gateways, another registration, or the end of the origin's grant, a recorded one (immutable)"
)
MEANINGS = {
    400: "InvalidRequest, InvalidDigestFile, IndexOutOfRange, or S3's codes for a malformed signature",
    404: "UnknownDataset",
    409: "Conflict: the name is that of another dataset's content",
    413: "TooLarge",
    503: "SlowDown, ServiceUnavailable; try again after Retry-After seconds",
}
"""Codes of refusals by status."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of digest files: the largest, in bytes, and the bytes of the disk to keep free."""

    largest: int
    reserve: int
    room: Shares
    """The most bytes of digest files being registered at a time: one tenant's share is enough for the largest file."""


def bounds_of(settings: Settings) -> Bounds:
    """The limits that the configuration sets."""
    largest = settings.datasets.max_digest_file
    return Bounds(largest, settings.cache.reserve, Shares(largest * (1 + 1 / WEIGHT)))


class DatasetService:
    """Implements the endpoints."""

    def __init__(
        self,
        registrations: Registrations,
        origin: OriginClient,
        bounds: Bounds,
        planned: Planned,
        elsewhere: HeldElsewhere,
    ) -> None:
        self._planned = planned
        self._elsewhere = elsewhere
        self._registrations = registrations
        self._origin = origin
        self._bounds = bounds

    async def found(self, principal: Principal, name_or_id: str) -> Registration:
        """One of the caller's datasets.

        Raises:
            UnknownDataset: the tenant has no dataset of this name or id.
        """
        registration = await self._registrations.find(principal.tenant, name_or_id, now=True)
        if registration is None:
            raise UnknownDataset(name_or_id[:140])
        return registration

    async def register(
        self, caller: Caller, name: str, caching: str, by_content: bool, listing: bool, request: Request
    ) -> tuple[Registration, bool]:
        """Register the digest file in the body, or the one that it names. Returns the registration, and whether the name is
        new."""
        check_name(name)
        if listing:
            require_writer(caller.principal, "decides on no listings")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        registry, tenant, additive = self._registrations.registry, caller.principal.tenant, caller.principal.read_only
        async with registry.registering(tenant), registry.draft() as draft:
            bounds = self._bounds
            async with incoming(draft / "digests.parquet", bounds.largest, bounds.reserve, bounds.room) as file:
                if kind == "application/json":
                    await self._fetch(caller, await _source(caller, request), file)
                else:
                    await self._take(caller, request, file)
                if additive:
                    await self._registrations.find(tenant, name, now=True)  # it may be registered only at another node
                pays = caller.principal.identity.pays
                source = DigestSource(file.fingerprint, caller.principal.allow, by_content, additive, pays, listing)
                registered = await registry.register(tenant, name, file.path, caching, source)
        await self._registrations.registered()
        return registered

    async def remove(self, principal: Principal, name: str) -> None:
        """Remove one of the caller's datasets."""
        require_writer(principal, "removes no dataset")
        check_name(name)
        if not await self._registrations.remove(principal.tenant, name):
            raise UnknownDataset(name)

    async def list(self, principal: Principal) -> Datasets:
        """The caller's datasets."""
        documents = []
        await self._registrations.bring(principal.tenant)
        held = await self._elsewhere.items()
        async for registration in self._registrations.registry.of_tenant(principal.tenant):
            documents.append(self._document(registration, held))
            await asyncio.sleep(0)
        return Datasets(datasets=documents)

    async def describe(self, registration: Registration) -> Dataset:
        """The API document of a dataset."""
        return self._document(registration, await self._elsewhere.items())

    def _document(self, registration: Registration, held: Mapping[str, int]) -> Dataset:
        content = registration.content
        plan = self._planned.of(registration)
        return Dataset(
            name=registration.name,
            id=content.id,
            items=content.items,
            members=content.members,
            bytes=content.size,
            caching=plan.caching.value,
            chunks=Chunks(),
            plan=plan.version,
            resident=min(content.items, content.states.resident + held.get(content.id, 0)),
            registered_at=moment(registration.registered_at),
            request_payer=registration.pays,
            listing=list(registration.listing),
        )

    async def page(self, principal: Principal, registration: Registration, start: int, count: int) -> bytes:
        """Locations of items: an ``Items`` document as JSON, rendered in pieces so that other requests can run in between.

        Raises:
            ApiError: IndexOutOfRange; AccessDenied if the caller's allow-list does not cover one of them.
        """
        content = registration.content
        items = content.items
        if start > items:
            raise ApiError(
                "IndexOutOfRange", f"The parameter start must be at most {items}, the number of items.", index=start
            )
        stop, pieces = min(items, start + count), []
        for first in range(start, stop, _PIECE):
            piece = []
            between = registration.locations.between(first, min(stop, first + _PIECE))
            for index, location in enumerate(between, first):
                if not principal.may_touch(location.path):
                    raise ApiError(
                        "AccessDenied", f"The allow-list of this access key does not cover item {index}.", index=index
                    )
                length = int(content.lengths[index])
                size = None if length == UNKNOWN_LENGTH else length
                piece.append({"index": index, **location._asdict(), "size": size})
            pieces.append(to_json(piece)[1:-1])
            await asyncio.sleep(0)
        return b'{"items":[%b]}' % b",".join(pieces)

    @staticmethod
    async def _take(caller: Caller, request: Request, file: Incoming) -> None:
        """Take the request body as the digest file."""
        announced = request.headers.get("content-length", "")
        if announced.isdigit():
            file.expect(int(announced))
        async for piece in request_body(request.receive):
            await file.write(piece)
        await file.complete()
        caller.confirm(file.fingerprint)

    async def _fetch(self, caller: Caller, source: ObjectKey, file: Incoming) -> None:
        """Read the digest file from its object, with the caller's rights."""
        where = f"s3://{source.path}"
        if not caller.principal.may_touch(source.path):
            raise ApiError("AccessDenied", f"The allow-list of this access key does not cover {where}.")
        response = await self._origin.send(caller.principal.identity, "GET", source.raw_path, "", [])
        if response.status != 200:
            response.abort()
            raise _refused(response.status, where)
        try:
            announced = response.header("content-length") or ""
            if announced.isdigit():
                file.expect(int(announced))
            async for piece in response.chunks():
                await file.write(piece)
            await file.complete()
        finally:
            response.release()


def _refused(status: int, where: str) -> ApiError:
    """The error for a registration whose digest file the origin refused with ``status``."""
    if status in (401, 403):
        return ApiError("AccessDenied", f"The origin refuses {where} to the keys that this gateway uses there for you.")
    if status == 404:
        return ApiError("NoSuchKey", f"The origin has no {where}.")
    return ApiError(
        "ServiceUnavailable", f"The origin answered {status} when asked for {where}.", headers={"Retry-After": "5"}
    )


async def _source(caller: Caller, request: Request) -> ObjectKey:
    """The object named by a JSON body."""
    address = (await parsed(request, caller, SourceRequest)).source
    bucket, _, key = address.removeprefix("s3://").partition("/")
    if not is_bucket_name(bucket) or len(key.encode()) > 1024:
        raise refused_field(
            "source",
            f"The field source must be the address of an object; {quote(address, safe=':/')[:200]} is none.",
        )
    return ObjectKey(caller.principal.identity.origin, bucket, key)


Service = Annotated[DatasetService, Depends(of_state("datasets"))]
router = v1_router("datasets", MEANINGS)


@router.put(
    "/datasets/{name}",
    summary="Register a dataset",
    responses={
        201: {"model": Dataset, "description": "The name is new"},
        **refusals({501: "NotImplemented: the gateway lacks the extra datasets"}),
    },
    openapi_extra={"requestBody": REGISTER_BODY},
)
async def register_dataset(
    name: str,
    request: Request,
    response: Response,
    caller: Asking,
    service: Service,
    caching: Annotated[CachingWanted, Query(description="how the cache should treat it")] = "auto",
    by_content: Annotated[bool, Query(description=_BY_CONTENT)] = False,
    listing: Annotated[ListingWanted, Query(description=_LISTING)] = "forward",
) -> Dataset:
    """Upload a digest file, or name its S3 address. Another dataset of this name is replaced; while in use, it stays registered
    under the name of its content.

    Registrations are soft state: when a request is answered UnknownDataset, register again.
    """
    try:
        registration, new = await service.register(caller, name, caching, by_content, listing == "immutable", request)
    except LarderError:
        metrics.REGISTRATIONS.labels("refused").inc()
        raise
    metrics.REGISTRATIONS.labels("new" if new else "known").inc()
    response.status_code = 201 if new else 200
    return await service.describe(registration)


@router.get("/datasets", summary="List datasets", dependencies=WITHOUT_BODY)
async def list_datasets(caller: Asking, service: Service) -> Datasets:
    """The datasets of the caller's tenant."""
    return await service.list(caller.principal)


@router.get("/datasets/{name}", summary="Show a dataset", dependencies=WITHOUT_BODY)
async def show_dataset(name: str, caller: Asking, service: Service) -> Dataset:
    """One dataset by its name or its id."""
    return await service.describe(await service.found(caller.principal, name))


@router.delete("/datasets/{name}", summary="Remove a dataset", status_code=204, dependencies=WITHOUT_BODY)
async def remove_dataset(name: str, caller: Asking, service: Service) -> None:
    """Forget a name. Nothing changes at the origin, and cached items stay until their space is needed."""
    await service.remove(caller.principal, name)


@router.get("/datasets/{name}/items", summary="List items", response_model=Items, dependencies=WITHOUT_BODY)
async def list_items(
    name: str,
    caller: Asking,
    service: Service,
    start: Annotated[int, Query(ge=0, description="index of the first item")] = 0,
    count: Annotated[int, Query(ge=1, le=MOST_ITEMS, description="most items to list")] = 1000,
) -> Response:
    """Locations of items by index."""
    page = await service.page(caller.principal, await service.found(caller.principal, name), start, count)
    return Response(page, media_type="application/json")  # not validated: built here, up to ten thousand items
