"""Loads on behalf of another node, for its streams or an operator; the sender has authorized them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from pydantic import NonNegativeInt, TypeAdapter

from gateway.api.peer.app import Address, PeerRequest
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.model.datasets import ApiError
from gateway.model.keys import ObjectKey, is_bucket_name
from gateway.policies.lane import LoadClass

LONGEST = 16 * 1024
"""The most bytes of a request."""
_JSON = (b"content-type", b"application/json")


class LoadRequest(NamedTuple):
    """The body of ``warm``, a JSON array: an object, the span of bytes to load (``None``: all), the class of the load, and the
    pool that it enters (empty: that of its key)."""

    origin: str
    bucket: str
    key: str
    span: tuple[NonNegativeInt, NonNegativeInt] | None = None
    kind: LoadClass = LoadClass.WARMUP
    pool: str = ""


_LOAD = TypeAdapter(LoadRequest)


def peer_loads(warm: WarmObjects) -> Address:
    """The endpoint ``/-/peer/v1/warm``: load the object in the body, or a span of it; streams ``WarmObjects.progress``."""

    async def answer(request: PeerRequest) -> None:
        try:
            asked = _LOAD.validate_json(request.body)
        except ValueError:
            raise ApiError(
                "InvalidRequest", "the body must be [origin, bucket, key], optionally with a span, a class and a pool"
            ) from None
        key = checked_key(request, asked.origin, asked.bucket, asked.key)
        lines = warm.progress(key, request.principal.identity, asked.span, asked.kind, asked.pool)
        await request.send({"type": "http.response.start", "status": 200, "headers": [_JSON]})
        try:
            await _send_lines(request, lines)
        finally:
            await lines.aclose()

    return Address(re.compile("warm"), ("POST",), answer, LONGEST)


def checked_key(request: PeerRequest, origin: str, bucket: str, key: str) -> ObjectKey:
    """The object that a request names, which must be of the principal's origin.

    Raises:
        ApiError: InvalidRequest.
    """
    if not (origin and key) or not is_bucket_name(bucket):
        raise ApiError("InvalidRequest", "the body must name an origin, a bucket and a key")
    if origin != request.principal.identity.origin:
        raise ApiError("InvalidRequest", "the body and the principal name different origins")
    return ObjectKey(origin, bucket, key)


async def _send_lines(request: PeerRequest, lines: AsyncIterator[bytes]) -> None:
    async for line in lines:
        await request.send({"type": "http.response.body", "body": line, "more_body": True})
    await request.send({"type": "http.response.body", "body": b""})
