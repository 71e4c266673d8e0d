"""Reads items again and compares them with their digests."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from larder.base.errors import LarderError, ObjectChanged, ObjectMissing, S3Error
from larder.digest.file import DigestFile, Location
from larder.digest.pool import concurrently
from larder.digest.progress import BuildProgress, Counts, Silent, shown
from larder.digest.ranges import Range, digests, runs
from larder.http.s3 import S3
from larder.http.stream import PIECE, Part, stream


@dataclass(frozen=True)
class Finding:
    """An item that differs from the digest file.

    Args:
        index: its row.
        location: where it should be.
        status: ``"missing"``, ``"changed"``, ``"refused"`` (no right to read it) or ``"unavailable"``.
        detail: the store's message.
    """

    index: int
    location: Location
    status: str
    detail: str


class _Task(NamedTuple):
    bucket: str
    key: str
    items: tuple[tuple[int, Location], ...]


def sample(items: int, size: int, seed: int | None = None) -> list[int]:
    """``size`` random indices below ``items``, or all of them, in ascending order."""
    return sorted(random.Random(seed).sample(range(items), min(size, items)))  # noqa: S311


def verify(
    file: DigestFile,
    s3: S3,
    indices: Sequence[int],
    *,
    jobs: int = 16,
    counts: Counts | None = None,
    progress: BuildProgress | None = None,
) -> Iterator[Finding]:
    """Read items again; yields items that differ from the file, as they are found.

    Args:
        file: the file to verify.
        s3: the store.
        indices: of the items; items of one object that follow each other are read together.
        jobs: objects read at once.
        counts: updated while items are verified, and passed to ``progress``; its objects are items here.
        progress: receives the progress.
    """
    counts = counts if counts is not None else Counts()
    counts.of_objects, counts.listing = len(indices), False
    known = file.lengths[list(indices)] if len(indices) else file.lengths[:0]
    counts.of_bytes = int(known[known >= 0].sum())

    def check(task: _Task) -> list[Finding]:
        return list(_check(file, s3, task))

    with shown(progress or Silent(), counts, lambda: counts.bytes):
        for outcome in concurrently(check, _tasks(file, indices), jobs):
            if outcome.error is not None:
                raise outcome.error
            counts.objects += len(outcome.task.items)
            counts.bytes += sum(location.length or 0 for _, location in outcome.task.items)
            yield from outcome.result or ()


def _tasks(file: DigestFile, indices: Sequence[int]) -> Iterator[_Task]:
    located = ((index, file.location(index)) for index in indices)
    for (bucket, key), items in groupby(located, lambda pair: pair[1][:2]):
        yield _Task(bucket, key, tuple(items))


def _check(file: DigestFile, s3: S3, task: _Task) -> Iterator[Finding]:
    try:
        hashed = _digests(s3, task)
    except LarderError as error:
        status = _status(error)
        yield from (Finding(index, location, status, str(error)) for index, location in task.items)
        return
    for index, location in task.items:
        if index not in hashed:
            yield Finding(index, location, "changed", "the object ends before the item does")
        elif hashed[index] != file.digest(index):
            yield Finding(index, location, "changed", "its bytes have another digest")


def _digests(s3: S3, task: _Task) -> dict[int, bytes]:
    """The digest of each item by index, for items within the object."""
    bounded = [(index, at) for index, at in task.items if at.offset is not None and at.length is not None]
    open_ended = [(index, at) for index, at in task.items if at.offset is None or at.length is None]
    hashes: dict[int, bytes] = {}
    for index, at in open_ended:
        try:
            hashes[index] = _to_the_end(s3, at)
        except S3Error as error:
            if error.status != 416:
                raise
    ranges = [Range(at.offset or 0, at.length or 0) for _, at in bounded]
    for run in runs(ranges):
        try:
            with stream(s3, Part(task.bucket, task.key, start=run.start, stop=run.stop)) as data:
                hashed = digests(data.read, run, ranges)
        except S3Error as error:
            if error.status != 416:
                raise
            continue
        hashes |= {bounded[number][0]: digest for number, digest in hashed.items()}
    return hashes


def _to_the_end(s3: S3, at: Location) -> bytes:
    hashed = hashlib.sha256()
    try:
        with stream(s3, Part(at.bucket, at.key, start=at.offset or 0)) as data:
            while piece := data.read(PIECE):
                hashed.update(piece)
    except S3Error as error:
        # S3 has no range that begins at the end of an object, where an empty item may be.
        if error.status != 416 or s3.head(at.bucket, at.key).size != at.offset:
            raise
    return hashed.digest()


def _status(error: LarderError) -> str:
    if isinstance(error, ObjectMissing):
        return "missing"
    if isinstance(error, ObjectChanged):
        return "changed"
    return "refused" if isinstance(error, S3Error) and error.status in (401, 403) else "unavailable"
