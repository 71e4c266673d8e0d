"""The Python client's transport against real gateways: one story each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import larder
from larder.http import signing
from larder.reading import fallback, frames
from larder.reading.fallback import Probation
from rig.digests import Row, write
from rig.gateways import Running, Settings, gateway
from rig.origin import ALICE, FakeOrigin, OriginThread
from rig.processes import free_port

KEY = larder.Credentials("GWA", "gateway-secret-a")
AT_ONCE = larder.Retry(attempts=2, base=0)
AWKWARD = ["a b", "a+b", "a%2Fb", "ü/€/\U0001f600", "../up", "x/../y", "a//b", "new\nline", "q?x=1&y#z", "k" * 1024]
KEYS = [*AWKWARD, *(f"items/{number}" for number in range(30))]
BODIES = [key.encode() * (number % 4) for number, key in enumerate(KEYS)]


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with all items."""
    with OriginThread() as store:
        for key, body in zip(KEYS, BODIES, strict=True):
            store.put("data", key, body)
        yield store


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway before that store."""
    home = tmp_path_factory.mktemp("gateway")
    with gateway(Settings(origin.endpoint, home / "cache"), home) as started:
        yield started


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The digest file of all items."""
    rows = [Row(hashlib.sha256(body).digest(), "data", key) for key, body in zip(KEYS, BODIES, strict=True)]
    return write(tmp_path / "items.parquet", rows)


@pytest.fixture
def dataset(running: Running, file: Path) -> larder.DatasetInfo:
    """The dataset, registered."""
    return larder.Client(running.endpoint, credentials=KEY).register("items", file)


@pytest.fixture
def reader(running: Running, dataset: larder.DatasetInfo, file: Path) -> larder.BatchReader:
    """A reader that can register again."""
    return larder.BatchReader(running.endpoint, dataset, credentials=KEY, digest_file=file, retry=AT_ONCE)


def check(fetched: larder.Fetched, request: list[int]) -> None:
    """Exactly these items, with their bytes."""
    assert sorted(fetched.indices.tolist()) == sorted(request)
    assert all(bytes(data) == BODIES[index] for index, data in zip(fetched.indices, fetched.data, strict=True))
    assert fetched.failed == {}


def test_a_dataset_from_registration_to_removal(running, dataset, reader):
    """Cold, then resident: every item of every key, looked up, prefetched, substituted, listed, removed."""
    client = larder.Client(running.endpoint, credentials=KEY)
    everything = list(range(len(KEYS)))
    assert (dataset.items, dataset.id) == (len(KEYS), client.dataset("items").id)
    assert "items" in [known.name for known in client.datasets()]
    assert [item.key for item in client.items("items")] == KEYS
    check(reader.fetch(everything), everything)
    assert reader.lookup(everything).all()
    warm = reader.fetch([5, 3, 5], ordered=True)
    assert warm.indices.tolist() == [5, 3, 5]
    assert set(warm.flags.tolist()) == {frames.HIT}
    assert len(reader.fetch(everything, mode="substitute", take=7).data) == 7
    assert reader.prefetch(everything)["resident"] == len(KEYS)
    client.remove("items")
    with pytest.raises(larder.UnknownDataset):
        client.dataset("items")


def test_items_that_the_origin_lost_or_changed(running, origin, tmp_path):
    """Each is reported with its index, bucket, key and status; the others are delivered."""
    bodies = [b"mortal %d" % number for number in range(4)]
    rows = [Row(hashlib.sha256(body).digest(), "mortal", f"key {number}") for number, body in enumerate(bodies)]
    for number in (0, 1, 3):
        origin.put("mortal", f"key {number}", bodies[number])
    origin.put("mortal", "key 1", b"other bytes")
    info = larder.Client(running.endpoint, credentials=KEY).register("mortal", write(tmp_path / "mortal.parquet", rows))
    fetched = larder.BatchReader(running.endpoint, info, credentials=KEY, retry=AT_ONCE).fetch(range(4), ordered=True)
    assert [bytes(data) for data in fetched.data] == [bodies[0], bodies[3]]
    told = {index: (item.status, item.bucket, item.key) for index, item in fetched.failed.items()}
    assert told == {1: (frames.CHANGED, "mortal", "key 1"), 2: (frames.MISSING, "mortal", "key 2")}


def test_a_forgotten_dataset(running, reader):
    """Registration is soft state: the reader registers a forgotten dataset again by itself."""
    larder.Client(running.endpoint, credentials=KEY).remove("items")
    check(reader.fetch([1, 2, 3]), [1, 2, 3])


def test_a_reader_keeps_to_its_word_on_charges(running, origin, tmp_path):
    """Items of a digest file that was registered by one who pays are read with the payer, after the gateway forgot it too."""
    bodies = [b"paid %d" % number for number in range(4)]
    rows = [Row(hashlib.sha256(body).digest(), "paid", f"key-{number}") for number, body in enumerate(bodies)]
    for number, body in enumerate(bodies):
        origin.put("paid", f"key-{number}", body)
    file = write(tmp_path / "paid.parquet", rows)
    access = larder.Access(credentials=KEY, retry=AT_ONCE, request_payer=True)
    loader = larder.Loader(running.endpoint, file, batch_size=2, access=access)
    assert sorted(bytes(data) for batch in loader for data in batch.data) == bodies
    info = loader.info
    assert info.request_payer
    reader = larder.BatchReader(running.endpoint, info, credentials=KEY, retry=AT_ONCE, digest_file=file)
    larder.Client(running.endpoint, credentials=KEY).remove(info.name)
    assert not reader.fetch(range(4)).failed
    assert larder.Client(running.endpoint, credentials=KEY).dataset(info.id).request_payer
    reads = [seen for seen in origin.seen if seen.raw_path.startswith("/paid/") and seen.method == "GET"]
    assert {seen.header("x-amz-request-payer") for seen in reads} == {"requester"}


def test_a_gateway_that_dies_and_comes_back(file, origin, tmp_path):
    """While the gateway is down, the origin is read, verified and with a warning; afterwards the gateway is used again."""
    fallback._warned_in = 0
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"port": free_port()})
    everything = list(range(len(KEYS)))
    with gateway(settings, tmp_path / "home") as mortal:
        dataset = larder.Client(mortal.endpoint, credentials=KEY).register("items", file)
        store = larder.S3(origin.endpoint, credentials=larder.Credentials(ALICE.access_key_id, ALICE.secret_access_key))
        reader = larder.BatchReader(
            mortal.endpoint, dataset, credentials=KEY, retry=AT_ONCE, fallback=store, digest_file=file
        )
        check(reader.fetch([1, 2, 3]), [1, 2, 3])
        mortal.kill()
        with pytest.warns(larder.LarderWarning, match="read from their origin"):
            check(reader.fetch(everything), everything)
    with gateway(settings, tmp_path / "home"):
        reader._probation = Probation()
        fetched = reader.fetch(everything)
        check(fetched, everything)
        assert fetched.directives.plan > 0


def test_a_wrong_secret(running, dataset):
    """The refusal carries S3's code."""
    wrong = larder.Credentials("GWA", "wrong")
    with pytest.raises(larder.RequestRefused, match="SignatureDoesNotMatch"):
        larder.BatchReader(running.endpoint, dataset, credentials=wrong).fetch([1])


def test_a_clock_that_is_wrong(running, dataset, monkeypatch):
    """The refusal names both clocks."""

    class Slow(datetime):
        """A clock that is 20 minutes late."""

        @classmethod
        def now(cls, tz=None):
            """The wrong time."""
            return datetime.now(UTC) - timedelta(minutes=20)

    monkeypatch.setattr(signing, "datetime", Slow)
    with pytest.raises(larder.RequestRefused, match=r"RequestTimeTooSkewed .*this machine's clock says"):
        larder.BatchReader(running.endpoint, dataset, credentials=KEY).fetch([1])


def test_the_store_instead_of_the_gateway(origin, dataset):
    """The error for an endpoint that is an S3 store says that it is not a gateway."""
    reader = larder.BatchReader(origin.endpoint, dataset, credentials=KEY, retry=AT_ONCE)
    with pytest.raises(larder.UnexpectedAnswer, match="is this the address of a Larder gateway"):
        reader.fetch([1])


def test_keys_are_read_as_they_are(running, origin):
    """The S3 reader gets every key through the gateway, whole, in parts, and from listings."""
    store = larder.S3(running.endpoint, credentials=KEY, retry=AT_ONCE)
    for key, body in zip(KEYS, BODIES, strict=True):
        assert store.get("data", key) == body
        assert store.head("data", key).size == len(body)
        assert store.get("data", key, offset=0, length=min(2, len(body))) == body[:2]
    assert {entry.key: entry.size for entry in store.list("data")} == {
        key: len(body) for key, body in zip(KEYS, BODIES, strict=True)
    }


def test_large_answers(running, origin, tmp_path):
    """Some tens of MB in one batch come whole, cold and warm."""
    random = np.random.default_rng(1)
    bodies = [random.bytes(size) for size in (8 << 20, 5 << 20, 1, 0, *[100_000] * 100)]
    for number, body in enumerate(bodies):
        origin.put("large", f"item {number}", body)
    rows = [Row(hashlib.sha256(body).digest(), "large", f"item {number}") for number, body in enumerate(bodies)]
    info = larder.Client(running.endpoint, credentials=KEY).register("large", write(tmp_path / "large.parquet", rows))
    reader = larder.BatchReader(running.endpoint, info, credentials=KEY, retry=AT_ONCE)
    for _ in range(2):
        fetched = reader.fetch(range(len(bodies)))
        assert fetched.failed == {}
        assert {int(at): bytes(data) for at, data in zip(fetched.indices, fetched.data, strict=True)} == dict(
            enumerate(bodies)
        )
