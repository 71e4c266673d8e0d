"""Listings of the origins' buckets, by ListObjectsV2.

aiobotocore builds the request and parses the answer (``control.py``, imported at the first listing). ``OriginClient`` signs
and sends it, so a listing uses the keys of the caller's identity, and shares connections, time-outs, metrics and reachability
with every other request to that origin.

A page is bounded in keys and bytes, and parsed in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from gateway.base.imports import imported
from gateway.base.tasks import SingleFlight
from gateway.model.errors import LarderError
from gateway.model.keys import OriginIdentity
from gateway.origin.client import OriginClient

PAGE_KEYS = 1000
"""The most keys and common prefixes of a page, S3's own limit."""
_PAGE_BYTES = 16 * 1024**2
"""The most bytes of a page's XML: a thousand keys of 1,024 bytes, percent-encoded, with room for owners and checksums."""
_CONTROL = "gateway.origin.control"
"""The module of aiobotocore's client, imported at the first listing."""
Answer = dict[str, Any]
T = TypeVar("T")
_asking: ContextVar[OriginIdentity] = ContextVar("asking")
"""The identity for which botocore is building a request."""


class ListingRefused(LarderError):
    """The origin answered a listing with an error; ``status`` is its HTTP status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"the origin answered {status} to a listing")


class ListingUnreadable(LarderError):
    """The origin's answer is not a page of ListObjectsV2."""


class ListedObject(NamedTuple):
    """An object of a listing; ``size`` in bytes."""

    key: str
    size: int


class ListingPage(NamedTuple):
    """One page of a listing, in the origin's order.

    ``truncated``: more pages follow. ``token`` continues the listing; empty for stores that support only ``start_after``.
    """

    objects: tuple[ListedObject, ...]
    prefixes: tuple[str, ...]
    truncated: bool
    token: str


class Listings:
    """Lists buckets at all origins of one worker.

    Args:
        origin: signs and sends the requests.
    """

    def __init__(self, origin: OriginClient) -> None:
        self._origin = origin
        self._client: Any = None
        self._failures: tuple[type[Exception], ...] = (LookupError, ValueError, TypeError)
        self._creating: SingleFlight[None, Any] = SingleFlight()

    async def buckets(self, identity: OriginIdentity) -> list[str]:
        """The names of all buckets that the origin shows to an identity. Raises what ``list_page`` raises."""
        return await self._ask(identity, lambda client: client.list_buckets(), _buckets)

    async def list_page(
        self,
        identity: OriginIdentity,
        bucket: str,
        prefix: str = "",
        *,
        delimiter: str = "",
        start_after: str = "",
        token: str = "",
        limit: int = PAGE_KEYS,
    ) -> ListingPage:
        """One page of a bucket.

        Args:
            identity: the signer.
            bucket: the bucket.
            prefix: of the keys.
            delimiter: keys that contain it after the prefix are grouped into common prefixes.
            start_after: the page begins after this key; not for listings with a delimiter, because a store would return the
                key's common prefix again.
            token: of the previous page; takes precedence over ``start_after``.
            limit: maximum number of keys and common prefixes, at most ``PAGE_KEYS``.

        Raises:
            OriginUnavailable: no answer, or it broke off or is too large.
            IdentityGone: the origin or the identity is not configured.
            ListingRefused: the origin answered with an error.
            ListingUnreadable: the answer is not a page.
        """
        asked = {
            "Prefix": prefix,
            "Delimiter": delimiter,
            "StartAfter": "" if token else start_after,
            "ContinuationToken": token,
        }
        given = {name: value for name, value in asked.items() if value}
        return await self._ask(
            identity, lambda client: client.list_objects_v2(Bucket=bucket, MaxKeys=limit, **given), _page
        )

    async def _ask(
        self, identity: OriginIdentity, send: Callable[[Any], Awaitable[Answer]], parse: Callable[[Answer], T]
    ) -> T:
        """The parsed answer to a request, which aiobotocore's client builds when ``send`` calls it."""
        client = self._client or await self._creating.result(None, self._create)
        turn = _asking.set(identity)
        try:
            return parse(await send(client))
        except self._failures as error:
            raise ListingUnreadable("the origin's listing cannot be read") from error
        finally:
            _asking.reset(turn)

    async def _create(self) -> Any:
        control = await asyncio.to_thread(imported, _CONTROL)
        self._failures += control.FAILURES
        self._client = await control.create(self._fetch)
        return self._client

    async def _fetch(self, method: str, path: str, query: str) -> bytes:
        """The body of an answer to a request that aiobotocore has built."""
        response = await self._origin.send(_asking.get(), method, path, query, [])
        body = await response.read(_PAGE_BYTES)
        if response.status != 200:
            raise ListingRefused(response.status)
        if not body or b"<!DOCTYPE" in body:
            raise ListingUnreadable("the origin's listing cannot be read")
        return body


def _buckets(answer: Answer) -> list[str]:
    return [bucket["Name"] for bucket in answer.get("Buckets", ())]


def _page(answer: Answer) -> ListingPage:
    page = ListingPage(
        tuple(ListedObject(entry["Key"], entry["Size"]) for entry in answer.get("Contents", ()) if entry["Key"]),
        tuple(entry["Prefix"] for entry in answer.get("CommonPrefixes", ())),
        answer.get("IsTruncated", False),
        answer.get("NextContinuationToken", ""),
    )
    if page.truncated and not page.objects and not page.prefixes:
        raise ValueError("an empty page that claims to continue")
    return page
