"""``python -m gateway.store.datasets.convert FILE FOLDER``: make a dataset's files out of a digest file.

Only this module and columns.py import pyarrow. A process of its own, because pyarrow is heavy and the file is a stranger's: this
one may be killed for its memory or its time. ``FOLDER/job.json`` says what it may use. It prints ``ready`` when its turn has
come, then one line of JSON: what the file lists, or what is wrong with it. What it leaves in FOLDER (``content/``, ``locations``)
is complete only with status 0.

The file is read in batches, and every row's place in the result is known beforehand, so memory is that of a batch, and in the
end that of sorting the digests' prefixes: 28 bytes an item.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gateway.model.datasets import MAX_ITEMS
from gateway.store.datasets import layout
from gateway.store.datasets.columns import BadFile, Columns, Row, check_schema, read_columns

BATCH = 64 * 1024
"""Rows read at once."""
_PIECE = 8 * 1024**2
_PARENT_DIED = 1


@dataclass(frozen=True, slots=True)
class Job:
    """What ``job.json`` says; see ``conversion.Limits``."""

    allow: tuple[str, ...] = ()
    memory: int = 0
    output: int = 0
    reserve: int = 0
    turn: str = ""


class Output:
    """A file of the result: written at given places, and never beyond what the job allows.

    Args:
        path: of the file, which must not exist.
        budget: shared by all files of the job.
    """

    def __init__(self, path: Path, budget: Budget) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._path = path
        self._budget = budget

    def put(self, position: int, data: bytes | memoryview) -> None:
        """Write bytes at a place."""
        left = memoryview(data)
        self._budget.spend(len(left), self._path)
        while left:
            written = os.pwrite(self._fd, left, position)
            left = left[written:]
            position += written

    def read(self, dtype: Any, count: int, position: int) -> NDArray[Any]:
        """Map what was written."""
        if not count:
            return np.empty(0, dtype)
        return np.memmap(self._path, dtype, "r", position, (count,))

    def finish(self) -> None:
        """Have it on the disk, so that a crash of the machine leaves no hole."""
        os.fsync(self._fd)
        os.close(self._fd)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class Budget:
    """Bytes that may still be written, and the free space that must stay."""

    def __init__(self, job: Job) -> None:
        self._left = job.output or sys.maxsize
        self._reserve = job.reserve

    def spend(self, size: int, path: Path) -> None:
        """Account for ``size`` bytes.

        Raises:
            BadFile: TooLarge.
            OSError: ENOSPC, when the reserve would be touched.
        """
        self._left -= size
        if self._left < 0:
            raise BadFile(
                "The dataset's index would be larger than this gateway allows; split the dataset.", "TooLarge"
            )
        status = os.statvfs(path.parent)
        if status.f_bavail * status.f_frsize < self._reserve + size:
            raise OSError(errno.ENOSPC, "the reserve of the file system is reached")


class IndexWriter:
    """Writes ``index`` and ``states``."""

    def __init__(self, folder: Path, items: int, budget: Budget) -> None:
        self._items = items
        self._file = Output(folder / layout.INDEX, budget)
        self._states = Output(folder / layout.STATES, budget)
        self._digests, self._lengths = sha256(), sha256()
        self._size = 0

    def add(self, first: int, columns: Columns) -> None:
        """Rows from number ``first`` on."""
        digests, lengths = _bytes_of(columns.digests), _bytes_of(columns.lengths)
        self._digests.update(digests)
        self._lengths.update(lengths)
        known = columns.lengths[columns.lengths != layout.NONE]
        # In halves, because a sum of 64-bit lengths can be longer than 64 bits.
        self._size += (int((known >> np.uint64(32)).sum()) << 32) + int((known & np.uint64(0xFFFFFFFF)).sum())
        self._file.put(layout.HEADER + 32 * first, digests)
        self._file.put(layout.HEADER + 32 * self._items + 8 * first, lengths)

    def finish(self) -> dict[str, Any]:
        """Sort, write the rest, and say what the dataset is."""
        items, start = self._items, layout.HEADER
        digests = self._file.read(np.uint8, 32 * items, start).reshape(items, 32)
        prefixes, order = sort_digests(digests)
        self._file.put(start + 40 * items, _bytes_of(prefixes))
        self._file.put(start + 48 * items, _bytes_of(order))
        identity = self._digests.digest()
        size = self._size.to_bytes(16, "little")
        self._file.put(0, layout.INDEX_HEADER.pack(layout.INDEX_MAGIC, items, size, identity))
        self._file.finish()
        self._write_states()
        tag = f"{identity.hex()}-{self._lengths.hexdigest()[:16]}"
        return {"id": identity.hex(), "tag": tag, "items": items, "size": self._size}

    def _write_states(self) -> None:
        # Every byte is written: to touch a hole of a mapped file on a full disk would kill the process.
        end = layout.states_size(self._items)
        for position in range(0, end, _PIECE):
            self._states.put(position, bytes(min(_PIECE, end - position)))
        self._states.put(0, layout.STATES_HEADER.pack(layout.STATES_MAGIC, self._items, 0))
        self._states.finish()


def sort_digests(digests: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The sorted prefixes, and the items in that order: by digest, equal ones by index."""
    words = digests.reshape(-1).view(">u8").reshape(-1, 4)
    prefixes = words[:, 0].astype(np.uint64)
    order = np.argsort(prefixes, kind="stable").astype(np.uint32)
    prefixes = prefixes[order]
    again = np.flatnonzero(prefixes[1:] == prefixes[:-1])
    if len(again):
        # Only equal prefixes need the rest of the digest; among strangers' bytes there are none but duplicates.
        tied = np.union1d(again, again + 1)
        items = order[tied]
        rest = words[items]
        order[tied] = items[np.lexsort((items, rest[:, 3], rest[:, 2], rest[:, 1], rest[:, 0]))]
    return prefixes, order


class LocationsWriter:
    """Writes ``locations``."""

    def __init__(self, path: Path, items: int, budget: Budget) -> None:
        self._items = items
        self._file = Output(path, budget)
        self._keys = layout.HEADER + layout.RECORD.size * items
        self._end = 0

    def add(self, first: int, columns: Columns) -> None:
        """Rows from number ``first`` on."""
        records = np.zeros(len(columns.lengths), Row)
        sizes = np.diff(columns.key_ends, prepend=0)
        records["position"] = self._end + columns.key_ends - sizes
        records["offset"], records["length"] = columns.offsets, columns.lengths
        records["bucket"], records["size"] = columns.buckets, sizes
        self._file.put(layout.HEADER + layout.RECORD.size * first, _bytes_of(records))
        self._file.put(self._keys + self._end, columns.keys)
        self._end += len(columns.keys)

    def finish(self, buckets: dict[str, int]) -> None:
        """Write the rest."""
        names = json.dumps(list(buckets)).encode()
        self._file.put(self._keys + self._end, names)
        head = layout.LOCATIONS_HEADER.pack(layout.LOCATIONS_MAGIC, self._items, self._end, len(names))
        self._file.put(0, head)
        self._file.finish()


def convert(source: Path, folder: Path, job: Job) -> dict[str, Any]:
    """Make the files; what the dataset is.

    Raises:
        BadFile: the digest file is not usable.
        OSError: the files cannot be written.
        MemoryError: the digest file takes too much.
    """
    budget = Budget(job)
    with pq.ParquetFile(source, memory_map=False) as file:
        check_schema(file.schema_arrow)
        items = file.metadata.num_rows
        if items > MAX_ITEMS:
            raise BadFile(f"The file has {items} rows; a dataset has at most {MAX_ITEMS} items.", "TooLarge")
        (folder / "content").mkdir(mode=0o700)
        index = IndexWriter(folder / "content", items, budget)
        locations = LocationsWriter(folder / layout.LOCATIONS, items, budget)
        buckets: dict[str, int] = {}
        done = 0
        for batch in _batches(file):
            if done + len(batch) > items:
                break
            columns = read_columns(batch, done, buckets, job.allow)
            index.add(done, columns)
            locations.add(done, columns)
            done += len(batch)
    if done != items:
        raise BadFile(f"The file says that it has {items} rows, but that is not what is in it.")
    locations.finish(buckets)
    return index.finish()


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    names = ["digest", "bucket", "key", "offset", "length"]
    yield from file.iter_batches(BATCH, columns=names, use_threads=False)


def _confine(job: Job) -> None:
    """Give up what a reader of a stranger's file should not have."""
    os.nice(10)
    if job.memory:
        resource.setrlimit(resource.RLIMIT_AS, (job.memory, job.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _die_with_parent() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def _attempt(source: Path, folder: Path, job: Job) -> dict[str, Any]:
    try:
        return convert(source, folder, job)
    except BadFile as problem:
        return {"code": problem.code, "detail": str(problem)}
    except (MemoryError, pa.ArrowMemoryError):
        return {"code": "TooLarge", "detail": f"Reading the file takes more than {job.memory} bytes of memory."}
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return {"code": "NoSpace", "detail": ""}
        if error.errno is not None:
            raise
        return _unreadable(error)  # Arrow's own
    except (pa.ArrowException, ValueError) as error:
        return _unreadable(error)


def _unreadable(error: Exception) -> dict[str, Any]:
    said = "".join(character if character.isprintable() else " " for character in str(error))
    return {"code": "InvalidDigestFile", "detail": f"The file cannot be read as Parquet: {said[:300]}"}


def main(arguments: list[str]) -> int:
    """Run one conversion; 0 when the dataset's files are complete."""
    _die_with_parent()
    source, folder = Path(arguments[0]), Path(arguments[1])
    given = folder / "job.json"
    document = json.loads(given.read_bytes()) if given.exists() else {}
    job = Job(**{**document, "allow": tuple(document.get("allow", ()))})
    turn = os.open(job.turn, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if job.turn else -1
    if turn >= 0:
        fcntl.flock(turn, fcntl.LOCK_EX)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _confine(job)
    result = _attempt(source, folder, job)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if "id" in result else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
