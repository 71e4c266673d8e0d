"""Bytes of one version of an object straight from the origin: exactly those, or a failure that gives the reason."""

from __future__ import annotations

from gateway.model.errors import GatewayRefused, LarderError, OriginUnavailable
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.s3.conditions import quoted
from gateway.net.exchange import StreamedResponse
from gateway.origin.client import OriginClient
from gateway.origin.headers import entity_headers

Version = tuple[str, int]
"""ETag and size in bytes, which distinguish versions of an object."""


class ObjectChanged(LarderError):
    """The origin no longer has the object that the cache knows; forget the entry."""


class ReaderRefused(ObjectChanged):
    """The origin refuses these keys the rest of the object; this concerns ``identity`` alone."""

    def __init__(self, identity: OriginIdentity, text: str, *, revokes: bool = True) -> None:
        super().__init__(text)
        self.identity = identity
        self.revokes = revokes
        """Whether the identity may no longer read the object; otherwise its keys are refused for now, for example expired."""


async def read_range(
    origin: OriginClient, identity: OriginIdentity, key: ObjectKey, version: Version, span: tuple[int, int]
) -> StreamedResponse:
    """Ask the origin for the bytes [start, stop) of exactly this version (RFC 9110, 13.1.1 and 14.2).

    Raises:
        ObjectChanged: the object was replaced or deleted.
        ReaderRefused: the object is no longer readable with these keys.
        OriginUnavailable: the origin failed, or did not answer the request.
    """
    etag, size = version
    start, stop = span
    whole = span == (0, size)
    headers = [("If-Match", etag)]
    if not whole:
        headers.append(("Range", f"bytes={start}-{stop - 1}"))
    try:
        response = await origin.send(identity, "GET", key.raw_path, "", headers)
    except GatewayRefused as refused:
        if refused.own:
            # Readers with other keys share this fill, and continue with their own keys.
            raise ReaderRefused(identity, str(refused), revokes=refused.revokes) from refused
        raise
    if response.status == (200 if whole else 206) and is_exact(response, version, span):
        return response
    response.abort()
    if response.status in (401, 403):
        raise ReaderRefused(identity, f"the origin answered {response.status} to a read of a known object")
    if response.status in (404, 410, 412, 416) or response.status in (200, 206):
        raise ObjectChanged(f"the origin answered {response.status} to a read of a known object")
    raise OriginUnavailable(f"the origin answered {response.status}")


def is_exact(response: StreamedResponse, version: Version, span: tuple[int, int]) -> bool:
    """Whether a 200 or 206 has exactly these bytes of this version."""
    meta = entity_headers(response.headers)
    start, stop = span
    etag, size = version
    if quoted(meta.etag) != quoted(etag) or meta.size != size or response.header("Content-Length") != str(stop - start):
        return False
    return response.status == 200 or response.header("Content-Range") == f"bytes {start}-{stop - 1}/{meta.size}"
