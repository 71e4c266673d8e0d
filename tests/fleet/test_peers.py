"""Asking other nodes, and being asked, over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from gateway.fleet.nodes import peers
from gateway.fleet.nodes.peer_gate import REFUSED, WAITS_FOR_DISK, PeerGate
from gateway.fleet.nodes.peers import Peers, PeerUnavailable
from gateway.model.datasets import ApiError
from gateway.model.fleet import Node, NodeState
from gateway.model.keys import OriginIdentity
from gateway.model.peer.principal import principal_header
from gateway.model.s3.sigv4 import WireRequest
from gateway.net.connection import KnownHead
from gateway.net.exchange import StreamedResponse
from rig.processes import free_port

SECRET = "a secret of sixteen characters and more"
PATIENT = 60.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the connect time-out, so that a machine that stalls for half a second does not count as a dead node."""
    monkeypatch.setattr(peers, "_CONNECT", PATIENT)


class Members:
    """Records suspected nodes."""

    me = "asker"

    def __init__(self) -> None:
        self.suspected: list[str] = []
        self.refusals: list[str] = []

    def suspect(self, node_id: str, refused: str = "") -> None:
        """Note it."""
        self.suspected.append(node_id)
        self.refusals.append(refused)


class Asking:
    """A node that asks; ``node`` is whom."""

    def __init__(self, port: int, secret: str = SECRET) -> None:
        self.node = Node("other", f"http://127.0.0.1:{port}", 1, "default", NodeState.READY)
        self.members = Members()
        self.peers = Peers(self.members, secret)


@asynccontextmanager
async def asking(handler: Handler | None, secret: str = SECRET) -> AsyncIterator[Asking]:
    """One node that asks another, which ``handler`` plays; ``None`` for one that is not there."""
    async with AsyncExitStack() as stack:
        port = free_port()
        if handler is not None:
            app = web.Application(client_max_size=2**30)
            app.router.add_route("*", "/{tail:.*}", handler)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", port).start()
        each = Asking(port, secret)
        stack.push_async_callback(each.peers.close)
        yield each


def counted(result: str) -> float:
    """Requests to other nodes with this result."""
    return REGISTRY.get_sample_value("larder_peer_requests_total", {"result": result}) or 0.0


def arrived(request: web.Request) -> WireRequest:
    """A request as the gate gets it."""
    raw_path, _, query = request.raw_path.partition("?")
    headers = [(name.lower(), value) for name, value in request.raw_headers]
    return WireRequest(request.method, raw_path.encode(), query.encode(), headers)


def gated(gate: PeerGate) -> Handler:
    """A node that says who asked what."""

    async def handler(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            caller = gate.admit(arrived(request))
            gate.confirm(caller, body)
        except ApiError as error:
            return web.Response(status=error.status, headers=error.headers, text=error.detail)
        about = [caller.node, request.method, request.raw_path, len(body), request.headers.get("x-larder-extra", "")]
        return web.json_response(about)

    return handler


async def sent_at_once(each: Asking, begun: asyncio.Future[None]) -> StreamedResponse:
    """A read sent over the connection of an earlier answer; its own head is not the expected one."""
    await (await each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT)).read(10_000)
    known, told = KnownHead(b"another", 200, [], {}, 0), principal_header("t", OriginIdentity("default", "k"))
    sent = each.peers.get_kept(each.peers.remote(each.node), "/-/peer/v1/x", told, known, begun)
    assert sent is not None
    return sent


async def test_a_read_that_was_sent_at_once_can_be_waited_for() -> None:
    """Rule: such a read is signed, answered and counted like any other."""
    async with asking(gated(PeerGate(SECRET))) as each:
        sent = await sent_at_once(each, asyncio.get_running_loop().create_future())
        before = counted("answered")
        answer = await each.peers.answer(sent)
        assert answer is sent
        assert (answer.status, json.loads(await answer.read(10_000))[:3]) == (200, ["asker", "GET", "/-/peer/v1/x"])
        assert (counted("answered"), each.members.suspected) == (before + 1, [])


async def test_an_answer_that_was_passed_on_is_counted() -> None:
    """Rule: it counts as an answer, with its bytes and its time."""
    async with asking(gated(PeerGate(SECRET))) as each:
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent = await sent_at_once(each, begun)
        await begun
        names = ("larder_peer_requests_total", "larder_peer_received_bytes_total", "larder_peer_seconds_count")
        labels = ({"result": "answered"}, {}, {})
        before = [REGISTRY.get_sample_value(*each) or 0.0 for each in zip(names, labels, strict=True)]
        each.peers.passed_on(sent, 10)
        after = [REGISTRY.get_sample_value(*each) or 0.0 for each in zip(names, labels, strict=True)]
        assert [late - early for early, late in zip(before, after, strict=True)] == [1, 10, 1]


async def test_a_read_that_was_sent_at_once_can_be_refused() -> None:
    """Rule: a refusal of the call suspects the node, as that of any other request."""
    refuses = iter([False, True])

    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=403, headers={REFUSED: "date"}) if next(refuses) else web.Response()

    async with asking(handler) as each:
        sent = await sent_at_once(each, asyncio.get_running_loop().create_future())
        with pytest.raises(PeerUnavailable, match="date"):
            await each.peers.answer(sent)
        assert each.members.refusals == ["date"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_what_a_node_asks_is_admitted(method: str) -> None:
    """Rule: path and query go out byte for byte, headers and body with them, all signed; the gate knows the caller."""
    path = "/-/peer/v1/objects/o/b/a%2F..%2Fb%20%C3%BC//c"
    async with asking(gated(PeerGate(SECRET))) as each:
        response = await each.peers.request(
            each.node,
            method,
            path,
            query="name=a%26b&x=1",
            headers=[("x-larder-extra", "1"), ("Range", "bytes=0-1")],
            body=b"12345" if method == "POST" else b"",
            timeout=PATIENT,
        )
        assert response.status == 200
        text = await response.read(10_000)
        if method != "HEAD":
            wanted = ["asker", method, f"{path}?name=a%26b&x=1", 5 if method == "POST" else 0, "1"]
            assert json.loads(text) == wanted
        assert each.members.suspected == []


async def test_who_has_another_secret_is_refused_and_told_why() -> None:
    """Rule: a call refused for its signature is counted on both sides, and the node is suspected with the reason."""
    refused = REGISTRY.get_sample_value("larder_peer_refused_total", {"reason": "signature"}) or 0.0
    before = counted("refused")
    async with asking(gated(PeerGate(SECRET)), "another secret, long enough as well") as each:
        with pytest.raises(PeerUnavailable, match="signature"):
            await each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT)
        assert each.members.suspected == ["other"]
        assert each.members.refusals == ["signature"]
    assert counted("refused") == before + 1
    assert REGISTRY.get_sample_value("larder_peer_refused_total", {"reason": "signature"}) == refused + 1


async def test_a_clock_that_is_far_off_is_named() -> None:
    """Rule: the refusal of a wrong clock has the remedy."""
    async with asking(gated(PeerGate(SECRET, now=lambda: time.time() + 3600))) as each:
        with pytest.raises(PeerUnavailable, match="date"):
            await each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT)


def test_refusals_say_what_to_do() -> None:
    """Rule: a stranger gets status 403, one word in a header, and a remedy."""
    request = WireRequest("GET", b"/-/peer/v1/x", b"", [])
    with pytest.raises(ApiError) as caught:
        PeerGate(SECRET).admit(request)
    assert caught.value.status == 403
    assert caught.value.headers == {REFUSED: "unsigned"}
    assert "x-larder-peer" in caught.value.detail


def test_nobody_is_admitted_without_a_secret() -> None:
    """Rule: with an empty secret no caller is admitted."""
    with pytest.raises(ValueError, match="secret"):
        PeerGate("")


async def test_a_node_that_is_not_there_is_suspected() -> None:
    """Rule: a refused connection raises at once, so that the caller can try another node."""
    before = counted("unavailable")
    async with asking(None) as each:
        with pytest.raises(PeerUnavailable, match="other"):
            await each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT)
        assert each.members.suspected == ["other"]
    assert counted("unavailable") == before + 1


async def test_a_node_that_is_silent_is_suspected() -> None:
    """Rule: an answer must begin within the time that the caller gives it."""

    async def silent(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with asking(silent) as each:
        with pytest.raises(PeerUnavailable):
            await each.peers.request(each.node, "POST", "/-/peer/v1/x", body=b"1", timeout=0.2)
        assert each.members.suspected == ["other"]


async def test_an_answer_that_breaks_off_is_no_answer() -> None:
    """Rule: the caller learns that the rest is missing, and the node is suspected."""
    before = counted("broken")

    async def breaking(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "10"})
        await response.prepare(request)
        await response.write(b"12345")
        assert request.transport is not None
        request.transport.close()
        return response

    async with asking(breaking) as each:
        response = await each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT)
        with pytest.raises(PeerUnavailable, match="broke off"):
            await response.read(100)
        assert each.members.suspected == ["other"]
    assert counted("broken") == before + 1


@pytest.mark.parametrize("status", [404, 416, 421, 503])
async def test_an_error_is_an_answer(status: int) -> None:
    """Rule: an error status is an answer; its node is not suspected."""

    async def answering(_: web.Request) -> web.Response:
        return web.Response(status=status, headers=[("X-Two", "a"), ("X-Two", "b")], body=b"why")

    async with asking(answering) as each:
        response = await each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT)
        assert response.status == status
        assert response.header("x-two") == "a"
        assert [value for name, value in response.headers if name == "X-Two"] == ["a", "b"]
        assert await response.read(3) == b"why"
        assert each.members.suspected == []


async def test_an_answer_is_not_read_beyond_its_limit() -> None:
    """Rule: a body that is longer than it can rightly be is refused; the node works, so it is not suspected."""

    async def long(_: web.Request) -> web.Response:
        return web.Response(body=bytes(1000))

    async with asking(long) as each:
        response = await each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT)
        with pytest.raises(PeerUnavailable, match="larger than 999"):
            await response.read(999)
        assert each.members.suspected == []


async def test_connections_are_used_again() -> None:
    """Rule: successive requests of all kinds share one connection."""
    seen = set()

    async def noting(request: web.Request) -> web.Response:
        assert request.transport is not None
        seen.add(request.transport.get_extra_info("peername"))
        await request.read()
        return web.Response(body=b"x")

    async with asking(noting) as each:
        for method in ("GET", "POST", "HEAD", "POST"):
            body = b"1" if method == "POST" else b""
            response = await each.peers.request(each.node, method, "/-/peer/v1/x", body=body, timeout=PATIENT)
            await response.read(10)
    assert len(seen) == 1


async def test_a_connection_that_was_just_closed_is_not_a_dead_node() -> None:
    """Rule: a call whose connection breaks before an answer began is made once more, a POST as well."""
    calls: list[str] = []

    async def restarting(request: web.Request) -> web.Response:
        calls.append(request.method)
        if len(calls) == 1:
            assert request.transport is not None
            request.transport.close()
        return web.Response(body=await request.read())

    async with asking(restarting) as each:
        response = await each.peers.request(each.node, "POST", "/-/peer/v1/x", body=b"indices", timeout=PATIENT)
        assert await response.read(10) == b"indices"
        assert each.members.suspected == []
    assert calls == ["POST", "POST"]


async def test_a_node_that_closes_every_connection_is_suspected() -> None:
    """Rule: a call whose connection is closed is repeated once; then the node counts as not answering."""

    async def closing(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with asking(closing) as each:
        with pytest.raises(PeerUnavailable):
            await each.peers.request(each.node, "POST", "/-/peer/v1/x", body=b"1", timeout=PATIENT)
        assert each.members.suspected == ["other"]


async def test_nobody_is_suspected_because_the_caller_gave_up() -> None:
    """Rule: a cancelled call does not make its node suspected."""
    begun = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        begun.set()
        await asyncio.Event().wait()
        return web.Response()

    async with asking(silent) as each:
        call = asyncio.create_task(each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert each.members.suspected == []


async def test_a_node_whose_name_is_not_resolved_is_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a node whose name does not resolve is suspected like a silent one."""

    async def unresolved(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(peers, "SILENCE", 0.05)
    async with asking(None) as each:
        monkeypatch.setattr(each.peers._connections._dialer, "_resolve", unresolved)
        async with asyncio.timeout(PATIENT):
            with pytest.raises(PeerUnavailable, match="hangs"):
                await each.peers.request(each.node, "GET", "/-/peer/v1/x")
        assert each.members.suspected == ["other"]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_node_that_waits_for_its_disk_is_not_waited_for(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a silent node is alive if it says so, but who can read elsewhere does not wait for its disk."""
    monkeypatch.setattr("gateway.fleet.nodes.peers.SILENCE", 0.05)
    confirmed = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/-/healthz":
            confirmed.set()
            return web.json_response({"status": "ok"}, headers={WAITS_FOR_DISK: "1"} if waits else {})
        await confirmed.wait()
        if waits:
            await asyncio.Event().wait()
        return web.Response(text="late")

    async with asking(handler) as each:
        asked = each.peers.request(each.node, "GET", "/-/peer/v1/x", timeout=PATIENT)
        if waits:
            with pytest.raises(PeerUnavailable, match="waits for its disk"):
                await asked
        else:
            assert await (await asked).read(10) == b"late"
        assert each.members.suspected == (["other"] if waits else [])
