"""Reads whose headers are about the bucket or the page, and listings that show newer objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.clients import Client, get
from rig.gateways import Running, Settings, gateway
from rig.origin_faults import Refuse
from rig.world import Origin, content, eventually

PAGE = "https://viewer.example"


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with one worker."""
    with gateway(
        Settings(origin.endpoint, tmp_path_factory.mktemp("cache")), tmp_path_factory.mktemp("home")
    ) as running:
        yield running


def cached(running: Running, origin: Origin, path: str) -> bytes:
    """An object that is in the cache."""
    body = origin.put(path, content(20_000, path))
    eventually(lambda: get(running, path).cache, lambda cache: cache == "HIT", "a hit")
    return body


def test_a_page_gets_the_headers_of_the_store_from_the_cache(running: Running, origin: Origin) -> None:
    """Rule: the first read of a page learns its CORS headers without a body; later ones, of other objects too, ask nobody."""
    body, other = cached(running, origin, "/pages/a"), cached(running, origin, "/pages/b")
    origin.s3.buckets.pages["pages"] = PAGE
    gets = origin.count("GET", "/pages/")
    with Client(running.endpoint) as client:
        answers = [client.get(path, Origin=PAGE) for path in ("/pages/a", "/pages/a", "/pages/b")]
        missed = client.get("/pages/a", Origin=PAGE, If_Match='"other"')
    assert [got.body for got in answers] == [body, body, other]
    assert [got.cache for got in answers] == ["HIT"] * 3
    assert {got.headers["access-control-allow-origin"] for got in (*answers, missed)} == {PAGE}
    assert (missed.status, answers[0].headers["vary"]) == (412, "Origin")
    assert origin.count("GET", "/pages/") == gets + 1
    assert [seen.status for seen in origin.s3.seen if seen.header("origin")] == [304]


def test_a_page_that_the_bucket_does_not_allow_gets_none(running: Running, origin: Origin) -> None:
    """Rule: the headers are those that the store sent to this page; a plain reader gets none."""
    body = cached(running, origin, "/closed/a")
    origin.s3.buckets.pages["closed"] = PAGE
    with Client(running.endpoint) as client:
        client.get("/closed/a", Origin=PAGE)
        answers = [client.get("/closed/a", Origin="https://elsewhere.example") for _ in range(2)]
        plain = client.get("/closed/a")
    assert [(got.body, got.headers.get("access-control-allow-origin")) for got in (*answers, plain)] == [
        (body, None)
    ] * 3
    assert answers[1].cache == "HIT"


def test_a_read_that_only_a_page_may_make_is_forwarded(running: Running, origin: Origin) -> None:
    """Rule: when the store refuses the cache's own read, a request that names a page is made as it is."""
    body = origin.put("/policy/a", content(100, "policy"))
    origin.inject(Refuse(path="/policy/a", status=403, code="AccessDenied"))
    with Client(running.endpoint) as client:
        got = client.get("/policy/a", Referer="https://page.example/")
    assert (got.status, got.body, got.cache) == (200, body, "MISS; reason=refused")
    assert origin.s3.seen[-1].header("referer") == "https://page.example/"


@pytest.mark.parametrize(("bucket", "more"), [("listed", ""), ("encoded", "&encoding-type=url&prefix=a%20%2B")])
def test_a_reader_gets_what_it_has_just_listed(running: Running, origin: Origin, bucket: str, more: str) -> None:
    """Rule: an object written past the gateway is current as soon as a listing has shown it, and the listing is unchanged."""
    path = f"/{bucket}/a%20%2B"
    origin.put(f"/{bucket}/a +", b"old")
    eventually(lambda: get(running, path).cache, lambda cache: cache == "HIT", "a hit")
    origin.put(f"/{bucket}/a +", b"newer")
    assert get(running, path).body == b"old"
    with Client(running.endpoint) as client:
        listed = client.ask("GET", f"/{bucket}?list-type=2{more}")
        assert (listed.status, listed.body.count(b"<Contents>"), listed.whole) == (200, 1, True)
        assert client.get(path).body == b"newer"


def test_a_forwarded_read_shows_a_newer_object(running: Running, origin: Origin) -> None:
    """Rule: what one client saw of the store by a request that the cache does not answer, the next one gets."""
    cached(running, origin, "/shown/a")
    origin.put("/shown/a", b"newer")
    with Client(running.endpoint) as client:
        client.ask("GET", "/shown/a?response-content-type=text%2Fplain")
        assert client.get("/shown/a").body == b"newer"
