"""Misses in the S3 edge: sent without a task when the bytes are there, and left to the long path otherwise."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.api.s3.access_log import AccessLog
from gateway.api.s3.accounting import Accounting
from gateway.api.s3.answer import Answer
from gateway.api.s3.app import ReadPaths, S3App
from gateway.api.s3.auth import Authenticator
from gateway.api.s3.call import S3Call
from gateway.api.s3.hot import Unresolved
from gateway.base.config import Credential, Origin, Settings
from gateway.base.config_server import ServerSettings
from gateway.engine.operations.live import LiveRequests
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.engine.operations.traffic import TrafficTally
from gateway.model.errors import BrokenBody, DiskUnavailable
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from gateway.policies.fleet.ring import Ring
from gateway.server.cycle import DIRECT, FILES
from gateway.server.place import PLACE
from rig.signed_requests import ClientSigner

KEY = ObjectKey("default", "bucket", "key")
SPAN = (7, 0, 3, 10)
"""Of the file: descriptor, offset, count, inode."""


def answer() -> Answer:
    """A miss whose bytes are in memory and in a file."""
    blob: Any = SimpleNamespace(fd=SPAN[0], inode=SPAN[3])
    head = [(b"content-length", b"3")]
    return Answer(200, head, b"abc", Outcome.MISS, Reason.COLD, length=3, span=(0, 3, 3), blob=blob)


class MissingEdge:
    """The S3 edge of a node without others, which has no object; and the cycle of its only request."""

    def __init__(self, home: Path) -> None:
        settings = Settings(
            server=ServerSettings(),
            origins=(Origin(endpoint="http://127.0.0.1:1", access_key_id="OK", secret_access_key="os"),),
            credentials=(Credential(access_key_id="AK", secret_access_key="secret", tenant="vision"),),
        )
        self.noted: list[tuple[Any, ...]] = []
        self.learned: list[S3Call] = []
        self.sent: list[tuple[int, bytes, object, object]] = []
        self.rest: Awaitable[None] | Exception | None = None
        self.left: list[Any] = []
        self.begins = True
        self.then: Callable[[Answer | None], object] = print
        self.tally = TrafficTally(time.monotonic)
        self.access = AccessLog(str(home / "access.log"))
        self.engine = SimpleNamespace(hits=None, entries_kept=1)
        self.membership = SimpleNamespace(alone=True, ring=Ring({}))
        self.scope: dict[str, Any] = {}
        self.receive = self.send = None
        self.deferred = False
        nobody, me = cast(Any, None), cast(Any, self)
        ways = ReadPaths(me, me, me, nobody, nobody, nobody, nobody, nobody, lambda *read: self.noted.append(read))
        rates = TenantRates(nobody, "worker", time.monotonic)
        accounting = Accounting("node", self.access, self.tally, LiveRequests(nobody), rates)
        self.app = S3App(Authenticator(settings), ways, nobody, accounting, settings.server, nobody)

    def find(self, *_asked: object) -> Unresolved:
        """In the place of ``HotReads``."""
        return Unresolved.PLAIN

    def learn(self, call: S3Call, _ring: Ring) -> None:
        """In the place of ``HotReads``."""
        self.learned.append(call)

    def begin(self, _call: S3Call, then: Callable[[Answer | None], object]) -> bool:
        """In the place of ``ObjectReads``."""
        self.then = then
        return self.begins

    def send_files(self, status: int, head: bytes, files: object, memory: object) -> Awaitable[None] | None:
        """In the place of the cycle."""
        if isinstance(self.rest, Exception):
            raise self.rest
        self.sent.append((status, head, files, memory))
        return self.rest

    def go_on(self, rest: Any) -> None:
        """In the place of the cycle."""
        self.left.append(rest)

    def get(self) -> Awaitable[None] | None:
        """Begin to answer a signed request."""
        request = ClientSigner().header("GET", "http://127.0.0.1:9000/bucket/key")
        self.scope = {
            "type": "http", "method": "GET", "raw_path": request.raw_path, "query_string": b"", "scheme": "http",
            "headers": request.headers, "extensions": {FILES: {}, DIRECT: lambda: self}, "client": ("127.0.0.1", 5),
        }  # fmt: skip
        nobody = cast(Any, None)
        return self.app.begin(self.scope, nobody, nobody, self.send_files)

    def counted(self) -> tuple[int, int]:
        """Answers and bytes of misses of the bucket."""
        traffic = self.tally.kinds["vision", "bucket", Outcome.MISS]
        return traffic.requests, traffic.sent


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[MissingEdge]:
    """An edge with its log."""
    made = MissingEdge(tmp_path)
    yield made
    made.access.close()


def test_a_miss_whose_bytes_come_is_sent_without_a_task(edge: MissingEdge) -> None:
    """Rule: it occupies a place until it is sent; then it counts as one recorded read and one request of its bucket."""
    assert edge.get() is None
    assert edge.deferred
    assert edge.app.in_flight == 1
    edge.then(answer())
    ((status, head, files, memory),) = edge.sent
    assert (status, files, memory) == (200, (SPAN,), b"abc")
    assert b"x-larder-cache: MISS; reason=cold\r\n" in head
    assert edge.left == []
    assert [(*read[:5], read[6]) for read in edge.noted] == [(KEY, 0, 3, 3, False, "AK")]
    assert [call.key for call in edge.learned] == [KEY]
    assert edge.counted() == (1, 3)
    assert edge.app.in_flight == 0


async def test_a_slow_client_gets_the_rest_in_a_task(edge: MissingEdge) -> None:
    """Rule: the request keeps its place, and is accounted for, until the client has accepted everything."""

    async def rest() -> None:
        assert edge.app.in_flight == 1

    edge.get()
    edge.rest = rest()
    edge.then(answer())
    (left,) = edge.left
    assert not edge.tally.kinds
    await left
    assert edge.counted() == (1, 3)
    assert edge.app.in_flight == 0


async def test_what_fails_while_it_is_sent_breaks_the_connection(edge: MissingEdge) -> None:
    """Rule: an error of the file reaches the server as a broken body, and is accounted for."""
    edge.get()
    edge.rest = DiskUnavailable("disk", "it cannot be read")
    edge.then(answer())
    (left,) = edge.left
    with pytest.raises(BrokenBody):
        await left
    assert edge.counted() == (1, 3)
    assert edge.app.in_flight == 0


def test_a_read_left_to_the_long_path_keeps_its_place(edge: MissingEdge) -> None:
    """Rule: a request in progress is not shed when the long path takes over, however full the edge is by then."""
    edge.get()
    edge.then(None)
    (left,) = edge.left
    assert PLACE in edge.scope
    assert edge.app.in_flight == 1
    left.close()


def test_a_read_that_cannot_begin_holds_no_place(edge: MissingEdge) -> None:
    """Rule: the long path answers, in a task, what the engine does not begin, and every read of a node with others."""
    edge.begins = False
    for alone in (True, False):
        edge.membership.alone = alone
        left = edge.get()
        assert left is not None
        cast(Any, left).close()
        assert edge.app.in_flight == 0
    assert not edge.deferred
