"""Fetching batches from a gateway that keeps the contract."""

import copy
import dataclasses
import json
import multiprocessing
import pickle
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from batch_wire import CHANGED, HIT, MISSING, NOT_RESIDENT, ORIGIN_ERROR, REFUSED, STREAMED, Item, frames_form
from fake_gateway import ID, FakeBatchGateway, Store, problem, serving

import larder
from larder.base.stats import Stats
from larder.reading.source import GatewaySource

ITEMS = {index: bytes([index]) * (index % 7) for index in range(40)}
AT_ONCE = larder.Retry(attempts=3, base=0)
KEY = larder.Credentials("key", "secret")
DATASET = larder.DatasetInfo("digits", ID, len(ITEMS), caching="full")


class Counts(Counter):
    """Counts events."""

    def add(self, name, value):
        """Add."""
        self[name] += value


@pytest.fixture
def gateway():
    """A gateway that has all items."""
    with serving(FakeBatchGateway(Store(dict(ITEMS)))) as server:
        yield server


def _reader(server, **options):
    return larder.BatchReader(server.endpoint, DATASET, credentials=KEY, **{"retry": AT_ONCE, **options})


def _content(fetched):
    return [(int(index), bytes(data)) for index, data in zip(fetched.indices, fetched.data, strict=True)]


def _expected(indices):
    return [(index, ITEMS[index]) for index in indices]


@pytest.mark.parametrize("frames", [False, True])
def test_exact_brings_every_position(gateway, frames):
    """All items come, duplicates once for each position, with their flags and the gateway's directives."""
    gateway.store.frames = frames
    fetched = _reader(gateway).fetch([3, 5, 3, 0])
    assert _content(fetched) == _expected([3, 5, 3, 0])
    assert fetched.flags.tolist() == [HIT] * 4
    assert fetched.failed == {}
    assert fetched.directives == larder.Directives("full", 7)


def test_what_is_sent(gateway):
    """A request names the dataset by its id, carries the indices as little-endian u32, and is signed."""
    _reader(gateway).fetch(np.array([7, 1]), mode="substitute", take=1, epoch=4, job="run 1")
    (asked,) = gateway.asked
    assert (asked.method, asked.path) == ("POST", f"/-/v1/datasets/{ID}/batch")
    assert asked.query == {"mode": "substitute", "take": "1", "epoch": "4", "job": "run 1"}
    assert asked.body == struct.pack("<2I", 7, 1)
    assert asked.headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=key/")


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, ">u4", np.uint8])
def test_any_integer_array_will_do(gateway, dtype):
    """Indices of any width and byte order are understood."""
    assert _content(_reader(gateway).fetch(np.array([9, 2], dtype=dtype))) == _expected([9, 2])


def test_no_items_cost_no_request(gateway):
    """An empty batch is answered at once."""
    fetched = _reader(gateway).fetch([])
    assert (fetched.indices.tolist(), fetched.data, gateway.asked) == ([], [], [])
    assert _reader(gateway).lookup([]).tolist() == []


def test_ordered_is_the_order_of_the_request(gateway):
    """``ordered`` restores the order of the request, for any order of arrival."""
    backwards = [Item(at, index, ITEMS[index]) for at, index in enumerate([4, 1, 3, 1])][::-1]
    gateway.faults = [lambda handler, asked: handler.send_batch(frames_form(backwards))] * 2
    assert _content(_reader(gateway).fetch([4, 1, 3, 1], ordered=True)) == _expected([4, 1, 3, 1])
    assert _content(_reader(gateway).fetch([4, 1, 3, 1])) == _expected([1, 3, 1, 4])


@pytest.mark.parametrize("take", [0, 1, 3, 8, 100])
def test_substitute_brings_as_many_as_wanted(gateway, take):
    """Any ``take`` of the candidates come, each at most once; with too few candidates, all of them."""
    candidates = [9, 8, 7, 6, 5, 4, 3, 2]
    fetched = _reader(gateway).fetch(candidates, mode="substitute", take=take)
    assert len(set(fetched.indices.tolist())) == len(fetched.data) == min(take, 8)
    assert set(_content(fetched)) <= set(_expected(candidates))


def test_substitute_asks_again_for_what_fell_short(gateway):
    """A gateway that delivers less than ``take`` is asked for the rest, among the remaining candidates."""
    full = gateway.answer

    def less(handler, asked):
        asked.query["take"] = "2"
        handler.send_batch(full(asked))

    gateway.faults = [less]
    fetched = _reader(gateway).fetch([1, 2, 3, 4, 5], mode="substitute", take=4)
    assert len(fetched.data) == 4
    assert (gateway.asked[1].indices, gateway.asked[1].query["take"]) == ([3, 4, 5], "2")


@pytest.mark.parametrize("status", [MISSING, CHANGED, NOT_RESIDENT, REFUSED])
def test_items_that_cannot_be_had(gateway, status):
    """A failed item is reported with place and reason; the others are delivered, and nothing is requested twice."""
    gateway.store.lost = {5: status}
    fetched = _reader(gateway).fetch([4, 5, 6])
    assert _content(fetched) == _expected([4, 6])
    assert fetched.failed == {5: larder.ItemFailure(5, status, "bucket", "key 5", "told so")}
    assert len(gateway.asked) == 1


def test_an_origin_error_may_pass(gateway):
    """An item that the origin failed is requested again, alone."""
    gateway.store.lost = {5: ORIGIN_ERROR}

    def recover(handler, asked):
        handler.send_batch(handler.server.answer(asked))
        gateway.store.lost = {}

    gateway.faults = [recover]
    fetched = _reader(gateway).fetch([4, 5, 6], ordered=True)
    assert (_content(fetched), fetched.failed) == (_expected([4, 5, 6]), {})
    assert gateway.asked[1].indices == [5]


def test_an_origin_error_that_stays(gateway):
    """After as many requests as ``retry`` allows, an item that the origin keeps failing is reported as failed."""
    gateway.store.lost = {5: ORIGIN_ERROR}
    fetched = _reader(gateway).fetch([4, 5, 6])
    assert (_content(fetched), fetched.failed[5].status) == (_expected([4, 6]), ORIGIN_ERROR)
    assert [asked.indices for asked in gateway.asked] == [[4, 5, 6], [5], [5]]


def test_another_candidate_takes_the_place_of_a_failed_one(gateway):
    """In substitute mode an item that the origin fails is replaced, and stays a candidate for later."""
    gateway.store.lost = {5: ORIGIN_ERROR, 6: MISSING}
    fetched = _reader(gateway).fetch([5, 6, 7, 8], mode="substitute", take=2)
    assert _content(fetched) == _expected([7, 8])
    assert set(fetched.failed) == {6}


def test_all_candidates_failed(gateway):
    """When no candidate is left, the delivered items are returned with the failures, which explain the shortfall."""
    gateway.store.lost = dict.fromkeys((5, 6), MISSING)
    fetched = _reader(gateway).fetch([5, 6, 7], mode="substitute", take=2)
    assert (_content(fetched), set(fetched.failed)) == (_expected([7]), {5, 6})


def test_streamed_items(gateway):
    """Items that the gateway did not store come like others, flagged."""
    gateway.store.streamed = {2}
    fetched = _reader(gateway).fetch([1, 2])
    assert (_content(fetched), fetched.flags.tolist()) == (_expected([1, 2]), [HIT, STREAMED])


@pytest.mark.parametrize(
    ("indices", "options", "error", "words"),
    [
        ([40], {}, IndexError, "item 40 of dataset digits, which has 40"),
        ([-1], {}, IndexError, "item -1"),
        ([0.5], {}, ValueError, "whole numbers"),
        ([[1]], {}, ValueError, "one dimension"),
        ([1, 2, 1], {"mode": "substitute", "take": 2}, ValueError, "twice"),
        ([1], {"mode": "substitute"}, ValueError, "take"),
        ([1], {"mode": "exact", "take": 1}, ValueError, "take"),
        ([1], {"mode": "substitute", "take": -1}, ValueError, "take"),
        ([1], {"mode": "prefetch"}, ValueError, "mode"),
    ],
)
def test_wrong_arguments(gateway, indices, options, error, words):
    """Invalid arguments raise before anything is sent."""
    with pytest.raises(error, match=words):
        _reader(gateway).fetch(indices, **options)
    assert gateway.asked == []


def test_an_order_is_a_header(gateway):
    """Rule: gateways of earlier versions ignore it, while they would refuse a parameter."""
    _reader(gateway).fetch([1, 2], epoch=3, job="j", order="shuffled:7")
    assert gateway.asked[0].query == {"mode": "exact", "epoch": "3", "job": "j"}
    assert gateway.asked[0].headers["x-larder-order"] == "shuffled:7"


def test_prefetch_counts(gateway):
    """Prefetch returns the gateway's counts."""
    gateway.other = lambda handler, asked: handler.send_json({"resident": 1, "fetching": 2, "refused": 0}, 202)
    assert _reader(gateway).prefetch([1, 2, 3]) == {"resident": 1, "fetching": 2, "refused": 0}
    assert (gateway.asked[0].query, gateway.asked[0].indices) == ({"mode": "prefetch"}, [1, 2, 3])


def test_lookup_is_a_bitmap(gateway):
    """Bit i of the answer, least significant first, is item i of the request."""
    gateway.other = lambda handler, asked: handler.send(200, bytes([0b0000_0101, 0b1]))
    resident = _reader(gateway).lookup(list(range(9)))
    assert resident.tolist() == [True, False, True, False, False, False, False, False, True]


def test_a_bitmap_of_another_size(gateway):
    """A bitmap that is too short does not pass for "not resident"."""
    gateway.other = lambda handler, asked: handler.send(200, b"\x01")
    with pytest.raises(larder.UnexpectedAnswer, match="1 bytes of bitmap for 9 items"):
        _reader(gateway).lookup(list(range(9)))


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (403, "InvalidAccessKeyId"), (400, "IndexOutOfRange")],
)
def test_a_refusal_is_not_repeated(gateway, status, code):
    """A refusal is raised without a retry, with the gateway's code and words."""
    gateway.faults = [problem(status, code, "because of this")]
    with pytest.raises(larder.RequestRefused, match="because of this") as caught:
        _reader(gateway).fetch([1])
    assert (caught.value.status, caught.value.code, len(gateway.asked)) == (status, code, 1)


def test_clock_skew_is_explained(gateway):
    """A refusal for the time names both clocks and the remedy."""
    gateway.faults = [problem(403, "RequestTimeTooSkewed", "The difference is too large.")]
    with pytest.raises(larder.RequestRefused, match=r"this machine's clock says .* GMT, the gateway's .* GMT"):
        _reader(gateway).fetch([1])


@pytest.mark.parametrize("content_type", ["text/html", "application/json", "application/x-tar"])
def test_another_server(gateway, content_type):
    """An answer of another kind is not a batch; after the last attempt the error describes it."""
    gateway.faults = [lambda handler, asked: handler.send(200, b"hello", Content_Type=content_type)] * 9
    with pytest.raises(larder.UnexpectedAnswer, match=content_type):
        _reader(gateway).fetch([1])


def test_an_s3_store_is_no_gateway(gateway):
    """A store's XML error raises UnexpectedAnswer; its code is not trusted."""
    xml = b"<Error><Code>MethodNotAllowed</Code></Error>"
    gateway.faults = [lambda handler, asked: handler.send(405, xml, Content_Type="application/xml")] * 9
    with pytest.raises(larder.UnexpectedAnswer, match="is this the address of a Larder gateway"):
        _reader(gateway).fetch([1])


def _register(gateway, dataset_id=ID):
    def answer(handler, asked):
        if asked.method != "PUT":
            handler.send_problem(404, "UnknownDataset")
            return
        document = {"name": "digits", "id": dataset_id, "items": 40, "bytes": 1, "caching": "full"}
        handler.send_json({**document, "plan": 1, "resident": 0}, 201)

    gateway.other = answer


def test_a_forgotten_dataset_is_registered_again(gateway, tmp_path):
    """A gateway that lost its registrations gets the digest file, and then delivers."""
    file = tmp_path / "digits.parquet"
    file.write_bytes(b"PAR1 and so on")
    _register(gateway)
    gateway.faults = [problem(404, "UnknownDataset")]
    fetched = _reader(gateway, digest_file=file).fetch([1, 2])
    assert _content(fetched) == _expected([1, 2])
    sent = gateway.asked[1]
    query = {"caching": "full", "by_content": "true"}
    assert (sent.method, sent.path, sent.query) == ("PUT", "/-/v1/datasets/digits", query)
    assert sent.body == file.read_bytes()


def test_a_dataset_is_registered_again_under_the_stem_of_its_content_name(gateway, tmp_path):
    """A job whose dataset was forgotten registers its file by content: a changed one displaces nothing, and is an error."""
    file = tmp_path / "digits.parquet"
    file.write_bytes(b"PAR1 and so on")
    _register(gateway, "cd" * 32)
    gateway.faults = [problem(404, "UnknownDataset")]
    named = dataclasses.replace(DATASET, name=f"digits-{ID[:16]}")
    with pytest.raises(larder.DigestFileError, match="is of dataset cdcd"):
        larder.BatchReader(gateway.endpoint, named, credentials=KEY, digest_file=file).fetch([1, 2])
    assert gateway.asked[1].path == "/-/v1/datasets/digits"


def test_a_forgotten_dataset_is_registered_again_from_where_its_digest_file_is(gateway):
    """A dataset given by the S3 address of its digest file is registered again by that address."""
    _register(gateway)
    gateway.faults = [problem(404, "UnknownDataset")]
    address = "s3://bucket/digits.parquet"
    source = GatewaySource(gateway.endpoint, address, larder.Access(credentials=KEY))
    assert _content(source.reader(DATASET, Stats()).fetch([1, 2])) == _expected([1, 2])
    assert json.loads(gateway.asked[1].body) == {"source": address}
    with pytest.raises(ValueError, match="needs digest_file"):
        _reader(gateway, fallback="origin", digest_file=address)


def test_a_dataset_that_stays_forgotten(gateway, tmp_path):
    """A gateway that forgets at once is an error, after as many registrations as there are attempts."""
    file = tmp_path / "digits.parquet"
    file.write_bytes(b"PAR1 and so on")
    _register(gateway)
    gateway.faults = [_forgets] * 20
    with pytest.raises(larder.UnknownDataset):
        _reader(gateway, digest_file=file).fetch([1])
    assert 2 <= sum(asked.method == "PUT" for asked in gateway.asked) <= 4


def _forgets(handler, asked):
    if asked.method == "PUT":
        handler.server.other(handler, asked)
    else:
        handler.send_problem(404, "UnknownDataset")


def test_a_gateway_that_goes_away_while_a_dataset_is_registered(gateway, tmp_path):
    """Rule: registering is part of the batch and uses the batch's retries; a dataset forgotten twice is no error either."""
    file = tmp_path / "digits.parquet"
    file.write_bytes(b"PAR1 and so on")
    _register(gateway)

    def away(handler, asked):
        handler.reset()

    gateway.faults = [_forgets, *[away] * 20, _forgets, *[_forgets] * 12]
    reader = _reader(gateway, digest_file=file, retry=larder.Retry(attempts=2, base=0, longest=0, outage=3600))
    assert reader.fetch([1]).indices.tolist() == [1]


def test_without_a_digest_file_a_forgotten_dataset_is_an_error(gateway):
    """Without a digest file, a forgotten dataset is an error with the remedy."""
    gateway.faults = [problem(404, "UnknownDataset", "register it again")]
    with pytest.raises(larder.UnknownDataset, match="register it again"):
        _reader(gateway).fetch([1])


def test_the_digest_file_of_another_dataset(gateway, tmp_path):
    """Registering another dataset than the one read so far is refused with both ids."""
    file = tmp_path / "digits.parquet"
    file.write_bytes(b"PAR1")
    _register(gateway, "cd" * 32)
    gateway.faults = [problem(404, "UnknownDataset")]
    with pytest.raises(larder.DigestFileError, match=f"{'cd' * 32}, not of {ID}"):
        _reader(gateway, digest_file=file).fetch([1])


def test_expired_credentials_are_looked_for_again(gateway):
    """A function for keys is called again when they are refused as expired; given keys are not retried."""
    keys = iter([larder.Credentials("old", "s"), larder.Credentials("new", "s")])
    gateway.faults = [problem(400, "ExpiredToken")]
    reader = larder.BatchReader(gateway.endpoint, DATASET, credentials=lambda: next(keys), retry=AT_ONCE)
    assert _content(reader.fetch([1])) == _expected([1])
    assert "Credential=new/" in gateway.asked[1].headers["Authorization"]
    gateway.faults = [problem(400, "ExpiredToken")]
    with pytest.raises(larder.RequestRefused, match="ExpiredToken"):
        _reader(gateway).fetch([1])


def test_counts(gateway):
    """Requests and retries are counted in the caller's ``stats``."""
    counts = Counts()
    gateway.faults = [problem(503, "SlowDown")]
    _reader(gateway, stats=counts).fetch([1])
    assert counts == {"requests": 2, "retries": 1}


def test_the_memory_of_a_batch_serves_a_later_one(gateway):
    """Rule: a reader reads into the memory of a batch that nothing refers to any more, and leaves that of the others alone."""
    gateway.store.items = {index: bytes([index]) * (8 << 20) for index in range(3)}
    reader = _reader(gateway)
    first = reader.fetch([0])
    where = np.frombuffer(first.data[0], np.uint8).ctypes.data
    second = reader.fetch([1])
    del first
    third = reader.fetch([2])
    assert np.frombuffer(third.data[0], np.uint8).ctypes.data == where
    assert [set(batch.data[0]) for batch in (second, third)] == [{1}, {2}]


def test_threads_share_a_reader(gateway):
    """Many threads fetch at once with one reader, and each gets its own."""
    reader = _reader(gateway)
    batches = [[at % 40, (at + 1) % 40, (at + 2) % 40] for at in range(60)]
    with ThreadPoolExecutor(6) as pool:
        assert [_content(fetched) for fetched in pool.map(reader.fetch, batches)] == [
            _expected(each) for each in batches
        ]
    assert len({asked.connection for asked in gateway.asked}) <= 6


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda reader: pickle.loads(pickle.dumps(reader))])
def test_copies_are_readers_of_their_own(gateway, copied):
    """A used reader can be copied and pickled; both work on."""
    reader = _reader(gateway)
    reader.fetch([1])
    assert _content(copied(reader).fetch([2])) == _expected([2])
    assert _content(reader.fetch([3])) == _expected([3])
    assert len({asked.connection for asked in gateway.asked}) == 2


def _fetch_in_child(reader, indices):
    assert _content(reader.fetch(indices)) == _expected(indices)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_used_reader_survives_its_way_into_a_child(gateway, method):
    """Parent and child can both use the reader after a fork, on separate connections."""
    reader = _reader(gateway)
    reader.fetch([1])
    child = multiprocessing.get_context(method).Process(target=_fetch_in_child, args=(reader, [2, 3]))
    child.start()
    child.join()
    assert child.exitcode == 0
    reader.fetch([4])
    connections = [asked.connection for asked in gateway.asked]
    assert connections[0] == connections[2] != connections[1]
