"""The importance of items as sent by jobs, shared by the workers of a node.

One file in memory per job, beside the table of generations: a header with the sequence of the last part, then for each item of
the dataset a float16, and how often the epoch's list still draws it. The worker that receives a part applies it under the
file's lock; all workers map the same bytes, so they need no messages. The node's next start removes the files, like the states
of datasets (``datasets/content.py``). Each job's next part is then refused because its base is unknown, and the job sends
everything. A worker killed while applying a part leaves the mark ``writing``; the job's scores are then lost, as after a restart.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.model.importance import ScorePart
from gateway.policies.items.importance import PartVerdict, Received, verdict
from gateway.store.shared.own_files import is_own, open_own
from gateway.store.shared.table_file import TWINS

MOST_JOBS = 8
"""Jobs of one dataset whose scores a node keeps: 3 MB each for a million items."""
DIRECT, FORWARDED = 0, 1
"""How a part came: from the job's client, or from a node to which the client also sent other homes' items."""

_HEAD = 4096
"""Bytes before the scores."""
_FIELDS = np.dtype(
    [
        ("magic", "S4"),
        ("writing", "<u4"),
        ("sequence", "<u8", 2),
        ("checksum", "<u4", 2),
        ("epoch", "<u4"),
        ("scored", "<u4"),
        ("mean", "<f8"),
        ("updated", "<f8"),
        ("interval", "<f8"),
        ("job", "S600"),
    ]
)
_MAGIC = b"LDS1"
_NAMES = f"{TWINS}scores-"
_DIGITS = 24
"""Hex digits of the names of dataset and job in a file's name."""


class TooManyScorers(Exception):
    """The dataset already has the maximum number of jobs that send scores."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a part; ``sequence`` is that of the node's last part, ``scored`` the number of items with a score."""

    verdict: PartVerdict
    sequence: int
    scored: int


class JobTable:
    """One job's scores, mapped.

    Attributes:
        scores: by item; NaN where the job never scored it.
        draws: how often each item is still to come from the job's list.
    """

    def __init__(self, descriptor: int, items: int) -> None:
        status = os.fstat(descriptor)
        self.identity = (status.st_dev, status.st_ino)
        self._table = mmap.mmap(descriptor, _HEAD + 3 * items)
        self._head = np.frombuffer(self._table, _FIELDS, 1)
        self.scores: NDArray[np.float16] = np.frombuffer(self._table, np.float16, items, _HEAD)
        self.draws: NDArray[np.uint8] = np.frombuffer(self._table, np.uint8, items, _HEAD + 2 * items)

    @property
    def job(self) -> str:
        """``tenant/job``; empty until the worker that creates the file has written it."""
        return bytes(self._head["job"][0]).decode()

    @property
    def nbytes(self) -> int:
        """Bytes of memory, which all workers share."""
        return len(self._table)

    @property
    def whole(self) -> bool:
        """Whether the last part was applied completely."""
        return not self._head["writing"][0]

    @property
    def stamp(self) -> tuple[int, int, int, int]:
        """A value that changes with every part."""
        return (*self._head["sequence"][0].tolist(), *self._head["checksum"][0].tolist())

    def received(self, way: int) -> Received:
        """The last part received by ``way``: ``DIRECT`` or ``FORWARDED``."""
        if not self.whole:
            return Received()
        return Received(int(self._head["sequence"][0][way]), int(self._head["checksum"][0][way]))

    @property
    def scored(self) -> int:
        """The number of items with a score."""
        return int(self._head["scored"][0])

    @property
    def mean(self) -> float:
        """The mean of the scores."""
        return float(self._head["mean"][0])

    @property
    def epoch(self) -> int:
        """The epoch of the last part."""
        return int(self._head["epoch"][0])

    @property
    def updated(self) -> float:
        """When the last part arrived, in seconds since the epoch."""
        return float(self._head["updated"][0])

    @property
    def interval(self) -> float:
        """Seconds from an epoch's last part to the first one of the next epoch; 0 in the first."""
        return float(self._head["interval"][0])

    def drawn(self, indices: NDArray[np.uint32]) -> None:
        """Take a draw from each of these items. Without the lock: workers that count the same item at once lose a draw."""
        items, counts = np.unique(indices, return_counts=True)
        left = self.draws[items]
        self.draws[items] = left - np.minimum(left, counts).astype(np.uint8)

    def apply(self, part: ScorePart, checksum: int, way: int, now: float) -> None:
        """Apply a part; the caller holds the lock."""
        head, before = self._head, self.updated
        torn = not self.whole
        head["writing"] = 1
        # A client that sends each home its items may mistake the home of a few. Those are forwarded, and replace nothing that
        # the client itself sends here.
        complete = way == DIRECT or part.of_all or not head["sequence"][0][DIRECT]
        replaces = torn or (part.whole and complete)
        if replaces:
            self.scores[:] = np.nan
            head["sequence"] = head["checksum"] = 0
        if replaces or part.epoch != self.epoch:
            self.draws[:] = 0
        self.scores[part.scored] = part.scores
        self.draws[part.listed] = part.draws
        known = self.scores[~np.isnan(self.scores)]
        if before and part.epoch != self.epoch:
            head["interval"] = max(0.0, now - before)
        head["scored"], head["epoch"], head["updated"] = len(known), part.epoch, now
        head["mean"] = float(known.mean(dtype=np.float64)) if len(known) else 0.0
        head["sequence"][0][way], head["checksum"][0][way] = part.sequence, checksum
        head["writing"] = 0


class ScoreTables:
    """The scores of all jobs on this node, as one worker sees them.

    Args:
        table: of generations, beside which the files are.
    """

    def __init__(self, table: Path) -> None:
        self._table = table
        self._open: dict[str, JobTable] = {}

    def receive(
        self, job: str, dataset: str, items: int, part: ScorePart, checksum: int, way: int, now: float
    ) -> Receipt:
        """Apply a part, unless it is a repetition or its base is unknown. Blocks while another worker applies a part of the job.

        Args:
            job: ``tenant/job``.
            dataset: its id.
            items: of the dataset.
            part: the part.
            checksum: of its bytes.
            way: ``DIRECT`` or ``FORWARDED``.
            now: seconds since the epoch.

        Raises:
            TooManyScorers: the maximum number of jobs is reached.
            OSError: there is no memory for the scores.
        """
        path = self._path(dataset, job)
        if not path.exists() and len(self._paths(dataset)) >= MOST_JOBS:
            raise TooManyScorers
        with _locked(path, items, job) as table:
            last, other = table.received(way), table.received(1 - way)
            # A client behind a load balancer reaches sometimes this node and sometimes another, which forwards: both use one
            # sequence.
            last = other if part.base == other.sequence > last.sequence else last
            judgement = verdict(last, part.sequence, part.base, checksum, whole=part.whole)
            if judgement is PartVerdict.APPLY:
                table.apply(part, checksum, way, now)
            known = max(table.received(DIRECT).sequence, table.received(FORWARDED).sequence)
            return Receipt(judgement, known if judgement is PartVerdict.UNKNOWN_BASE else part.sequence, table.scored)

    def of(self, dataset: str, items: int) -> list[JobTable]:
        """The tables of a dataset, by job, except those with a part in progress or interrupted."""
        tables = {path.name: table for path in self._paths(dataset) if (table := self._mapped(path, items)) is not None}
        prefix = f"{self._table.name}{_NAMES}{dataset[:_DIGITS]}-"
        self._open = {name: table for name, table in self._open.items() if not name.startswith(prefix)} | tables
        return sorted((table for table in tables.values() if table.whole and table.scored), key=lambda table: table.job)

    def of_job(self, dataset: str, items: int, job: str) -> JobTable | None:
        """The table of one job, also without scores; ``None`` if it has sent nothing."""
        path = self._path(dataset, job)
        table = self._mapped(path, items)
        if table is not None:
            self._open[path.name] = table
        return table

    def drop(self, dataset: str, job: str) -> None:
        """Forget a job's scores."""
        self._path(dataset, job).unlink(missing_ok=True)

    def _mapped(self, path: Path, items: int) -> JobTable | None:
        try:
            status, known = path.lstat(), self._open.get(path.name)
            if status.st_size != _HEAD + 3 * items:
                return None
            if known is not None and known.identity == (status.st_dev, status.st_ino):
                return known
            descriptor = open_own(path, os.O_RDWR)
        except OSError:
            return None
        try:
            return JobTable(descriptor, items) if os.fstat(descriptor).st_size == _HEAD + 3 * items else None
        finally:
            os.close(descriptor)

    def _paths(self, dataset: str) -> list[Path]:
        return sorted(filter(is_own, self._table.parent.glob(f"{self._table.name}{_NAMES}{dataset[:_DIGITS]}-*")))

    def _path(self, dataset: str, job: str) -> Path:
        of_job = sha256(job.encode()).hexdigest()[:_DIGITS]
        return self._table.with_name(f"{self._table.name}{_NAMES}{dataset[:_DIGITS]}-{of_job}")


@contextmanager
def _locked(path: Path, items: int, job: str) -> Iterator[JobTable]:
    """The table at ``path``, locked; created if it is missing or has another size."""
    size = _HEAD + 3 * items
    while True:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            if not status.st_nlink:
                continue  # dropped since it was opened
            if status.st_size != size or os.pread(descriptor, 4, 0) != _MAGIC:
                _begin(descriptor, size, items, job, path)
            yield JobTable(descriptor, items)
            return
        finally:
            os.close(descriptor)


def _begin(descriptor: int, size: int, items: int, job: str, path: Path) -> None:
    """Create an empty table; allocate all memory now, as touching unavailable memory would kill the process."""
    try:
        os.ftruncate(descriptor, 0)
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    os.pwrite(descriptor, np.full(items, np.nan, dtype=np.float16).tobytes(), _HEAD)
    head = np.zeros(1, dtype=_FIELDS)
    head["magic"], head["job"] = _MAGIC, job.encode()
    os.pwrite(descriptor, head.tobytes(), 0)
