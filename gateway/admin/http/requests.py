"""Parameters of the admin endpoints: the caller, pages, conditions, idempotency keys, and the corresponding answers.

Lists come in pages: ``?limit=&cursor=`` gives ``{"items": [...], "next": cursor | null}``. A cursor names the last item of its
page, so adding or removing items between two pages neither repeats nor hides others.

``If-Match`` protects a concurrent edit from being overwritten (RFC 9110, section 13.1.1, strong comparison).

``Idempotency-Key`` makes a POST safe to repeat. The transaction of the change stores the answer for a day, sealed because it may
contain a secret. The same key with another request is refused. Each token has a namespace of keys
(draft-ietf-httpapi-idempotency-key-header).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Header, Query, Request, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from pydantic_core import from_json
from sqlalchemy import delete, insert, select

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import Actor, CatalogChange
from gateway.admin.catalog.schema import idempotency
from gateway.admin.http.parts import AdminParts
from gateway.admin.http.tokens import ACTOR, check_role
from gateway.edge.endpoints import of_state
from gateway.model.datasets import ApiError

KEPT = 24 * 3600.0
"""Seconds for which the answer to a request with an Idempotency-Key is stored."""
Limit = Annotated[int, Query(ge=1, le=1000, description="most items in the answer")]
Cursor = Annotated[str, Query(max_length=2000, description="`next` of the previous page; empty for the first")]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=1000,
        description="apply the change only if the etag matches; absent: unconditionally",
    ),
]
_LAST_POSITION = 100_000
"""The largest cursor of a list without names."""
T = TypeVar("T")
A = TypeVar("A", bound=BaseModel)


_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="admin.token, admin.read_token for GET, or a named token"
)


async def _actor(request: Request, _described: Annotated[Any, Depends(_bearer)]) -> Actor:
    actor: Actor = request.scope[ACTOR]
    return actor


Reader = Annotated[Actor, Depends(_actor)]
"""The caller of an endpoint that changes nothing."""


async def _changer(actor: Reader, request: Request) -> Actor:
    # Defence in depth: the gate decides by method, this also covers a changing endpoint under GET.
    check_role(actor, "POST" if request.method in ("GET", "HEAD") else request.method, request.scope["path"])
    return actor


Changer = Annotated[Actor, Depends(_changer)]
"""The caller of an endpoint that changes something; ``http/roles.py`` says which role that needs."""


Parts = Annotated[AdminParts, Depends(of_state("parts"))]


class Page(BaseModel, Generic[T]):
    """Some items of a list."""

    items: list[T]
    next: str | None = Field(description="`cursor` of the next page; null on the last page", examples=[None])


def cursor_of(place: Any) -> str:
    """The cursor of the page after ``place``, a JSON value."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place_of(cursor: str, kind: type[T]) -> T | None:
    """The place that a cursor names; ``None`` for the beginning.

    Raises:
        ApiError: InvalidRequest, the cursor is invalid.
    """
    if not cursor:
        return None
    try:
        place = from_json(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        place = None
    if not isinstance(place, kind) or isinstance(place, bool):
        raise invalid_cursor()
    return place


def invalid_cursor() -> ApiError:
    """The error for an invalid cursor."""
    return ApiError("InvalidRequest", "The cursor is invalid; pass the previous page's `next` unchanged.")


def paged(items: Iterable[T], name: Callable[[T], str], limit: int, cursor: str) -> Page[T]:
    """One page of items, ordered by name.

    Raises:
        ApiError: InvalidRequest, the cursor is invalid.
    """
    after = place_of(cursor, str)
    left = sorted((item for item in items if after is None or name(item) > after), key=name)
    following = cursor_of(name(left[limit - 1])) if len(left) > limit else None
    return Page(items=left[:limit], next=following)


def sliced(items: Sequence[T], limit: int, cursor: str) -> Page[T]:
    """One page of items that have no names to continue after: the cursor is a position, so the list may shift between pages.

    Raises:
        ApiError: InvalidRequest, the cursor is invalid.
    """
    first = place_of(cursor, int) or 0
    if not 0 <= first <= _LAST_POSITION:
        raise invalid_cursor()
    last = first + limit
    return Page(items=list(items[first:last]), next=cursor_of(last) if last < len(items) else None)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Identifies repeated requests; ``name`` is empty for a request without Idempotency-Key."""

    name: str
    fingerprint: str


async def _once(
    request: Request,
    actor: Changer,
    key: Annotated[
        str | None,
        Header(alias="Idempotency-Key", min_length=1, max_length=200, description="repeat it when retrying a request"),
    ] = None,
) -> IdempotencyKey:
    if key is None:
        return IdempotencyKey("", "")
    asked = "\0".join((request.method, request.url.path, (await request.body()).decode("utf-8", "replace")))
    return IdempotencyKey(_digest(f"{actor.name}\0{key}"), _digest(asked))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


Idempotent = Annotated[IdempotencyKey, Depends(_once)]


async def change_once(
    catalog: Catalog,
    actor: Actor,
    action: str,
    once: IdempotencyKey,
    answer: type[A],
    work: Callable[[CatalogChange], Awaitable[A]],
) -> A:
    """Make a change by ``work``, which returns the answer, unless the same request was already answered.

    Args:
        catalog: where the change is made.
        actor: the caller.
        action: as in ``Changes.change``; ``work`` sets the change's target.
        once: the request's Idempotency-Key.
        answer: the type of the answer.
        work: makes the change and returns the answer.

    Raises:
        ApiError: Conflict, the key was used for another request.
        CatalogUnavailable: nothing was changed.
    """
    async with catalog.changes.change(actor, action, "") as change:
        if once.name and (earlier := await _answered(catalog, change, once)) is not None:
            change.done = False
            return answer.model_validate_json(earlier)
        made = await work(change)
        if once.name:
            sealed = catalog.vault.seal(f"idempotency/{once.name}", {"answer": made.model_dump_json()})
            row = {"key": once.name, "fingerprint": once.fingerprint, "answer": sealed, "at": catalog.now()}
            await change.connection.execute(insert(idempotency).values(**row))
        return made


async def _answered(catalog: Catalog, change: CatalogChange, once: IdempotencyKey) -> str | None:
    await change.connection.execute(delete(idempotency).where(idempotency.c.at < catalog.now() - KEPT))
    query = select(idempotency.c.fingerprint, idempotency.c.answer).where(idempotency.c.key == once.name)
    row = (await change.connection.execute(query)).one_or_none()
    if row is None:
        return None
    if row.fingerprint != once.fingerprint:
        raise ApiError(
            "Conflict", "Idempotency-Key: another request used this key within the last day; choose a new one."
        )
    return catalog.vault.open(f"idempotency/{once.name}", row.answer)["answer"]


def located(response: Response, address: str, etag: str = "") -> None:
    """Add Location, an address below ``/-/admin/``, and the entity tag if there is one."""
    response.headers["Location"] = f"/-/admin/{address}"
    if etag:
        response.headers["ETag"] = etag
