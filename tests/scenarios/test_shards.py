"""Cold epochs over samples inside TAR shards: what they read from the origin."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

import larder
from gateway.policies.reads.granularity import RUNS
from larder import digest
from rig.gateways import Running, Settings, fleet, gateway
from rig.origin import ALICE
from rig.redis_server import RedisServer
from rig.world import Origin, content, doomed, eventually, verify
from tests.loader.making import archive

SHARDS, SAMPLES, SIZE = 4, 250, 8000
ALL = SHARDS * SAMPLES
SAMPLE = 512 + 8192
"""Bytes of a sample in its shard, header and padding included."""
SHARD = -(-(SAMPLES * SAMPLE + 1024) // 10_240) * 10_240
"""Bytes of a shard, with the end of its archive."""
KEY = larder.Credentials("GWA", "gateway-secret-a")
ACCESS = larder.Access(credentials=KEY)


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """A store with the shards."""
    with Origin() as store:
        for number in range(SHARDS):
            store.put(f"/data/{number}.tar", shard(number))
        yield store


def shard(number: int) -> bytes:
    """The bytes of a shard."""
    names = range(number * SAMPLES, (number + 1) * SAMPLES)
    return archive({f"{name:06}.bin": content(SIZE, name) for name in names})


@pytest.fixture(scope="module")
def file(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns their digest file."""
    path = tmp_path_factory.mktemp("shards") / "shards.parquet"
    store = larder.Credentials(ALICE.access_key_id, ALICE.secret_access_key)
    digest.build("s3://data/", path, endpoint=origin.endpoint, credentials=store, items="tar-samples")
    return path


class Reads:
    """What is read from the origin from now on."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._before = len(origin.s3.seen)

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        """The reads of shards: object, first byte, and the byte after the last one."""
        reads = []
        for seen in self._origin.s3.seen[self._before :]:
            if seen.method == "GET":
                first, _, last = (seen.header("range") or "").removeprefix("bytes=").partition("-")
                reads.append((seen.raw_path, int(first), int(last) + 1))
        return reads

    @property
    def size(self) -> int:
        """Bytes of them."""
        return sum(min(stop, SHARD) - start for _, start, stop in self.ranges)


def epoch(running: Running, file: Path, job: larder.Job | str = "") -> Counter[int]:
    """The samples of a loader's epoch."""
    loader = larder.Loader(running.endpoint, str(file), batch_size=32, seed=1, job=job, access=ACCESS)
    came = Counter(index for batch in loader for index in batch.indices.tolist())
    assert not loader.stats.prefetch_errors
    return came


@pytest.mark.parametrize("named", [False, True], ids=["alone", "job"])
def test_a_cold_epoch_over_shards(origin: Origin, file: Path, tmp_path: Path, *, named: bool) -> None:
    """Rule: it costs a read of the origin for 20 samples at most, and 1.05 of the shards' bytes; every sample comes once."""
    reads = Reads(origin)
    settings = Settings(origin.endpoint, tmp_path / "cache")
    with gateway(settings, tmp_path) as running, ExitStack() as stack:
        job: larder.Job | str = ""
        if named:
            job = stack.enter_context(larder.Job(running.endpoint, "train", str(file), batch_size=32, credentials=KEY))
        assert epoch(running, file, job) == Counter(range(ALL))
    assert len(reads.ranges) <= 0.05 * ALL
    assert reads.size <= 1.05 * ALL * SAMPLE


def test_a_cold_epoch_of_a_fleet(origin: Origin, file: Path, tmp_path: Path) -> None:
    """Rule: the homes of a stretch's items get them from one node, which reads them at once; then the homes have them.

    On a busy machine a home may stop waiting, or suspect the reader, and read a stretch itself: one more, and one a suspicion.
    """
    reads = Reads(origin)
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 3, tmp_path) as nodes:
        assert epoch(nodes[0], file) == Counter(range(ALL))
        again = 1 + int(sum(node.metric("larder_peer_suspects_total") for node in nodes))
        assert len(reads.ranges) <= 0.05 * ALL
        assert reads.size <= (1.05 * ALL + SAMPLES * again) * SAMPLE


def test_a_cold_epoch_over_shards_that_do_not_fit(origin: Origin, file: Path, tmp_path: Path) -> None:
    """Rule: what has room is read together, and nothing is read twice: not what was read along, nor what does not stay.

    With one worker: two may fill the last room at the same moment, each with a run.
    """
    reads = Reads(origin)
    settings = Settings(origin.endpoint, tmp_path / "cache", capacity=str(ALL * SAMPLE // 2))
    with gateway(settings, tmp_path) as running:
        assert epoch(running, file) == Counter(range(ALL))
    assert len(reads.ranges) <= 0.65 * ALL
    assert reads.size <= 1.05 * ALL * SAMPLE


def test_a_gateway_killed_in_a_run(origin: Origin, file: Path, tmp_path: Path) -> None:
    """Rule: after kill -9 the samples of a run that had come are kept and verify; only the others are read again."""
    settings, path, come = Settings(origin.endpoint, tmp_path / "cache"), "/data/2.tar", 100
    hang = origin.hang(path, after=(come + 10) * SAMPLE)
    with doomed(settings, tmp_path) as running:
        loader = larder.Loader(running.endpoint, str(file), batch_size=32, access=ACCESS)
        loader.reader.prefetch(np.array([2 * SAMPLES], np.uint32), epoch=0)
        # Files come before their rows, and a file without a row is removed at the next start.
        eventually(lambda: blobs_in(settings.cache), lambda blobs: blobs >= come, "the first samples of the run")
        running.kill()
    hang.gate.open()
    reads = Reads(origin)
    with gateway(settings, tmp_path) as running:
        assert epoch(running, file) == Counter(range(ALL))
        verify(running)
    assert min(start for name, start, _ in reads.ranges if name == path) >= come * SAMPLE
    assert reads.size <= (ALL - come) * SAMPLE


def test_an_s3_reader_after_an_epoch(origin: Origin, file: Path, tmp_path: Path) -> None:
    """Rule: shards that a loader has read come from its samples, with headers, padding and ends: the origin sends no byte."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
    with gateway(settings, tmp_path) as running:
        assert epoch(running, file) == Counter(range(ALL))
        runs = running.metric("larder_dataset_runs_total", source="origin")
        eventually(lambda: runs_in(settings.cache), lambda tied: tied == runs, "the runs")
        reads, client = Reads(origin), running.client()
        for number in range(SHARDS):
            assert client.get_object(Bucket="data", Key=f"{number}.tar")["Body"].read() == shard(number)
        verify(running)
    assert not reads.ranges


def runs_in(cache: Path) -> int:
    """The runs that are tied to their objects."""
    with closing(sqlite3.connect(cache / "index.db")) as index:
        return int(index.execute("SELECT count(*) FROM object_blocks WHERE no >= ?", (RUNS,)).fetchone()[0])


def blobs_in(cache: Path) -> int:
    """The blobs that the index holds."""
    with closing(sqlite3.connect(cache / "index.db")) as index:
        return int(index.execute("SELECT count(*) FROM blobs").fetchone()[0])


def read_by_s3(
    running: Running, keys: Sequence[str] = ("0.tar", "1.tar", "2.tar", "3.tar"), others: Sequence[Running] = ()
) -> None:
    """Read shards as an S3 client, until the gateway, or ``others``, have them."""
    client = running.client()
    for key in keys:
        client.get_object(Bucket="data", Key=key)["Body"].read()
    for node in (running, *others):
        eventually(lambda: node.metric("larder_fills_active"), lambda fills: fills == 0, "the blocks of the shards")  # noqa: B023


def test_shards_that_s3_readers_have_loaded(origin: Origin, file: Path, tmp_path: Path) -> None:
    """Rule: an epoch takes samples from the cached blocks of their objects, and reads nothing that is there."""
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        read_by_s3(running)
        reads = Reads(origin)
        assert epoch(running, file) == Counter(range(ALL))
        verify(running)
    assert not reads.ranges


def test_shards_that_s3_readers_have_loaded_elsewhere(origin: Origin, file: Path, tmp_path: Path) -> None:
    """Rule: in a fleet the node that reads runs of samples takes them from the blocks at the home of their object."""
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 2, tmp_path) as nodes:
        read_by_s3(nodes[0], others=nodes[1:])
        reads = Reads(origin)
        assert epoch(nodes[0], file) == Counter(range(ALL))
    assert reads.size <= 0.05 * ALL * SAMPLE  # samples that were read alone


def test_one_shard_that_s3_readers_have_loaded(origin: Origin, file: Path, tmp_path: Path) -> None:
    """Rule: samples of the other shards are read from the origin."""
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        read_by_s3(running, ["1.tar"])
        reads = Reads(origin)
        assert epoch(running, file) == Counter(range(ALL))
        assert running.metric("larder_dataset_items_from_blocks_total") == SAMPLES
    assert {name for name, _, _ in reads.ranges} == {"/data/0.tar", "/data/2.tar", "/data/3.tar"}


def test_blocks_of_another_version(origin: Origin, file: Path, tmp_path: Path) -> None:
    """Rule: what differs from the digest file is not delivered: such samples are read from the origin."""
    path = "/data/3.tar"
    right = shard(3)
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        origin.put(path, right[: 100 * SAMPLE] + content(len(right) - 100 * SAMPLE, "old"))
        read_by_s3(running, ["3.tar"])
        origin.put(path, right)
        reads = Reads(origin)
        assert epoch(running, file) == Counter(range(ALL))
        verify(running)
    assert path in {name for name, _, _ in reads.ranges}
