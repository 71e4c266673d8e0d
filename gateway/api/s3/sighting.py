"""What the store's answer to a forwarded read reveals about the object's current version."""

from __future__ import annotations

from gateway.api.s3.call import S3Call
from gateway.model.s3.conditions import http_date
from gateway.model.s3.listings import SeenVersion
from gateway.origin.headers import content_range
from gateway.server.asgi_types import RawHeaders

_SAME_OBJECT = ("response-", "x-id", "partNumber")
"""The parameters that leave the answer about the current object: it has its headers, a part of it, or replaced headers."""


def sighting_of(call: S3Call, status: int, headers: RawHeaders) -> SeenVersion | None:
    """The version that an answer shows; ``None`` if it shows none, or one that is not current."""
    key = call.key
    if key is None or call.request.method not in ("GET", "HEAD"):
        return None
    if b"+" in call.raw_key or not all(name.startswith(_SAME_OBJECT) for name in call.names):
        return None
    if status == 404 and "partNumber" not in call.names:
        return SeenVersion(key.key, gone=True)
    if status not in (200, 206, 304):
        return None
    fields = {name.lower(): value.decode("latin-1") for name, value in headers}
    span, size = content_range(fields.get(b"content-range", "")), -1
    if span is not None:
        size = span[2]
    elif status == 200 and "partNumber" not in call.names and fields.get(b"content-length", "").isdigit():
        size = int(fields[b"content-length"])
    return SeenVersion(key.key, fields.get(b"etag", ""), size, http_date(fields.get(b"last-modified")))
