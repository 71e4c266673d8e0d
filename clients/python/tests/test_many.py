"""`get_many`: the right bytes in order whatever breaks, errors in their places, and only what is missing requested again."""

import asyncio
import json
import pickle

import pytest
from batch_wire import HIT, MISSING, ORIGIN_ERROR, REFUSED, Item, frames_form
from fake_gateway import FakeBatchGateway, Store, cut, problem, serving

import larder
from larder.reading.many import MOST_ENTRIES, entry_of

KEY = larder.Credentials("key", "secret")
OBJECTS = {f"b/k{number}": bytes([number]) * (number + 1) for number in range(20)}
LATER, INVALID = 8, 9


class Objects:
    """Answers batches of keys from ``OBJECTS``; ``status`` has the next failures of a key: status, code and HTTP status."""

    def __init__(self):
        self.asked = []
        self.status = {}

    def answer(self, asked):
        """The answer to one request."""
        entries = json.loads(asked.body)["entries"]
        self.asked.append([f"{entry['bucket']}/{entry['key']}" for entry in entries])
        return frames_form([self._item(position, entry) for position, entry in enumerate(entries)])

    def _item(self, position, entry):
        name = f"{entry['bucket']}/{entry['key']}"
        told = self.status.get(name, [])
        if told:
            status, code, http = told.pop(0)
        elif name in OBJECTS:
            data = OBJECTS[name][entry.get("start") : entry.get("end")]
            return Item(position, position, data, HIT)
        else:
            status, code, http = MISSING, "NoSuchKey", 404
        document = {"bucket": entry["bucket"], "key": entry["key"], "detail": "why", "code": code, "http_status": http}
        return Item(position, position, json.dumps(document).encode(), 0, status)


@pytest.fixture
def objects():
    """Returns what the gateway answers from."""
    return Objects()


@pytest.fixture
def gateway(objects):
    """A gateway that knows batches of keys."""
    with serving(FakeBatchGateway(Store({}))) as server:
        server.answer = objects.answer
        yield server


@pytest.fixture
def reader(gateway):
    """A reader that does not wait between attempts."""
    return larder.ManyReader(gateway.endpoint, credentials=KEY, retry=larder.Retry(attempts=3, base=0, longest=0))


def test_results_have_the_order_of_the_entries(reader):
    """Entries of every form, and the same one twice, give their bytes in order."""
    wanted = ["b/k3", ("b", "k1"), ("b", "k9", 2, 5), "s3://b/k3", larder.Entry("b", "k4", start=-2), "larder://b/k0"]
    expected = [OBJECTS["b/k3"], OBJECTS["b/k1"], OBJECTS["b/k9"][2:5], OBJECTS["b/k3"], OBJECTS["b/k4"][-2:], b"\0"]
    assert reader.get(wanted) == expected


def test_nothing_is_requested_for_no_entries(reader, objects):
    """An empty list gives an empty list."""
    assert reader.get([]) == []
    assert objects.asked == []


def test_many_entries_are_several_requests(reader, objects):
    """More entries than a request may have are requested in parts, in order."""
    wanted = [f"b/k{number % 20}" for number in range(2 * MOST_ENTRIES + 3)]
    assert reader.get(wanted) == [OBJECTS[name] for name in wanted]
    assert [len(asked) for asked in objects.asked] == [MOST_ENTRIES, MOST_ENTRIES, 3]


def test_an_iterator_asks_as_it_goes(reader, objects):
    """``iterate`` requests no further part before the first was used."""
    results = reader.iterate(f"b/k{number % 20}" for number in range(2 * MOST_ENTRIES))
    assert next(results) == OBJECTS["b/k0"]
    assert len(objects.asked) == 1


def test_the_first_error_is_raised(reader):
    """Without ``return_exceptions`` a missing object raises `ObjectMissing`, which names it."""
    with pytest.raises(larder.ObjectMissing, match="b/'none': NoSuchKey") as raised:
        reader.get(["b/k1", "b/none"])
    assert (raised.value.bucket, raised.value.key, raised.value.status) == ("b", "none", 404)


def test_errors_are_results(reader, objects):
    """With ``return_exceptions`` each error is in its place, with S3's code, and can be pickled."""
    objects.status = {"b/k2": [(REFUSED, "AccessDenied", 403)], "b/k4": [(INVALID, "InvalidRange", 416)]}
    first, missing, refused, wrong, last = reader.get(
        ["b/k1", "b/none", "b/k2", "b/k4", "b/k5"], return_exceptions=True
    )
    assert (first, last) == (OBJECTS["b/k1"], OBJECTS["b/k5"])
    assert isinstance(missing, larder.ObjectMissing)
    assert [(type(error), error.code, error.status) for error in (refused, wrong)] == [
        (larder.S3Error, "AccessDenied", 403),
        (larder.S3Error, "InvalidRange", 416),
    ]
    assert pickle.loads(pickle.dumps(refused)).code == "AccessDenied"
    assert len(objects.asked) == 1


@pytest.mark.parametrize("size", [0, 10, 16, 30, 41, 70, 200, 460])
def test_only_what_is_missing_is_requested_after_a_cut(reader, gateway, objects, size):
    """Wherever an answer is cut, complete entries count, and only the rest is requested again."""
    wanted = [f"b/k{number}" for number in range(10)]
    gateway.faults.append(cut(size))
    assert reader.get(wanted) == [OBJECTS[name] for name in wanted]
    assert sum(map(len, objects.asked[1:])) <= len(wanted)


def test_what_may_pass_is_requested_again(reader, objects):
    """An entry that failed for now is requested again, alone; one that was put off too."""
    objects.status = {"b/k2": [(ORIGIN_ERROR, "ServiceUnavailable", 503)], "b/k3": [(LATER, "", 0)]}
    assert reader.get(["b/k1", "b/k2", "b/k3"]) == [OBJECTS["b/k1"], OBJECTS["b/k2"], OBJECTS["b/k3"]]
    assert objects.asked[1:] == [["b/k2", "b/k3"]]


def test_a_failing_store_is_an_error_after_the_retries(reader, objects):
    """An entry that fails in all attempts gives its last error; the others have their bytes."""
    objects.status = {"b/k2": [(ORIGIN_ERROR, "ServiceUnavailable", 503)] * 100}
    first, failed = reader.get(["b/k1", "b/k2"], return_exceptions=True)
    assert first == OBJECTS["b/k1"]
    assert (failed.code, failed.status) == ("ServiceUnavailable", 503)
    assert len(objects.asked) <= 4


def test_a_gateway_that_never_answers_is_unavailable(reader, gateway):
    """After all attempts were broken off, `GatewayUnavailable` says so."""
    gateway.faults += [cut(0)] * 10
    with pytest.raises(larder.GatewayUnavailable):
        reader.get(["b/k1"])


def test_a_busy_gateway_is_asked_again(reader, gateway):
    """503 with Retry-After is waited for, and not an error."""
    gateway.faults.append(problem(503, "SlowDown"))
    assert reader.get(["b/k1"]) == [OBJECTS["b/k1"]]


def test_a_refused_caller_is_told(reader, gateway):
    """403 for the request itself is `RequestRefused`, also with ``return_exceptions``."""
    gateway.faults.append(problem(403, "AccessDenied"))
    with pytest.raises(larder.RequestRefused, match="AccessDenied"):
        reader.get(["b/k1"], return_exceptions=True)


def test_an_older_gateway_is_named(reader, gateway):
    """A gateway without batches of keys answers 404; the error says what is missing."""
    gateway.faults.append(problem(404, "NotFound"))
    with pytest.raises(larder.RequestRefused, match="of an earlier version"):
        reader.get(["b/k1"])


def test_the_function_has_the_endpoint_of_the_environment(gateway, monkeypatch):
    """``get_many`` finds endpoint and key as `Loader` does, and can be awaited."""
    monkeypatch.setenv("LARDER_ENDPOINT", gateway.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert larder.get_many(["b/k1"]) == [OBJECTS["b/k1"]]
    assert asyncio.run(larder.get_many_async(["b/k2"], endpoint=gateway.endpoint)) == [OBJECTS["b/k2"]]


def test_requests_share_a_connection(gateway):
    """Calls of ``get_many`` with the same options use one connection after the other."""
    for _ in range(3):
        larder.get_many(["b/k1"], endpoint=gateway.endpoint, credentials=KEY)
    assert len({asked.connection for asked in gateway.asked}) == 1


@pytest.mark.parametrize("wrong", ["", "b", "/k", "b/", ("b", ""), larder.Entry("", "k")])
def test_an_entry_needs_bucket_and_key(wrong):
    """What names no object is refused before anything is sent."""
    with pytest.raises(ValueError, match="bucket and a key"):
        entry_of(wrong)


def test_a_reader_can_be_pickled(reader):
    """A copy reads from the same gateway."""
    assert pickle.loads(pickle.dumps(reader)).get(["b/k1"]) == [OBJECTS["b/k1"]]
