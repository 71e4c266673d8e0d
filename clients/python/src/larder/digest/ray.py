"""The same build as Ray Data tasks, for buckets that one machine's network is too slow for. Needs the extra ``ray``.

The calling process lists, keeps the journal and writes the file; the tasks, wherever Ray runs them, read and hash. So an
interrupted build resumes as on one machine, and gives the same file.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data

from larder.base.errors import LarderError
from larder.digest.building import Options, Report, build_with
from larder.digest.items import Index
from larder.digest.journal import Object, packed, unpacked
from larder.digest.pool import Outcome, concurrently
from larder.digest.progress import BuildProgress
from larder.digest.reading import Done, Reader, Task
from larder.http.credentials import Credentials, CredentialSource
from larder.http.s3 import S3

# One Ray task: large enough to be worth starting, and small enough that a lost machine costs little.
_OBJECTS_PER_TASK = 1024
"""The most objects of one Ray task."""
_BYTES_PER_TASK = 1 << 30
"""The most bytes of one Ray task."""
_TASKS = pa.schema([("key", pa.string()), ("etag", pa.string()), ("size", pa.int64())])
_DONE = pa.schema(
    [
        *_TASKS,
        ("read_etag", pa.string()),
        ("read_size", pa.int64()),
        ("items", pa.large_binary()),
        ("members", pa.large_string()),
        ("supplied", pa.bool_()),
        ("error", pa.large_binary()),
        ("bytes", pa.int64()),
    ]
)


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
) -> Report:
    """Write the digest file of all objects below a prefix, read by the tasks of a Ray cluster.

    Arguments, results and errors are those of ``larder.digest.build``, with these differences. ``jobs`` is the number of
    objects that each task reads at once; a task asks for one CPU. Credentials that are given go to the tasks; when they are
    left out, each machine looks for its own. A function that ``items`` names must be importable there. The build uses an
    initialized Ray, or lets ``ray.data`` start it.

    Raises:
        ray.exceptions.RayError: the cluster fails.
    """
    options = Options(items, include, exclude, fresh, supplied, progress, skip_incomplete)
    s3 = S3(endpoint, credentials=credentials)
    return build_with(lambda reader, tasks: _on_cluster(reader, tasks, jobs), s3, source, Path(file), options)


def _on_cluster(reader: Reader, tasks: Iterator[Task], jobs: int) -> Iterator[Outcome[Task, Done]]:
    blocks = [_table(group, _TASKS) for group in _groups(tasks)]
    if not blocks:
        return
    read: Any = partial(_read, reader=reader, jobs=jobs)
    data = ray.data.from_arrow(blocks).map_batches(read, batch_size=None, batch_format="pyarrow", zero_copy_batch=True)
    batches: Any = data.iter_batches(batch_size=None, batch_format="pyarrow")
    for batch in batches:
        for row in batch.to_pylist():
            reader.bytes += row["bytes"]
            yield _outcome(row)


def _groups(tasks: Iterator[Task]) -> Iterator[list[Task]]:
    group: list[Task] = []
    total = 0
    for task in tasks:
        if group and (len(group) == _OBJECTS_PER_TASK or total + task.size > _BYTES_PER_TASK):
            yield group
            group, total = [], 0
        group.append(task)
        total += task.size
    if group:
        yield group


def _table(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _read(batch: pa.Table, reader: Reader, jobs: int) -> pa.Table:
    """One task: read the objects of one block."""
    rows = []
    before = reader.bytes
    for outcome in concurrently(reader, (Task(**row) for row in batch.to_pylist()), jobs):
        rows.append((*outcome.task, *_fields(outcome), reader.bytes - before))
        before = reader.bytes
    return _table(rows, _DONE)


def _fields(outcome: Outcome[Task, Done]) -> tuple[Any, ...]:
    if outcome.result is None:
        error = outcome.error
        if not isinstance(error, LarderError):
            error = LarderError(f"{type(error).__name__}: {error}")
        return None, None, None, None, False, pickle.dumps(error)
    read = outcome.result.read
    data, members = packed(read.items)
    return read.etag, read.size, data, members, outcome.result.supplied, None


def _outcome(row: dict[str, Any]) -> Outcome[Task, Done]:
    task = Task(row["key"], row["etag"], row["size"])
    if row["error"] is not None:
        return Outcome(task, error=pickle.loads(row["error"]))  # noqa: S301 - from our own task
    items = unpacked(row["items"], row["members"])
    return Outcome(task, Done(Object(row["key"], row["read_etag"], row["read_size"], items), row["supplied"]))
