"""Whole objects as open files: of the cache itself if the gateway is on this machine, else read by GET.

A gateway with a unix socket passes the files of an object's parts, so its bytes are copied only once, from the page cache into
the caller's buffer. Use this for large objects that one process reads whole, such as model weights.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from larder.base.later import Unpack
from larder.http.local import close_all
from larder.http.s3 import S3
from larder.reading.many import Entry, Many, ManyOptions, ManyReader, entry_of

_AT_ONCE = 4
"""Objects opened at once; uncached ones are loaded meanwhile."""
_THREADS = min(8, os.cpu_count() or 1)
"""Threads that fill one buffer."""
_PIECE = 4 * 1024**2
"""Bytes that a thread reads at a time."""


class FilePart(NamedTuple):
    """Bytes of an object: ``length`` of an open file, from ``offset`` on; ``start`` is the first byte's place in the object."""

    descriptor: int
    offset: int
    length: int
    start: int


class OpenObject:
    """An object that is open for reading; a context manager. Safe to share between threads.

    Attributes:
        bucket: of the object.
        key: of the object.
        size: bytes.
        etag: of the version that is open; reads by GET are of this version too.
        reason: why the bytes come by GET; empty if they come from open files.
    """

    def __init__(
        self, entry: Entry, size: int, etag: str, parts: Sequence[FilePart], store: S3, reason: str = ""
    ) -> None:
        self.bucket, self.key = entry.bucket, entry.key
        self.size = size
        self.etag = etag
        self.reason = reason
        self._parts = parts
        self._store = store
        self._close = weakref.finalize(self, close_all, [part.descriptor for part in parts])

    def __repr__(self) -> str:
        return f"OpenObject({self.bucket!r}, {self.key!r}, {self.size} bytes)"

    def __enter__(self) -> OpenObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. The object cannot be read any more."""
        self._close()

    def read(self, offset: int = 0, size: int = -1) -> memoryview:
        """``size`` bytes from ``offset`` on, or as many as there are; all of them if ``size`` is negative. Raises what `readinto`
        raises."""
        left = max(0, self.size - offset)
        # Not a bytearray, which would be filled with zeros first.
        buffer = np.empty(left if size < 0 else min(size, left), np.uint8)
        self.readinto(buffer, offset)
        return buffer.data

    def readinto(self, buffer: Any, offset: int = 0) -> int:
        """Fill a writable buffer with the bytes from ``offset`` on; returns their number.

        Raises:
            ValueError: the object is closed, or ``offset`` is negative.
            OSError: a file could not be read, or is shorter than the object's part.
            S3Error: by GET; also if the object has changed.
            GatewayUnavailable: by GET, after the retries.
        """
        if not self._close.alive:
            raise ValueError(f"{self!r} is closed")
        if offset < 0:
            raise ValueError(f"offset must be 0 or more, not {offset}")
        view = memoryview(buffer).cast("B")[: max(0, self.size - offset)]
        if not view:
            return 0
        if self.reason:
            view[:] = self._store.get(self.bucket, self.key, offset=offset, length=len(view), if_match=self.etag)
            return len(view)
        pieces = [(at, min(_PIECE, len(view) - at)) for at in range(0, len(view), _PIECE)]
        if len(pieces) == 1:
            self._fill(view, offset)
            return len(view)
        with ThreadPoolExecutor(min(_THREADS, len(pieces))) as pool:
            list(pool.map(lambda piece: self._fill(view[piece[0] : sum(piece)], offset + piece[0]), pieces))
        return len(view)

    def _fill(self, view: memoryview, start: int) -> None:
        stop = start + len(view)
        for descriptor, offset, count, first in self._parts:
            begin, end = max(start, first), min(stop, first + count)
            while begin < end:
                read = os.preadv(descriptor, [view[begin - start : end - start]], offset + begin - first)
                if not read:
                    raise OSError(f"a file of {self.bucket}/{self.key} ended {end - begin} bytes early")
                begin += read


def open_objects(entries: Many, *, endpoint: str | None = None, **options: Unpack[ManyOptions]) -> list[OpenObject]:
    """Open whole objects, such as model weights; uncached ones are loaded. The caller closes them.

    Through the unix socket of a gateway on this machine, users other than root and the gateway's get open files of the cache.
    Otherwise the objects are read by GET, and their ``reason`` says why.

    Args:
        entries: the objects, without ranges and members; see `Readable`.
        endpoint: address of the gateway; when left out, ``LARDER_ENDPOINT`` or ``AWS_ENDPOINT_URL``.
        options: see `ManyOptions`.

    Raises:
        ObjectMissing: an object or bucket does not exist.
        S3Error: an object cannot be read, after the retries; ``code`` is S3's.
        GatewayUnavailable: the gateway does not answer, after the retries.
        RequestRefused: the gateway refuses the caller.
        ValueError: an entry has no bucket or key, or has a range or a member, or there is no endpoint.
    """
    wanted = [entry_of(entry) for entry in entries]
    for entry in wanted:
        if entry != Entry(entry.bucket, entry.key):
            raise ValueError(f"only whole objects are opened, not a range or a member: {entry}")
    reader = ManyReader(endpoint, **options)
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # After an error, nothing refers to the opened objects, so they are closed.
            return list(pool.map(lambda entry: _open(reader, entry), wanted))
    finally:
        reader.close()


def _open(reader: ManyReader, entry: Entry) -> OpenObject:
    document, descriptors = reader.open(entry)
    store = reader.s3
    if reason := document.get("reason"):
        head = store.head(entry.bucket, entry.key)
        return OpenObject(entry, head.size, head.etag, (), store, str(reason))
    parts: list[FilePart] = []
    start = 0
    for descriptor, (offset, count) in zip(descriptors, document["parts"], strict=True):
        parts.append(FilePart(descriptor, offset, count, start))
        start += count
    return OpenObject(entry, start, str(document["etag"]), parts, store)
