"""An object store of limited bandwidth, in a separate process, which counts its reads."""

from __future__ import annotations

import hashlib
import logging
import math
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from larder.digest.writer import Row, write
from rig.origin import FakeOrigin, OriginThread
from rig.origin_auth import User
from rig.origin_pace import SendingPace

KEY, SECRET = "origin", "origin-secret"
BUCKET = "data"
Put = Callable[[FakeOrigin], None]
"""Fills a store."""


@dataclass(frozen=True)
class Data:
    """A dataset of random items of one length: separate objects, or adjacent parts of ``shards`` larger objects."""

    name: str
    items: int
    length: int
    shards: int = 0

    @property
    def size(self) -> int:
        """Bytes of all items."""
        return self.items * self.length

    def key(self, number: int) -> str:
        """The key of an item's object."""
        return f"{self.name}/{number // self.per_object:06}"

    @property
    def per_object(self) -> int:
        """Items of an object; the last has fewer if they do not divide evenly."""
        return math.ceil(self.items / self.shards) if self.shards else 1

    def objects(self) -> Iterator[tuple[str, bytes]]:
        """Keys and bytes of the store's objects."""
        items = self.contents()
        for first in range(0, self.items, self.per_object):
            yield self.key(first), b"".join(islice(items, self.per_object))

    def contents(self) -> Iterator[bytes]:
        """The items, the same every time."""
        generator = np.random.default_rng(list(self.name.encode()))
        for _ in range(self.items):
            yield generator.bytes(self.length)

    def digests(self, directory: Path) -> Path:
        """Write the dataset's digest file."""
        path = directory / f"{self.name}.parquet"
        rows = [self._row(number, item) for number, item in enumerate(self.contents())]
        write(path, rows, "ranges" if self.shards else "objects")
        return path

    def _row(self, number: int, item: bytes) -> Row:
        place = number % self.per_object
        size = min(self.per_object, self.items - number + place) * self.length
        offset = place * self.length if self.shards else None
        return Row(hashlib.sha256(item).digest(), BUCKET, self.key(number), offset, self.length, "", size, None)


class Origin:
    """An origin in another process, for any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asking = threading.Lock()
        self.port: int = connection.recv()

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def reads(self, data: Data) -> float:
        """Items of a dataset read so far: the bytes requested by GETs, divided by an item's length."""
        asked: int = self._ask("reads", data.name, data.per_object * data.length)
        return asked / data.length

    def limit(self, bandwidth: float, latency: float = 0.0, data: Data | None = None) -> None:
        """Limit the bytes per second of a dataset, or of all together, from now on; 0 for no limit."""
        self._ask("limit", f"/{BUCKET}/{data.name}/" if data else "/", bandwidth, latency)

    def _ask(self, *question: object) -> Any:
        with self._asking:
            self._connection.send(question)
            return self._connection.recv()


@contextmanager
def origin(data: Sequence[Data], bandwidth: float, latency: float = 0.0) -> Iterator[Origin]:
    """A store with these datasets."""
    with _running(partial(_put_data, tuple(data)), bandwidth, latency) as running:
        yield running


@contextmanager
def origin_of_files(directory: Path, bucket: str, bandwidth: float, latency: float) -> Iterator[Origin]:
    """A store with the files of a directory in a bucket."""
    with _running(partial(_put_files, directory, bucket), bandwidth, latency) as running:
        yield running


@contextmanager
def _running(put: Put, bandwidth: float, latency: float) -> Iterator[Origin]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, put), daemon=True)
    process.start()
    try:
        running = Origin(here)
        running.limit(bandwidth, latency)
        yield running
    finally:
        here.send(None)
        process.join(10)


def _put_data(data: tuple[Data, ...], store: FakeOrigin) -> None:
    for dataset in data:
        for key, body in dataset.objects():
            store.put(BUCKET, key, body)


def _put_files(directory: Path, bucket: str, store: FakeOrigin) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            store.put(bucket, path.relative_to(directory).as_posix(), path.read_bytes())


def _serve(connection: Connection, put: Put) -> None:
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # readers may leave at any time
    with OriginThread([User(KEY, SECRET)]) as store:
        put(store)
        connection.send(store.port)
        while (question := connection.recv()) is not None:
            if question[0] == "reads":
                _, name, whole = question
                gets = (
                    seen
                    for seen in store.seen
                    if seen.method == "GET" and seen.raw_path.startswith(f"/{BUCKET}/{name}/")
                )
                connection.send(sum(_asked(seen.header("range"), whole) for seen in gets))
            else:
                _, prefix, bandwidth, latency = question
                store.paces.pop(prefix, None)
                if bandwidth:
                    store.paces[prefix] = SendingPace(bandwidth, latency)
                connection.send(None)


def _asked(header: str, whole: int) -> int:
    """The bytes that a GET requests: those of its Range header, or the whole object."""
    if not header:
        return whole
    first, last = header.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1
