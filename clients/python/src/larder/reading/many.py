"""Reading many objects, ranges and members of archives in few requests, without a registered dataset.

A gateway answers a batch of entries, each like a GET by the same caller (docs/many.md). After a cut answer, a busy gateway or a
failing store only the missing entries are requested again, with the pauses of `Retry`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, TypedDict, overload

import numpy as np

from larder.base.errors import (
    GatewayUnavailable,
    LarderError,
    ObjectMissing,
    RequestRefused,
    S3Error,
    TruncatedBatch,
    UnexpectedAnswer,
)
from larder.base.later import Unpack
from larder.base.options import refuse_unknown
from larder.base.retry import Patience, Retry
from larder.http.api import Api, Busy
from larder.http.connection import TRANSIENT
from larder.http.credentials import Credentials, CredentialSource, endpoint_of, source_of
from larder.http.local import LocalResponse, acceptable, close_all
from larder.http.s3 import PAYS, S3
from larder.reading.frames import LATER, MEDIA_TYPE, ORIGIN_ERROR, Decoder, ItemFailure, Received
from larder.reading.passed import PassedFiles

MOST_ENTRIES = 1024
"""The most entries of one request."""
_PATH = "/-/v1/batch"
_OPEN = "/-/v1/open"
_IN_FLIGHT = "in-flight"
_AGAIN = frozenset({429, 500, 502, 503, 504})
_TOO_LARGE = "EntityTooLarge"
_READERS = 16
"""The most readers that ``get_many`` keeps, with their connections."""
_MISSING = 404


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to read: an object, a range of its bytes, or a member of a TAR archive.

    Args:
        bucket: of the object.
        key: of the object.
        start: first byte; negative: counted from the end.
        end: the byte after the last one; the range is cut at the object's end.
        member: name of a file, if the object is a TAR archive; ``start`` and ``end`` refer to that file.
    """

    bucket: str
    key: str
    start: int | None = None
    end: int | None = None
    member: str | None = None


Readable = Entry | str | tuple[str, str] | tuple[str, str, int | None, int | None]
"""An entry; or ``"bucket/key"``, optionally after ``s3://`` or ``larder://``; or the first two or four fields of an entry."""
Many = Iterable[Readable]


class ManyOptions(TypedDict, total=False):
    """The options of reading many objects that have a default.

    Args:
        credentials: an access key of the gateway; ``None`` searches the usual places of AWS's tools.
        timeout: seconds of silence after which an attempt fails (30).
        retry: repetition of requests without progress.
        request_payer: accept the charges of requester-pays buckets (``False``).
    """

    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None
    timeout: float
    retry: Retry | None
    request_payer: bool


class ManyReader:
    """Reads many objects through a gateway. Safe to share between threads, to fork, to copy and to pickle.

    Args:
        endpoint: address of the gateway; when left out, ``LARDER_ENDPOINT`` or ``AWS_ENDPOINT_URL``.
        options: see `ManyOptions`.

    Raises:
        ValueError: the endpoint is missing or not an address.
        TypeError: unknown option.
    """

    def __init__(self, endpoint: str | None = None, **options: Unpack[ManyOptions]) -> None:
        refuse_unknown(options, *ManyOptions.__annotations__)
        credentials, timeout = source_of(options.get("credentials")), options.get("timeout", 30.0)
        self._retry = options.get("retry") or Retry()
        self._payer = bool(options.get("request_payer", False))
        self._api = Api(endpoint_of(endpoint), credentials=credentials, timeout=timeout, retry=self._retry)
        self._looked = False

    def __repr__(self) -> str:
        return f"ManyReader({self.endpoint!r})"

    @property
    def endpoint(self) -> str:
        """Address of the gateway."""
        return self._api.endpoint

    @property
    def s3(self) -> S3:
        """The same gateway as an S3 store."""
        connection = self._api.connection
        return S3(
            self.endpoint,
            credentials=connection.credentials,
            timeout=connection.timeout,
            retry=self._retry,
            request_payer=self._payer,
        )

    def close(self) -> None:
        """Close idle connections; the reader stays usable."""
        self._api.connection.close()

    @overload
    def get(self, entries: Many, *, return_exceptions: Literal[False] = False) -> list[bytes]: ...

    @overload
    def get(self, entries: Many, *, return_exceptions: bool) -> list[bytes | S3Error]: ...

    def get(self, entries: Many, *, return_exceptions: bool = False) -> list[bytes] | list[bytes | S3Error]:
        """The bytes of all entries, in order. See `get_many`."""
        return list(self.iterate(entries, return_exceptions=return_exceptions))

    @overload
    def iterate(self, entries: Many, *, return_exceptions: Literal[False] = False) -> Iterator[bytes]: ...

    @overload
    def iterate(self, entries: Many, *, return_exceptions: bool) -> Iterator[bytes | S3Error]: ...

    def iterate(self, entries: Many, *, return_exceptions: bool = False) -> Iterator[bytes | S3Error]:
        """``get`` as an iterator, which requests 1,024 entries at a time: for more than fits into memory."""
        wanted = iter(entries)
        while part := [entry_of(entry) for entry in islice(wanted, MOST_ENTRIES)]:
            for result in self._batch(part):
                if isinstance(result, S3Error) and not return_exceptions:
                    raise result
                yield result

    def _batch(self, entries: Sequence[Entry]) -> list[bytes | S3Error]:
        """The results of one request's entries, with the attempts that ``retry`` allows."""
        results: dict[int, bytes | S3Error] = {}
        patience, renewed = Patience(self._retry), False
        while left := [at for at in range(len(entries)) if at not in results]:
            try:
                received, error = self._request([entries[at] for at in left])
            except RequestRefused as refused:
                if renewed or not self._api.renewable(refused):
                    raise
                renewed = True
                continue
            results |= {left[at]: _owned(data) for at, data in zip(received.positions, received.data, strict=True)}
            failures = {left[at]: failure for at, failure in received.failures.items()}
            unsettled = {
                at: failure for at, failure in failures.items() if failure.status == LATER or _may_pass(failure)
            }
            for at in failures.keys() - unsettled.keys():
                results[at] = self._settled(entries[at], failures[at])
            advanced = len(unsettled) < len(failures) or bool(received.positions)
            failing = [failure for failure in unsettled.values() if failure.status != LATER]
            if advanced:
                patience.renew()
                if error is None and not failing:
                    continue
            pause = patience.pause("batch" if error is None else type(error).__name__)
            if pause is None and error is not None:
                raise self._gone(error, patience.failures) from error
            if pause is None:
                results |= {at: _error(entries[at], failure) for at, failure in unsettled.items()}
                continue
            pauses = [failure.retry_after for failure in failing]
            time.sleep(max(pause, error.retry_after if isinstance(error, Busy) else 0.0, *pauses))
        return [results[at] for at in range(len(entries))]

    def _request(self, entries: Sequence[Entry]) -> tuple[Received, Exception | None]:
        """Send one request. Received results count, however the request ends.

        Raises:
            RequestRefused: the gateway refused the request.
        """
        self._find_socket()
        body = json.dumps({"entries": [_document(entry) for entry in entries]}, ensure_ascii=False).encode()
        headers = {"Accept": MEDIA_TYPE, "Content-Type": "application/json"} | (PAYS if self._payer else {})
        connection, received = self._api.connection, Received()
        if files := acceptable() if connection.takes_files else 0:
            headers["x-larder-descriptors"] = str(files)
        try:
            with self._api.exchange("POST", _PATH, headers=headers, body=body) as response:
                kind = response.headers.get_content_type()
                if kind != MEDIA_TYPE:
                    raise UnexpectedAnswer(self.endpoint, response.status, f"Content-Type {kind}, not {MEDIA_TYPE}")
                decoder = Decoder(
                    np.arange(len(entries), dtype=np.uint32),
                    length=response.length,
                    endpoint=self.endpoint,
                    files=PassedFiles(response.attached, files) if isinstance(response, LocalResponse) else None,
                )
                received = decoder.received
                decoder.decode(response)
        except (TruncatedBatch, UnexpectedAnswer, Busy, *TRANSIENT) as error:
            if files and not isinstance(error, Busy):
                connection.avoid_files()
            return received, error
        except RequestRefused as refused:
            if refused.code == "NotFound":
                detail = "this gateway has no batches of keys: it is of an earlier version"
                raise RequestRefused(refused.status, refused.code, detail) from refused
            raise
        if files and received.corrupt:
            connection.avoid_files()
        return received, None

    def open(self, entry: Entry) -> tuple[dict[str, Any], list[int]]:
        """Request an object as open files; see `larder.open_objects`.

        Returns:
            the gateway's answer with ``etag`` and ``parts``, and a descriptor for each part, which the caller closes; or an
            answer with the ``reason`` why there are none.

        Raises:
            RequestRefused: the gateway refuses the caller.
        """
        patience = Patience(self._retry)
        while True:
            document, descriptors = self._open(entry)
            # Files are in flight until their clients have received them, which takes no longer than an answer does.
            if document.get("reason") != _IN_FLIGHT or (pause := patience.pause(_IN_FLIGHT)) is None:
                return document, descriptors
            time.sleep(pause)

    def _open(self, entry: Entry) -> tuple[dict[str, Any], list[int]]:
        self._find_socket()
        if self._api.connection.local is None:
            return {"reason": "tcp"}, []
        body = json.dumps({"bucket": entry.bucket, "key": entry.key}, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", "x-larder-descriptors": str(acceptable())}
        headers |= PAYS if self._payer else {}
        try:
            with self._api.exchange("POST", _OPEN, headers=headers, body=body) as response:
                document = self._api.parsed(response.status, response.read())
                descriptors = response.attached.take_descriptors() if isinstance(response, LocalResponse) else []
        except (UnexpectedAnswer, Busy, *TRANSIENT):
            return {"reason": "failed"}, []
        except RequestRefused as refused:
            if refused.code != "NotFound":
                raise
            return {"reason": "unknown"}, []  # a gateway of an earlier version
        if len(descriptors) == len(document.get("parts", ())):
            return document, descriptors
        close_all(descriptors)
        return {"reason": "failed"}, []

    def _find_socket(self) -> None:
        """Use the gateway's unix socket, if it has one on this machine."""
        if self._looked and self._api.connection.by_tcp != "unreachable":
            return
        try:
            with self._api.exchange("GET", "/-/v1/fleet") as response:
                document = self._api.parsed(response.status, response.read())
        except (LarderError, *TRANSIENT):
            document = {}  # even without a fleet, the gateway has its address
        self._api.connection.use_socket(document.get("unix_socket"))
        self._looked = True  # set last, so that a concurrent thread looks too instead of using TCP

    def _settled(self, entry: Entry, failure: ItemFailure) -> bytes | S3Error:
        """The result of an entry that another batch would not change: an entry too large for a batch is read by GET."""
        if failure.code != _TOO_LARGE or entry.member is not None:
            return _error(entry, failure)
        bucket, key = entry.bucket, entry.key
        try:
            store = self.s3
            size = store.head(bucket, key).size
            start = entry.start or 0
            start = max(0, size + start) if start < 0 else start
            stop = size if entry.end is None else min(size, entry.end)
            return store.get(bucket, key, offset=start, length=max(0, stop - start))
        except S3Error as error:
            return error

    def _gone(self, error: Exception, attempts: int) -> LarderError:
        return error if isinstance(error, UnexpectedAnswer) else GatewayUnavailable(self.endpoint, attempts, error)


def _owned(data: memoryview) -> bytes:
    """The bytes of an entry, without a copy if it has read them from a file alone."""
    return data.obj if isinstance(data.obj, bytes) and len(data.obj) == len(data) else bytes(data)


def entry_of(readable: Readable) -> Entry:
    """An entry from any of its forms.

    Raises:
        ValueError: it lacks a bucket or a key, or has an unknown form.
    """
    if isinstance(readable, str):
        path = readable.removeprefix("s3://").removeprefix("larder://")
        bucket, _, key = path.partition("/")
        entry = Entry(bucket, key)
    else:
        entry = readable if isinstance(readable, Entry) else Entry(*readable)
    if not entry.bucket or not entry.key:
        raise ValueError(f'an entry has a bucket and a key, such as "bucket/key", not {readable!r}')
    return entry


@overload
def get_many(
    entries: Many,
    *,
    endpoint: str | None = None,
    return_exceptions: Literal[False] = False,
    **options: Unpack[ManyOptions],
) -> list[bytes]: ...


@overload
def get_many(
    entries: Many, *, endpoint: str | None = None, return_exceptions: bool, **options: Unpack[ManyOptions]
) -> list[bytes | S3Error]: ...


def get_many(
    entries: Many, *, endpoint: str | None = None, return_exceptions: bool = False, **options: Unpack[ManyOptions]
) -> list[bytes] | list[bytes | S3Error]:
    """The bytes of many objects, ranges or members of archives, in order, in one request for each 1,024 of them.

    Args:
        entries: what to read, see `Readable`; one may come several times.
        endpoint: address of the gateway; when left out, ``LARDER_ENDPOINT`` or ``AWS_ENDPOINT_URL``.
        return_exceptions: whether an entry that cannot be read gives its `S3Error` in its place; else the first one is raised.
        options: see `ManyOptions`.

    Raises:
        ObjectMissing: an object, bucket or member does not exist.
        S3Error: an entry cannot be read, after the retries; ``code`` is S3's.
        GatewayUnavailable: the gateway does not answer, after the retries.
        RequestRefused: the gateway refuses the caller.
        UnexpectedAnswer: the endpoint is not a Larder gateway.
        CredentialsMissing: no access key was found.
        ValueError: an entry has no bucket or key, or there is no endpoint.
    """
    place = tuple(os.environ.get(name) for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID"))
    return _reader(endpoint_of(endpoint), place, **options).get(entries, return_exceptions=return_exceptions)


@lru_cache(maxsize=_READERS)
def _reader(endpoint: str, place: tuple[str | None, ...], /, **options: Any) -> ManyReader:
    """A reader, kept with its connections; ``place`` is where credentials are searched."""
    return ManyReader(endpoint, **options)


def _document(entry: Entry) -> dict[str, str | int]:
    return {name: value for name, value in asdict(entry).items() if value is not None}


def _may_pass(failure: ItemFailure) -> bool:
    return failure.status == ORIGIN_ERROR or failure.http_status in _AGAIN


def _error(entry: Entry, failure: ItemFailure) -> S3Error:
    kind = ObjectMissing if failure.http_status == _MISSING else S3Error
    return kind(failure.http_status, failure.code, entry.bucket, entry.key, failure.detail)
