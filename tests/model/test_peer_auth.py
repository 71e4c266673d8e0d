"""Signatures between nodes of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.model.peer import auth as peer_auth
from gateway.model.peer.auth import (
    PEER,
    PEER_BODY,
    PEER_DATE,
    PEER_PROTOCOL,
    PEER_SIGNATURE,
    WINDOW,
    PeerRefused,
    PeerSigner,
    verify,
)
from gateway.model.s3.sigv4 import RawHeader, WireRequest

SECRET = "a secret of sixteen characters and more"
NOW = 1_790_000_000.0
BODY = b"\x01\x00\x00\x00"
OTHERS = [(b"range", b"bytes=0-9"), (b"x-larder-principal", b'{"tenant":"a"}'), (b"x-larder-mode", b"auto")]


def signed(secret: str = SECRET, now: float = NOW, body: bytes = BODY) -> WireRequest:
    """A request of the node "a" as it arrives."""
    request = WireRequest("POST", b"/-/peer/v1/datasets/x/batch", b"name=n&caching=full", list(OTHERS))
    own = PeerSigner(secret, "a").headers(request, body, now)
    return replace(request, headers=[*request.headers, *((name.encode(), value.encode()) for name, value in own)])


def changed(request: WireRequest, name: str, value: str | None) -> WireRequest:
    """The same request with another value of a header, or without it."""
    headers: list[RawHeader] = [pair for pair in request.headers if pair[0] != name.encode()]
    if value is not None:
        headers.append((name.encode(), value.encode()))
    return WireRequest(request.method, request.raw_path, request.query, headers)


def refused(request: WireRequest, body: bytes = BODY, now: float = NOW) -> str:
    """Why a request is refused."""
    with pytest.raises(PeerRefused) as caught:
        verify(SECRET, request, now).confirm(body)
    assert SECRET not in str(caught.value)
    return caught.value.reason


def test_a_signed_request_names_its_node() -> None:
    """Rule: a request signed by a node of the fleet is admitted, with headers in any order."""
    request = signed()
    assert verify(SECRET, request, NOW).node == "a"
    assert verify(SECRET, replace(request, headers=request.headers[::-1]), NOW).node == "a"


def test_a_read_signed_in_one_step_is_admitted() -> None:
    """Rule: a GET built together with its signature is admitted, and has no header but those of the connection and of nodes."""
    sent = PeerSigner(SECRET, "a").get("/-/peer/v1/objects/o/b/k", "node:9000", '{"tenant": "a"}', NOW)
    (line, *lines), end = sent[:-4].split(b"\r\n"), sent[-4:]
    assert (line, end) == (b"GET /-/peer/v1/objects/o/b/k HTTP/1.1", b"\r\n\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (each.partition(b":") for each in lines)]
    assert dict(headers)[b"host"] == b"node:9000"
    assert dict(headers)[b"x-larder-principal"] == b'{"tenant": "a"}'
    assert len(headers) == 7
    admitted = verify(SECRET, WireRequest("GET", b"/-/peer/v1/objects/o/b/k", b"", headers), NOW)
    admitted.confirm(b"")
    assert admitted.node == "a"


def plain(secret: str = SECRET, now: float = NOW) -> list[RawHeader]:
    """The headers of a read of "/x" that is signed in one step."""
    lines = PeerSigner(secret, "a").get("/x", "node:9000", '{"tenant": "a"}', now)[:-4].split(b"\r\n")[1:]
    return [(name.lower(), value.strip()) for name, _, value in (each.partition(b":") for each in lines)]


def test_a_read_signed_in_one_step_is_verified_in_one() -> None:
    """Rule: the headers of such a read give its principal."""
    assert peer_auth.verify_get(SECRET, b"/x", plain(), NOW) == b'{"tenant": "a"}'


@pytest.mark.parametrize(
    "headers",
    [
        plain("another secret, long enough as well"),
        plain(now=NOW + WINDOW + 1),
        plain()[1:],
        plain()[::-1],
        [*plain(), (b"range", b"bytes=0-1")],
        *([*plain()[:at], (plain()[at][0], b"2"), *plain()[at + 1 :]] for at in range(1, 7)),
    ],
)
def test_any_other_read_is_left_to_the_usual_way(headers: list[RawHeader]) -> None:
    """Rule: a header that is missing, added, changed or elsewhere gives no principal, nor does another secret or an old date."""
    assert peer_auth.verify_get(SECRET, b"/x", headers, NOW) is None


def test_a_plain_read_is_valid_for_its_address() -> None:
    """Rule: the headers of a read of one address do not admit one of another."""
    assert peer_auth.verify_get(SECRET, b"/y", plain(), NOW) is None


@pytest.mark.parametrize(("name", "value"), [("a b", NOW), ("a", -1.0)])
def test_a_plain_read_must_be_in_order_too(name: str, value: float) -> None:
    """Rule: a valid signature does not admit a sender without a name, or without a time."""
    lines = PeerSigner(SECRET, name).get("/x", "node:9000", "{}", value)[:-4].split(b"\r\n")[1:]
    headers = [(each.lower(), told.strip()) for each, _, told in (line.partition(b":") for line in lines)]
    assert peer_auth.verify_get(SECRET, b"/x", headers, value) is None


def test_another_secret_is_refused() -> None:
    """Rule: a signature with another secret is refused."""
    assert refused(signed("another secret, long enough as well")) == "signature"


@pytest.mark.parametrize("name", [PEER, PEER_PROTOCOL, PEER_DATE, PEER_BODY, PEER_SIGNATURE])
def test_nothing_may_be_missing(name: str) -> None:
    """Rule: a request without any one of the five headers is unsigned."""
    assert refused(changed(signed(), name, None)) == "unsigned"


@pytest.mark.parametrize("name", [PEER, PEER_PROTOCOL, PEER_DATE, PEER_BODY, PEER_SIGNATURE])
def test_nothing_may_be_there_twice(name: str) -> None:
    """Rule: a request with a repeated header counts as unsigned, because either value could count."""
    request = signed()
    again = [pair for pair in request.headers if pair[0] == name.encode()]
    assert refused(replace(request, headers=[*request.headers, *again])) == "unsigned"


def test_no_header_of_nodes_may_be_there_twice() -> None:
    """Rule: a repeated header that is signed makes a request unsigned."""
    assert refused(replace(signed(), headers=[*signed().headers, (b"x-larder-mode", b"exact")])) == "unsigned"


def test_another_repeated_header_is_no_matter() -> None:
    """Rule: headers that are not signed may be repeated."""
    assert (
        verify(SECRET, replace(signed(), headers=[*signed().headers, (b"via", b"a"), (b"via", b"b")]), NOW).node == "a"
    )


def test_space_around_a_value_is_not_signed() -> None:
    """Rule: a value is signed as it arrives, without the space around it."""
    own = PeerSigner(SECRET, "a").headers(
        WireRequest("GET", b"/-/peer/v1/x", b"", [(b"x-larder-mode", b" auto ")]), b"", NOW
    )
    headers = [(b"x-larder-mode", b"auto"), *((name.encode(), value.encode()) for name, value in own)]
    assert verify(SECRET, WireRequest("GET", b"/-/peer/v1/x", b"", headers), NOW).node == "a"


@pytest.mark.parametrize("off", [WINDOW, -WINDOW, 300.0, -300.0])
def test_clocks_may_differ(off: float) -> None:
    """Rule: clocks may differ by up to a quarter of an hour."""
    assert verify(SECRET, signed(now=NOW + off), NOW).node == "a"


@pytest.mark.parametrize("off", [WINDOW + 1, -WINDOW - 1, 86400.0])
def test_what_was_overheard_is_no_use_later(off: float) -> None:
    """Rule: a date that is off by more is refused, in either direction."""
    assert refused(signed(now=NOW + off)) == "date"


@pytest.mark.parametrize("date", ["", "soon", "-1", "1e9", "9" * 5000])
def test_a_date_is_a_number_of_seconds(date: str) -> None:
    """Rule: an invalid date with a valid signature is refused like a wrong one."""
    told = changed(signed(), PEER_DATE, date)
    assert (
        refused(changed(told, PEER_SIGNATURE, peer_auth._form(tuple(told.fields)).sign(SECRET, told, told.fields)))
        == "date"
    )


@pytest.mark.parametrize("version", ["0", "2", "1.0", ""])
def test_another_protocol_is_refused(version: str) -> None:
    """Rule: another protocol is refused first, so that the message has the remedy instead of a secret's mismatch."""
    assert refused(changed(signed("another secret, long enough as well"), PEER_PROTOCOL, version)) == "protocol"


@pytest.mark.parametrize(
    "tamper",
    [
        lambda request: replace(request, method="GET"),
        lambda request: replace(request, raw_path=b"/-/peer/v1/datasets/y/batch"),
        lambda request: replace(request, query=b"name=m&caching=full"),
        lambda request: changed(request, "x-larder-principal", '{"tenant":"b"}'),
        lambda request: changed(request, "x-larder-principal", None),
        lambda request: changed(request, "x-larder-new", "1"),
        lambda request: changed(request, PEER, "b"),
        lambda request: changed(request, PEER_DATE, str(int(NOW) + 1)),
        lambda request: changed(request, PEER_BODY, "0" * 64),
        lambda request: changed(request, PEER_SIGNATURE, "0" * 64),
        lambda request: changed(request, PEER_SIGNATURE, "ü"),
    ],
)
def test_what_is_signed_cannot_be_changed(tamper: Callable[[WireRequest], WireRequest]) -> None:
    """Rule: method, path, query and Larder's headers cannot be changed, added or left out."""
    assert refused(tamper(signed())) == "signature"


def test_the_body_cannot_be_changed() -> None:
    """Rule: the signature covers the body."""
    assert refused(signed(), body=BODY + b"\0") == "body"
    assert refused(signed(), body=b"") == "body"


def test_parts_cannot_be_moved_into_each_other() -> None:
    """Rule: a path with a query and a longer path are signed differently."""
    one = PeerSigner(SECRET, "a").headers(WireRequest("GET", b"/-/peer/v1/x", b"y", []), b"", NOW)
    other = PeerSigner(SECRET, "a").headers(WireRequest("GET", b"/-/peer/v1/", b"x\ny", []), b"", NOW)
    assert dict(one)[PEER_SIGNATURE] != dict(other)[PEER_SIGNATURE]


def test_other_headers_are_not_signed() -> None:
    """Rule: a proxy between the nodes may set Range, which is not signed."""
    assert verify(SECRET, changed(signed(), "range", "bytes=5-6"), NOW).node == "a"


@pytest.mark.parametrize("name", ["", "a b", "x" * 65])
def test_a_node_has_a_name(name: str) -> None:
    """Rule: the signature of an invalid node id is refused."""
    request = WireRequest("GET", b"/-/peer/v1/x", b"", [])
    own = PeerSigner(SECRET, name).headers(request, b"", NOW)
    arrived = replace(request, headers=[(key.encode(), value.encode()) for key, value in own])
    assert refused(arrived, body=b"") == "unsigned"
