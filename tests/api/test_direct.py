"""Relayed hits without a task: what is sent where it is received, and what is left to the long path."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.api.s3.accounting import Trace
from gateway.api.s3.answer import RemoteHit
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.direct import DirectReads
from gateway.model.fleet import Node, NodeState
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.outcomes import Outcome
from gateway.model.s3.aws_chunked import PayloadForm
from gateway.model.s3.sigv4 import WireRequest
from gateway.net.connection import KnownHead
from gateway.policies.reads.rules import Rules
from gateway.policies.shares import Shares
from gateway.server.cycle import DIRECT

BODY = b"0123456789"
KEY = ObjectKey("default", "b", "k")
RULES = Rules()
HIT = RemoteHit(
    KEY,
    (1, 2),
    RULES,
    cast(Any, SimpleNamespace(node=Node("home", "http://home", 1, "default", NodeState.READY))),
    "/-/peer/v1/objects/default/b/k",
    KnownHead(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", 200, [], {}, len(BODY)),
    b"content-length: 10\r\n",
    len(BODY),
)


class Coming:
    """The home's answer, as its connection has it."""

    def __init__(self, begun: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.asked = self.loop.time()
        self.begun = begun
        self.complete = True
        self.head = HIT.known.data
        self.pieces: list[bytes] = [BODY]
        self.size = len(BODY)


@dataclass
class Home:
    """The peers: one home, with a kept connection if ``kept``."""

    kept: bool = True
    begun: Any = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    passed: int = 0

    def get_kept(self, peer: Any, path: str, principal: tuple[str, str], _known: KnownHead, begun: Any) -> Any:
        """Note it."""
        if not self.kept:
            return None
        self.asked.append((peer.node.id, path))
        self.begun = begun
        return Coming(begun)

    def passed_on(self, _answer: Any, length: int) -> None:
        """Count it."""
        self.passed += length


@dataclass
class Client:
    """The cycle of the client's request."""

    scope: dict[str, Any] = field(default_factory=dict)
    receive: Any = None
    send: Any = None
    takes: bool = True
    deferred: bool = False
    sent: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    tasks: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def send_now(self, status: int, head: bytes, body: Sequence[bytes]) -> bool:
        """Note it."""
        if self.takes:
            self.sent.append((status, head, b"".join(body)))
        return self.takes

    def go_on(self, rest: Any) -> None:
        """Count it."""
        self.tasks += 1
        self.left.set()
        rest.close()


class Relaying:
    """An edge that relays one request."""

    def __init__(self) -> None:
        self.home, self.client = Home(), Client()
        self.places = Shares(10)
        self.owed = False
        self.services = SimpleNamespace(rules=RULES)
        self.noted: list[tuple[Any, ...]] = []
        self.counted: list[tuple[Any, int]] = []
        accounting = SimpleNamespace(
            note=lambda _scope, _trace, hit, _when: self.counted.append((hit.outcome, hit.length))
        )
        note = cast(Any, lambda *read: self.noted.append(read))
        self.reads = DirectReads(cast(Any, self), cast(Any, self.home), note, cast(Any, accounting))
        request = WireRequest("GET", b"/b/k", b"", [(b"host", b"h")])
        auth = Authenticated(Principal("AK", "t", OriginIdentity("default", "OK")), PayloadForm.UNSIGNED, "")
        self.trace = Trace(0.0, 1.0, "ID", request, auth)

    def owes_at(self, _slots: tuple[int, int]) -> bool:
        """Whether the fleet may not know of a write."""
        return self.owed

    async def __call__(self, *_call: Any) -> None:
        """The long path."""

    def begin(self) -> bool:
        """Begin to answer."""
        scope = self.client.scope = {"extensions": {DIRECT: lambda: self.client}, "client": ("10.0.0.1", 5)}
        return self.reads.begin(cast(Any, self), scope, self.trace, HIT)

    @property
    def answer(self) -> Any:
        """What is on its way from the home."""
        assert self.trace.sent is not None
        return self.trace.sent


@pytest.fixture
async def relaying() -> Relaying:
    """Such an edge."""
    return Relaying()


async def test_a_whole_answer_is_sent_where_it_is_received(relaying: Relaying) -> None:
    """Rule: the answer has the learned header lines and those of its request; it is noted and counted once, without a task."""
    assert relaying.begin()
    assert (relaying.client.deferred, relaying.places.used) == (True, 1)
    answer = relaying.answer
    relaying.home.begun.set_result(None)
    ((status, head, body),) = relaying.client.sent
    assert (status, body) == (200, BODY)
    assert head.startswith(b"content-length: 10\r\nx-amz-request-id: ID\r\ndate: Thu, 01 Jan 1970 ")
    assert [read[:5] for read in relaying.noted] == [(KEY, 0, 10, 10, True)]
    assert (relaying.counted, relaying.home.passed) == ([(Outcome.HIT, 10)], 10)
    assert (relaying.places.used, relaying.client.tasks, relaying.home.begun.done()) == (0, 0, True)
    assert answer.pieces == []


async def test_a_relayed_hit_leaves_no_cycles(relaying: Relaying) -> None:
    """Rule: what an answered request held is freed at once; the garbage collector would visit twenty objects for each."""
    gc.collect()
    gc.disable()
    try:
        assert relaying.begin()
        relaying.home.begun.set_result(None)
        cycle = weakref.ref(relaying.client)
        relaying.client, relaying.home.begun = Client(), None
        assert cycle() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("what", ["head", "incomplete", "client"])
async def test_any_other_answer_is_left_to_the_long_path(relaying: Relaying, what: str) -> None:
    """Rule: with another head, without the whole body, or if the client takes nothing now, a task goes on with the answer."""
    assert relaying.begin()
    if what == "head":
        relaying.answer.head = bytes(HIT.known.data[:-1]) + b"\n"
    elif what == "incomplete":
        relaying.answer.complete = False
    else:
        relaying.client.takes = False
    relaying.home.begun.set_result(None)
    assert (relaying.client.sent, relaying.client.tasks, relaying.places.used) == ([], 1, 0)
    assert (relaying.noted, relaying.counted, relaying.answer.pieces) == ([], [], [BODY])


async def test_a_broken_connection_is_left_to_the_long_path(relaying: Relaying) -> None:
    """Rule: a home that gives no answer is asked again by a task."""
    assert relaying.begin()
    relaying.home.begun.set_exception(ConnectionResetError())
    assert (relaying.client.tasks, relaying.places.used, relaying.home.begun.done()) == (1, 0, True)


async def test_a_late_answer_is_left_to_the_long_path(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an answer that takes long is waited for by a task."""
    monkeypatch.setattr("gateway.api.s3.direct._PATIENCE", 0.0)
    assert relaying.begin()
    await asyncio.wait_for(relaying.client.left.wait(), 30.0)
    assert (relaying.places.used, relaying.home.begun.done()) == (0, True)


@pytest.mark.parametrize("what", ["rules", "owed", "connection"])
async def test_what_the_long_path_must_decide_is_not_begun(relaying: Relaying, what: str) -> None:
    """Rule: nothing is sent under other rules, after a write that the fleet may not know of, or without a kept connection."""
    if what == "rules":
        relaying.services.rules = Rules()
    elif what == "owed":
        relaying.owed = True
    else:
        relaying.home.kept = False
    assert not relaying.begin()
    assert (relaying.client.deferred, relaying.places.used, relaying.home.asked) == (False, 0, [])
