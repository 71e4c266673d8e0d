"""One pass over an object, or a part of it, that goes on where a connection broke off and notices when the object changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse

from larder.connection import TRANSIENT
from larder.digest.ranges import PIECE
from larder.errors import LarderError, ObjectChanged, S3Error
from larder.retry import Patience, Retry
from larder.s3 import S3


class Cancelled(LarderError):
    """The work was stopped while an object was being read."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is to be read: from ``start`` up to ``stop`` (``None``: to the end) of an object.

    Args:
        etag: that the object must have, with its quotes; empty for whichever it has now.
        size: that the object must have; ``None`` for whichever it has now.
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
        part: what to read.
        passed: is told the number of bytes of every piece; may raise to end the reading.
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
        """The next bytes, at least one and at most so many; nothing at the end of the part, or of the object before it.

        Raises:
            ObjectChanged: the object is another than at the beginning, or than the part says.
            ObjectMissing: it is gone.
            S3Error: the store refuses, or fails every time.
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
        """Let go of the connection."""
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
        """The first byte that the answer holds, and the size of the whole object."""
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
        """Not every store heeds If-Match."""
        part = self._part
        if self._etag and etag and etag != self._etag:
            raise ObjectChanged(
                412, "PreconditionFailed", part.bucket, part.key, f"its ETag is {etag}, not {self._etag}"
            )
        if part.size is not None and size != part.size:
            raise ObjectChanged(412, "SizeChanged", part.bucket, part.key, f"it has {size} bytes, not {part.size}")
        self._etag = self._etag or etag

    def _break(self, error: Exception) -> None:
        """The connection is gone: wait, unless something came since the last time, and open another at the next read."""
        self.close()
        pause = self._patience.pause("store")
        if pause is None:
            part = self._part
            detail = f"{self._s3.endpoint}: broke off at byte {self._position} each time: {error}"
            raise S3Error(0, type(error).__name__, part.bucket, part.key, detail) from error
        time.sleep(pause)


@contextmanager
def stream(s3: S3, part: Part, passed: Callable[[int], None] = lambda count: None) -> Iterator[Stream]:
    """A stream for the time of a ``with``."""
    opened = Stream(s3, part, passed)
    try:
        yield opened
    finally:
        opened.close()
