"""Answers to a browser that opens an object, of a real gateway: confined, and otherwise those of any other reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from rig.gateways import Running, Settings, gateway
from rig.signed_requests import ClientSigner
from rig.v1 import Reply
from rig.world import Origin

NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "accept": "text/html,application/xhtml+xml"}
CONFINED = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
VARYING = {"date", "x-amz-request-id", "x-larder-request-id", "x-amz-id-2"}
PAGE = b"<script>alert(1)</script>" * 200
WAYS: dict[str, tuple[str, str, Mapping[str, str]]] = {
    "object": ("GET", "/data/page", {}),
    "part": ("GET", "/data/page", {"range": "bytes=5-9"}),
    "no part": ("GET", "/data/page", {"range": "bytes=999999-"}),
    "unchanged": ("GET", "/data/page", {"if-none-match": "*"}),
    "head": ("HEAD", "/data/page", {}),
    "no object": ("GET", "/data/nothing", {}),
    "no bucket": ("GET", "/Not_a-bucket!/x", {}),
    "listing": ("GET", "/data?list-type=2", {}),
    "sub-resource": ("GET", "/data/page?tagging", {}),
    "forced": ("GET", "/data/page", {"cache-control": "no-cache"}),
}


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """A store with a page."""
    with Origin() as started:
        started.s3.put("data", "page", PAGE, [("Content-Type", "text/html")])
        yield started


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose objects are stale at once, and may be served stale."""
    home = tmp_path_factory.mktemp("navigations")
    rules = ({"match": "data/stale/**", "freshness": "0s", "stale_if_error": "1h"},)
    with gateway(Settings(origin.endpoint, home / "cache", rules=rules), home) as ready:
        yield ready


def ask(running: Running, method: str, path: str, headers: Mapping[str, str]) -> Reply:
    """Send a request, signed in its header."""
    signed = ClientSigner("GWA", "gateway-secret-a").header(method, running.endpoint + path, dict(headers))
    connection = running.connection()
    connection.request(method, path, headers={name.decode(): value.decode() for name, value in signed.headers})
    response = connection.getresponse()
    reply = Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    connection.close()
    return reply


def facts(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """An answer without what differs between any two."""
    body = b"" if reply.status >= 400 else reply.body
    headers = {name: value for name, value in reply.headers.items() if name not in VARYING}
    return reply.status, {name: value for name, value in headers.items() if name != "content-length" or body}, body


@pytest.mark.parametrize("way", WAYS)
def test_a_navigation_gets_the_same_answer_confined(running: Running, way: str) -> None:
    """Rule: status, headers and bytes of any answer are those of other readers, and two headers confine the document."""
    method, path, headers = WAYS[way]
    ask(running, method, path, headers)
    plain = ask(running, method, path, headers)
    opened = ask(running, method, path, {**headers, **NAVIGATION})
    assert not CONFINED.keys() & plain.headers.keys()
    status, told, body = facts(plain)
    assert facts(opened) == (status, told | CONFINED, body)
    again = ask(running, method, path, headers)
    assert not CONFINED.keys() & again.headers.keys()


def test_a_stale_answer_is_confined(running: Running, origin: Origin) -> None:
    """Rule: an object that is served while the store is away is confined too."""
    origin.s3.put("data", "stale/page", PAGE)
    assert ask(running, "GET", "/data/stale/page", {}).status == 200
    with origin.away():
        opened = ask(running, "GET", "/data/stale/page", NAVIGATION)
    assert opened.headers["x-larder-cache"].startswith("STALE")
    assert opened.body == PAGE
    assert CONFINED.items() <= opened.headers.items()
