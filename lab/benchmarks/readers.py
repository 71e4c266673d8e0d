"""Ways to read many objects in one Python process, each run in a new process: ``python -m lab.benchmarks.readers NAME``.

The first line on standard input is the setting as JSON, each further line a measurement; each is answered by a line. So a
process is started and warmed once, and then waits without using CPU while the others are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY

_NOBODY = 65534
Steps = Iterator[tuple[int, int]]
"""Items and bytes of each step, without end."""


@dataclass(frozen=True)
class Setting:
    """The target of a reader.

    Args:
        endpoint: of the server.
        root: directory of the objects' bucket, for those that read files.
        keys: of the objects, by name of the set, in the order of the items' indices.
        access_key: to sign with; every run has a new secret.
        secret_key: of the access key.
    """

    endpoint: str
    root: str
    keys: dict[str, list[str]]
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY


Reader = Callable[[Setting, str, int], Steps]
"""Reads a set of keys, in batches of this size if it has batches."""


def _random_batches(count: int, batch: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint32]]]:
    generator = np.random.default_rng(1)
    while True:
        order = generator.permutation(count).astype(np.uint32)
        for start in range(0, count - batch + 1, batch):
            yield order[start : start + batch]


def fetch(setting: Setting, name: str, batch: int) -> Steps:
    """``BatchReader.fetch`` of random batches."""
    from larder import BatchReader, Client, Credentials

    credentials = Credentials(setting.access_key, setting.secret_key)
    info = Client(setting.endpoint, credentials=credentials).dataset(name)
    reader = BatchReader(setting.endpoint, info, credentials=credentials)
    for indices in _random_batches(info.items, batch):
        fetched = reader.fetch(indices)
        yield len(fetched.data), sum(map(len, fetched.data))


def tcp(setting: Setting, name: str, batch: int) -> Steps:
    """``BatchReader.fetch`` by TCP, from a gateway with a unix socket."""
    yield from _one_way(setting, name, batch, "")


def socket_bytes(setting: Setting, name: str, batch: int) -> Steps:
    """The same over the unix socket as root, which gets bytes."""
    yield from _one_way(setting, name, batch, "socket/user")


def socket_files(setting: Setting, name: str, batch: int) -> Steps:
    """The same as another user, which gets open files."""
    if os.geteuid() != _NOBODY:
        next(tcp(setting, name, batch))  # imports everything: the other user may not be able to read it
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    yield from _one_way(setting, name, batch, "files")


def _one_way(setting: Setting, name: str, batch: int, way: str) -> Steps:
    """Batches that must come in one way, by its name in ``Stats.by_way``; empty for TCP."""
    from larder import BatchReader, Client, Credentials, Stats

    credentials = Credentials(setting.access_key, setting.secret_key)
    info = Client(setting.endpoint, credentials=credentials).dataset(name)
    stats = Stats()
    reader = BatchReader(setting.endpoint, info, credentials=credentials, split=bool(way), stats=stats)
    if reader.fleet is not None:
        reader.fleet.refresh()
    delivered = 0
    for indices in _random_batches(info.items, batch):
        fetched = reader.fetch(indices)
        delivered += len(fetched.data)
        if stats.by_way != ({way: delivered} if way else {}):
            raise RuntimeError(f"not all items came in the way {way or 'tcp'!r}: {stats.by_way}")
        yield len(fetched.data), sum(map(len, fetched.data))


def loader(setting: Setting, name: str, batch: int) -> Steps:
    """The loader without a framework, with its defaults: 10 candidates for each item, one batch fetched ahead."""
    from larder import Credentials
    from larder.reading.source import Access
    from larder.training.loader import Loader

    access = Access(credentials=Credentials(setting.access_key, setting.secret_key))
    whole = Loader(setting.endpoint, name, batch_size=batch, access=access)
    for epoch in range(1 << 30):
        for one in whole.epoch(epoch):
            yield len(one.data), sum(map(len, one.data))


def cached_dataset(setting: Setting, name: str, batch: int) -> Steps:
    """``larder.torch.CachedDataset`` in the stock DataLoader without workers; items become ``bytes``."""
    from torch.utils.data import DataLoader

    from larder import Credentials
    from larder.reading.source import Access
    from larder.torch import CachedDataset

    access = Access(credentials=Credentials(setting.access_key, setting.secret_key))
    dataset = CachedDataset(setting.endpoint, name, batch_size=batch, access=access)
    batches: DataLoader[Any] = DataLoader(dataset, batch_size=None, num_workers=0)
    while True:
        for one in batches:
            yield len(one), sum(map(len, one))


def _boto3_client(setting: Setting, connections: int) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=setting.endpoint,
        region_name="us-east-1",
        aws_access_key_id=setting.access_key,
        aws_secret_access_key=setting.secret_key,
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=connections),
    )


def boto3(setting: Setting, name: str, batch: int) -> Steps:
    """One ``get_object`` after another."""
    client = _boto3_client(setting, 1)
    for key in cycle(setting.keys[name]):
        yield 1, len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())


def boto3_threads(setting: Setting, name: str, batch: int) -> Steps:
    """``get_object`` in 16 threads, a batch at a time."""
    client = _boto3_client(setting, 16)
    keys = cycle(setting.keys[name])

    def read(key: str) -> int:
        return len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    with ThreadPoolExecutor(16) as pool:
        while True:
            yield batch, sum(pool.map(read, islice(keys, batch)))


def get_many(setting: Setting, name: str, batch: int) -> Steps:
    """``larder.ManyReader.get`` of a batch of objects at a time."""
    from larder import Credentials, ManyReader

    reader = ManyReader(setting.endpoint, credentials=Credentials(setting.access_key, setting.secret_key))
    keys = cycle(setting.keys[name])
    while True:
        bodies = reader.get([(BUCKET, key) for key in islice(keys, batch)])
        yield len(bodies), sum(map(len, bodies))


def obstore(setting: Setting, name: str, batch: int) -> Steps:
    """``obstore.get_async`` of a batch at a time, 64 at once."""
    import asyncio

    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=setting.endpoint,
        access_key_id=setting.access_key,
        secret_access_key=setting.secret_key,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    keys = cycle(setting.keys[name])

    async def read(some: list[str]) -> int:
        turn = asyncio.Semaphore(64)

        async def one(key: str) -> int:
            async with turn:
                return len(await (await store.get_async(key)).bytes_async())

        return sum(await asyncio.gather(*map(one, some)))

    with asyncio.Runner() as runner:
        while True:
            some = list(islice(keys, batch))
            yield len(some), runner.run(read(some))


def _s3torchconnector(setting: Setting) -> dict[str, Any]:
    from s3torchconnector import S3ClientConfig

    os.environ.update(AWS_ACCESS_KEY_ID=setting.access_key, AWS_SECRET_ACCESS_KEY=setting.secret_key)
    config = S3ClientConfig(force_path_style=True)
    return {"region": "us-east-1", "endpoint": setting.endpoint, "s3client_config": config}


def s3torchconnector_map(setting: Setting, name: str, batch: int) -> Steps:
    """``S3MapDataset``, one object after the other."""
    from s3torchconnector import S3MapDataset

    uris = [f"s3://{BUCKET}/{key}" for key in setting.keys[name]]
    dataset = S3MapDataset.from_objects(uris, **_s3torchconnector(setting))
    for at in cycle(range(len(uris))):
        yield 1, len(dataset[at].read())


def s3torchconnector_iterable(setting: Setting, name: str, batch: int) -> Steps:
    """``S3IterableDataset``, one object after the other."""
    from s3torchconnector import S3IterableDataset

    uris = [f"s3://{BUCKET}/{key}" for key in setting.keys[name]]
    dataset = S3IterableDataset.from_objects(uris, **_s3torchconnector(setting))
    for reader in chain.from_iterable(repeat(dataset)):
        yield 1, len(reader.read())


def files(setting: Setting, name: str, batch: int) -> Steps:
    """Opens and reads the objects as files of this machine."""
    directory = Path(setting.root)
    for path in cycle([str(directory / key) for key in setting.keys[name]]):
        with open(path, "rb") as file:
            yield 1, len(file.read())


READERS: dict[str, Reader] = {
    reader.__name__: reader
    for reader in (
        fetch,
        tcp,
        socket_bytes,
        socket_files,
        loader,
        cached_dataset,
        boto3,
        boto3_threads,
        get_many,
        obstore,
        s3torchconnector_map,
        s3torchconnector_iterable,
        files,
    )
}


def _measure(steps: Steps, seconds: float) -> dict[str, float]:
    """Read for a while. The last step is finished, and counts."""
    items = size = 0
    cpu, began = time.process_time(), time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        count, length = next(steps)
        items += count
        size += length
    cpu = time.process_time() - cpu
    return {
        "items": items,
        "items_per_second": items / elapsed,
        "bytes_per_second": size / elapsed,
        "client_us": cpu / items * 1e6,
    }


class Process:
    """The benchmark's view of a reader's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, name: str, batch: int, seconds: float) -> dict[str, float]:
        """Read for some seconds; returns items and bytes per second, and the reader's CPU microseconds per item."""
        answer: dict[str, float] = json.loads(self._ask({"name": name, "batch": batch, "seconds": seconds}))
        return answer

    def _ask(self, question: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("a reader ended; what it said is above")
        return answer


@contextmanager
def started(reader: str, setting: Setting) -> Iterator[Process]:
    """A process with a reader in it."""
    command = [sys.executable, "-m", "lab.benchmarks.readers", reader]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(setting)) + "\n")
        try:
            yield Process(process)
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _main(reader: str) -> None:
    setting = Setting(**json.loads(sys.stdin.readline()))
    running: dict[tuple[str, int], Steps] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        case = asked["name"], asked["batch"]
        if case not in running:
            running[case] = READERS[reader](setting, *case)
            next(running[case])
        print(json.dumps(_measure(running[case], asked["seconds"])), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
