"""Streams an object or a part of it, resumes after a broken connection, and detects changes of the object."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse

from larder.base.errors import ObjectChanged, S3Error
from larder.base.retry import Patience, Retry
from larder.http.connection import TRANSIENT
from larder.http.s3 import S3

PIECE = 1 << 20
"""Bytes that are read from a store at a time."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range to read: from ``start`` up to ``stop`` (``None``: to the end) of an object.

    Args:
        etag: required ETag, with its quotes; empty for the current one.
        size: required size in bytes; ``None`` for the current one.
    """

    bucket: str
    key: str
    etag: str = ""
    size: int | None = None
    start: int = 0
    stop: int | None = None


class Stream:
    """The bytes of a part, in pieces that are valid until the next one is read. For one thread.

    Args:
        s3: the store.
        part: the range to read.
        passed: called with the number of bytes of every piece; may raise to stop reading.
    """

    def __init__(self, s3: S3, part: Part, passed: Callable[[int], None]) -> None:
        self._s3 = s3
        self._part = part
        self._passed = passed
        self._etag = part.etag
        self._stop = part.stop
        self._position = part.start
        self._response: HTTPResponse | None = None
        self._stack = ExitStack()
        self._buffer = bytearray(PIECE if part.stop is None else min(PIECE, part.stop - part.start))
        self._patience = Patience(Retry())

    def read(self, most: int) -> memoryview:
        """The next bytes, at least one and at most ``most``; none at the end of the part, or of the object if that comes first.

        Raises:
            ObjectChanged: the object differs from the first read, or from the part's ETag or size.
            ObjectMissing: the object does not exist.
            S3Error: the store refuses, or all attempts failed.
        """
        while self._stop is None or self._position < self._stop:
            try:
                piece = self._attempt(most)
            except TRANSIENT as error:
                self._break(error)
                continue
            if piece:
                self._patience.renew()
                self._position += len(piece)
                self._passed(len(piece))
                return piece
            if self._stop is not None and self._position < self._stop:
                self._break(ConnectionError("the body ended before its length"))
        return memoryview(b"")

    def close(self) -> None:
        """Close the connection."""
        self._response = None
        self._stack.close()

    def _attempt(self, most: int) -> memoryview:
        if self._response is None:
            self._open()
            if self._stop is not None and self._position >= self._stop:
                return memoryview(b"")
        assert self._response is not None
        assert self._stop is not None
        wanted = min(most, len(self._buffer), self._stop - self._position)
        count = self._response.readinto(memoryview(self._buffer)[:wanted])
        return memoryview(self._buffer)[:count]

    def _open(self) -> None:
        part = self._part
        whole = self._position == 0 and part.stop in (None, part.size)
        length = None if whole or self._stop is None else self._stop - self._position
        opened = self._s3.stream(
            part.bucket, part.key, offset=self._position, length=length, if_match=self._etag or None
        )
        self._response = response = self._stack.enter_context(opened)
        first, size = self._answered(response)
        self._check(response.headers.get("ETag", ""), size)
        self._stop = max(size, self._position) if self._stop is None else min(self._stop, size)
        while first < self._position:  # a store that does not know ranges
            first += len(response.read(min(self._position - first, PIECE))) or self._cut()

    def _answered(self, response: HTTPResponse) -> tuple[int, int]:
        """The offset of the answer's first byte, and the size of the whole object."""
        headers = response.headers
        try:
            if response.status == 200:
                return 0, int(headers.get("Content-Length", ""))
            unit, _, rest = headers.get("Content-Range", "").partition(" ")
            span, _, size = rest.partition("/")
            first = int(span.partition("-")[0])
            if unit != "bytes" or first != self._position:
                raise ValueError(unit)
            return first, int(size)
        except ValueError:
            detail = (
                f"the answer to a read from byte {self._position} on has a wrong or no Content-Range or Content-Length"
            )
            raise S3Error(response.status, "UnexpectedAnswer", self._part.bucket, self._part.key, detail) from None

    def _cut(self) -> int:
        raise ConnectionError("the body ended before its length")

    def _check(self, etag: str, size: int) -> None:
        """Compare ETag and size here too, because some stores ignore If-Match."""
        part = self._part
        if self._etag and etag and etag != self._etag:
            raise ObjectChanged(
                412, "PreconditionFailed", part.bucket, part.key, f"its ETag is {etag}, not {self._etag}"
            )
        if part.size is not None and size != part.size:
            raise ObjectChanged(412, "SizeChanged", part.bucket, part.key, f"it has {size} bytes, not {part.size}")
        self._etag = self._etag or etag

    def _break(self, error: Exception) -> None:
        """Close a broken connection and wait, unless there was progress; the next read opens another."""
        self.close()
        pause = self._patience.pause("store")
        if pause is None:
            part = self._part
            detail = f"{self._s3.endpoint}: broke off at byte {self._position} each time: {error}"
            raise S3Error(0, type(error).__name__, part.bucket, part.key, detail) from error
        time.sleep(pause)


@contextmanager
def stream(s3: S3, part: Part, passed: Callable[[int], None] = lambda count: None) -> Iterator[Stream]:
    """A context manager of a stream, which closes its connection at the end."""
    opened = Stream(s3, part, passed)
    try:
        yield opened
    finally:
        opened.close()
