"""The origin cannot be reached. What may be served is served and says so; everything else is refused in a way SDKs retry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.clients import Client, Got, get
from rig.gateways import Running, Settings, gateway
from rig.origin_faults import Refuse
from rig.world import KIB, MIB, Origin, content, eventually

STALE = "STALE; reason=origin-down"


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory) -> Iterator[Running]:
    """A gateway with a rule for each way to be fresh."""
    rules = (
        {"match": "always/**", "freshness": "always"},
        {"match": "strict/**", "freshness": "always", "stale_if_error": "0s"},
        {"match": "brief/**", "freshness": "1s"},
        {"match": "ended/**", "freshness": "1s", "stale_if_error": "1s"},
        {"match": "grant/**", "grant": "1s", "stale_if_error": "0s"},
    )
    settings = Settings(origin.endpoint, tmp_path_factory.mktemp("cache"), rules=rules)
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield running


def cached(running: Running, origin: Origin, path: str, size: int = 110 * KIB) -> bytes:
    """An object that is in the cache."""
    body = origin.put(path, content(size, path))
    assert get(running, path).body == body
    eventually(lambda: get(running, path), lambda got: got.cache.startswith("HIT"), "a hit")
    return body


def assert_refused(got: Got) -> None:
    """An error that SDKs retry, and no byte of an object."""
    assert got.status == 503
    assert int(got.headers["retry-after"]) >= 1
    assert b"<Code>ServiceUnavailable</Code>" in got.body


@pytest.mark.parametrize("size", [0, 110 * KIB, 3 * MIB])
def test_what_is_fresh_is_served(running, origin, size):
    """Within its freshness an object hits as always, whole, in part, and its header."""
    path = f"/fresh/{size}"
    body = cached(running, origin, path, size)
    with origin.away(), Client(running.endpoint) as client:
        got = client.get(path)
        assert (got.status, got.cache, got.body) == (200, "HIT", body)
        assert client.ask("HEAD", path).headers["content-length"] == str(size)
        if size:
            assert client.get(path, Range="bytes=5-99").body == body[5:100]


def test_what_is_not_fresh_is_served_marked_stale(running, origin):
    """Past its freshness but within stale_if_error an object is served and says STALE, on GET and HEAD alike."""
    body = cached(running, origin, "/always/object")
    with origin.away(), Client(running.endpoint) as client:
        for _ in range(2):
            got = client.get("/always/object")
            assert (got.status, got.cache, got.body) == (200, STALE, body)
        assert client.ask("HEAD", "/always/object").cache == STALE


def test_freshness_runs_out_while_the_origin_is_away(running, origin):
    """An object goes from HIT to STALE when its time is over."""
    body = cached(running, origin, "/brief/object")
    with origin.away():
        got = eventually(
            lambda: get(running, "/brief/object"), lambda got: got.cache != "HIT", "the end of the freshness"
        )
    assert (got.status, got.cache, got.body) == (200, STALE, body)


def test_stale_if_error_runs_out(running, origin):
    """Past stale_if_error an object is refused, however much of it is cached."""
    cached(running, origin, "/ended/object")
    with origin.away():
        got = eventually(
            lambda: get(running, "/ended/object"), lambda got: got.status != 200, "the end of stale_if_error"
        )
    assert_refused(got)


def test_a_grant_runs_out(running, origin):
    """A reader whose grant is over cannot be vouched for, so he is refused, however fresh the object is."""
    cached(running, origin, "/grant/object")
    with origin.away():
        got = eventually(lambda: get(running, "/grant/object"), lambda got: got.status != 200, "the end of the grant")
    assert_refused(got)


def test_without_stale_if_error_nothing_stale_is_served(running, origin):
    """A rule may forbid stale bytes altogether."""
    cached(running, origin, "/strict/object")
    with origin.away():
        assert_refused(get(running, "/strict/object"))


def test_what_is_not_cached_is_refused(running, origin):
    """Neither a cold object nor an object of which only the header is known can be served."""
    origin.put("/fresh/cold", b"cold")
    origin.put("/fresh/header", b"header")
    with Client(running.endpoint) as client:
        assert client.ask("HEAD", "/fresh/header").status == 200
        with origin.away():
            assert_refused(client.get("/fresh/cold"))
            assert_refused(client.get("/fresh/header"))
            assert client.ask("HEAD", "/fresh/cold").status == 503


def test_a_client_that_insists_never_gets_stale_bytes(running, origin):
    """``Cache-Control: no-cache`` requires a check at the unreachable origin, so it fails even for a fresh object."""
    cached(running, origin, "/fresh/insisted")
    cached(running, origin, "/always/insisted")
    with origin.away():
        assert_refused(get(running, "/fresh/insisted", cache_control="no-cache"))
        assert_refused(get(running, "/always/insisted", cache_control="no-cache"))


def test_writes_are_refused_and_forget_what_they_may_have_changed(running, origin):
    """A write that could not be sent is refused, and the cached object is not trusted afterwards."""
    cached(running, origin, "/fresh/written")
    with origin.away(), Client(running.endpoint) as client:
        assert_refused(client.put("/fresh/written", b"new"))
        assert_refused(client.get("/fresh/written"))


def test_an_origin_that_answers_errors_is_as_good_as_away(running, origin):
    """A check that is answered 5xx leaves the object as stale as no answer; a check that is answered 403 refuses."""
    body = cached(running, origin, "/always/ill")
    origin.inject(Refuse(path="/always/ill", status=503, times=3))
    got = get(running, "/always/ill")
    origin.heal()
    assert (got.status, got.cache, got.body) == (200, STALE, body)
    origin.inject(Refuse(path="/always/ill", status=403, code="AccessDenied", times=10))
    refused = get(running, "/always/ill")
    origin.heal()
    assert refused.status == 403


def test_everything_is_normal_when_the_origin_is_back(running, origin):
    """The first read after the outage is right, changed or not."""
    kept, changed = "/always/kept", "/always/changed"
    body = cached(running, origin, kept)
    cached(running, origin, changed)
    origin.put("/fresh/missed", b"missed")
    with origin.away():
        assert [get(running, path).cache for path in (kept, changed)] == [STALE, STALE]
        assert get(running, "/fresh/missed").status == 503
        new = origin.put(changed, content(5000, "changed"))
    got = get(running, kept)
    assert (got.cache, got.body) == ("HIT; reason=revalidated", body)
    assert get(running, changed).body == new
    assert get(running, "/fresh/missed").body == b"missed"
