"""Reading an object and hashing its items: the unit of work of a build, in threads or on a cluster."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from operator import index as whole_number
from typing import NamedTuple

from larder.base.errors import DigestFileError, LarderError, ObjectChanged
from larder.base.tar import TarError
from larder.digest.items import TAR_MEMBERS, TAR_SAMPLES, Index, IndexFailed, Items
from larder.digest.journal import ItemDigest, Object
from larder.digest.ranges import Range, digests, runs
from larder.digest.tar import Member, Read, members, samples
from larder.http.s3 import S3
from larder.http.stream import PIECE, Part, stream

_ATTEMPTS = 4
"""The most reads of an object that is overwritten while it is read."""
_MIN_LOOKUPS = 32
"""Lookups of supplied digests after which a store that supplies less than a quarter of them is not asked again."""

_IN_TARS = {TAR_MEMBERS: members, TAR_SAMPLES: samples}


class Cancelled(LarderError):
    """The build was stopped while an object was being read."""


class Task(NamedTuple):
    """An object to read, as the store listed it; ``etag`` with its quotes."""

    key: str
    etag: str
    size: int


class Done(NamedTuple):
    """An object that was read; ``supplied``: its digest came from the store, without reading its bytes."""

    read: Object
    supplied: bool = False


class Reader:
    """Reads objects of one bucket. Safe to share between threads and to pickle.

    Args:
        s3: the store.
        bucket: bucket of the objects.
        items: kind of the items.
        supplied: whether to use the store's full-object SHA-256 as the digest.
    """

    def __init__(self, s3: S3, bucket: str, items: Items, *, supplied: bool = True) -> None:
        self.s3 = s3
        self.bucket = bucket
        self.items = items
        self.bytes = 0
        self._supplied = supplied
        self._asked = 0
        self._had = 0
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_stopped")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start()

    def stop(self) -> None:
        """End all reads in progress soon, with ``Cancelled``."""
        self._stopped.set()

    def __call__(self, task: Task) -> Done:
        """Read an object; one that changes during the read is read again.

        Raises:
            ObjectMissing: the object does not exist any more.
            ObjectChanged: it changed every time.
            S3Error: the store refuses, or fails every time.
            DigestFileError: the object has the wrong content.
            IndexFailed: the user's function failed.
            Cancelled: after ``stop``.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._read(task)
            except ObjectChanged:
                head = self.s3.head(self.bucket, task.key)
                task = Task(task.key, quoted(head.etag), head.size)
        return self._read(task)

    def _read(self, task: Task) -> Done:
        if self.items.index is not None:
            return Done(self._indexed(task, self.items.index))
        if (find := _IN_TARS.get(self.items.name)) is not None:
            return Done(self._in_tar(task, find))
        digest = self._supplied_digest(task)
        sha256 = self._whole(task) if digest is None else digest
        return Done(_object(task, [ItemDigest(None, task.size, sha256)]), supplied=digest is not None)

    def _whole(self, task: Task) -> bytes:
        hashed = hashlib.sha256()
        with stream(self.s3, self._part(task), self._passed) as data:
            while piece := data.read(PIECE):
                hashed.update(piece)
        return hashed.digest()

    def _in_tar(self, task: Task, find: Callable[[Read], Iterable[Member]]) -> Object:
        with stream(self.s3, self._part(task), self._passed) as data:
            try:
                contained = [
                    ItemDigest(member.offset, member.length, member.digest, member.name) for member in find(data.read)
                ]
            except TarError as error:
                raise DigestFileError(f"{self.bucket}/{task.key!r} is not a TAR archive: {error}") from error
        return _object(task, contained)

    def _indexed(self, task: Task, index: Index) -> Object:
        ranges = self._ranges(task, index)
        by_range: dict[int, bytes] = {}
        for run in runs(ranges):
            with stream(self.s3, self._part(task, run.start, run.stop), self._passed) as data:
                by_range |= digests(data.read, run, ranges)
        return _object(task, [ItemDigest(*span, by_range[number]) for number, span in enumerate(ranges)])

    def _ranges(self, task: Task, index: Index) -> list[Range]:
        def read(offset: int, length: int) -> bytes:
            self._passed(length)
            return self.s3.get(self.bucket, task.key, offset=offset, length=length, if_match=task.etag or None)

        try:
            stretches = index(self.bucket, task.key, task.size, read)
            ranges = sorted(Range(whole_number(offset), whole_number(length)) for offset, length in stretches)
            for span in ranges:
                if span.offset < 0 or span.length < 0 or span.stop > task.size:
                    raise ValueError(f"{span.length} bytes from {span.offset} on do not lie in {task.size} bytes")
        except LarderError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise IndexFailed(f"{self.items.name} of {self.bucket}/{task.key!r} failed: {what}") from error
        return ranges

    def _supplied_digest(self, task: Task) -> bytes | None:
        """The digest that the store supplies, if any. A store that supplies few digests is not asked again."""
        if not self._supplied or not (self._asked < _MIN_LOOKUPS or 4 * self._had >= self._asked):
            return None
        head = self.s3.head(self.bucket, task.key)
        if quoted(head.etag) != task.etag or head.size != task.size:
            raise ObjectChanged(
                412, "PreconditionFailed", self.bucket, task.key, "it was overwritten after it was listed"
            )
        with self._lock:
            self._asked += 1
            self._had += head.sha256 is not None
        return head.sha256

    def _part(self, task: Task, start: int = 0, stop: int | None = None) -> Part:
        return Part(self.bucket, task.key, task.etag, task.size, start, task.size if stop is None else stop)

    def _passed(self, count: int) -> None:
        if self._stopped.is_set():
            raise Cancelled("stopped")
        with self._lock:
            self.bytes += count


def quoted(etag: str) -> str:
    """An ETag in the form for If-Match; some stores list it without its quotes."""
    return etag if not etag or etag.startswith(('"', "W/")) else f'"{etag}"'


def _object(task: Task, items: list[ItemDigest]) -> Object:
    return Object(task.key, task.etag, task.size, tuple(items))
