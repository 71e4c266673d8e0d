"""``/-/admin/objects``: the object browser."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from gateway.admin.catalog.fields import Bucket
from gateway.admin.http.requests import Limit, Reader, cursor_of, invalid_cursor, place_of
from gateway.admin.http.roles import LISTING
from gateway.admin.state.operations import principal_of
from gateway.admin.state.parameters import Ops
from gateway.base.tasks import for_each
from gateway.edge.documents import ResponseModel
from gateway.edge.endpoints import of_state
from gateway.edge.problems import refused_field
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from gateway.operate.browse.work import Browser, NamesAfter
from gateway.operate.explain.work import Explainer, Knowledge, expected

router = APIRouter(tags=["explain"])
_AT_ONCE = 16
"""The most objects whose homes are asked at the same time."""
_VIEWER = f"listing the store with the rights of an access key needs the role {LISTING.value}"
Lists = Annotated[Browser, Depends(of_state("browser"))]
Explains = Annotated[Explainer, Depends(of_state("explainer"))]


class ObjectState(ResponseModel):
    """What the caches have of an object for this reader; explain says why."""

    blocks: int = Field(description="of the object; 0 if its home does not know it", examples=[1])
    resident_blocks: int = Field(description="of them, in the cache", examples=[1])
    fresh: bool = Field(description="whether the origin confirmed it recently enough", examples=[True])
    granted: bool = Field(description="whether the origin has granted it to the access key", examples=[True])
    outcome: Outcome = Field(description="of the next read", examples=["HIT"])
    reason: Reason | None = Field(description="why it is not a plain hit", examples=[None])


class PlaceShown(ResponseModel):
    """A bucket, a folder or an object."""

    kind: Literal["bucket", "folder", "object"] = Field(examples=["object"])
    name: str = Field(description="the bucket; or the whole prefix or key", examples=["imagenet/val/0001.jpg"])
    size: int | None = Field(description="bytes of an object", examples=[110_592])
    state: ObjectState | None = Field(description="of an object")


class PlaceListed(ResponseModel):
    """A page of the names directly below a prefix."""

    source: Literal["origin", "cache", "allow-list"] = Field(
        description="origin: all that the key may list; cache: only cached objects; allow-list: only folders that lead to what "
        "the key may read, because it may not list this place",
        examples=["origin"],
    )
    failure: str = Field(description="why the origin does not list it, and which nodes did not answer", examples=[""])
    items: list[PlaceShown] = Field(description="by name")
    next: str | None = Field(description="`cursor` of the next page; null on the last page", examples=[None])


@router.get("/objects", summary="List a bucket with the state of its objects")
async def list_objects(
    caller: Reader,
    operations: Ops,
    browser: Lists,
    explainer: Explains,
    access_key_id: Annotated[str, Query(min_length=1, max_length=256, description="access key whose rights are used")],
    bucket: Annotated[Bucket | None, Query(description="none: list the buckets of the key's origin")] = None,
    prefix: Annotated[str, Query(max_length=1024, description="of the keys; names end at the next slash")] = "",
    cached: Annotated[bool, Query(description="only cached objects; the origin is not asked")] = False,
    limit: Limit = 100,
    cursor: Annotated[str, Query(max_length=8000, description="`next` of the previous page; empty: the first")] = "",
) -> PlaceListed:
    """The folders and objects directly below a prefix, and what the caches have of each object. A page is a page of the origin's
    listing; if the origin does not list it, or the caller is a viewer, a page of the cached objects."""
    principal = principal_of(operations, access_key_id)
    if prefix and bucket is None:
        raise refused_field("prefix", "The parameter prefix goes with bucket; send both.")
    unlisted = "" if caller.role.allows(LISTING) else _VIEWER
    after = _after(cursor)
    page = await browser.page(principal, bucket or "", prefix, after, limit, cached=cached or bool(unlisted))
    items = [PlaceShown(kind="bucket", name=name, size=None, state=None) for name, _ in page.names]
    if bucket is not None:
        kinds: dict[bool, Literal["folder", "object"]] = {True: "folder", False: "object"}
        items = [PlaceShown(kind=kinds[size is None], name=name, size=size, state=None) for name, size in page.names]

    async def explain(item: PlaceShown) -> None:
        key = ObjectKey(principal.identity.origin, bucket or "", item.name)
        knowledge, _ = await explainer.anywhere(key, principal.tenant, principal.identity)
        prospect = expected(operations.rules().for_path(key.path), knowledge)
        item.state = _state(knowledge, explainer.now(), prospect.outcome, prospect.reason)

    await for_each((item for item in items if item.kind == "object"), explain, _AT_ONCE)
    following = None if page.next is None else cursor_of(list(page.next))
    failure = "; ".join(filter(None, (unlisted if page.source == "cache" and not cached else "", page.failure)))
    return PlaceListed(source=page.source, failure=failure, items=items, next=following)


def _state(knowledge: Knowledge, now: float, outcome: Outcome, reason: Reason | None) -> ObjectState:
    return ObjectState(
        blocks=knowledge.blocks,
        resident_blocks=knowledge.resident,
        fresh=(knowledge.fresh_until or 0.0) > now,
        granted=(knowledge.granted_until or 0.0) > now,
        outcome=outcome,
        reason=reason,
    )


def _after(cursor: str) -> NamesAfter | None:
    place = place_of(cursor, list)
    if place is None:
        return None
    if len(place) != 2 or not all(isinstance(part, str) for part in place):
        raise invalid_cursor()
    return NamesAfter(*place)
