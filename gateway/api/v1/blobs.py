"""``GET /-/v1/blobs/{digest}``: one blob by its digest, with ranges. Knowing the digest is the right to read it.

``POST /-/v1/blobs/lookup`` says which of many digests are in the cache, without a registration.
"""

from __future__ import annotations

from gateway.api.v1.batch_body import headers_of
from gateway.model.datasets import ApiError, is_dataset_id
from gateway.model.errors import BlobGone, BrokenBody, LarderError
from gateway.model.s3.ranges import content_range, parse_range, unsatisfied_range
from gateway.server.asgi_types import RawHeaders, Scope, Send
from gateway.server.send import send_file
from gateway.store.store import Store

MOST_DIGESTS = 16_384
_DIGEST = 32


def digests_in(body: bytes) -> list[bytes]:
    """The digests of a body.

    Raises:
        ApiError: InvalidRequest.
    """
    if len(body) % _DIGEST:
        raise ApiError("InvalidRequest", f"The body must be digests of 32 bytes each, not {len(body)} bytes.")
    return [body[start : start + _DIGEST] for start in range(0, len(body), _DIGEST)]


async def send_blob(scope: Scope, send: Send, store: Store, name: str) -> None:
    """Answer GET or HEAD of the blob whose digest is ``name``, in hex.

    A range that is not a single well-formed one is ignored, as RFC 9110 section 14.2 allows.

    Raises:
        ApiError: InvalidRequest, NotResident, InvalidRange.
        BrokenBody: the file was truncated while being sent; the connection must be broken.
    """
    if not is_dataset_id(name):
        raise ApiError("InvalidRequest", "A blob is named by its SHA-256 digest: 64 lower-case hex digits.")
    ref = await store.items.resident(bytes.fromhex(name))
    if ref is None:
        raise ApiError("NotResident")
    try:
        blob = await store.open_blob(ref)
    except BlobGone as gone:
        raise ApiError("NotResident") from gone
    blob.hold()
    try:
        value = dict(scope["headers"]).get(b"range")
        wanted = parse_range(None if value is None else value.decode("latin-1"))
        span = (0, ref.size) if wanted is None else wanted.resolve(ref.size)
        if span is None:
            raise ApiError("InvalidRange", headers={"Content-Range": unsatisfied_range(ref.size)})
        start, stop = span
        headers: RawHeaders = headers_of(
            [("content-type", "application/octet-stream"), ("accept-ranges", "bytes"), ("cache-control", "private")]
        )
        headers.append((b"content-length", b"%d" % (stop - start)))
        if wanted is not None:
            headers.append((b"content-range", content_range(start, stop, ref.size).encode()))
        await send({"type": "http.response.start", "status": 200 if wanted is None else 206, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
        else:
            await send_file(scope, send, blob.fd, start, stop - start)
    except ApiError:
        raise
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure
    finally:
        blob.release()
