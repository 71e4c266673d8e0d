"""A hundred concurrent readers of a cold object; some leave, and sometimes the origin breaks off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rig.clients import Client, Got, finish, get
from rig.gateways import Running, Settings
from rig.origin_faults import DieAfter
from rig.world import KIB, MIB, Origin, await_index_equals_disk, content, eventually

READERS = 100
SIZES = pytest.mark.parametrize("size", [110 * KIB, 8 * MIB])


@pytest.fixture(scope="module")
def settings(origin: Origin, tmp_path_factory) -> Settings:
    """One worker, blocks of 1 MiB."""
    return Settings(origin.endpoint, tmp_path_factory.mktemp("cache"), capacity="400MB")


class Crowd:
    """Readers of one object; all have sent their request, and none has finished."""

    def __init__(self, running: Running, path: str, count: int = READERS) -> None:
        self._stack = ExitStack()
        self.clients = [self._stack.enter_context(Client(running.endpoint)) for _ in range(count)]
        for client in self.clients:
            client.send("GET", path)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read_until(self, size: int) -> None:
        """Let every reader have the first ``size`` bytes."""
        self._begun = [client.begin() for client in self.clients]
        self._had = [response.read(size) for response in self._begun]

    def finish(self) -> Iterator[Got]:
        """The final answer of each reader."""
        for response, had in zip(self._begun, self._had, strict=True):
            yield finish(response, had)


@SIZES
def test_a_hundred_readers_make_one_origin_read(running, origin, size):
    """Everybody who comes while an object is being read from the origin shares that read, from its first byte on."""
    path = f"/bucket/shared-{size}"
    body = origin.put(path, content(size))
    hang = origin.hang(path, after=size // 2)
    with Crowd(running, path) as crowd:
        crowd.read_until(size // 4)
        hang.gate.open()
        assert all(got.whole and got.body == body for got in crowd.finish())
    assert (origin.count("GET", path), origin.count("HEAD", path)) == (1, 0)
    assert get(running, path).cache == "HIT"


def test_readers_wait_together_for_the_first_byte(running, origin):
    """Readers that arrive before the origin's answer wait for the one request in progress."""
    path = "/bucket/slow-to-begin"
    body = origin.put(path, content(110 * KIB, path))
    hang = origin.hang(path)
    with Crowd(running, path) as crowd:
        hang.gate.arrival.result(30)
        with Client(running.endpoint) as other:
            # Sent after all of them: when it is answered, the gateway has seen them.
            assert other.ask("GET", "/-/healthz").status == 200
        hang.gate.open()
        crowd.read_until(1)
        assert all(got.whole and got.body == body for got in crowd.finish())
    assert origin.count("GET", path) == 1


@SIZES
def test_the_first_reader_leaves_half_way(running, origin, size):
    """A read from the origin belongs to the gateway: it continues for the others when the client that caused it leaves."""
    path = f"/bucket/left-{size}"
    body = origin.put(path, content(size, path))
    hang = origin.hang(path, after=size // 2)
    first = Client(running.endpoint)
    first.send("GET", path)
    first.begin().read(size // 4)
    with Crowd(running, path) as crowd:
        crowd.read_until(size // 4)
        first.close()
        hang.gate.open()
        assert all(got.whole and got.body == body for got in crowd.finish())
    assert origin.count("GET", path) == 1


def test_the_only_reader_leaves_half_way(running, origin):
    """A fill whose only reader has left is read to its end, so that the next reader hits."""
    path = "/bucket/abandoned"
    body = origin.put(path, content(3 * MIB, path))
    hang = origin.hang(path, after=MIB + 5)
    before = running.metric("larder_fills_total", event="completed")
    with Client(running.endpoint) as only:
        only.send("GET", path)
        assert only.begin().read(1000) == body[:1000]
    hang.gate.open()
    eventually(
        lambda: running.metric("larder_fills_total", event="completed"), lambda count: count > before, "the fill's end"
    )
    got = get(running, path)
    assert (got.body, got.cache) == (body, "HIT")
    assert origin.count("GET", path) == 1


@SIZES
def test_the_origin_breaks_off_once(running, origin, size):
    """A break in the middle is invisible: the gateway asks for the rest of exactly the same object."""
    path = f"/bucket/interrupted-{size}"
    body = origin.put(path, content(size, path))
    origin.inject(DieAfter(path=path, method="GET", size=size // 2))
    with Crowd(running, path) as crowd:
        crowd.read_until(size // 4)
        assert all(got.whole and got.body == body for got in crowd.finish())
    reads = [seen for seen in origin.s3.seen if seen.raw_path == path]
    assert len(reads) == 2
    assert reads[1].header("range").startswith("bytes=")
    assert reads[1].header("if-match") == get(running, path).headers["etag"]


@SIZES
def test_the_origin_breaks_off_for_good(running, origin, settings, size):
    """No client takes a part for the whole, no partial object is kept, and once the origin works the object is read correctly."""
    path = f"/bucket/cut-{size}"
    body = origin.put(path, content(size, path))
    origin.inject(DieAfter(path=path, method="GET", size=size // 2, times=1000))
    with Crowd(running, path, 20) as crowd:
        crowd.read_until(size // 4)
        for got in crowd.finish():
            assert got.body == body[: len(got.body)]
            assert got.whole == (len(got.body) == size)
    origin.heal()
    assert get(running, path).body == body
    again = get(running, path)
    assert (again.body, again.cache) == (body, "HIT")
    await_index_equals_disk(settings.cache)


@SIZES
def test_the_origin_goes_away_half_way_and_comes_back(running, origin, size):
    """With the origin gone in the middle of a read, readers get all of it or a broken connection, and afterwards all of it."""
    path = f"/bucket/outage-{size}"
    body = origin.put(path, content(size, path))
    hang = origin.hang(path, after=size // 2)
    with Crowd(running, path, 20) as crowd:
        crowd.read_until(size // 4)
        with origin.away():
            hang.gate.open()
            ends = list(crowd.finish())
    assert all(body.startswith(got.body) and got.whole == (got.body == body) for got in ends)
    assert get(running, path).body == body
    assert origin.count("GET", path) > 1
