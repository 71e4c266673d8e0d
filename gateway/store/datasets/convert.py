"""``python -m gateway.store.datasets.convert FILE FOLDER``: converts a digest file to the files of a dataset.

Only this module and columns.py import pyarrow. It runs in a separate process, because pyarrow is heavy and the file untrusted:
the process may be killed for its memory or its time. ``FOLDER/job.json`` has its limits. It prints ``ready`` when its turn has
come, then one line of JSON: the content of the file, or the error in it. Its output in FOLDER (``content/``, ``locations``) is
complete only with status 0.

The file is read in batches, so it needs memory for one batch and the remembered keys (writing.py), and at the end for sorting
the digests: 40 bytes per item.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.model.datasets import MAX_ITEMS
from gateway.policies.items.dataset_quota import Limit
from gateway.store.datasets import layout
from gateway.store.datasets.columns import BadFile, check_schema, members_of, read_columns
from gateway.store.datasets.writing import Budget, IndexWriter, LocationsWriter

BATCH = 64 * 1024
"""Rows read at once."""


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """The content of ``job.json``; see ``conversion``."""

    allow: tuple[str, ...] = ()
    memory: int = 0
    items: int = MAX_ITEMS
    output: int = sys.maxsize
    reserve: int = 0
    turns: tuple[str, ...] = ()


def convert(source: Path, folder: Path, job: ConversionJob) -> dict[str, Any]:
    """Make the files; returns the description of the dataset.

    Raises:
        BadFile: the digest file is invalid.
        OSError: the files cannot be written.
        MemoryError: the digest file needs too much memory.
    """
    budget = Budget(job.output, job.reserve)
    with pq.ParquetFile(source, memory_map=False) as file:
        check_schema(file.schema_arrow)
        items = file.metadata.num_rows
        if items > MAX_ITEMS:
            raise BadFile(f"The file has {items} rows; a dataset has at most {MAX_ITEMS} items.", "TooLarge")
        if items > job.items:
            raise BadFile(f"The file has {items} rows, more than the tenant may register.", Limit.ITEMS)
        (folder / "content").mkdir(mode=0o700)
        index = IndexWriter(folder / "content", items, budget, members_of(file.metadata.metadata or {}, items))
        locations = LocationsWriter(folder / layout.LOCATIONS, budget)
        buckets: dict[str, int] = {}
        done = 0
        for batch in _batches(file):
            if done + len(batch) > items:
                break
            columns = read_columns(batch, done, buckets, job.allow)
            index.add(columns)
            locations.add(columns)
            done += len(batch)
    if done != items:
        raise BadFile(f"The file declares {items} rows but has a different number.")
    locations.finish(buckets)
    return index.finish()


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    names = ["digest", "bucket", "key", "offset", "length"]
    yield from file.iter_batches(BATCH, columns=names, use_threads=False)


def _confine(job: ConversionJob) -> None:
    """Drop the privileges that a reader of an untrusted file does not need."""
    os.nice(10)
    if job.memory:
        resource.setrlimit(resource.RLIMIT_AS, (job.memory, job.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _take_turn(turns: Sequence[str]) -> None:
    """Wait for the first lock, then for any of the rest; they are held until this process ends."""
    locks = [os.open(turn, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for turn in turns]
    for lock in locks[:1]:
        fcntl.flock(lock, fcntl.LOCK_EX)
    for lock in locks[1:]:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return
    if len(locks) > 1:
        fcntl.flock(locks[1 + os.getpid() % (len(locks) - 1)], fcntl.LOCK_EX)


def _attempt(source: Path, folder: Path, job: ConversionJob) -> dict[str, Any]:
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
        return _unreadable(error)  # raised by Arrow
    except (pa.ArrowException, ValueError) as error:
        return _unreadable(error)


def _unreadable(error: Exception) -> dict[str, Any]:
    said = "".join(character if character.isprintable() else " " for character in str(error))
    return {"code": "InvalidDigestFile", "detail": f"The file cannot be read as Parquet: {said[:300]}"}


def main(arguments: list[str]) -> int:
    """Run one conversion; returns 0 if the files are complete."""
    source, folder = Path(arguments[0]), Path(arguments[1])
    given = folder / "job.json"
    document = json.loads(given.read_bytes()) if given.exists() else {}
    job = ConversionJob(
        **{**document, "allow": tuple(document.get("allow", ())), "turns": tuple(document.get("turns", ()))}
    )
    _take_turn(job.turns)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _confine(job)
    result = _attempt(source, folder, job)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if "id" in result else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
