"""Fallback to the origin without a gateway: the same items, verified, one warning, and retries of the gateway."""

import hashlib
import pickle
import warnings
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_gateway import FakeBatchGateway, Store, problem, serving

import larder
from larder.reading import fallback
from larder.reading.fallback import Probation

KEY = larder.Credentials("key", "secret")
AT_ONCE = larder.Retry(attempts=2, base=0)
ITEMS = {index: b"item %d" % index * (index % 5) for index in range(20)}
PACKED = b"".join(ITEMS.values())


class Counts(Counter):
    """Counts events."""

    def add(self, name, value):
        """Add."""
        self[name] += value


@pytest.fixture
def digest_file(tmp_path):
    """A digest file whose items 0 to 9 are whole objects; the others are parts of one object, the last up to its end."""
    digests = [hashlib.sha256(data).digest() for data in ITEMS.values()]
    starts = [sum(len(ITEMS[before]) for before in range(index)) for index in ITEMS]
    path = tmp_path / "items.parquet"
    columns = {
        "digest": pa.array(digests, pa.binary(32)),
        "bucket": ["bucket"] * 20,
        "key": [f"key {index}" if index < 10 else "packed" for index in ITEMS],
        "offset": pa.array([None if index < 10 else starts[index] for index in ITEMS], pa.int64()),
        "length": pa.array([None if index == 19 else len(ITEMS[index]) for index in ITEMS], pa.int64()),
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def dataset(digest_file):
    """Returns the dataset's info as from a gateway."""
    digests = pq.read_table(digest_file)["digest"].to_pylist()
    return larder.DatasetInfo("items", hashlib.sha256(b"".join(digests)).hexdigest(), 20, caching="full")


@pytest.fixture
def origin():
    """The store: ``objects`` by key."""

    def answer(handler, asked):
        key = asked.path.removeprefix("/bucket/").replace("%20", " ")
        data = server.objects.get(key)
        if data is None:
            handler.send(server.missing, b"<Error><Code>NoSuchKey</Code></Error>")
        elif "Range" in asked.headers:
            first, _, last = asked.headers["Range"].removeprefix("bytes=").partition("-")
            handler.send(206, data[int(first) : int(last) + 1 if last else None])
        else:
            handler.send(200, data)

    with serving(FakeBatchGateway(Store({}))) as server:
        server.objects = {**{f"key {index}": ITEMS[index] for index in range(10)}, "packed": PACKED}
        server.missing = 404
        server.other = answer
        yield server


@pytest.fixture
def gateway():
    """A gateway that is overloaded for as long as ``faults`` lasts."""
    with serving(FakeBatchGateway(Store(dict(ITEMS)))) as server:
        server.faults = [problem(503, "SlowDown")] * 1000
        yield server


@pytest.fixture
def reader(gateway, origin, dataset, digest_file):
    """A reader with a fallback, and a clock that the test moves."""
    store = larder.S3(origin.endpoint, credentials=KEY, retry=AT_ONCE)
    made = larder.BatchReader(
        gateway.endpoint,
        dataset,
        credentials=KEY,
        retry=AT_ONCE,
        fallback=store,
        digest_file=digest_file,
        stats=Counts(),
    )
    made.now = 0.0
    made._probation = Probation(lambda: made.now)
    return made


@pytest.fixture(autouse=True)
def warned():
    """The warning of this test; it comes once in a process, so it is made new for each test."""
    fallback._warned_in = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def _content(fetched):
    return [(int(index), bytes(data)) for index, data in zip(fetched.indices, fetched.data, strict=True)]


def test_exact(reader, gateway):
    """Every position comes from the origin: whole objects, parts, parts up to the end, and empty ones."""
    request = [3, 0, 19, 12, 10, 3]
    fetched = reader.fetch(request, ordered=True)
    assert _content(fetched) == [(index, ITEMS[index]) for index in request]
    assert (fetched.failed, fetched.flags.tolist()) == ({}, [0] * 6)
    assert len(gateway.asked) == 2
    assert reader.stats["fallback_reads"] == 6


@pytest.mark.parametrize("status", [403, 404, 502])
def test_a_proxys_own_page_is_no_answer_of_a_gateway(reader, gateway, status):
    """While no gateway runs behind it, a proxy may answer any status with a page of its own: the origin is read."""
    gateway.faults = [lambda handler, asked: handler.send(status, b"<html>no route</html>")] * 1000
    assert _content(reader.fetch([3, 0], ordered=True)) == [(3, ITEMS[3]), (0, ITEMS[0])]


def test_substitute_takes_the_first(reader):
    """The origin has no cached items to prefer, so the first candidates are delivered."""
    fetched = reader.fetch([7, 5, 6, 1], mode="substitute", take=2)
    assert _content(fetched) == [(7, ITEMS[7]), (5, ITEMS[5])]


def test_what_the_gateway_had_delivered_is_kept(reader, gateway, origin):
    """Only the remainder is read from the origin."""

    def half(handler, asked):
        answer = handler.server.answer(asked)
        handler.send_batch(answer, size=answer.whole_at[1])
        handler.close_connection = True

    gateway.faults = [half, *[problem(503, "SlowDown")] * 10]
    assert _content(reader.fetch([1, 2, 3, 4], ordered=True)) == [(index, ITEMS[index]) for index in [1, 2, 3, 4]]
    assert sorted(asked.path for asked in origin.asked) == ["/bucket/key%203", "/bucket/key%204"]


def test_it_is_said_once(reader, warned):
    """A process warns once, with the cause and the consequence."""
    reader.fetch([1])
    reader.fetch([2])
    assert [warning.category for warning in warned] == [larder.LarderWarning]
    assert "503: SlowDown" in str(warned[0].message)
    assert "read from their origin" in str(warned[0].message)
    assert warned[0].filename == __file__


def test_bytes_that_are_not_the_digest_files(reader, origin):
    """Bytes from the origin are verified; other bytes are reported as a changed item, never delivered."""
    origin.objects["key 3"] = b"something else"
    fetched = reader.fetch([2, 3])
    assert _content(fetched) == [(2, ITEMS[2])]
    assert (fetched.failed[3].status, fetched.failed[3].bucket, fetched.failed[3].key) == (2, "bucket", "key 3")


@pytest.mark.parametrize(("answer", "status"), [(404, 1), (403, 5), (500, 3)])
def test_failures_of_the_origin(reader, origin, answer, status):
    """Missing, refused and failing objects get the statuses that a gateway gives them."""
    origin.missing = answer
    del origin.objects["key 3"]
    fetched = reader.fetch([2, 3])
    assert (_content(fetched), fetched.failed[3].status) == ([(2, ITEMS[2])], status)


def test_another_candidate_for_a_missing_one(reader, origin):
    """In substitute mode the batch gets its size from the candidates that there are."""
    del origin.objects["key 3"]
    fetched = reader.fetch([3, 2, 1], mode="substitute", take=2)
    assert (_content(fetched), set(fetched.failed)) == ([(2, ITEMS[2]), (1, ITEMS[1])], {3})


def test_the_gateway_is_tried_again_with_growing_pauses(reader, gateway):
    """After it was given up, it is asked once after 1, 2, 4 ... seconds, and used as soon as it answers."""
    reader.fetch([1])
    for pause in (1, 2, 4):
        asked = len(gateway.asked)
        reader.now += pause - 0.1
        reader.fetch([1])
        assert len(gateway.asked) == asked
        reader.now += 0.2
        reader.fetch([1])
        assert len(gateway.asked) == asked + 1
    gateway.faults = []
    reader.now += 100
    reads = reader.stats["fallback_reads"]
    assert _content(reader.fetch([1, 2])) == [(1, ITEMS[1]), (2, ITEMS[2])]
    assert reader.stats["fallback_reads"] == reads
    assert not reader._probation.active


def test_a_gateway_that_was_given_up_is_told_nothing(reader, gateway):
    """Prefetches are refused locally until the gateway has answered again, so that training does not wait once per chunk."""
    reader.fetch([1])
    asked = len(gateway.asked)
    reader.now += 100
    assert reader.prefetch([1, 2, 3]) == {"resident": 0, "fetching": 0, "refused": 3}
    assert len(gateway.asked) == asked
    gateway.faults = []
    reader.fetch([1])
    said = {"resident": 1, "fetching": 2, "refused": 0}
    gateway.other = lambda handler, asked: handler.send_json(said, 202)
    assert reader.prefetch([1, 2, 3]) == said


def test_pauses_end_at_a_minute():
    """After a long outage the gateway is used again within a minute of its return."""
    now = 0.0
    probation = Probation(lambda: now)
    for _ in range(20):
        probation.failed()
    assert probation.waiting
    now = 60.0
    assert not probation.waiting


def test_a_refusal_is_not_gone_around(reader, gateway):
    """A refusal by the gateway is raised; the fallback is only for unreachable gateways."""
    gateway.faults = [problem(403, "AccessDenied")]
    with pytest.raises(larder.RequestRefused):
        reader.fetch([1])


def test_the_digest_file_of_another_dataset(gateway, origin, digest_file):
    """Reading items of another dataset would be silent nonsense."""
    other = larder.DatasetInfo("other", "cd" * 32, 20)
    made = larder.BatchReader(
        gateway.endpoint, other, credentials=KEY, retry=AT_ONCE, fallback=origin.endpoint, digest_file=digest_file
    )
    with pytest.raises(larder.DigestFileError, match="cd" * 32):
        made.fetch([1])


def test_pickling(reader):
    """A reader with a fallback that was used works on in another process."""
    reader.fetch([1])
    reader._probation = Probation()
    assert _content(pickle.loads(pickle.dumps(reader)).fetch([2])) == [(2, ITEMS[2])]


def test_a_fallback_needs_a_digest_file(gateway, dataset):
    """An invalid option raises where it is given."""
    with pytest.raises(ValueError, match="needs digest_file"):
        larder.BatchReader(gateway.endpoint, dataset, fallback="origin")


def test_a_fallback_needs_pyarrow(gateway, dataset, digest_file, monkeypatch):
    """The error for a missing package names the command that installs it, before the package is needed."""
    monkeypatch.setattr(fallback.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(larder.LarderError, match=r'pip install "larder\[digest\]"'):
        larder.BatchReader(gateway.endpoint, dataset, fallback="origin", digest_file=digest_file)


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({"LARDER_ORIGIN_ENDPOINT": "http://store:9000"}, "http://store:9000"),
        ({"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://gateway"}, "https://s3.eu-west-1.amazonaws.com"),
    ],
)
def test_where_the_origin_is(gateway, dataset, digest_file, monkeypatch, variables, endpoint):
    """ "origin" is the endpoint set for it, else AWS; never AWS_ENDPOINT_URL, which usually is the gateway itself."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "LARDER_ORIGIN_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = larder.BatchReader(gateway.endpoint, dataset, fallback="origin", digest_file=digest_file)
    assert made._origin._store.endpoint == endpoint
