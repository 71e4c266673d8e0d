"""Building a digest file: list, read new and changed objects, write.

A journal beside the file keeps the results, so that a killed build resumes. Objects whose ETag and size are unchanged since an
earlier file of the same name are taken from it instead of being read.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from larder.base.errors import LarderError, ObjectMissing
from larder.digest.items import Index, Items
from larder.digest.journal import Journal
from larder.digest.pool import Outcome, ahead, concurrently
from larder.digest.previous import previous_objects
from larder.digest.progress import BuildProgress, Counts, Silent, Written, is_terminal, shown
from larder.digest.reading import Done, Reader, Task, quoted
from larder.digest.writer import Row, write
from larder.http.credentials import Credentials, CredentialSource
from larder.http.s3 import S3, ListedObject

Run = Callable[[Reader, Iterator[Task]], Iterator[Outcome[Task, Done]]]
"""Executes tasks; the calling thread takes them from the iterator."""

_LISTED_AHEAD = 1 << 16
"""The most objects that are listed ahead of reading."""
_MOST_FAILURES = 100
"""The most failures that are kept for the report."""


class Failure(NamedTuple):
    """An object that could not be read."""

    key: str
    detail: str


class BuildIncomplete(LarderError):
    """Some objects could not be read, or there are no items, so no digest file was written. An earlier file stays, and results
    are kept for the next build.

    Args:
        message: the full text.
        failures: one per object, up to a hundred.
    """

    def __init__(self, message: str, failures: Sequence[Failure] = ()) -> None:
        self.failures = tuple(failures)
        super().__init__(message)


@dataclass
class Report:
    """The result of a build.

    Args:
        file: the written file.
        id: id of the dataset.
        items: rows of the file.
        objects: objects that hold the items.
        bytes: size of those objects.
        objects_read: objects whose bytes were read.
        bytes_read: bytes read from the store; repeated reads count again.
        unchanged: objects known from an earlier build, or from this one before an interruption.
        supplied: objects whose SHA-256 came from the store.
        vanished: objects deleted during the build, which are left out.
        folders: empty objects whose key ends in "/", which some tools create as folders; they are left out.
        samples: samples that the items form, if items are members of samples.
        incomplete: samples without all members, which are left out.
    """

    file: str
    id: str = ""
    items: int = 0
    objects: int = 0
    bytes: int = 0
    objects_read: int = 0
    bytes_read: int = 0
    unchanged: int = 0
    supplied: int = 0
    vanished: int = 0
    folders: int = 0
    samples: int = 0
    incomplete: int = 0


@dataclass(frozen=True)
class Options:
    """The arguments of ``build`` that select objects and the way to read them."""

    items: str | Index = "objects"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    fresh: bool = False
    supplied: bool = True
    progress: BuildProgress | bool | None = None
    skip_incomplete: bool = False


def build(
    source: str,
    file: str | os.PathLike[str],
    *,
    endpoint: str | None = None,
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None,
    items: str | Index = "objects",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    jobs: int = 16,
    fresh: bool = False,
    supplied: bool = True,
    progress: BuildProgress | bool | None = None,
    skip_incomplete: bool = False,
    request_payer: bool | None = None,
) -> Report:
    """Write the digest file of all objects below a prefix, ordered by key and offset.

    Unchanged objects give an equal file, byte for byte. An interrupted build continues when it is called again.

    Args:
        source: ``s3://bucket/prefix``.
        file: to write; an existing file is used, and replaced when the new one is complete.
        endpoint: of the store, or of a gateway; from the environment when left out.
        credentials: for it; from the usual places when left out.
        items: ``"objects"``, ``"samples:jpg,cls"`` for objects that together form a sample (named with the largest first),
            ``"tar-members"``, ``"tar-samples"``, ``"row-groups"`` of Parquet files, ``"module:function"``, or a function
            ``items(bucket, key, size, read)`` that gives offset and length of each item in an object; ``read(offset, length)``
            gives the object's bytes.
        include: patterns of keys to take (``*`` also crosses "/"); none takes all.
        exclude: patterns of keys to leave out.
        jobs: objects read at once.
        fresh: read everything again, ignoring earlier results.
        supplied: if the store has a full-object SHA-256, use it as the object's digest instead of reading the object.
        progress: by default a bar on standard error if that is a terminal. ``True``: also a line every half minute elsewhere.
            ``False``: nothing.
        skip_incomplete: leave out samples that lack a member, and count them.
        request_payer: whether to accept the charges of a requester-pays bucket. By default the first refused request is
            repeated by a requester who pays, and a warning is logged if that helps; ``False`` never pays.

    Raises:
        ValueError: the source or the endpoint is not an address, ``jobs`` is not positive, or members are not named.
        S3Error: the bucket cannot be listed.
        BuildIncomplete: objects could not be read, samples lack members, or there are no items.
        DigestFileError: ``file`` is something else, damaged, or being built by another process.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs}")
    options = Options(items, include, exclude, fresh, supplied, progress, skip_incomplete)
    s3 = S3(endpoint, credentials=credentials, request_payer=request_payer)
    return build_with(lambda reader, tasks: concurrently(reader, tasks, jobs), s3, source, Path(file), options)


def build_with(run: Run, s3: S3, source: str, path: Path, options: Options) -> Report:
    """``build``, with ``run`` to execute the tasks."""
    bucket, prefix = parse_source(source)
    reader = Reader(s3, bucket, Items.of(options.items), supplied=options.supplied)
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a directory")
    known = previous_objects(path, bucket, reader.items.name) if path.exists() else iter(())
    try:
        with Journal(partial(path), f"{reader.items.name} of s3://{bucket}", fresh=options.fresh) as journal:
            if not journal.filled:
                journal.fill(() if options.fresh else known)
            work = _Build(journal, reader, options, Report(str(path)), source)
            with shown(progress_of(options.progress), work.counts, lambda: reader.bytes):
                work.read(lambda: s3.list(bucket, prefix, fresh=True), run)
            return work.write(path)
    finally:
        reader.stop()
        s3.close()


def parse_source(source: str) -> tuple[str, str]:
    """Bucket and prefix of ``s3://bucket/prefix``. Raises ValueError."""
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    if not source.startswith("s3://") or not bucket:
        raise ValueError(f'the source must look like "s3://bucket/prefix", not {source!r}')
    return bucket, prefix


def partial(path: Path) -> Path:
    """The path of a digest file's journal."""
    return path.with_name(path.name + ".partial")


class _Build:
    def __init__(self, journal: Journal, reader: Reader, options: Options, report: Report, source: str) -> None:
        self.counts = Counts()
        self._journal = journal
        self._reader = reader
        self._options = options
        self._report = report
        self._source = source
        self._failures: list[Failure] = []
        self._missing: set[str] = set()

    def read(self, listing: Callable[[], Iterable[ListedObject]], run: Run) -> None:
        """Bring the journal up to date. Raises BuildIncomplete."""
        for outcome in run(self._reader, self._tasks(ahead(listing(), _LISTED_AHEAD))):
            self._settle(outcome)
            if len(self._failures) >= _MOST_FAILURES:
                break
        if self._missing and not self._failures:
            self._look_again(listing())
        if self._failures:
            raise BuildIncomplete(self._complaint(), self._failures)

    def _look_again(self, listed: Iterable[ListedObject]) -> None:
        """Distinguish deleted objects from objects that something on the way cannot address, which must not make the dataset
        smaller."""
        still = self._missing.intersection(entry.key for entry in listed)
        detail = "{}/{!r} is listed, but reading it finds nothing".format
        self._failures += [Failure(key, detail(self._reader.bucket, key)) for key in sorted(still)]
        self._report.vanished = len(self._missing)

    def write(self, path: Path) -> Report:
        """Write the file from the journal, and remove the journal. Raises BuildIncomplete if there are no items."""
        report = self._report
        hashed = hashlib.sha256()
        items = self._reader.items
        rows = self._rows(hashed.update)
        if items.members:
            rows = self._part_rows(hashed.update) if items.shared else self._sample_rows(hashed.update)
        first = next(rows, None)
        if first is None:
            self._journal.discard()
            raise BuildIncomplete(f"nothing below {self._source} is an item, so no digest file was written")
        report.items = write(path, chain((first,), rows), items.name, items.members)
        report.id = hashed.hexdigest()
        report.bytes_read = self._reader.bytes
        self._journal.discard()
        return report

    def _tasks(self, listed: Iterable[ListedObject]) -> Iterator[Task]:
        counts, report = self.counts, self._report
        for entry in listed:
            task = Task(entry.key, quoted(entry.etag), entry.size)
            if not self._wanted(task.key):
                continue
            if task.key.endswith("/") and not task.size:
                report.folders += 1
                continue
            counts.of_objects += 1
            counts.of_bytes += task.size
            if task.etag and self._journal.confirm(*task):
                report.unchanged += 1
                counts.reused += 1
                self._count(task.size)
            else:
                yield task
        counts.listing = False

    def _wanted(self, key: str) -> bool:
        include, exclude = self._options.include, self._options.exclude
        if not self._reader.items.include(key):
            return False
        taken = not include or any(fnmatchcase(key, pattern) for pattern in include)
        return taken and not any(fnmatchcase(key, pattern) for pattern in exclude)

    def _settle(self, outcome: Outcome[Task, Done]) -> None:
        done, error = outcome.result, outcome.error
        if done is not None:
            self._journal.record(done.read)
            self._report.supplied += done.supplied
            self._report.objects_read += not done.supplied
        elif isinstance(error, ObjectMissing) and error.code != "NoSuchBucket":
            self._journal.forget(outcome.task.key)
            self._missing.add(outcome.task.key)
        else:
            detail = str(error) if isinstance(error, LarderError) else f"{type(error).__name__}: {error}"
            self._failures.append(Failure(outcome.task.key, detail))
        self._count(outcome.task.size)

    def _count(self, size: int) -> None:
        self.counts.objects += 1
        self.counts.bytes += size

    def _rows(self, hashed: Callable[[bytes], None]) -> Iterator[Row]:
        bucket, report = self._reader.bucket, self._report
        for known in self._journal.objects():
            report.objects += 1
            report.bytes += known.size
            for item in known.items:
                hashed(item.digest)
                yield Row(item.digest, bucket, known.key, item.offset, item.length, known.etag, known.size, item.member)

    def _part_rows(self, hashed: Callable[[bytes], None]) -> Iterator[Row]:
        """The rows of an object's parts, each followed by the last part, which all of them need."""
        bucket, report, members = self._reader.bucket, self._report, self._reader.items.members
        for known in self._journal.objects():
            report.objects += 1
            report.bytes += known.size
            *parts, last = known.items
            for part in parts:
                report.samples += 1
                for item, member in zip((part, last), members, strict=True):
                    hashed(item.digest)
                    yield Row(item.digest, bucket, known.key, item.offset, item.length, known.etag, known.size, member)

    def _sample_rows(self, hashed: Callable[[bytes], None]) -> Iterator[Row]:
        """The rows of each sample's members, adjacent. Raises BuildIncomplete at the end if samples lack members."""
        bucket, report, members = self._reader.bucket, self._report, self._reader.items.members
        lacking: list[Failure] = []
        for name, sample in self._journal.samples():
            if missing := [member for member in members if member not in sample]:
                report.incomplete += 1
                if len(lacking) < _MOST_FAILURES:
                    lacking.append(Failure(name, f"{name} lacks {', '.join(missing)}"))
                continue
            report.samples += 1
            for member in members:
                known = sample[member]
                (item,) = known.items
                report.objects += 1
                report.bytes += known.size
                hashed(item.digest)
                yield Row(item.digest, bucket, known.key, item.offset, item.length, known.etag, known.size, member)
        if lacking and not self._options.skip_incomplete:
            raise BuildIncomplete(self._lacking(lacking), lacking)

    def _lacking(self, lacking: Sequence[Failure]) -> str:
        many, complete = self._report.incomplete, self._report.samples
        what = f"{many:,} sample{'s' * (many != 1)} lack{'s' * (many == 1)} members, beside {complete:,} with all"
        return (
            f"{what}, so no digest file was written; what was read is kept in {self._journal.path}: add what is missing, or"
            f" --exclude these or --skip-incomplete, and build again{_listed(lacking, many)}"
        )

    def _complaint(self) -> str:
        failures = self._failures
        many = f"{len(failures)} object{'s' * (len(failures) != 1)}"
        many += " or more" * (len(failures) >= _MOST_FAILURES)
        return (
            f"{many} could not be read, so no digest file was written; what was read is kept in {self._journal.path}:"
            f" remedy or --exclude these and build again{_listed(failures, len(failures))}"
        )


def _listed(failures: Sequence[Failure], count: int) -> str:
    """The first of ``count`` failures, one per line."""
    lines = "".join(f"\n  {failure.detail}" for failure in failures[:10])
    return f"{lines}\n  and {count - 10:,} more" if count > 10 else lines


def progress_of(given: BuildProgress | bool | None) -> BuildProgress:
    """The progress display of a build; see ``build``."""
    if given is None or isinstance(given, bool):
        shows = is_terminal(sys.stderr) if given is None else given
        return Written(sys.stderr) if shows else Silent()
    return given
