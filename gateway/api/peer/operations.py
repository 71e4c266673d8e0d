"""Operators' requests that one node passes to another: explain an object, load an object.

The sender has authorized the operator. Each request affects this node alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from pydantic import NonNegativeInt, TypeAdapter

from gateway.api.peer.app import Address, PeerRequest
from gateway.edge.asgi import send_json
from gateway.engine.objects.explain import IN_MEMORY, LONGEST, Explainer, to_json
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.model.datasets import ApiError
from gateway.model.keys import ObjectKey, is_bucket_name
from gateway.policies.lane import LoadClass

_KEY = TypeAdapter(tuple[str, str, str])
_JSON = (b"content-type", b"application/json")


class LoadRequest(NamedTuple):
    """The body of ``warm``, a JSON array: an object, the span of bytes to load (``None``: all), and the class of the load."""

    origin: str
    bucket: str
    key: str
    span: tuple[NonNegativeInt, NonNegativeInt] | None = None
    kind: LoadClass = LoadClass.WARMUP


_LOAD = TypeAdapter(LoadRequest)


class PeerOperations:
    """Answers the addresses of operations."""

    def __init__(self, explainer: Explainer, warm: WarmObjects) -> None:
        self._explainer = explainer
        self._warm = warm

    def addresses(self) -> Mapping[str, Address]:
        """Addresses by the kind they are counted as."""
        return {
            "explain": Address(re.compile("explain"), ("POST",), self.explain, LONGEST, changes=False),
            "warm": Address(re.compile("warm"), ("POST",), self.warm, LONGEST),
        }

    async def explain(self, request: PeerRequest) -> None:
        """``POST /-/peer/v1/explain``: what this node has cached of the object in the body, for the principal.

        Raises:
            ApiError: InvalidRequest.
        """
        knowledge = await self._explainer.here(_key(request), request.principal.identity)
        headers = [(IN_MEMORY.encode(), b"1")] if knowledge.in_memory else []
        await send_json(request.send, 200, to_json(knowledge), headers)

    async def warm(self, request: PeerRequest) -> None:
        """``POST /-/peer/v1/warm``: load the object in the body, or a span of it; stream ``WarmObjects.progress``.

        Raises:
            ApiError: InvalidRequest.
        """
        try:
            asked = _LOAD.validate_json(request.body)
        except ValueError:
            raise ApiError(
                "InvalidRequest", "the body must be [origin, bucket, key], optionally with a span and a class"
            ) from None
        key = _checked(request, asked.origin, asked.bucket, asked.key)
        lines = self._warm.progress(key, request.principal.identity, asked.span, asked.kind)
        await request.send({"type": "http.response.start", "status": 200, "headers": [_JSON]})
        try:
            await _send_lines(request, lines)
        finally:
            await lines.aclose()


def _key(request: PeerRequest) -> ObjectKey:
    try:
        origin, bucket, key = _KEY.validate_json(request.body)
    except ValueError:
        raise ApiError("InvalidRequest", "the body must be [origin, bucket, key]") from None
    return _checked(request, origin, bucket, key)


def _checked(request: PeerRequest, origin: str, bucket: str, key: str) -> ObjectKey:
    if not (origin and key) or not is_bucket_name(bucket):
        raise ApiError("InvalidRequest", "the body must name an origin, a bucket and a key")
    if origin != request.principal.identity.origin:
        raise ApiError("InvalidRequest", "the body and the principal name different origins")
    return ObjectKey(origin, bucket, key)


async def _send_lines(request: PeerRequest, lines: AsyncIterator[bytes]) -> None:
    async for line in lines:
        await request.send({"type": "http.response.body", "body": line, "more_body": True})
    await request.send({"type": "http.response.body", "body": b""})
