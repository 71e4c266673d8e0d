"""An object store of limited bandwidth, in a separate process, which counts its reads."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from gateway.testing.origin import FakeOrigin, OriginThread
from gateway.testing.origin_auth import User
from gateway.testing.origin_pace import SendingPace
from larder.digest.writer import Row, write

KEY, SECRET = "origin", "origin-secret"
BUCKET = "data"
Put = Callable[[FakeOrigin], None]
"""Fills a store."""


@dataclass(frozen=True)
class Data:
    """A dataset of random items of one length."""

    name: str
    items: int
    length: int

    @property
    def size(self) -> int:
        """Bytes of all items."""
        return self.items * self.length

    def key(self, number: int) -> str:
        """Of an item."""
        return f"{self.name}/{number:06}"

    def contents(self) -> Iterator[bytes]:
        """The items, the same every time."""
        generator = np.random.default_rng(list(self.name.encode()))
        for _ in range(self.items):
            yield generator.bytes(self.length)

    def digests(self, directory: Path) -> Path:
        """Its digest file."""
        path = directory / f"{self.name}.parquet"
        rows = [
            Row(hashlib.sha256(item).digest(), BUCKET, self.key(number), None, self.length, "", self.length, None)
            for number, item in enumerate(self.contents())
        ]
        write(path, rows, "objects")
        return path


class Origin:
    """An origin in another process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.port: int = connection.recv()

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def reads(self, data: Data) -> int:
        """GETs of a dataset's items so far."""
        count: int = self._ask("reads", data.name)
        return count

    def limit(self, bandwidth: float, latency: float = 0.0, data: Data | None = None) -> None:
        """Send so many bytes per second of a dataset, or of all together, from now on; 0: as fast as they go."""
        self._ask("limit", f"/{BUCKET}/{data.name}/" if data else "/", bandwidth, latency)

    def _ask(self, *question: object) -> Any:
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
    for each in data:
        for number, item in enumerate(each.contents()):
            store.put(BUCKET, each.key(number), item)


def _put_files(directory: Path, bucket: str, store: FakeOrigin) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            store.put(bucket, path.relative_to(directory).as_posix(), path.read_bytes())


def _serve(connection: Connection, put: Put) -> None:
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # readers that leave in the middle are no news
    with OriginThread([User(KEY, SECRET)]) as store:
        put(store)
        connection.send(store.port)
        while (question := connection.recv()) is not None:
            if question[0] == "reads":
                connection.send(store.count("GET", f"/{BUCKET}/{question[1]}/"))
            else:
                _, prefix, bandwidth, latency = question
                store.paces.pop(prefix, None)
                if bandwidth:
                    store.paces[prefix] = SendingPace(bandwidth, latency)
                connection.send(None)
