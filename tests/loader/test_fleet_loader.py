"""Two training runs of two ranks each over three gateways, in processes that are killed: every item comes once."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import larder
from larder.reading.batch import BatchReader
from larder.torch import CachedDataset
from larder.training.loader import Loader, Shard
from rig.digests import Row, write
from rig.gateways import Running, fleet
from rig.origin import FakeOrigin, OriginThread
from rig.processes import wait_until
from rig.redis_server import RedisServer
from tests.loader.making import numbers

ITEMS = 400
BATCH = 10
KEY = larder.Credentials("GWA", "gateway-secret-a")
ACCESS = larder.Access(credentials=KEY)
WHOLE = Counter(range(ITEMS))

pytestmark = pytest.mark.timeout(120)


def body_of(number: int) -> bytes:
    """An item's bytes: its number, with a length that differs between items."""
    return b"%d" % number + b" " * (number % 5 * 50)


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with all items."""
    with OriginThread() as store:
        for number in range(ITEMS):
            store.put("data", f"items/{number}", body_of(number))
        yield store


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digest file of all items."""
    return digest_file(tmp_path_factory.mktemp("digests") / "numbers.parquet", range(ITEMS), "items")


def digest_file(path: Path, numbers: range, folder: str) -> Path:
    """A digest file of some items, as they lie in one folder of the store."""
    rows = [Row(hashlib.sha256(body_of(number)).digest(), "data", f"{folder}/{number}") for number in numbers]
    return write(path, rows)


@pytest.fixture(scope="module")
def nodes(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """Three gateways of one fleet, for tests that do not change it."""
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 3, tmp_path_factory.mktemp("nodes")) as running:
        yield running


@pytest.fixture
def mortal(origin: FakeOrigin, tmp_path: Path) -> Iterator[list[Running]]:
    """Three gateways of one fleet, for a test that kills them."""
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 3, tmp_path) as running:
        yield running


def know_the_fleet(reader: BatchReader) -> None:
    """Have a reader know all nodes; asking them takes two seconds at most, which a busy machine may exceed."""

    def known() -> bool:
        assert reader.fleet is not None
        reader.fleet.refresh()
        return reader.fleet.view is not None

    wait_until(known, 60, "the reader's knowledge of all nodes")


class Run:
    """One rank of a job, in a thread; records the items of each epoch, and can pause in the middle of the first."""

    def __init__(self, endpoint: str, name: str, rank: int) -> None:
        self.job = larder.Job(endpoint, name, "numbers", batch_size=BATCH, ranks=2, rank=rank, credentials=KEY)
        self.loader = Loader(endpoint, "numbers", batch_size=BATCH, job=self.job, access=ACCESS)
        self.rank = rank
        self.came: list[list[int]] = [[], []]
        self.in_the_middle = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> None:
        """Two epochs."""
        try:
            with self.job:
                for epoch, came in enumerate(self.came):
                    self._epoch(epoch, came)
        finally:
            self.in_the_middle.set()

    def _epoch(self, epoch: int, came: list[int]) -> None:
        run = self.loader.epoch(epoch, shard=Shard(self.rank, 2, 0, 1))
        for number, batch in enumerate(self.job.watch(run)):
            assert [bytes(data) for data in batch.data] == [body_of(index) for index in batch.indices]
            came += batch.indices.tolist()
            if epoch == 0 and number == 5:
                self._know_the_fleet()
                self.in_the_middle.set()
                assert self.go_on.wait(60)

    def _know_the_fleet(self) -> None:
        reader = self.loader.reader
        assert isinstance(reader, BatchReader)
        know_the_fleet(reader)
        wait_until(lambda: self.job.stats()["nodes"] == 3, 30, "the job's knowledge of all nodes")


def test_a_gateway_is_killed_in_the_middle_of_an_epoch(mortal: list[Running], file: Path) -> None:
    """Rule: two jobs of two ranks lose nothing and get nothing twice, in this epoch and the next.

    To one job it is the very gateway that it was given, to the other one of the nodes. All nodes have the registration by then:
    one that is made again at a node that dies at once is lost with it.
    """
    larder.Client(mortal[0].endpoint, credentials=KEY).register("numbers", file)
    for node in mortal:
        assert larder.Client(node.endpoint, credentials=KEY).dataset("numbers").items == ITEMS
    runs = {
        (name, rank): Run(mortal[at].endpoint, name, rank) for at, name in enumerate(("one", "two")) for rank in (0, 1)
    }
    with ThreadPoolExecutor(len(runs)) as pool:
        begun = [pool.submit(run) for run in runs.values()]
        for run in runs.values():
            assert run.in_the_middle.wait(60)
        mortal[0].kill()
        for run in runs.values():
            run.go_on.set()
        for future in begun:
            future.result()
    for name in ("one", "two"):
        for epoch in (0, 1):
            assert Counter(runs[name, 0].came[epoch] + runs[name, 1].came[epoch]) == WHOLE
        moved = sum(runs[name, rank].loader.stats.redirected for rank in (0, 1))
        assert moved > 0
        assert sum(runs[name, rank].loader.stats.fallback_reads for rank in (0, 1)) == 0


# A worker that is spawned imports PyTorch again: one a rank is enough.
@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_and_ranks_of_a_job_share_an_epoch(nodes: list[Running], file: Path, method: str, workers: int) -> None:
    """Rule: over all workers and ranks of a job, each at a gateway of its own, every item comes once."""
    came: list[int] = []
    for rank in (0, 1):
        with larder.Job(
            nodes[rank].endpoint, "run", file, batch_size=BATCH, ranks=2, rank=rank, credentials=KEY
        ) as job:
            dataset = CachedDataset(
                nodes[rank].endpoint, file, batch_size=BATCH, job=job, access=ACCESS, rank=rank, world=2
            )
            loader = job.watch(
                DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method, timeout=60)
            )
            for batch in loader:
                came += numbers([batch])
            assert job.stats()["phases"]
    assert Counter(came) == WHOLE


def test_each_item_is_read_once_for_the_fleet(nodes: list[Running], origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: each node reads its share of a split batch: one request to the store for each item."""
    new = range(ITEMS, ITEMS + 60)  # equal bytes may be in the cache since another test
    for number in new:
        origin.put("data", f"others/{number}", body_of(number))
    file = digest_file(tmp_path / "others.parquet", new, "others")
    dataset = larder.Client(nodes[0].endpoint, credentials=KEY).register("others", file)
    stats = larder.Stats()
    reader = BatchReader(nodes[0].endpoint, dataset, credentials=KEY, stats=stats)
    know_the_fleet(reader)
    assert sorted(reader.fetch(range(60)).indices.tolist()) == list(range(60))
    assert stats.by_node.keys() == {"node-0", "node-1", "node-2"}
    assert (stats.split, sum(stats.by_node.values())) == (1, 60)
    assert origin.count("GET", "/data/others/") == 60
