"""``Idempotency-Key``: a POST that is sent again, because its answer was lost, creates nothing a second time.

The answer is kept for a day, in the transaction that creates, sealed (it may have a secret in it). The same key with another
request is refused: it is a mistake of whoever chose the keys. Keys are each token's own.

Source: draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from sqlalchemy import delete, insert, select

from gateway.admin.actor import Actor
from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import Change
from gateway.admin.catalog.schema import idempotency
from gateway.admin.tokens import Admin
from gateway.model.datasets import ApiError

KEPT = 24 * 3600.0
"""Seconds that an answer is kept."""
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Once:
    """What makes two requests the same; ``name`` is empty for a request without Idempotency-Key."""

    name: str
    fingerprint: str


async def _once(
    request: Request,
    actor: Admin,
    key: Annotated[
        str | None,
        Header(alias="Idempotency-Key", min_length=1, max_length=200, description="the same for a request sent again"),
    ] = None,
) -> Once:
    if key is None:
        return Once("", "")
    asked = "\0".join((request.method, request.url.path, (await request.body()).decode("utf-8", "replace")))
    return Once(_digest(f"{actor.name}\0{key}"), _digest(asked))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


Idempotent = Annotated[Once, Depends(_once)]


async def change_once(
    catalog: Catalog,
    actor: Actor,
    action: str,
    once: Once,
    work: Callable[[Change], Awaitable[Document]],
) -> Document:
    """Make a change by ``work``, which returns the answer, unless the same request was answered already.

    Args:
        catalog: where the change is made.
        actor: who makes it.
        action: as in ``Changes.change``; ``work`` sets the change's target.
        once: the request's Idempotency-Key.
        work: makes the change, and returns what is answered, as JSON can hold it.

    Raises:
        ApiError: Conflict, the key was used for another request.
        CatalogUnavailable: nothing was changed.
    """
    async with catalog.changes.change(actor, action, "") as change:
        if once.name and (found := await _answered(catalog, change, once)) is not None:
            change.done = False
            return found
        answer = await work(change)
        if once.name:
            sealed = catalog.vault.seal(f"idempotency/{once.name}", {"answer": json.dumps(answer)})
            row = {"key": once.name, "fingerprint": once.fingerprint, "answer": sealed, "at": catalog.now()}
            await change.connection.execute(insert(idempotency).values(**row))
        return answer


async def _answered(catalog: Catalog, change: Change, once: Once) -> Document | None:
    await change.connection.execute(delete(idempotency).where(idempotency.c.at < catalog.now() - KEPT))
    query = select(idempotency.c.fingerprint, idempotency.c.answer).where(idempotency.c.key == once.name)
    row = (await change.connection.execute(query)).one_or_none()
    if row is None:
        return None
    if row.fingerprint != once.fingerprint:
        raise ApiError(
            "Conflict", "Idempotency-Key: was used for another request within the last day; choose a new one."
        )
    answer: Document = json.loads(catalog.vault.open(f"idempotency/{once.name}", row.answer)["answer"])
    return answer
