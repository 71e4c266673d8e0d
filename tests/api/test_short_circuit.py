"""Short-circuit reads: a real gateway passes open files of resident items to readers on its machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import larder
from larder.reading import batch, frames
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway, start
from rig.origin import FakeOrigin
from rig.processes import free_port, wait_until
from rig.v1 import GWA
from tests.other_user import OtherUser, Steps, as_another_user, open_folder

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
KEY = larder.Credentials(*GWA)
NARROW = larder.Credentials("GWN", "narrow-secret")
"""May read the first item only."""
COUNT = 300
"""More than one message can carry."""
EVERYTHING = list(range(COUNT))
PATIENT = larder.Retry(attempts=60, base=0.02, longest=0.5)


@pytest.fixture(scope="module")
def made(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """Returns a dataset; one of its items is empty."""
    bodies = [*bytes_of(COUNT - 1, 5_000, "short"), b""]
    return stock(origin, tmp_path_factory.mktemp("stock"), "short", bodies)


@pytest.fixture(scope="module")
def settings(origin: FakeOrigin, made: Stock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A gateway with a socket that other users reach."""
    with open_folder() as folder:
        cache = tmp_path_factory.mktemp("gateway") / "cache"
        narrow = {
            "access_key_id": NARROW.access_key_id,
            "secret_access_key": NARROW.secret_access_key,
            "tenant": "a",
            "allow": [made.path(0)[1:]],
        }
        yield Settings(
            origin.endpoint,
            cache,
            server={"unix_socket": str(folder / "s")},
            credentials=(*Settings.credentials, narrow),
        )


@pytest.fixture(scope="module")
def serving(settings: Settings) -> Iterator[Running]:
    """Returns the running gateway."""
    with gateway(settings, settings.cache.parent) as started:
        yield started


@pytest.fixture
def running(serving: Running, made: Stock) -> Running:
    """Returns the running gateway, with all items in its cache."""
    warm(serving, made)
    return serving


def warm(running: Running, made: Stock) -> None:
    """Have all items in the cache, verified."""
    made.register(running)
    for _ in range(2):
        assert len(made.read(running, EVERYTHING)) == COUNT


class Reading:
    """A reader that has found the socket, with its counters."""

    def __init__(
        self, running: Running, made: Stock, retry: larder.Retry | None = None, key: larder.Credentials = KEY
    ) -> None:
        self.stats = larder.Stats()
        self._made = made
        info = larder.DatasetInfo(made.name, made.id, len(made.bodies), caching="full")
        self.reader = larder.BatchReader(
            running.endpoint, info, credentials=key, timeout=20, retry=retry, stats=self.stats
        )
        self.connection = self.reader._api.connection
        self.look()
        assert self.connection.local is not None

    def look(self) -> None:
        """Look for the socket once, and disable further automatic attempts."""
        assert self.reader.fleet is not None
        self.reader.fleet.refresh()
        self.reader.fleet._next_refresh = float("inf")

    def fetch(self, indices: list[int] = EVERYTHING, **options: Any) -> list[int]:
        """Fetch, and check that each item has its bytes; returns their indices."""
        fetched = self.reader.fetch(indices, **options)
        assert fetched.failed == {}
        assert [bytes(data) for data in fetched.data] == [self._made.bodies[index] for index in fetched.indices]
        return fetched.indices.tolist()

    def fetch_everything(self) -> None:
        """Every item, once."""
        assert sorted(self.fetch()) == EVERYTHING


def open_files() -> int:
    """The number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def blobs_open_in(running: Running) -> list[str]:
    """The blobs that a gateway of one worker has open."""
    links = []
    for each in Path(f"/proc/{running.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(each))
    return [link for link in links if "/blobs/" in link]


def when_sent(running: Running, child: OtherUser, before: float) -> None:
    """Wait until the gateway has sent all files of an answer and the reader has read none of them."""
    child.steps.wait()
    name = "larder_batch_descriptors_total"
    wait_until(lambda: running.metric(name) - before == COUNT, 20.0, "sending the files")


def blob(settings: Settings, made: Stock, index: int) -> Path:
    """The path of an item's blob in the cache."""
    name = made.rows[index].digest.hex()
    return settings.cache / "blobs" / name[:2] / name[2:]


def test_resident_items_come_as_files(running: Running, made: Stock) -> None:
    """Rule: another user reads resident items from files, exact and substitutable ones, each once, and closes all of them."""

    def read() -> tuple[Any, ...]:
        reading = Reading(running, made)
        before = open_files()
        reading.fetch_everything()
        some = reading.fetch(mode="substitute", take=50)
        twice = reading.fetch([7, 7, 3], ordered=True)
        nothing = reading.fetch([])
        return len(set(some)), twice, nothing, reading.stats.by_way, open_files() - before

    sent, batches = (running.metric(name) for name in ("larder_batch_descriptors_total", "larder_batches_total"))
    one_connection = 1
    assert as_another_user(read) == (50, [7, 7, 3], [], {"files": COUNT + 53}, one_connection)
    assert running.metric("larder_batch_descriptors_total") - sent == COUNT + 53
    assert running.metric("larder_batches_total") - batches == 3


def test_root_reads_bytes(running: Running, made: Stock) -> None:
    """Rule: root, and the gateway's own user, could write a blob through its descriptor; over the socket they get bytes."""
    refused = running.metric("larder_batch_descriptors_refused_total", reason="user")
    reading = Reading(running, made)
    reading.fetch_everything()
    assert reading.stats.by_way == {"socket/user": COUNT}
    assert running.metric("larder_batch_descriptors_refused_total", reason="user") - refused == 1
    reading.reader.close()


def test_a_key_that_may_not_read_an_item_gets_no_file(running: Running, made: Stock) -> None:
    """Rule: files leave only after the checks of every answer: here the allow-list of the key."""

    def read() -> tuple[Any, ...]:
        reading = Reading(running, made, key=NARROW)
        before = open_files()
        with pytest.raises(larder.RequestRefused, match="allow-list"):
            reading.fetch([1])
        return reading.stats.by_way, open_files() - before

    sent = running.metric("larder_batch_descriptors_total")
    assert as_another_user(read) == ({}, 1)
    assert running.metric("larder_batch_descriptors_total") == sent


def test_cold_items_come_as_bytes(serving: Running, origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: cold items are framed bytes, and files from the next batch on."""
    cold = stock(origin, tmp_path, "cold", bytes_of(20, 5_000, "cold"))
    cold.register(serving)

    def read() -> dict[str, int]:
        reading = Reading(serving, cold)
        for _ in range(2):
            assert sorted(reading.fetch(list(range(20)))) == list(range(20))
        return reading.stats.by_way

    assert as_another_user(read) == {"socket/cold": 20, "files": 20}


def test_a_reader_that_can_take_few_files_gets_bytes(running: Running, made: Stock) -> None:
    """Rule: a batch with more items than the reader takes files comes as bytes."""

    def read() -> dict[str, int]:
        batch.acceptable = lambda: 10  # type: ignore[attr-defined]
        reading = Reading(running, made)
        reading.fetch_everything()
        assert sorted(reading.fetch(EVERYTHING[:10])) == EVERYTHING[:10]
        return reading.stats.by_way

    refused = running.metric("larder_batch_descriptors_refused_total", reason="many")
    assert as_another_user(read) == {"files": 10, "socket/many": COUNT}
    assert running.metric("larder_batch_descriptors_refused_total", reason="many") - refused == 1


def test_files_that_do_not_fit_into_the_process(running: Running, made: Stock) -> None:
    """Rule: if the kernel cannot install all files, none is used or left open, and the items are requested as bytes."""

    def read() -> tuple[Any, ...]:
        batch.acceptable = lambda: COUNT  # type: ignore[attr-defined]
        reading = Reading(running, made)
        reading.fetch_everything()
        before = open_files()
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, before + 20))
        for _ in range(2):
            reading.fetch_everything()
        return reading.stats.by_way, reading.stats.truncated, open_files() <= before

    assert as_another_user(read) == ({"files": COUNT, "socket/failed": 2 * COUNT}, 1, True)


def between(steps: Steps) -> None:
    """In the reader's process: pause for the test once an answer's files have arrived, before the first is read."""
    fill = frames._filled
    told = []

    def filled(file: int, offset: int, view: memoryview) -> bool:
        if not told:
            told.append(True)
            steps.reached()
            steps.wait()
        return fill(file, offset, view)

    frames._filled = filled


def test_an_evicted_item_stays_readable_while_open(settings: Settings, running: Running, made: Stock) -> None:
    """Rule: an open file keeps its bytes after its blob is evicted."""

    def read(steps: Steps) -> dict[str, int]:
        reading = Reading(running, made)
        between(steps)
        reading.fetch_everything()
        return reading.stats.by_way

    before = running.metric("larder_batch_descriptors_total")
    with OtherUser(read) as child:
        when_sent(running, child, before)
        for index in EVERYTHING:
            blob(settings, made, index).unlink()
        child.steps.reached()
        assert child.result() == {"files": COUNT}
    assert sorted(made.read(running, EVERYTHING)) == EVERYTHING


def test_items_that_left_the_cache_before_they_were_opened(settings: Settings, running: Running, made: Stock) -> None:
    """Rule: an answer in progress reports items that were evicted; the reader requests them again and gets them as bytes."""

    def read() -> tuple[dict[str, int], int, int]:
        reading = Reading(running, made)
        reading.fetch_everything()
        return reading.stats.by_way, reading.stats.retries, reading.stats.crc_errors

    for index in (0, 40, COUNT - 2):
        blob(settings, made, index).unlink()
    assert as_another_user(read) == ({"files": COUNT - 3, "socket/cold": 3}, 1, 0)


def test_a_damaged_blob_is_never_delivered(settings: Settings, running: Running, made: Stock) -> None:
    """Rule: an item whose file was truncated or changed is requested again as bytes; the gateway notices and reads it again."""

    def read(steps: Steps) -> tuple[dict[str, int], int]:
        reading = Reading(running, made)
        between(steps)
        reading.fetch_everything()
        return reading.stats.by_way, reading.stats.crc_errors

    before = running.metric("larder_batch_descriptors_total")
    with OtherUser(read) as child:
        when_sent(running, child, before)
        os.truncate(blob(settings, made, 5), 100)
        blob(settings, made, 6).write_bytes(bytes(5_000))
        child.steps.reached()
        assert child.result() == ({"files": COUNT - 2, "socket/failed": 2}, 2)


def test_a_reader_that_is_killed_leaves_nothing_open(running: Running, made: Stock) -> None:
    """Rule: the gateway closes the files of an answer once they are sent, whether the reader still holds them or is dead."""
    before = len(blobs_open_in(running))

    def read(steps: Steps) -> None:
        between(steps)
        Reading(running, made).fetch_everything()

    with OtherUser(read) as child:
        child.steps.wait()
        wait_until(lambda: len(blobs_open_in(running)) <= before, 20.0, "closing the files")
    assert len(made.read(running, EVERYTHING)) == COUNT
    wait_until(lambda: len(blobs_open_in(running)) <= before, 20.0, "closing the files")


def test_a_gateway_that_is_killed_mid_batch(origin: FakeOrigin, made: Stock, tmp_path: Path) -> None:
    """Rule: kill -9 while readers hold files or wait for them, and a restart: every batch ends with every item, once."""
    with open_folder() as folder:
        server = {"unix_socket": str(folder / "s"), "port": free_port()}
        settings = Settings(origin.endpoint, tmp_path / "cache", server=server)
        first = start(settings, tmp_path)
        warm(first, made)

        def read(steps: Steps) -> tuple[bool, int]:
            reading = Reading(first, made, PATIENT)
            between(steps)
            for _ in range(10):
                reading.fetch_everything()
            before = reading.stats.by_way["files"]
            reading.connection.bytes_until = 0.0
            reading.look()
            reading.fetch_everything()
            return before >= COUNT, reading.stats.by_way["files"] - before

        before = first.metric("larder_batch_descriptors_total")
        with OtherUser(read) as child:
            when_sent(first, child, before)
            first.kill()
            first.process.stdout.close()
            child.steps.reached()
            with gateway(settings, tmp_path) as again:
                made.register(again)
                assert child.result() == (True, COUNT)


def test_an_epoch_of_a_loader(running: Running, made: Stock) -> None:
    """Rule: exactly once holds for whole epochs, by sockets and by files."""

    def read() -> tuple[Any, ...]:
        seen: list[int] = []
        access = larder.Access(credentials=KEY, timeout=20)
        loader = larder.Loader(running.endpoint, made.name, batch_size=16, access=access)
        for epoch in range(2):
            assert isinstance(loader.reader, larder.BatchReader)
            assert loader.reader.fleet is not None
            loader.reader.fleet.refresh()
            for items in loader.epoch(epoch):
                seen += items.indices.tolist()
                for index, data in zip(items.indices, items.data, strict=True):
                    assert bytes(data) == made.bodies[index]
        return sorted(seen), loader.stats.crc_errors, loader.stats.by_way

    assert as_another_user(read) == (sorted(EVERYTHING * 2), 0, {"files": 2 * COUNT})
