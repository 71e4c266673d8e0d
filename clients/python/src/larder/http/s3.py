"""A minimal S3 client for stores and gateways: the objects and listings that datasets need, and uploads of one request.

Addresses are path-style, keys are sent percent-encoded and never normalised. Sources: GetObject, PutObject, HeadObject and
ListObjectsV2 in the Amazon S3 API reference.
"""

from __future__ import annotations

import base64
import binascii
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from functools import partial
from http.client import HTTPResponse
from types import MappingProxyType
from typing import BinaryIO, TypeVar
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from larder.base.errors import ObjectChanged, ObjectMissing, S3Error
from larder.base.retry import Patience, Retry
from larder.http.connection import TRANSIENT, Connection
from larder.http.credentials import Credentials, CredentialSource, endpoint_of, source_of
from larder.http.signing import encode_query, object_path, payload_hash_of

T = TypeVar("T")
# Temporary errors. Codes complement statuses: S3 answers a slow client with 400 RequestTimeout.
_AGAIN_STATUS = frozenset({429, 500, 502, 503, 504})
_AGAIN_CODES = frozenset({"SlowDown", "RequestTimeout", "ServiceUnavailable", "InternalError"})
_HEAD_CODES = {301: "PermanentRedirect", 403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed"}
PAYS = {"x-amz-request-payer": "requester"}
log = logging.getLogger("larder")
_ERROR_BODY = 1 << 16
"""The most bytes of an error's body that are read."""


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """The result of a HEAD request.

    Args:
        size: bytes of the object.
        etag: with its quotes, for If-Match.
        sha256: of the whole object, 32 bytes, if the store has it.
        last_modified: as the store writes it.
    """

    size: int
    etag: str
    sha256: bytes | None = None
    last_modified: str = ""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One line of a listing; ``etag`` with its quotes, ``size`` in bytes."""

    key: str
    size: int
    etag: str


class S3:
    """An S3 store. Safe to share between threads, to fork, to copy and to pickle.

    Args:
        endpoint: of the store or of a gateway; when left out, ``LARDER_ENDPOINT``, ``AWS_ENDPOINT_URL``, the profile's,
            or AWS itself.
        credentials: access key to sign with; ``None`` searches the usual places.
        timeout: seconds of silence after which a request fails.
        retry: repetition of temporary failures.
        request_payer: whether to accept the charges of requester-pays buckets (``False``). ``None``: accept them if a bucket
            refuses the request otherwise, which is logged once per bucket.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None,
        timeout: float = 30.0,
        retry: Retry | None = None,
        request_payer: bool | None = False,
    ) -> None:
        source = source_of(credentials)
        self._connection = Connection(_address(endpoint, source), credentials=source, timeout=timeout)
        self._retry = retry or Retry()
        self._request_payer = request_payer
        self._charging: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"S3({self.endpoint!r})"

    @property
    def endpoint(self) -> str:
        """The store's address."""
        return self._connection.endpoint

    def close(self) -> None:
        """Close idle connections."""
        self._connection.close()

    def get(
        self,
        bucket: str,
        key: str,
        *,
        offset: int | None = None,
        length: int | None = None,
        if_match: str | None = None,
    ) -> bytes:
        """An object's bytes, or ``length`` of them from ``offset`` (to the end when ``length`` is left out).

        Raises:
            ObjectMissing: the object does not exist.
            ObjectChanged: its ETag is not ``if_match``, or it is too short for this range.
            S3Error: any other error of the store, after the retries.
        """
        if length == 0:
            return b""

        def attempt() -> bytes:
            with self._opened(bucket, key, offset, length, if_match) as response:
                body = response.read()
                if response.status == 200 and (offset or length is not None):
                    start = offset or 0
                    body = body[start : None if length is None else start + length]
                return body

        body = self._patiently(attempt, bucket, key)
        if length is not None and len(body) != length:
            detail = f"{length} bytes from offset {offset or 0} were requested, but there are {len(body)}"
            raise ObjectChanged(206, "ShortObject", bucket, key, detail)
        return body

    @contextmanager
    def stream(
        self,
        bucket: str,
        key: str,
        *,
        offset: int | None = None,
        length: int | None = None,
        if_match: str | None = None,
    ) -> Iterator[HTTPResponse]:
        """The answer to a GET, to be read in pieces; ``status`` is 206 for a part, ``headers`` has the ETag.

        Only opening the stream is retried. A body that breaks off raises ``OSError`` or ``http.client.HTTPException`` while it is
        read, or, when read with ``readinto``, ends before its Content-Length.

        Raises:
            S3Error: as ``get`` does.
        """
        with ExitStack() as stack:
            yield self._patiently(
                lambda: stack.enter_context(self._opened(bucket, key, offset, length, if_match)), bucket, key
            )

    def head(self, bucket: str, key: str) -> ObjectHead:
        """Size, ETag and, where the store keeps one, the SHA-256 of the whole object.

        Raises:
            S3Error: as ``get`` does.
        """

        def attempt() -> ObjectHead:
            headers = {"x-amz-checksum-mode": "ENABLED"}
            with self._exchange("HEAD", bucket, key, headers) as response:
                response.read()
                if response.status != 200:
                    raise _error(response, b"", bucket, key)
                return _head(response.headers)

        return self._patiently(attempt, bucket, key)

    def put(self, bucket: str, key: str, file: BinaryIO, *, content_type: str = "application/octet-stream") -> int:
        """Upload a seekable file in one request, which stores limit (5 GiB at AWS); returns its size in bytes.

        Raises:
            S3Error: as ``get`` does.
        """
        file.seek(0)
        sha256 = payload_hash_of(file)
        size = file.tell()
        headers = {"Content-Type": content_type, "Content-Length": str(size), **(PAYS if self._request_payer else {})}

        def attempt() -> int:
            file.seek(0)
            path = object_path(bucket, key)
            sent = self._connection.exchange("PUT", path, headers=headers, body=file, payload_hash=sha256)
            with sent as response:
                body = response.read()
                if response.status != 200:
                    raise _error(response, body, bucket, key)
                return size

        return self._patiently(attempt, bucket, key)

    def list(
        self, bucket: str, prefix: str = "", *, start_after: str = "", fresh: bool = False
    ) -> Iterator[ListedObject]:
        """All objects whose key begins with ``prefix``, in the store's order: the order of the keys' bytes, except with
        SeaweedFS. ``fresh``: a gateway must not answer from a recorded listing.

        Raises:
            S3Error: as ``get`` does, or the listing cannot be continued.
        """
        asked = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
        if start_after:
            asked["start-after"] = start_after
        return self._listed(bucket, asked, start_after, {"Cache-Control": "no-cache"} if fresh else {})

    def children(self, bucket: str, prefix: str = "", *, most: int | None = None) -> Iterator[ListedObject]:
        """The objects and folders directly below ``prefix``; in each page of the listing, folders come last.

        Keys continue ``prefix`` up to the next slash. A folder's key ends with that slash; it has neither size nor ETag.

        Args:
            bucket: of the objects.
            prefix: ends with a slash, unless it is empty.
            most: the most lines that the caller wants, for a shorter page.

        Raises:
            S3Error: as ``list`` does.
        """
        asked = {"list-type": "2", "encoding-type": "url", "prefix": prefix, "delimiter": "/"}
        return self._listed(bucket, asked if most is None else {**asked, "max-keys": str(most)}, "")

    def buckets(self) -> tuple[str, ...]:
        """The names of the caller's buckets.

        Raises:
            S3Error: as ``get`` does.
        """
        page = self._patiently(partial(self._page, "", {}, {}), "", "")
        return tuple(name for entry in page.iterfind("{*}Buckets/{*}Bucket") if (name := entry.findtext("{*}Name")))

    def _listed(
        self, bucket: str, asked: Mapping[str, str], last: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[ListedObject]:
        parameters = asked
        while True:
            page = self._patiently(partial(self._page, bucket, parameters, headers), bucket, "")
            before = last
            for listed in _objects(page):
                yield listed
                # Folders come after the objects of their page, whatever their place in the order of names.
                folder = not listed.etag and listed.key.endswith("/")
                last = max(last, listed.key) if folder else listed.key
            if page.findtext("{*}IsTruncated") != "true":
                return
            parameters = {**asked, **_following(page, before, last, bucket)}

    def _page(self, bucket: str, parameters: Mapping[str, str], headers: Mapping[str, str]) -> ElementTree.Element:
        query = encode_query(parameters.items())
        with self._exchange("GET", bucket, "", headers, query) as response:
            body = response.read()
            if response.status != 200:
                raise _error(response, body, bucket, "")
        return _parsed(body, response.status, bucket)

    @contextmanager
    def _exchange(
        self, method: str, bucket: str, key: str, headers: Mapping[str, str], query: str = ""
    ) -> Iterator[HTTPResponse]:
        """Send one request; if it is refused, repeat it as a requester who pays, unless that was ruled out."""
        path = object_path(bucket, key) if key else object_path(bucket)
        pays = bool(self._request_payer) or bucket in self._charging
        with ExitStack() as stack:
            sent = {**headers, **PAYS} if pays else dict(headers)
            response = stack.enter_context(self._connection.exchange(method, path, headers=sent, query=query))
            if response.status == 403 and not pays and self._request_payer is None:
                again = self._connection.exchange(method, path, headers={**headers, **PAYS}, query=query)
                paid = stack.enter_context(again)
                if paid.status != 403:
                    log.warning("bucket %s: the requester pays for reads (request_payer=False refuses that)", bucket)
                    self._charging |= {bucket}
                    response = paid
            yield response

    @contextmanager
    def _opened(
        self, bucket: str, key: str, offset: int | None, length: int | None, if_match: str | None
    ) -> Iterator[HTTPResponse]:
        headers = {}
        if offset or length is not None:
            start = offset or 0
            headers["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
        if if_match:
            headers["If-Match"] = if_match
        with self._exchange("GET", bucket, key, headers) as response:
            if response.status not in (200, 206):
                raise _error(response, response.read(_ERROR_BODY), bucket, key)
            if "Range" in headers and response.headers.get("Content-Range"):
                response.status = 206  # rclone serve s3 says 200 with a part, too
            etag = response.headers.get("ETag", "")
            if if_match and etag and etag.strip('"') != if_match.strip('"'):  # some stores ignore If-Match
                raise ObjectChanged(412, "PreconditionFailed", bucket, key, f"its ETag is {etag}, not {if_match}")
            yield response

    def _patiently(self, attempt: Callable[[], T], bucket: str, key: str) -> T:
        patience = Patience(self._retry)
        while True:
            try:
                return attempt()
            except S3Error as error:
                if error.status not in _AGAIN_STATUS and error.code not in _AGAIN_CODES:
                    raise
                failure = error
            except TRANSIENT as error:
                failure = S3Error(0, type(error).__name__, bucket, key, f"{self.endpoint}: {error}")
            pause = patience.pause("store" if failure.status else "connection")
            if pause is None:
                raise failure
            time.sleep(pause)


def _address(endpoint: str | None, source: CredentialSource) -> str:
    try:
        return endpoint_of(endpoint)
    except ValueError:
        return f"https://s3.{source.current().region}.amazonaws.com"


def _head(headers: Message) -> ObjectHead:
    """The head of an answer. A checksum over parts, which ends in "-N" or has the type COMPOSITE, is not a hash of the object."""
    sha256 = None
    encoded = headers.get("x-amz-checksum-sha256", "")
    if encoded and "-" not in encoded and headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT":
        with suppress(binascii.Error):
            sha256 = base64.b64decode(encoded, validate=True)
    return ObjectHead(
        int(headers.get("Content-Length", "0")),
        headers.get("ETag", ""),
        sha256 if sha256 and len(sha256) == 32 else None,
        headers.get("Last-Modified", ""),
    )


def _objects(page: ElementTree.Element) -> Iterator[ListedObject]:
    encoded = page.findtext("{*}EncodingType") == "url"
    for entry in page.iterfind("{*}Contents"):
        key = entry.findtext("{*}Key", "")
        size = int(entry.findtext("{*}Size", "0"))
        yield ListedObject(unquote_plus(key) if encoded else key, size, entry.findtext("{*}ETag", ""))
    for entry in page.iterfind("{*}CommonPrefixes"):
        prefix = entry.findtext("{*}Prefix", "")
        yield ListedObject(unquote_plus(prefix) if encoded else prefix, 0, "")


def _following(page: ElementTree.Element, before: str, last: str, bucket: str) -> dict[str, str]:
    """The parameter that continues a listing after a page that ends with the key ``last``; ``before`` is the last key of the page
    before it."""
    if token := page.findtext("{*}NextContinuationToken"):
        return {"continuation-token": token}
    if last == before:
        raise S3Error(
            200, "IncompleteListing", bucket, "", "it says that more follows, but repeats a page or has no token"
        )
    return {"start-after": last}


def _parsed(body: bytes, status: int, bucket: str) -> ElementTree.Element:
    try:
        if b"<!DOCTYPE" in body:  # S3 has no entities, and entities make untrusted XML dangerous
            raise ElementTree.ParseError("it has a DOCTYPE")
        return ElementTree.fromstring(body)  # noqa: S314
    except ElementTree.ParseError as error:
        raise S3Error(status, "MalformedXML", bucket, "", f"the listing is not XML: {error}") from error


def _error(response: HTTPResponse, body: bytes, bucket: str, key: str) -> S3Error:
    """The typed error of an answer; HEAD has no body, so its code comes from the status."""
    status = response.status
    code, detail = _HEAD_CODES.get(status, response.reason or "Error"), ""
    with suppress(S3Error):
        document = _parsed(body, status, bucket)
        code, detail = document.findtext("{*}Code") or code, document.findtext("{*}Message") or ""
    region = response.headers.get("x-amz-bucket-region")
    if status in (301, 307, 400) and region:
        detail = f"{detail} (the bucket is in {region}; set AWS_REGION, or the endpoint of that region)".strip()
    if code == "RequestTimeTooSkewed":
        detail = f"{detail} (this machine's clock differs from the store's; set it)".strip()
    kind = S3Error
    if status == 404:
        kind = ObjectMissing
    elif status in (412, 416):
        kind = ObjectChanged
    return kind(status, code, bucket, key, detail)
