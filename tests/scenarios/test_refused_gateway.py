"""The origin refuses the gateway: its keys, its clock or its address. Readers do not get that as theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rig.clients import Client, Got, get
from rig.gateways import Running, Settings, gateway
from rig.origin_faults import Refuse
from rig.world import KIB, Origin, content, eventually

STALE = "STALE; reason=origin-down"
OWN = ("GWB", "gateway-secret-b")
REFUSALS = [
    (400, "ExpiredToken", "origins.session_token"),
    (403, "InvalidAccessKeyId", "origins.access_key_id"),
    (403, "SignatureDoesNotMatch", "origins.secret_access_key"),
    (403, "RequestTimeTooSkewed", "clock of this machine"),
    (400, "InvalidToken", "origins.session_token"),
    (400, "TokenRefreshRequired", "origins.session_token"),
    (400, "AuthorizationHeaderMalformed", "origins.region"),
    (403, "AccountProblem", "account"),
    (301, "PermanentRedirect", "origins.endpoint"),
    (307, "TemporaryRedirect", "origins.endpoint"),
]


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory) -> Iterator[Running]:
    """A gateway with a key that signs with the origin's keys, and one with keys of its own at the origin."""
    own = {
        "access_key_id": OWN[0],
        "secret_access_key": OWN[1],
        "tenant": "b",
        "origin_access_key_id": "origin-key-b",
        "origin_secret_access_key": "origin-secret-b",
    }
    rules = (
        {"match": "always/**", "freshness": "always"},
        {"match": "strict/**", "freshness": "always", "stale_if_error": "0s"},
    )
    directory = tmp_path_factory.mktemp("cache")
    shared = Settings(origin.endpoint, directory).credentials
    settings = Settings(origin.endpoint, directory, rules=rules, credentials=(*shared, own))
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(autouse=True)
def healed(running: Running, origin: Origin) -> Iterator[None]:
    """After each test the origin accepts everything, and the gateway knows it."""
    yield
    origin.s3.heal()
    origin.s3._denied.clear()
    origin.put("/fresh/after", b"x")
    for key in (("GWA", "gateway-secret-a"), OWN):
        with Client(running.endpoint, *key) as client:
            client.get("/fresh/after", **{"Cache-Control": "no-cache"})


@contextmanager
def refusing(origin: Origin, status: int, code: str) -> Iterator[None]:
    """The origin answers every request so."""
    origin.s3.inject(Refuse(times=10**6, status=status, code=code))
    try:
        yield
    finally:
        origin.s3.heal()


def cached(running: Running, origin: Origin, path: str, *key: str) -> bytes:
    """An object that is in the cache."""
    body = origin.put(path, content(20 * KIB, path))
    with Client(running.endpoint, *key) as client:
        eventually(lambda: client.get(path), lambda got: got.cache.startswith("HIT"), "a hit")
    return body


def assert_not_theirs(got: Got) -> None:
    """A refusal that SDKs repeat, and that does not send its reader to its own key."""
    assert got.status == 503
    assert b"<Code>ServiceUnavailable</Code>" in got.body
    assert b"Your access key is not the cause" in got.body


def problem(running: Running) -> str:
    """The problem of the origin's keys at /-/readyz, which is public."""
    with Client(running.endpoint, "") as client:
        answer = json.loads(client.get("/-/readyz").body)
    return str(answer["problems"].get("origin-keys", ""))


@pytest.mark.parametrize(("status", "code", "remedy"), REFUSALS)
def test_cached_objects_are_served_stale(running, origin, status, code, remedy):
    """Rule: past its freshness an object is STALE, by GET and HEAD; the problem names origin, code and remedy."""
    body = cached(running, origin, f"/always/{code}")
    with refusing(origin, status, code), Client(running.endpoint) as client:
        for _ in range(2):
            got = client.get(f"/always/{code}")
            assert (got.status, got.cache, got.body) == (200, STALE, body)
        assert client.ask("HEAD", f"/always/{code}").cache == STALE
        told = problem(running)
        assert "'default'" in told
        assert code in told
        assert remedy in told
    got = get(running, f"/always/{code}")
    assert (got.status, got.body) == (200, body)
    assert problem(running) == ""


@pytest.mark.parametrize(("status", "code", "remedy"), REFUSALS)
def test_other_requests_get_a_503_that_is_about_the_gateway(running, origin, status, code, remedy):
    """Rule: reads of uncached objects, forced checks, lists and writes are refused without blaming the caller's key."""
    del remedy
    cached(running, origin, f"/strict/{code}")
    origin.put(f"/fresh/cold-{code}", b"cold")
    with refusing(origin, status, code), Client(running.endpoint) as client:
        assert_not_theirs(client.get(f"/fresh/cold-{code}"))
        assert_not_theirs(client.get(f"/strict/{code}"))
        assert_not_theirs(client.get("/fresh?list-type=2"))
        assert_not_theirs(client.ask("PUT", f"/fresh/new-{code}", body=b"new"))
        assert client.ask("HEAD", f"/fresh/cold-{code}").status == 503
    assert get(running, f"/fresh/cold-{code}").body == b"cold"


@pytest.mark.parametrize("code", ["AccessDenied", "AllAccessDisabled"])
def test_a_refusal_of_one_object_is_its_readers(running, origin, code):
    """Rule: what the origin says about an object and its reader removes the grant, is passed on, and is no problem."""
    cached(running, origin, "/always/denied")
    origin.s3.inject(Refuse(times=10**6, status=403, code=code, path="/always/denied"))
    with Client(running.endpoint) as client:
        got = client.get("/always/denied")
        assert (got.status, f"<Code>{code}</Code>".encode() in got.body) == (403, True)
        assert client.ask("HEAD", "/always/denied").status == 403
    assert problem(running) == ""
    origin.s3.heal()
    with origin.away():
        assert get(running, "/always/denied").status == 503  # the grant is gone


def test_expired_keys_of_a_tenant_are_the_gateways_matter(running, origin):
    """Rule: keys that a credential has for the origin may expire like the origin's own: STALE, and others read on."""
    body = cached(running, origin, "/always/expired", *OWN)
    origin.s3.inject(Refuse(times=10**6, status=400, code="ExpiredToken", path="/always/expired"))
    with Client(running.endpoint, *OWN) as client:
        got = client.get("/always/expired")
        assert (got.status, got.cache, got.body) == (200, STALE, body)


def test_keys_taken_from_a_tenant_revoke_its_grants(running, origin):
    """Rule: whoever deletes a tenant's own keys at the origin revokes its reads: never STALE, and not after the keys are back."""
    cached(running, origin, "/always/taken", *OWN)
    origin.s3.inject(Refuse(times=10**6, status=403, code="InvalidAccessKeyId", path="/always/taken"))
    with Client(running.endpoint, *OWN) as client:
        assert_not_theirs(client.get("/always/taken"))
        assert "credential" in problem(running)
        origin.s3.heal()
        with origin.away():
            assert client.get("/always/taken").status == 503


def test_a_denied_object_is_asked_for_once(running, origin):
    """Rule: an answer to HEAD has no document, so a GET finds out what it means; not again for the same object at once."""
    cached(running, origin, "/always/secret")
    origin.s3.deny("origin-key-a", "always/secret")
    before = len(origin.s3.seen)
    with Client(running.endpoint) as client:
        for _ in range(3):
            assert client.ask("HEAD", "/always/secret").status == 403
    asked = [seen.method for seen in origin.s3.seen[before:] if seen.raw_path == "/always/secret"]
    assert asked.count("GET") == 1


def test_a_denied_object_of_which_nothing_is_cached_is_asked_for_by_head_alone(running, origin):
    """Rule: where no grant is at stake, keys that the origin accepted a moment ago are not in doubt."""
    origin.put("/fresh/unread", b"x")
    origin.s3.deny("origin-key-a", "fresh/unread")
    with Client(running.endpoint) as client:
        client.get("/fresh?list-type=2")
        before = len(origin.s3.seen)
        assert client.ask("HEAD", "/fresh/unread").status == 403
    assert [seen.method for seen in origin.s3.seen[before:] if seen.raw_path == "/fresh/unread"] == ["HEAD"]


def test_an_origin_without_rights_to_list_is_not_asked_twice_for_a_body(running, origin):
    """Rule: the GET that explains a refused HEAD asks for one byte."""
    cached(running, origin, "/always/large")
    origin.s3.inject(Refuse(times=1, method="HEAD", status=403, code="AccessDenied", path="/always/large"))
    before = len(origin.s3.seen)
    with Client(running.endpoint) as client:
        client.ask("HEAD", "/always/large")
    assert [seen.header("range") for seen in origin.s3.seen[before:] if seen.method == "GET"] == ["bytes=0-0"]
