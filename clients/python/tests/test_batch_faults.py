"""Fetching batches while connections break: always the right items, and only missing ones are requested again."""

import socket
import threading
from collections import Counter

import pytest
from batch_wire import HIT, MISSING, ORIGIN_ERROR, STREAMED, failure, frames_form
from fake_gateway import ID, FakeBatchGateway, Store, cut, flip, hang, problem, reset_after, serving

import larder
from larder.reading import batch
from larder.reading.source import GatewaySource

ITEMS = {index: bytes([index]) * (index % 7) for index in range(40)}
REQUEST = [3, 11, 12, 3, 14]
KEY = larder.Credentials("key", "secret")
DATASET = larder.DatasetInfo("digits", ID, len(ITEMS), caching="full")


@pytest.fixture(params=["index", "frames"])
def gateway(request):
    """A gateway that answers in one form; the frames have a streamed item."""
    frames = request.param == "frames"
    store = Store(dict(ITEMS), streamed={12} if frames else set(), frames=frames)
    with serving(FakeBatchGateway(store)) as server:
        yield server


class Counts(Counter):
    """Counts events."""

    def add(self, name, value):
        """Add."""
        self[name] += value


def _reader(server, *, attempts=3, timeout=20.0, outage=0, **options):
    retry = larder.Retry(attempts=attempts, base=0, longest=0, outage=outage)
    return larder.BatchReader(server.endpoint, DATASET, credentials=KEY, timeout=timeout, retry=retry, **options)


def _whole(server, indices, **query):
    """The answer that the gateway gives without a fault."""
    asked = type("", (), {"indices": indices, "query": query})()
    return server.answer(asked)


def _check(fetched, request=REQUEST):
    """Assert exactly the requested items, each as often as requested, with their bytes."""
    assert Counter(fetched.indices.tolist()) == Counter(request)
    assert all(bytes(data) == ITEMS[int(index)] for index, data in zip(fetched.indices, fetched.data, strict=True))
    assert fetched.failed == {}


def _remaining(answer, size):
    came = answer.positions_in(size)
    return [index for position, index in enumerate(REQUEST) if position not in came]


def test_a_cut_at_every_byte(gateway):
    """After a cut at any byte, the second request is for exactly the incomplete items."""
    answer = _whole(gateway, REQUEST)
    reader = _reader(gateway)
    for size in range(len(answer.body)):
        gateway.asked.clear()
        gateway.faults = [cut(size)]
        _check(reader.fetch(REQUEST))
        remaining = _remaining(answer, size)
        assert [asked.indices for asked in gateway.asked] == [REQUEST, *([remaining] if remaining else [])], size


def test_a_cut_at_every_byte_that_a_proxy_closes_cleanly():
    """A chunked answer that a proxy ends early but properly is not accepted as a shorter batch."""
    with serving(FakeBatchGateway(Store(dict(ITEMS), frames=True))) as server:
        answer = _whole(server, REQUEST)
        reader = _reader(server)
        for size in range(len(answer.body)):

            def clean(handler, asked, size=size):
                handler.send_batch(handler.server.answer(asked), size=size)
                handler.wfile.write(b"0\r\n\r\n")

            server.asked.clear()
            server.faults = [clean]
            _check(reader.fetch(REQUEST))
            remaining = _remaining(answer, size)
            assert [asked.indices for asked in server.asked] == [REQUEST, *([remaining] if remaining else [])], size


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_cut_in_substitute_mode(gateway, kept):
    """After a cut, the candidates that came are left out, and only as many as are missing are wanted."""
    answer = _whole(gateway, REQUEST[1:], take="3")
    size = [20, *answer.whole_at.values()][kept]
    gateway.faults = [cut(size)]
    fetched = _reader(gateway).fetch(REQUEST[1:], mode="substitute", take=3)
    assert len(set(fetched.indices.tolist())) == len(fetched.data) == 3
    if kept < 3:
        again = gateway.asked[1]
        assert len(again.indices) == 4 - kept
        assert again.query["take"] == str(3 - kept)
    else:
        assert len(gateway.asked) == 1


def test_a_flipped_bit_in_every_byte(gateway):
    """Damage on the way is never handed out, and never ends the training."""
    answer = _whole(gateway, REQUEST)
    reader = _reader(gateway, limit=1 << 20)
    for byte in range(len(answer.body)):
        gateway.faults = [flip(byte, byte % 8)]
        _check(reader.fetch(REQUEST))


def test_a_flipped_bit_never_makes_an_item_of_an_explanation():
    """One bit in the status of a failure would pass its explanation for the item's bytes; the headers' CRC prevents it."""
    with serving(FakeBatchGateway(Store(dict(ITEMS), lost={11: MISSING}))) as server:
        answer = _whole(server, REQUEST)
        reader = _reader(server, limit=1 << 20)
        for byte in range(len(answer.body)):
            for bit in range(3):
                server.faults = [flip(byte, bit)]
                fetched = reader.fetch(REQUEST)
                assert Counter(fetched.indices.tolist()) == Counter([3, 12, 3, 14])
                assert set(fetched.failed) == {11}
                assert all(
                    bytes(data) == ITEMS[int(at)] for at, data in zip(fetched.indices, fetched.data, strict=True)
                )


def test_bytes_that_stay_damaged(gateway):
    """An item whose CRC is wrong each time ends in an error, not in an endless loop and not in a short batch."""
    counts = Counts()

    def damaged(handler, asked):
        answer = handler.server.answer(asked)
        flip(answer.whole_at[asked.indices.index(11)] - 1, 0)(handler, asked)

    gateway.faults = [damaged] * 9
    with pytest.raises(larder.GatewayUnavailable, match="tried 3 times"):
        _reader(gateway, stats=counts).fetch(REQUEST)
    assert [asked.indices for asked in gateway.asked] == [REQUEST, [11], [11], [11]]
    assert counts["crc_errors"] == 4


@pytest.mark.parametrize("size", [0, 30, 150])
def test_a_reset(gateway, size):
    """After a reset, only the missing items are requested again."""
    gateway.faults = [reset_after(size)]
    _check(_reader(gateway).fetch(REQUEST))
    assert len(gateway.asked) == 2


def test_silence(gateway):
    """A gateway that stops in the middle counts as failed after ``timeout``."""
    release = threading.Event()
    gateway.faults = [hang(release)]
    try:
        _check(_reader(gateway, timeout=0.2, attempts=100).fetch(REQUEST))
    finally:
        release.set()
    assert [asked.indices for asked in gateway.asked[:2]] == [REQUEST, REQUEST]


def test_a_gateway_that_always_delivers_a_little(gateway):
    """Attempts are counted since the last delivered item, so five requests of one item each succeed with two attempts."""

    def one(handler, asked):
        answer = handler.server.answer(asked)
        cut(min(answer.whole_at.values()))(handler, asked)

    gateway.faults = [one] * 5
    gateway.store.items = {**ITEMS, **dict.fromkeys(REQUEST, b"bytes")}
    fetched = _reader(gateway, attempts=2).fetch(REQUEST)
    assert Counter(fetched.indices.tolist()) == Counter(REQUEST)
    assert [len(asked.indices) for asked in gateway.asked] == [5, 4, 3, 2, 1]


def test_a_gateway_that_delivers_nothing_more(gateway):
    """After the allowed attempts without a new item, the error names address, attempts and cause."""
    first = min(_whole(gateway, REQUEST).whole_at.values())
    gateway.faults = [cut(first), *[cut(20)] * 9]
    with pytest.raises(larder.GatewayUnavailable, match="tried 3 times") as caught:
        _reader(gateway).fetch(REQUEST)
    assert gateway.endpoint in str(caught.value)
    assert len(gateway.asked) == 4


def test_an_answer_after_an_error(gateway):
    """A body that turns into an error page after the head of a batch is damage, not data."""

    def late(handler, asked):
        handler.head_of_batch(2000)
        handler.wfile.write(b"<html>502 Bad Gateway</html>".ljust(2000))

    gateway.faults = [late]
    _check(_reader(gateway).fetch(REQUEST))


def test_nonsense_that_stays(gateway):
    """The error for a server that returns no batch quotes its answer."""

    def nonsense(handler, asked):
        handler.head_of_batch(64)
        handler.wfile.write(b"x" * 64)

    gateway.faults = [nonsense] * 3
    with pytest.raises(larder.UnexpectedAnswer, match="no batch of version 1"):
        _reader(gateway).fetch(REQUEST)
    assert len(gateway.asked) == 3


def test_busy_gateways_are_left_alone_for_as_long_as_they_ask(gateway, monkeypatch):
    """503 is repeated after Retry-After, which is believed up to a minute."""
    pauses = []
    monkeypatch.setattr(batch.time, "sleep", pauses.append)
    gateway.faults = [
        problem(503, "SlowDown", Retry_After="7"),
        problem(503, "ServiceUnavailable", Retry_After="86400"),
    ]
    _check(_reader(gateway).fetch(REQUEST))
    assert pauses == [7, 60]


@pytest.mark.parametrize("status", [500, 502, 504, 429])
def test_errors_of_proxies_are_repeated(gateway, status):
    """Temporary errors without a problem document, as from proxies, are retried too."""
    gateway.faults = [lambda handler, asked: handler.send(status, b"<html>", Content_Type="text/html")]
    _check(_reader(gateway).fetch(REQUEST))


def test_a_gateway_that_stays_busy(gateway):
    """After the last attempt the error has the gateway's words."""
    gateway.faults = [problem(503, "SlowDown", "too many fills")] * 3
    with pytest.raises(larder.GatewayUnavailable, match="503: SlowDown too many fills"):
        _reader(gateway).fetch(REQUEST)


def test_a_gateway_that_is_away_is_waited_for(gateway):
    """While nothing but 503 comes, or no connection, ``outage`` allows attempts beyond those of ``retry``."""
    gateway.faults = [problem(503, "ServiceUnavailable"), lambda handler, asked: handler.reset()] * 5
    _check(_reader(gateway, outage=3600).fetch(REQUEST))
    assert len(gateway.asked) == 11


@pytest.mark.parametrize(("options", "waits"), [({}, True), ({"retry": larder.Retry()}, False)])
def test_a_loader_waits_for_a_gateway_that_restarts(gateway, monkeypatch, options, waits):
    """Without a retry setting, a loader waits much longer than a single request does."""
    monkeypatch.setattr(batch.time, "sleep", lambda seconds: None)
    source = GatewaySource(gateway.endpoint, DATASET, larder.Access(credentials=KEY, **options))
    gateway.faults = [problem(503, "ServiceUnavailable")] * 40
    reader = source.reader(DATASET, larder.Stats())
    if waits:
        _check(reader.fetch(REQUEST))
    else:
        with pytest.raises(larder.GatewayUnavailable, match="tried 4 times"):
            reader.fetch(REQUEST)


def test_answers_that_are_never_whole(gateway):
    """Without an outage, a gateway that cuts every answer gets the attempts of ``retry`` and no more."""
    gateway.faults = [cut(20)] * 9
    with pytest.raises(larder.GatewayUnavailable, match="tried 3 times"):
        _reader(gateway).fetch(REQUEST)


def _page_of_a_proxy(handler, asked):
    handler.send(200, b"<html>", Content_Type="text/html")


@pytest.mark.parametrize("outage", [0, 3600])
@pytest.mark.parametrize("last", [cut(20), flip(30, 3), _page_of_a_proxy, problem(503, "SlowDown")])
def test_a_restart_and_then_another_trouble(gateway, outage, last):
    """Rule: attempts used by a restart are available again for the next trouble, such as a cut answer."""
    restart = [lambda handler, asked: handler.reset()] * (20 if outage else 2)
    gateway.faults = [*restart, last]
    _check(_reader(gateway, outage=outage).fetch(REQUEST))


def test_an_origin_that_fails_every_item_is_waited_for(gateway):
    """Rule: within an allowed outage no item is given up while none arrives; without one, each item has its attempts."""

    def fails_each(handler, asked):
        items = [failure(at, index, ORIGIN_ERROR, "bucket", "key", "502") for at, index in enumerate(asked.indices)]
        handler.send_batch(frames_form(items))

    gateway.faults = [fails_each] * 20
    _check(_reader(gateway, outage=3600).fetch(REQUEST))
    gateway.faults = [fails_each] * 3
    assert set(_reader(gateway).fetch(REQUEST).failed) == set(REQUEST)


def _origin_down(handler, asked):
    handler.send_batch(frames_form([], ORIGIN_ERROR))


def _origin_down_with_an_example(handler, asked):
    lost = failure(0, asked.indices[0], ORIGIN_ERROR, "bucket", "a key", "connection refused")
    handler.send_batch(frames_form([lost], ORIGIN_ERROR))


@pytest.mark.parametrize(
    ("fault", "example"),
    [(_origin_down, ""), (_origin_down_with_an_example, ", such as bucket/'a key': connection refused")],
)
def test_an_origin_that_is_down_is_named(gateway, fault, example):
    """If complete answers deliver nothing because the origin fails, the error names the origin, not the gateway."""
    gateway.faults = [fault] * 2
    with pytest.raises(larder.GatewayUnavailable) as caught:
        _reader(gateway, attempts=2).fetch(range(10), mode="substitute", take=5)
    what = f"its origin cannot be reached, or fails every item{example}; 5 are missing"
    assert str(caught.value) == f"{gateway.endpoint} did not deliver, tried 2 times: {what}"


def test_an_origin_that_is_down_is_waited_for(gateway):
    """``outage`` covers the store behind the gateway, too: a job outlives its short failures."""
    gateway.faults = [_origin_down] * 10
    fetched = _reader(gateway, outage=3600).fetch(range(10), mode="substitute", take=5)
    assert len(fetched.indices) == 5


def test_a_stale_connection_is_replaced_silently(gateway):
    """A kept connection that the server closed while idle costs nothing: no attempt, no pause."""

    def answer_and_close(handler, asked):
        handler.send_batch(handler.server.answer(asked))
        handler.close_connection = True

    reader = _reader(gateway, attempts=1)
    gateway.faults = [answer_and_close] * 2
    for _ in range(3):
        _check(reader.fetch(REQUEST))


def test_a_gateway_that_restarts(gateway):
    """A reader continues with a gateway that restarts at the same address."""
    reader = _reader(gateway)
    _check(reader.fetch(REQUEST))
    store, address = gateway.store, gateway.server_address

    class Successor(FakeBatchGateway):
        """The process that takes over."""

        def server_bind(self):
            """Take the address of the one before."""
            self.server_address = address
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(address)

    gateway.faults = [cut(60)]
    gateway.shutdown()
    gateway.socket.close()
    with serving(Successor(store)) as successor:
        _check(reader.fetch(REQUEST))
        assert successor.asked


def test_a_slow_trickle(gateway):
    """An answer in pieces of seven bytes is an answer."""

    def trickle(handler, asked):
        answer = handler.server.answer(asked)
        if answer.body.startswith(b"LRDF"):
            handler.send_batch(answer, chunk=7)
            return
        handler.head_of_batch(len(answer.body))
        for start in range(0, len(answer.body), 7):
            handler.wfile.write(answer.body[start : start + 7])

    gateway.faults = [trickle]
    _check(_reader(gateway).fetch(REQUEST))
    assert len(gateway.asked) == 1


def test_the_connection_is_kept_after_a_batch(gateway):
    """An answer is read to its very end, so that the next request finds the connection open."""
    reader = _reader(gateway)
    for _ in range(3):
        _check(reader.fetch(REQUEST))
    assert len({asked.connection for asked in gateway.asked}) == 1


def test_a_chunk_size_that_is_none(gateway):
    """Damage in the transfer encoding itself is a broken connection."""

    def broken(handler, asked):
        body = frames_form([]).body
        handler.head_of_batch(None)
        handler.wfile.write(b"zz\r\n" + body)
        handler.close_connection = True

    gateway.faults = [broken]
    _check(_reader(gateway).fetch(REQUEST))


def test_flags_of_what_came_in_parts(gateway):
    """Flags stay with their items over several answers."""
    if not gateway.store.streamed:
        gateway.store.streamed = {12}
    gateway.faults = [cut(_whole(gateway, REQUEST).whole_at[1])]
    fetched = _reader(gateway).fetch(REQUEST, ordered=True)
    assert fetched.flags.tolist() == [HIT, HIT, STREAMED, HIT, HIT]
