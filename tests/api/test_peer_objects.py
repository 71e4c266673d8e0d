"""A home's answers to other nodes: the same as its S3 edge's, for permitted requests only."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.api.peer.app import PeerApp
from gateway.api.peer.objects import PeerObjects
from gateway.api.s3.hot import HotReads
from gateway.api.s3.objects import ObjectReads
from gateway.fleet.nodes.peer_gate import PeerGate
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.outcomes import Reason
from gateway.model.peer.auth import PeerSigner
from gateway.model.peer.objects import object_path, read_error
from gateway.model.peer.principal import principal_header
from gateway.model.s3.sigv4 import WireRequest
from gateway.net import connection
from gateway.operate.explain.work import Explainer, expected
from gateway.policies.reads.rules import Caching, Rules
from gateway.server.asgi_types import RawHeaders
from gateway.server.cycle import FILES
from rig.origin import ALICE, BOB
from tests.engine.conftest import BLOCK, Bench, alone, benched

SECRET = "what the nodes of this fleet share"
KEY = ObjectKey("default", "b", "a key/with+marks %20")


@dataclass
class Reply:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Home:
    """A node that is asked, in the test's own event loop.

    ``files``: its server can send files in one message; ``at_once``: and before the application returns; ``plain``: reads without
    further headers have those of ``PeerSigner.get``. ``hits`` counts the answers that took the short way, ``messages`` those that
    make up the last answer.
    """

    def __init__(self, bench: Bench, *, files: bool = False, at_once: bool = False, plain: bool = False) -> None:
        self.bench = bench
        self._at_once = at_once or plain
        self._plain = plain
        self.hits = self.messages = 0
        self._extensions = {FILES: {}} if files else {}
        objects = PeerObjects(ObjectReads(bench.engine), HotReads(bench.engine, alone()), bench.engine)
        gate = PeerGate(SECRET, now=lambda: bench.now[0])
        has = bench.engine.services.origin.has
        self.app = PeerApp(gate, has, {"object": objects.address}, 100)

    async def ask(
        self,
        method: str = "GET",
        path: str = object_path(KEY),
        *,
        who: str = ALICE.access_key_id,
        secret: str = SECRET,
        **headers: str,
    ) -> Reply:
        """Ask as another node would; underscores in the names of headers stand for dashes."""
        told = {"x-larder-principal": principal_header("t", OriginIdentity("default", who))[1]}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        raw = [(name.encode(), value.encode()) for name, value in told.items()]
        request = WireRequest(method, path.encode(), b"", raw)
        signed = PeerSigner(secret, "other").headers(request, b"", self.bench.now[0])
        raw += [(name.encode(), value.encode()) for name, value in signed]
        if self._plain and method == "GET" and not headers:
            raw = _plain_headers(
                PeerSigner(secret, "other").get(path, "home", told["x-larder-principal"], self.bench.now[0])
            )
        scope = {
            "type": "http", "method": method, "raw_path": path.encode(), "path": path, "query_string": b"",
            "headers": raw, "scheme": "http", "extensions": self._extensions,
        }  # fmt: skip
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(dict(message))

        def send_files(status: int, head: bytes, files: Sequence[tuple[int, int, int, int]], memory: object) -> None:
            sent.append({"type": FILES, "status": status, "head": head, "files": files})

        if not self._at_once:
            await self.app(scope, receive, send)
        elif (rest := self.app.begin(scope, receive, send, send_files)) is not None:
            await rest
        self.messages = len(sent)
        if sent[0]["type"] == FILES:
            self.hits += "headers" not in sent[0]
            return _of_files(sent[0])
        given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], given, b"".join(message.get("body", b"") for message in sent[1:]))


def _plain_headers(request: bytes) -> RawHeaders:
    lines = [line.partition(b":") for line in request.split(b"\r\n")[1:-2]]
    return [(name.lower(), value.strip()) for name, _, value in lines]


def _of_files(message: MutableMapping[str, Any]) -> Reply:
    lines = [line.partition(b": ") for line in message["head"].splitlines()]
    body = b"".join(os.pread(fd, count, offset) for fd, offset, count, _ in message["files"])
    return Reply(message["status"], {name.decode(): value.decode() for name, _, value in lines}, body)


@pytest.fixture(params=["pieces", "at once", "plain"])
async def home(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    """Returns a home with one object at its origin and an empty cache, for each way to send and to ask."""
    async with benched(tmp_path / "cache") as bench:
        bench.origin.put("b", KEY.key, b"0123456789" * 10, [("x-amz-meta-a", "1")])
        yield Home(
            bench, files=request.param != "pieces", at_once=request.param == "at once", plain=request.param == "plain"
        )


@pytest.mark.parametrize("home", ["files", "at once", "plain"], indirect=True)
async def test_a_repeated_hit_takes_the_short_way(home: Home) -> None:
    """Rule: the short route answers another node as the long one does, with ranges and checksums."""
    await home.ask()
    await home.bench.settle()
    long = await home.ask()
    part, wanted = await home.ask(range="bytes=5-14"), b"5678901234"
    assert home.hits
    before = home.hits
    assert await home.ask() == long
    assert (part.status, part.body, part.headers["content-range"]) == (206, wanted, "bytes 5-14/100")
    assert home.hits == before + 1
    assert (await home.ask(cache_control="no-cache")).body == long.body
    assert (await home.ask(who=BOB.access_key_id)).status == 200
    assert (await home.ask("HEAD")).body == b""
    assert home.hits == before + 1


@pytest.mark.parametrize("home", ["plain"], indirect=True)
async def test_a_plain_read_is_verified_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a repeated plain read is answered by its head alone; what is wrong with another one is found by the usual way."""
    await home.ask()
    await home.bench.settle()
    await home.ask()
    usual: list[str] = []
    monkeypatch.setattr(PeerGate, "admit", lambda _gate, request: usual.append(request.method))
    assert (await home.ask()).status == 200
    assert usual == []
    monkeypatch.undo()
    assert (await home.ask(secret="another one, as long as that")).status == 403
    assert (await home.ask(who="unknown")).status == 403


@pytest.mark.parametrize("home", ["files"], indirect=True)
async def test_a_small_object_that_came_at_once_leaves_in_one_message(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a cold object whose bytes arrive together leaves with its head in one message, like a hit."""
    monkeypatch.setattr(connection, "GATHER", 3600.0)
    cold = await home.ask()
    assert (cold.body, cold.headers["x-larder-cache"]) == (b"0123456789" * 10, "MISS; reason=cold")
    assert (home.messages, home.hits) == (1, 0)


async def test_it_says_what_its_cache_did(home: Home) -> None:
    """Rule: the answer is the edge's, with the outcome at the home's cache."""
    first = await home.ask()
    assert (first.status, first.body, first.headers["x-larder-cache"]) == (200, b"0123456789" * 10, "MISS; reason=cold")
    await home.bench.settle()
    again = await home.ask()
    assert (again.body, again.headers["x-larder-cache"]) == (first.body, "HIT")
    assert (again.headers["x-amz-meta-a"], again.headers["content-length"]) == ("1", "100")
    assert home.bench.origin.count("GET") == 1


async def test_an_evicted_object_is_told_from_a_new_one(home: Home) -> None:
    """Rule: a miss of an evicted object has the reason ``evicted``, and explain predicts it."""
    await home.ask()
    await home.bench.settle()
    store = home.bench.store
    assert await store.try_lock()
    assert await store.make_room(store.status().capacity)
    explained = await Explainer(home.bench.engine, "me").here(KEY, home.bench.identity)
    assert expected(Caching(), explained).reason is Reason.EVICTED
    assert (await home.ask()).headers["x-larder-cache"] == "MISS; reason=evicted"
    await home.bench.settle()
    assert (await home.ask()).headers["x-larder-cache"] == "HIT"


async def test_it_reads_the_clients_conditions_and_range(home: Home) -> None:
    """Rule: ranges and conditions are evaluated by the home, which knows the object."""
    etag = (await home.ask()).headers["etag"]
    part = await home.ask(range="bytes=5-14", if_range=etag)
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"5678901234", "bytes 5-14/100")
    assert (await home.ask(if_none_match=etag)).status == 304
    head = await home.ask("HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, "100", b"")


async def test_what_only_a_head_has_asked_for_is_cold(home: Home) -> None:
    """Rule: an object counts as partial only if some of its bytes are cached; known metadata alone leaves it cold."""
    assert (await home.ask("HEAD")).headers["x-larder-cache"] == "MISS; reason=cold"
    assert (await home.ask()).headers["x-larder-cache"] == "MISS; reason=cold"
    large = ObjectKey("default", "b", "large")
    home.bench.origin.put("b", large.key, bytes(3 * BLOCK))
    part = {"range": "bytes=0-9"}
    assert (await home.ask(path=object_path(large), **part)).headers["x-larder-cache"] == "MISS; reason=cold"
    await home.bench.settle()
    assert (await home.ask(path=object_path(large))).headers["x-larder-cache"] == "MISS; reason=partial"


async def test_it_tells_the_parts_of_a_refusal(home: Home) -> None:
    """Rule: an S3 error goes over as code, headers and details, which the node that knows the client puts together."""
    await home.ask()
    await home.bench.settle()
    failed = await home.ask(if_match='"other"')
    assert (failed.status, failed.headers["x-larder-error"]) == (412, "PreconditionFailed")
    beyond = await home.ask(range="bytes=100-")
    assert (beyond.status, beyond.headers["x-larder-error"]) == (416, "InvalidRange")
    assert beyond.headers["content-range"] == "bytes */100"
    assert read_error(beyond.body) == {"RangeRequested": "bytes=100-", "ActualObjectSize": "100"}
    assert beyond.headers["x-larder-cache"].startswith(("HIT", "MISS"))


async def test_it_says_what_is_not_for_the_cache(home: Home) -> None:
    """Rule: a read that no home keeps is given back, with the reason and whether it counts as a miss."""
    several = await home.ask(range="bytes=0-1,3-4")
    assert (several.status, several.headers["x-larder-forward"]) == (421, "BYPASS; reason=range-form")
    home.bench.engine.services.rules = Rules([Caching(match="b/**", cache=False)])
    ruled = await home.ask()
    assert (ruled.status, ruled.headers["x-larder-forward"]) == (421, "BYPASS; reason=rule")
    home.bench.engine.services.rules = Rules()
    gone = await home.ask("HEAD", object_path(ObjectKey("default", "b", "gone")))
    assert (gone.status, gone.headers["x-larder-cache"]) == (404, "MISS; reason=not-found")
    assert "x-larder-forward" not in gone.headers


async def test_it_hands_on_what_the_origin_says(home: Home) -> None:
    """Rule: the origin's own answer crosses unchanged, but for headers that would pass for a node's."""
    missing = await home.ask(path=object_path(ObjectKey("default", "b", "gone")))
    assert (missing.status, missing.headers["x-larder-cache"]) == (404, "MISS; reason=not-found")
    assert b"<Code>NoSuchKey</Code>" in missing.body
    private = ObjectKey("default", "b", "private")
    home.bench.origin.put("b", "private", b"p", [("Cache-Control", "private"), ("x-larder-error", "NoSuchKey")])
    told = await home.ask(path=object_path(private))
    assert (told.status, told.body, told.headers["x-larder-cache"]) == (200, b"p", "MISS; reason=cache-control")
    assert "x-larder-error" not in told.headers


async def test_each_identity_proves_its_own_right(home: Home) -> None:
    """Rule: an object cached for one identity is served to another only after the origin permits it."""
    home.bench.origin.deny(BOB.access_key_id, "b/*")
    assert (await home.ask()).status == 200
    await home.bench.settle()
    refused = await home.ask(who=BOB.access_key_id)
    assert (refused.status, refused.headers["x-larder-cache"]) == (403, "MISS; reason=refused")
    assert b"<Code>AccessDenied</Code>" in refused.body
    assert (await home.ask()).headers["x-larder-cache"] == "HIT"
    nobody = await home.ask(who="")
    assert (nobody.status, nobody.headers["x-larder-cache"]) == (403, "MISS; reason=refused")


async def test_an_identity_that_the_configuration_does_not_have(home: Home) -> None:
    """Rule: a node may use only identities that this node has too; the refusal has a remedy."""
    for name in ("stranger", "aws-credential-chain"):
        refused = await home.ask(who=name)
        assert (refused.status, "x-larder-cache" in refused.headers) == (403, False)
        assert b"same origins and credentials" in refused.body
    assert home.bench.origin.count() == 0


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"x_larder_principal": "{"}, 400),
        ({"x_larder_principal": '{"tenant":"t","origin":"other","access_key_id":"origin-key-a"}'}, 403),
        ({"method": "DELETE"}, 405),
        ({"path": "/-/peer/v1/objects/default/b"}, 400),
        ({"path": "/-/peer/v1/objects/default/b/%FF"}, 400),
        ({"path": "/-/peer/v1/objects/other/b/k"}, 400),
        ({"path": "/-/peer/v1/nothing"}, 404),
        ({"method": "POST", "x_larder_uploaded": "{"}, 400),
        ({"method": "POST", "x_larder_uploaded": '["etag", "version", [1]]'}, 400),
        ({"method": "POST", "x_larder_uploaded": "[" * 5000}, 400),
        ({"secret": "another secret of another fleet"}, 403),
    ],
)
async def test_what_is_malformed_is_refused(home: Home, told: dict[str, str], status: int) -> None:
    """Rule: bad input is refused with a reason, and reaches neither cache nor origin."""
    refused = await home.ask(**told)
    assert refused.status == status
    assert refused.headers["content-type"] == "application/problem+json"
    assert b'"detail"' in refused.body
    assert home.bench.origin.count() == 0


async def test_it_reads_what_it_is_asked_to_have(home: Home) -> None:
    """Rule: a POST loads the object into the cache for later readers."""
    accepted = await home.ask("POST")
    assert (accepted.status, accepted.body) == (202, b"")
    await home.bench.settle()
    assert (await home.ask()).headers["x-larder-cache"] == "HIT"
    assert home.bench.origin.count("GET") == 1


async def test_it_gives_away_what_it_has_and_nothing_else(home: Home) -> None:
    """Rule: asked for cached bytes only, a node sends those that it may serve, with their age, without asking the origin."""
    cold = await home.ask(cache_control="only-if-cached")
    assert (cold.status, cold.headers["x-larder-forward"]) == (421, "MISS; reason=cold")
    await home.ask()
    await home.bench.settle()
    seen = home.bench.origin.count()
    home.bench.now[0] += 100
    given = await home.ask(cache_control="only-if-cached")
    assert (given.status, given.body) == (200, b"0123456789" * 10)
    assert 100 <= int(given.headers["x-larder-age"]) <= 110
    assert (await home.ask(who=BOB.access_key_id, cache_control="only-if-cached")).status == 421
    home.bench.now[0] += 600
    assert (await home.ask(cache_control="only-if-cached")).status == 421
    assert home.bench.origin.count() == seen


async def test_the_origin_that_cannot_be_reached_is_no_answer(home: Home) -> None:
    """Rule: a home that cannot reach the origin tells the asking node to try elsewhere, and why."""
    await home.bench.origin.stop()
    failed = await home.ask()
    assert (failed.status, failed.headers["x-larder-forward"]) == (421, "MISS; reason=origin-down")
    assert "x-larder-cache" not in failed.headers
    await home.bench.origin.start()
