"""The loader against real gateways: one story each."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader, DistributedSampler

import larder
from lab.benchmarks.servers import BUCKET
from larder import digest
from larder.parquet import concatenate, read_rows
from larder.testing import MemorySource
from larder.torch import CachedDataset, CachedMapDataset, merge_states, watch
from rig.digests import Row, write
from rig.gateways import Running, Settings, gateway, start
from rig.origin import ALICE, FakeOrigin, OriginThread
from rig.processes import free_port
from tests.loader.making import N, archive, consume, either, loader_of, named_pair, numbers, pair_of, whole
from tests.loader.systems import system

KEY = larder.Credentials("GWA", "gateway-secret-a")
ROWS = ("number", "half", "text")
PATIENT = larder.Retry(attempts=10_000, base=0.01, longest=0.05)


def body_of(number: int) -> bytes:
    """An item's bytes: its number, with a length that differs between items."""
    return b"%d" % number + b" " * (number % 7 * 100)


def key_of(number: int) -> str:
    """The key of an item."""
    return f"items/{number}"


def fill(store: FakeOrigin) -> None:
    """Put all items there."""
    for number in range(N):
        store.put("data", key_of(number), body_of(number))


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with all items."""
    with OriginThread() as store:
        fill(store)
        yield store


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway before that store."""
    home = tmp_path_factory.mktemp("gateway")
    with gateway(Settings(origin.endpoint, home / "cache"), home) as started:
        yield started


@pytest.fixture
def cold(origin: FakeOrigin, tmp_path: Path) -> Iterator[Running]:
    """A gateway that has not read anything yet."""
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digest file of all items."""
    rows = [Row(hashlib.sha256(body_of(number)).digest(), "data", key_of(number)) for number in range(N)]
    return write(tmp_path_factory.mktemp("digests") / "numbers.parquet", rows)


def dataset_at(running: Running, file: Any, batch_size: int = 8, **options: Any) -> CachedDataset:
    """The dataset at this gateway."""
    access = options.pop("access", larder.Access(credentials=KEY))
    return CachedDataset(running.endpoint, file, batch_size=batch_size, access=access, **options)


@pytest.mark.parametrize("substitute", [1, 10])
def test_cold_and_warm_every_item_comes_once(cold, origin, file, substitute):
    """Two ranks with two workers each: the first epoch reads each item once at the store, ahead or when it is asked for, and has
    no hits; the second reads nothing there. Both deliver each item once, with its bytes."""
    loaders = [
        watch(loader_of(dataset_at(cold, file, substitute=substitute, rank=rank, world=2), 2)) for rank in range(2)
    ]
    before = origin.count("GET")
    for epoch in range(2):
        items = [item for loader in loaders for batch in loader for item in batch]
        assert Counter(items) == Counter(map(body_of, range(N)))
        assert origin.count("GET") - before == N
        stats = [loader.stats() for loader in loaders]
        assert sum(each.hits for each in stats) == epoch * N
        assert sum(each.origin_reads for each in stats) == N


def test_workers_started_by_spawn_read_from_a_gateway(running, file):
    """Spawned workers get the credentials and open their own connections."""
    loader = watch(loader_of(dataset_at(running, file), 1, multiprocessing_context="spawn"))
    assert Counter(numbers(loader)) == whole()


def test_a_used_connection_does_not_survive_the_fork(running, file):
    """A dataset already read in the training process opens new connections in each worker."""
    dataset = dataset_at(running, file)
    next(iter(dataset))
    assert len(dataset) == 13
    assert Counter(numbers(loader_of(dataset, 2))) == whole()


def test_a_dataset_is_found_by_its_name(running, file):
    """A registered dataset is read by its name; an unknown name raises UnknownDataset."""
    larder.Client(running.endpoint, credentials=KEY).register("by-name", file)
    assert Counter(numbers(loader_of(dataset_at(running, "by-name"), 1))) == whole()
    with pytest.raises(larder.UnknownDataset):
        consume(loader_of(dataset_at(running, "nobody-knows"), 1))


def test_the_order_is_the_loaders_own(running, file):
    """Rule: seed and epoch alone determine an order, and the stretches of ``group="unit"``, whatever a gateway answers."""
    options: dict[str, Any] = {"batch_size": 8, "substitute": 1, "group": "unit", "seed": 3}
    access = larder.Access(credentials=KEY)
    read = larder.Loader(running.endpoint, file, access=access, **options).epoch(0)
    expected = larder.Loader("", "memory", source=MemorySource(N), **options).epoch(0)
    assert [sorted(batch.indices) for batch in read] == [sorted(batch.indices) for batch in expected]


def test_the_gateway_forgets_the_dataset(running, file):
    """Registration is soft state: a dataset given by its file is registered again transparently."""
    iterator = iter(loader_of(dataset_at(running, file)))
    first = numbers(islice(iterator, 3))
    client = larder.Client(running.endpoint, credentials=KEY)
    for dataset in client.datasets():
        client.remove(dataset.name)
    assert Counter(first + numbers(iterator)) == whole()


def test_the_gateway_is_killed_and_started_again(origin, file, tmp_path):
    """When the gateway is down for a while within an epoch, the loader waits, and delivers each item once."""
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"port": free_port()})
    first = start(settings, tmp_path)
    access = larder.Access(credentials=KEY, retry=PATIENT)
    loader = watch(loader_of(dataset_at(first, file, access=access), 1))
    iterator = iter(loader)
    came = numbers(islice(iterator, 4))
    first.kill()
    first.process.stdout.close()
    second = start(settings, tmp_path)
    try:
        assert Counter(came + numbers(iterator)) == whole()
        assert loader.stats().retries > 0
    finally:
        second.stop()
        second.process.stdout.close()


def test_resumed_at_another_gateway_with_other_ranks(running, cold, file):
    """The merged state of two ranks resumes at another gateway, with one rank and two workers."""
    pair = [watch(loader_of(dataset_at(running, file, rank=rank, world=2), 1)) for rank in range(2)]
    came = [number for loader in pair for number in numbers(islice(loader, 3))]
    alone = watch(loader_of(dataset_at(cold, file, 16), 2))
    alone.load_state_dict(merge_states([loader.state_dict() for loader in pair]))
    assert Counter(came + numbers(alone)) == whole()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway before a store that has lost one item and got another one wrong."""
    home = tmp_path_factory.mktemp("damaged")
    with OriginThread() as store:
        fill(store)
        store.delete("data", key_of(5))
        store.put("data", key_of(6), b"something else")
        with gateway(Settings(store.endpoint, home / "cache"), home) as started:
            yield started


@pytest.mark.parametrize("workers", [0, 1])
def test_items_that_are_not_what_they_should_be_are_named(damaged, file, workers):
    """A missing and a changed object raise errors of their own, with bucket and key, out of a worker, too."""
    with pytest.raises((larder.ItemMissing, larder.ItemChanged), match=r"item [56] \(data/'items/[56]'\)"):
        consume(loader_of(dataset_at(damaged, file), workers))
    indexed = CachedMapDataset(damaged.endpoint, file, credentials=KEY)
    for index, error in ((5, larder.ItemMissing), (6, larder.ItemChanged)):
        with pytest.raises(error, match=f"item {index} .*'items/{index}'"):
            indexed[index]
    assert indexed[7] == body_of(7)


def test_items_that_are_not_what_they_should_be_are_skipped_if_told_so(damaged, file):
    """With ``on_missing="skip"`` the two damaged items are counted, and all others come."""
    loader = watch(loader_of(dataset_at(damaged, file, on_missing="skip"), 1))
    assert Counter(numbers(loader)) == whole() - Counter([5, 6])
    assert loader.stats().skipped == 2


@pytest.mark.filterwarnings("ignore::larder.LarderWarning")
def test_without_a_gateway_the_origin_is_read(origin, file, tmp_path):
    """With a fallback, an epoch whose gateway disappears permanently is finished from the store."""
    store = larder.S3(origin.endpoint, credentials=larder.Credentials(ALICE.access_key_id, ALICE.secret_access_key))
    access = larder.Access(credentials=KEY, fallback=store, digest_file=file, retry=larder.Retry(attempts=2, base=0))
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as started:
        dataset = dataset_at(started, file, access=access, ahead=0)
        iterator = iter(loader_of(dataset))
        came = numbers(islice(iterator, 4))
    assert Counter(came + numbers(iterator)) == whole()
    assert dataset.stats().fallback_reads == N - 32


def test_members_of_a_sample_come_together(running, origin, tmp_path):
    """WebDataset's shards: the files of a sample are one item, which is read, cached and delivered whole, and once."""
    contents = {
        f"{n:03}.{kind}": body_of(n) if kind == "jpg" else b"%d" % n for n in range(N) for kind in ("jpg", "cls")
    }
    origin.put("data", "shards/0.tar", archive(contents))
    samples, store = tmp_path / "samples.parquet", larder.Credentials(ALICE.access_key_id, ALICE.secret_access_key)
    digest.build("s3://data/shards/", samples, endpoint=origin.endpoint, credentials=store, items="tar-samples")
    dataset = dataset_at(running, samples, transform=pair_of, collate=list)
    for _ in range(2):
        found = [tuple(sample) for batch in loader_of(dataset, 1) for sample in batch]
        assert Counter(found) == Counter((number, body_of(number)) for number in range(N))


@pytest.fixture(scope="module")
def pairs(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digest file of samples whose image and class are objects beside each other."""
    for number in range(N):
        origin.put("data", f"pairs/{number:03}.jpg", body_of(number))
        origin.put("data", f"pairs/{number:03}.cls", b"%d" % number)
    store = larder.Credentials(ALICE.access_key_id, ALICE.secret_access_key)
    path = tmp_path_factory.mktemp("pairs") / "pairs.parquet"
    digest.build("s3://data/pairs/", path, endpoint=origin.endpoint, credentials=store, items="samples:jpg,cls")
    return path


@pytest.mark.parametrize("caching", ["part", "full"])
def test_files_beside_each_other_come_together(running, pairs, caching):
    """Each sample comes once per epoch with all of its members, which are items each; from the cache once all are cached."""
    access = larder.Access(credentials=KEY, caching=caching)
    dataset = dataset_at(running, pairs, transform=named_pair, collate=list, keys=True, access=access)
    loader = watch(loader_of(dataset, 1))
    for epoch in range(3):
        found = Counter(tuple(sample) for batch in loader for sample in batch)
        assert found == Counter((number, body_of(number), f"pairs/{number:03}.jpg") for number in range(N)), epoch
    stats = loader.stats()
    assert (stats.items, stats.batches, stats.hits >= N) == (3 * N, 3 * len(loader), True)
    info = larder.Client(running.endpoint, credentials=KEY).register("pairs", pairs)
    assert (info.items, info.members, info.samples) == (2 * N, 2, N)


def test_samples_by_index_and_in_a_mixture(running, pairs, file):
    """A map-style dataset has as many samples; a mixture has the samples of one dataset beside the items of another."""
    indexed = CachedMapDataset(running.endpoint, pairs, transform=pair_of, access=larder.Access(credentials=KEY))
    assert len(indexed) == N
    assert indexed.__getitems__([5, 3, 5]) == [(number, body_of(number)) for number in (5, 3, 5)]
    mixed = dataset_at(running, larder.Mix([pairs, file]), transform=either, collate=list)
    found = Counter(tuple(sample) for batch in loader_of(mixed, 1) for sample in batch)
    assert found == Counter((name, number) for name in map(str, (pairs, file)) for number in range(N))


def test_a_sample_without_one_of_its_members(origin, pairs, tmp_path):
    """Rule: a sample with a missing member fails as a whole, and is counted once."""
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as started:
        origin.delete("data", "pairs/008.cls")
        try:
            loader = watch(loader_of(dataset_at(started, pairs, transform=pair_of, collate=list, on_missing="skip")))
            found = [number for batch in loader for number, _ in batch]
        finally:
            origin.put("data", "pairs/008.cls", b"8")
    assert sorted(found) == [number for number in range(N) if number != 8]
    assert loader.stats().skipped == 1


def test_rows_of_parquet_files(running, origin, tmp_path):
    """Every row of every file once per epoch, its columns together; another epoch comes from the cache."""
    for part in range(2):
        stream = io.BytesIO()
        table = pa.table(
            {"number": range(50 * part, 50 * part + 50), "half": [n / 2 for n in range(50)], "text": ["ü"] * 50}
        )
        pq.write_table(table, stream, row_group_size=10 + 5 * part)
        origin.put("data", f"tables/{part}.parquet", stream.getvalue())
    path, store = tmp_path / "rows.parquet", larder.Credentials(ALICE.access_key_id, ALICE.secret_access_key)
    digest.build("s3://data/tables/", path, endpoint=origin.endpoint, credentials=store, items="row-groups")
    dataset = dataset_at(running, path, 2, transform=read_rows, collate=concatenate, keys=True)
    loader = watch(loader_of(dataset, 1))
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == 5
        rows = [tuple(row) for batch in batches for row in zip(*(batch[name].tolist() for name in ROWS), strict=True)]
        assert Counter(rows) == Counter((number, number % 50 / 2, "ü") for number in range(100))
    assert loader.stats().hits >= 9
    numbers_only = dataset_at(
        running, path, 9, transform=partial(read_rows, columns=["number"]), keys=True, collate=list
    )
    assert {name for batch in numbers_only for sample in batch for name in sample} == {"number"}
    with pytest.raises(larder.ItemUntransformable, match="keys=True"):
        next(iter(dataset_at(running, path, transform=read_rows)))


def test_an_indexed_dataset_for_two_ranks(running, file):
    """DistributedSampler over a real gateway: both ranks together get each item, one twice to make them equal."""
    dataset = CachedMapDataset(running.endpoint, file, access=larder.Access(credentials=KEY))
    came = []
    for rank in range(2):
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, seed=3)
        came += numbers(DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=1))
    assert set(came) == set(range(N))
    assert len(came) == N + 1


def test_keys_of_items_come_from_the_gateway(running, file):
    """With ``keys=True`` the transform gets each item's bucket and key."""
    loader = loader_of(dataset_at(running, file, keys=True, transform=_place), 1)
    places = [place for batch in loader for place in batch]
    assert Counter(places) == Counter(f"data/{key_of(number)}" for number in range(N))


def _place(item: larder.torch.Item) -> str:
    return f"{item.bucket}/{item.key}"


class Gate:
    """Delays an origin's answers after the first ``free`` ones until ``together`` reads wait at once, then releases all."""

    def __init__(self, free: int, together: int) -> None:
        self._free, self._together = free, together
        self._waiting = 0
        self._open = asyncio.Event()

    async def before_answer(self) -> None:
        """Wait at the gate."""
        if self._free:
            self._free -= 1
            return
        self._waiting += 1
        if self._waiting >= self._together:
            self._open.set()
        await self._open.wait()

    async def send(self, size: int) -> None:
        """Bodies take no time."""


@pytest.mark.parametrize("substitute", [1, 10])
@pytest.mark.parametrize("caching", ["full", "part", "none"])
def test_a_cold_epoch_keeps_the_origin_busy(tmp_path: Path, caching: str, substitute: int) -> None:
    """Rule: batches of four, one at a time, have at least 24 items read at once, in every mode; each item once."""
    items = 100
    with system(tmp_path, 2.0, items=items) as there:
        there.origin.paces[f"/{BUCKET}/"] = Gate(4, 24)  # type: ignore[assignment]
        loader = there.loader("cold", caching, batch_size=4, substitute=substitute)
        came = Counter(int(index) for batch in loader.epoch(0) for index in batch.indices)
        assert came == Counter(range(items))
        assert there.reads() == items
