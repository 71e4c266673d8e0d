"""A gateway that relays a read to the object's home: the request, checks of the answer, and a home that does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.api.s3.answer import Answer
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call, resource_of
from gateway.api.s3.errors import AboutCached
from gateway.api.s3.objects import ObjectReads
from gateway.api.s3.relayed import RelayedReads
from gateway.engine.objects.body import Body
from gateway.engine.objects.found import Forward
from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.errors import LarderError
from gateway.model.fleet import Node, NodeState
from gateway.model.keys import ObjectKey, Principal
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.aws_chunked import PayloadForm
from gateway.model.s3.sigv4 import WireRequest
from gateway.net.exchange import StreamedResponse
from gateway.policies.fleet.ring import Ring
from rig.origin_faults import DieAfter
from tests.engine.conftest import Bench, benched, take

BODY = b"0123456789" * 100
ETAG = '"8c4ea44c3b2d5d5f7e7a0c2d9d4b1a10"'
HOME, NEXT = (Node(name, f"http://{name}", 1, "default", NodeState.READY) for name in ("home", "next"))


@dataclass
class Said:
    """Another node's answer; with ``breaks`` it breaks off after ``pieces``, with ``arrived`` all pieces have arrived."""

    status: int = 200
    fields: dict[str, str] = field(default_factory=dict)
    pieces: Sequence[bytes] = ()
    head: bytes = b"as sent"
    breaks: bool = False
    ended: bool = False
    arrived: bool = False

    def __post_init__(self) -> None:
        self.headers = list(self.fields.items())
        self.fields = {name.lower(): value for name, value in self.headers}
        self._left = list(self.pieces)

    def header(self, name: str) -> str | None:
        """The first value of a header, or ``None``."""
        return next((value for candidate, value in self.headers if candidate.lower() == name.lower()), None)

    def at_once(self, length: int) -> bytes | None:
        """The whole body, if it has arrived."""
        whole = b"".join(self._left)
        return whole if self.arrived and len(whole) == length else None

    async def next_chunk(self) -> bytes:
        """The next piece."""
        if self._left:
            return self._left.pop(0)
        if self.breaks:
            raise PeerUnavailable("it broke off")
        return b""

    async def read(self, limit: int) -> bytes:
        """The whole body."""
        whole = b"".join(self._left)
        if len(whole) > limit:
            raise PeerUnavailable("too much")
        return whole

    def release(self) -> None:
        """Mark the answer as ended after a complete read."""
        self.ended = True

    def abort(self) -> None:
        """Mark the answer as ended without a complete read."""
        self.ended = True


class Others:
    """The other nodes: the home and its successors, with prepared answers, in order."""

    def __init__(self) -> None:
        self.alone = False
        self.me = "me"
        self.ring = Ring({"home": 1, "next": 1})
        self.suspects: set[str] = set()
        self.answers: list[Said | PeerUnavailable] = []
        self.asked: list[tuple[str, str, str, dict[str, str]]] = []

    def home(self, _key: int, without: Collection[str] = ()) -> Node | None:
        """The first that is not suspected."""
        return next((node for node in (HOME, NEXT) if node.id not in {*self.suspects, *without}), None)

    def remote(self, node: Node) -> SimpleNamespace:
        """A node as the other side of reads, of which these tests see only which node it is."""
        return SimpleNamespace(node=node)

    async def request(self, node: Node, method: str, path: str, headers: Sequence[tuple[str, str]]) -> Said:
        """The next answer."""
        self.asked.append((node.id, method, path, dict(headers)))
        answer = self.answers.pop(0)
        if isinstance(answer, PeerUnavailable):
            self.suspects.add(node.id)
            raise answer
        return answer


class Asking:
    """A gateway whose object ``b/k`` is at home elsewhere."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.others = Others()
        members: Any = self.others
        self.reads = RelayedReads(ObjectReads(bench.engine), bench.engine, members, members)

    async def read(self, method: str = "GET", query: str = "", *, plain: bool = False, **headers: str) -> Any:
        """Read the object; underscores in the names of headers stand for dashes."""
        raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        request = WireRequest(method, b"/b/k", query.encode(), [(b"host", b"h"), (b"authorization", b"secret"), *raw])
        auth = Authenticated(Principal("AK", "t", self.bench.identity), PayloadForm.UNSIGNED, "")
        request, query, names = resource_of(request, frozenset())
        call = S3Call(request, auth, "b", b"k", ObjectKey("default", "b", "k"), query, names, plain)
        home, _ = self.reads.home(call)
        assert home is not None
        return await self.reads.read(call, home)


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    """Such a gateway; its origin has the object."""
    async with benched(tmp_path / "cache") as bench:
        bench.origin.put("b", "k", BODY)
        yield Asking(bench)


async def content(answer: Answer) -> bytes:
    """Read the whole body of an answer and release its resources."""
    if isinstance(answer.content, bytes):
        return answer.content
    if isinstance(answer.content, Body):
        return await take(answer.content)
    body = b"".join([piece async for piece in answer.content])
    if answer.cleanup is not None:
        await answer.cleanup()
    return body


def good(pieces: Sequence[bytes] = (BODY,), *, arrived: bool = False, **more: str) -> Said:
    """A hit, of the object as its home has it."""
    told = {"x-larder-cache": "HIT", "ETag": ETAG, "Content-Length": str(len(BODY)), **more}
    return Said(200, told, pieces, arrived=arrived)


async def test_what_is_asked(asking: Asking) -> None:
    """Rule: the home gets the client's request and identity, and no other headers of the client."""
    asking.others.answers = [good()]
    answer = await asking.read(
        "GET", "x-amz-checksum-mode=ENABLED", range="bytes=0-9", cache_control="max-age=0, foo", x_larder_cache="HIT"
    )
    assert (answer.status, answer.outcome, await content(answer)) == (200, Outcome.HIT, BODY)
    ((node, method, path, headers),) = asking.others.asked
    assert (node, method, path) == ("home", "GET", "/-/peer/v1/objects/default/b/k")
    assert headers.keys() == {"range", "cache-control", "x-amz-checksum-mode", "x-larder-principal"}
    assert (headers["cache-control"], headers["x-amz-checksum-mode"]) == ("no-cache", "ENABLED")


@pytest.mark.parametrize("name", ["k", ""], ids=["written", "rights"])
async def test_what_the_fleet_has_not_heard_of_is_checked_by_the_home(asking: Asking, name: str) -> None:
    """Rule: while this node has a pending announcement for the object, or for the rights in its bucket, its home may hold an
    older state, so the request forces a check."""
    asking.bench.store.generations.owe([ObjectKey("default", "b", name)])
    asking.others.answers = [good()]
    await content(await asking.read())
    ((*_, headers),) = asking.others.asked
    assert headers["cache-control"] == "no-cache"


async def test_what_is_answered(asking: Asking) -> None:
    """Rule: status, headers and outcome are the home's; headers of the connection and of nodes are not the client's."""
    asking.others.answers = [good(**{"x-larder-x": "1", "Connection": "keep-alive", "x-amz-meta-a": "1"})]
    answer = await asking.read()
    assert dict(answer.headers) == {b"etag": ETAG.encode(), b"content-length": b"1000", b"x-amz-meta-a": b"1"}
    assert answer.length == 1000
    assert await content(answer) == BODY


async def test_a_body_that_arrived_with_its_head_is_passed_on_as_one_piece(asking: Asking) -> None:
    """Rule: if the whole body has arrived, the connection to the home is released before the client is answered."""
    said = good(arrived=True)
    asking.others.answers = [said]
    answer = await asking.read()
    assert said.ended
    assert (answer.content, answer.length, answer.span, answer.cleanup) == (BODY, 1000, (0, 1000, 1000), None)


async def test_a_hit_of_the_home_is_learned(asking: Asking) -> None:
    """Rule: a plain hit has all that the next one needs: where it was asked for, its head, and the lines for the client."""
    asking.others.answers = [good(arrived=True)]
    remote = (await asking.read(plain=True)).remote
    assert (remote.key, remote.peer.node, remote.path) == (
        ObjectKey("default", "b", "k"),
        HOME,
        "/-/peer/v1/objects/default/b/k",
    )
    assert (remote.known.data, remote.known.length, remote.length) == (b"as sent", 1000, 1000)
    assert remote.head.split(b"\r\n") == [
        b"etag: " + ETAG.encode(), b"content-length: 1000", b"x-larder-cache: HIT", b"server: Larder", b"",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {"x-larder-cache": "HIT; reason=revalidated"},
        {"x-larder-cache": "MISS; reason=cold"},
        {"Date": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"Connection": "close"},
    ],
)
async def test_what_is_of_one_answer_only_is_not_learned(asking: Asking, more: dict[str, str]) -> None:
    """Rule: an answer with a reason, or with headers of its moment or connection, says nothing about the next one."""
    asking.others.answers = [good(arrived=True, **more)]
    answer = await asking.read(plain=True)
    assert (answer.content, answer.remote) == (BODY, None)


async def test_an_answer_with_checksums_is_not_learned(asking: Asking) -> None:
    """Rule: the next reader may not want the checksums."""
    asking.others.answers = [good(arrived=True)]
    assert (await asking.read(plain=True, x_amz_checksum_mode="ENABLED")).remote is None


@pytest.mark.parametrize("headers", [{"range": "bytes=0-1,3-4"}, {"if_none_match": "\xe9"}])
async def test_what_no_home_is_asked(asking: Asking, headers: dict[str, str]) -> None:
    """Rule: requests that the origin must answer, or that cannot be expressed in ASCII, do not go to the home."""
    found = await asking.read(**headers)
    assert asking.others.asked == []
    if isinstance(found, Answer):
        assert await content(found) == BODY
    else:
        assert found == Forward(Reason.RANGE_FORM)


@pytest.mark.parametrize(
    ("told", "expected"),
    [("BYPASS; reason=rule", Forward(Reason.RULE)), ("MISS; reason=not-found", Forward(Reason.NOT_FOUND, miss=True))],
)
async def test_what_the_home_gives_back(asking: Asking, told: str, expected: Forward) -> None:
    """Rule: an uncacheable object is forwarded here, for the home's reason."""
    said = Said(421, {"x-larder-forward": told})
    asking.others.answers = [said]
    assert await asking.read() == expected
    assert said.ended


async def test_a_refusal_of_the_home(asking: Asking) -> None:
    """Rule: an S3 error of the home is raised as if it had been found here."""
    told = {"x-larder-cache": "HIT", "x-larder-error": "InvalidRange", "Content-Range": "bytes */1000"}
    asking.others.answers = [Said(416, told, [b'{"ActualObjectSize":"1000"}'])]
    with pytest.raises(AboutCached) as refused:
        await asking.read(range="bytes=1000-")
    error = refused.value
    assert (error.code, error.outcome, error.extra) == ("InvalidRange", Outcome.HIT, {"ActualObjectSize": "1000"})
    assert error.headers == {"Content-Range": "bytes */1000"}


@pytest.mark.parametrize(
    "said",
    [
        Said(200, {}, [b"x"]),
        Said(503, {"content-type": "application/problem+json"}, [b"{}"]),
        Said(403, {}, [b"no such key here"]),
        Said(500, {}, [b"x" * 100_000]),
        Said(421, {}),
        Said(421, {"x-larder-forward": "MISS"}),
        Said(421, {"x-larder-forward": "MISS; reason=No Reason"}),
        Said(200, {"x-larder-cache": "MAYBE"}, [b"x"]),
        Said(412, {"x-larder-cache": "HIT", "x-larder-error": "Whim"}, [b"{}"]),
        Said(412, {"x-larder-cache": "HIT", "x-larder-error": "PreconditionFailed"}, [b"["]),
    ],
)
async def test_what_says_nothing_of_the_object(asking: Asking, said: Said) -> None:
    """Rule: any other answer of the home is discarded, and the object is read here."""
    asking.others.answers = [said]
    answer = await asking.read()
    assert (answer.status, await content(answer)) == (200, BODY)
    assert said.ended
    assert len(asking.others.asked) == 1


async def test_the_next_in_the_ring_is_asked_once(asking: Asking) -> None:
    """Rule: if the home cannot be reached, its successor is asked once, and no third node."""
    asking.others.answers = [PeerUnavailable("gone"), good()]
    answer = await asking.read()
    assert (answer.outcome, await content(answer)) == (Outcome.HIT, BODY)
    assert [asked[0] for asked in asking.others.asked] == ["home", "next"]
    asking.others.suspects.clear()
    asking.others.answers = [PeerUnavailable("gone"), PeerUnavailable("gone too")]
    answer = await asking.read()
    assert (answer.outcome, answer.reason, await content(answer)) == (Outcome.MISS, Reason.COLD, BODY)


@pytest.mark.parametrize("sent", [0, 1, 999])
@pytest.mark.parametrize("breaks", [True, False], ids=["broken", "ended"])
async def test_a_body_that_does_not_come_whole(asking: Asking, sent: int, breaks: bool) -> None:
    """Rule: missing bytes come from the origin, and the length is the announced one."""
    etag = asking.bench.origin.put("b", "k", BODY).etag
    said = good([BODY[:sent]] if sent else [], ETag=etag)
    said.breaks = breaks
    asking.others.answers = [said]
    answer = await asking.read()
    assert await content(answer) == BODY
    seen = asking.bench.origin.seen[-1]
    assert (seen.header("range"), seen.header("if-match")) == (f"bytes={sent}-999" if sent else "", etag)
    assert said.ended


async def test_an_origin_that_breaks_off_as_well(asking: Asking) -> None:
    """Rule: if the origin breaks off as well, the rest is requested again from that position."""
    etag = asking.bench.origin.put("b", "k", BODY).etag
    asking.bench.origin.inject(DieAfter(method="GET", path="/b/k", size=300))
    said = good([BODY[:100]], ETag=etag)
    said.breaks = True
    asking.others.answers = [said]
    answer = await asking.read()
    assert await content(answer) == BODY
    assert [seen.header("range") for seen in asking.bench.origin.seen] == ["bytes=100-999", "bytes=400-999"]


@pytest.mark.parametrize(
    "more",
    [{"ETag": ETAG}, {"ETag": ""}, {"ETag": 'W/"weak"'}, {"Content-Length": ""}],
    ids=["changed", "none", "weak", "no-length"],
)
async def test_a_body_that_cannot_be_completed(asking: Asking, more: dict[str, str]) -> None:
    """Rule: if the rest may be of another version, or is unknown, the connection is broken."""
    said = good([BODY[:100]], **more)
    said.breaks = True
    asking.others.answers = [said]
    answer = await asking.read()
    with pytest.raises(LarderError):
        await content(answer)
    assert said.ended


async def test_what_changed_while_it_was_relayed_is_forgotten(asking: Asking) -> None:
    """Rule: a node that finds a changed object while completing a body forgets it everywhere: the home may still hold it."""
    await asking.bench.read("k")
    await asking.bench.settle()
    said = good([BODY[:100]], ETag='"older"')
    said.breaks = True
    asking.others.answers = [said]
    with pytest.raises(LarderError):
        await content(await asking.read())
    assert await asking.bench.store.lookup(ObjectKey("default", "b", "k")) is None


async def test_a_client_that_leaves_while_the_rest_is_read(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a client that disconnects leaves no connection open, to the home or to the origin."""
    etag = asking.bench.origin.put("b", "k", BODY).etag
    said = good([BODY[:100]], ETag=etag)
    said.breaks = True
    asking.others.answers = [said]
    ended: list[StreamedResponse] = []
    abort = StreamedResponse.abort
    monkeypatch.setattr(StreamedResponse, "abort", lambda response: (ended.append(response), abort(response)))
    answer = await asking.read()
    assert not isinstance(answer.content, bytes)
    assert await anext(answer.content) == BODY[:100]
    assert (await anext(answer.content)) in BODY
    await answer.content.aclose()
    assert said.ended
    assert ended
