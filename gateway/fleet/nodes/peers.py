"""Requests to other nodes: signed HTTP over kept connections, with errors hidden from clients.

A node that does not answer, breaks off or does not accept this node as a caller is suspected (fleet/nodes/membership.py). The
caller gets ``PeerUnavailable`` and asks the next node in the ring, or the origin. Any other answer is returned to the caller,
whatever its status.

A silent home may be waiting for its origin: a caller that gave up would ask the same origin a second time, and suspect a healthy
node. A home that hangs, or has become unreachable over an open connection, is silent too. So after ``SILENCE`` seconds the node
is asked over another connection whether it is alive; if it does not confirm, or reports that its disk does not answer, it is
suspected and the wait ends. The check may reach a different worker of the node than the one that hangs, so there is also an
absolute limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from secrets import token_hex
from typing import Any, Protocol

from gateway.base import metrics
from gateway.base.metrics import LoopHistogram, LoopSum
from gateway.fleet.nodes.peer_gate import REFUSED, WAITS_FOR_DISK
from gateway.model.errors import LarderError
from gateway.model.fleet import Node
from gateway.model.objects import Header
from gateway.model.peer.auth import PeerSigner
from gateway.model.s3.sigv4 import WireRequest
from gateway.net.connection import Begun, KnownHead
from gateway.net.dialing import EXHAUSTED, ExchangeFailed, ServerAddress
from gateway.net.exchange import Connections, StreamedResponse

SILENCE = 2.0
"""Seconds of silence before a node is checked, and seconds for it to confirm that it is alive."""
_LONGEST = 120.0
"""Seconds that a live node may be silent."""
_READS = frozenset({"GET", "HEAD"})
_CONNECT = 0.5
"""Time-out of a connection attempt, in seconds."""
# An answer with a slow reader keeps about this much, plus one read of the socket, in memory: 256 KiB took 710 KiB for each of 300
# slow readers, 32 KiB took 220 KiB, at the same cost per byte.
_READ_BUFFER = 32 * 1024
WHOLE = 128 * 1024
"""The most bytes of an answer, or of the rest of one, that are read ahead as a whole: most objects of a training set are no
larger."""


class PeerUnavailable(LarderError):
    """Another node could not be reached, fell silent, broke off, or does not accept this node as a caller."""


class Suspecting(Protocol):
    """The membership as peers need it."""

    me: str

    def suspect(self, node_id: str, refused: str = "") -> None:
        """A call to a node failed; ``refused`` is the reason, in one word, if the node refused the call."""
        ...


class RemoteNode:
    """One node as the remote side of an exchange; ``result`` is the label of a failure."""

    def __init__(self, node: Node, peers: Peers, silence: float | None) -> None:
        self.node = node
        self.address = ServerAddress.of(node.address)
        self.bytes = peers.bytes
        self.silence = silence
        self.result = "unavailable"
        self._peers = peers

    def failed(self, what: str, cause: ExchangeFailed | None) -> PeerUnavailable:
        """See ``Remote``."""
        if cause is not None:
            metrics.PEER_REQUESTS.labels(self.result).inc()
            if cause.kind != EXHAUSTED:
                self._peers.members.suspect(self.node.id)
        return PeerUnavailable(f"node {self.node.id} at {self.node.address} {what}")

    async def check(self) -> None:
        """See ``Remote``."""
        await self._peers.check(self.node)


class Peers:
    """Sends requests to other nodes for one worker. Create it inside a running event loop.

    Args:
        membership: suspects nodes that do not answer.
        secret: of the fleet.
    """

    def __init__(self, membership: Suspecting, secret: str) -> None:
        self.members = membership
        self.bytes = LoopSum(metrics.PEER_BYTES)
        self._latency = LoopHistogram(metrics.PEER_LATENCY)
        answered = metrics.PEER_REQUESTS.labels("answered")
        self._answered, self._failed = LoopSum(answered), LoopSum(metrics.PEER_REQUESTS.labels("failed"))
        self._answers = LoopHistogram(metrics.PEER_LATENCY, counter=answered)
        self._signer = PeerSigner(secret, membership.me)
        # Unlimited: waiting for a free connection would look like a slow node.
        self._connections = Connections(
            limit=0, connect=_CONNECT, silence=_LONGEST, buffer=_READ_BUFFER, whole=WHOLE, reusing=True
        )

    def request(
        self,
        node: Node,
        method: str,
        path: str,
        headers: Sequence[Header] = (),
        *,
        query: str = "",
        body: bytes = b"",
        timeout: float = _LONGEST,
    ) -> Coroutine[Any, Any, StreamedResponse]:
        """Send a request, and wait as long as the node is alive; return at the head of its answer.

        Args:
            node: the receiver.
            method: upper-case HTTP method.
            path: percent-encoded, from ``/-/peer/`` on, sent byte for byte.
            headers: further headers, in ASCII.
            query: percent-encoded, without "?", sent byte for byte.
            body: the whole body.
            timeout: the most seconds until the answer begins.

        Raises:
            PeerUnavailable: it did not answer, is not alive, or refused the call. It is now suspected.
        """
        return self._ask(self.remote(node), method, path, headers, query, body, timeout)

    async def check(self, node: Node) -> None:
        """Check that a node is alive, and does not wait for a disk that hangs.

        Raises:
            PeerUnavailable: it does not confirm. It is now suspected.
        """
        try:
            async with asyncio.timeout(SILENCE):  # includes the resolution of the name
                answer = await self._ask(RemoteNode(node, self, None), "GET", "/-/healthz", (), "", b"", _LONGEST)
            answer.abort()
        except TimeoutError:
            self.members.suspect(node.id)
            raise PeerUnavailable(f"node {node.id} at {node.address} hangs") from None
        if answer.fields.get(WAITS_FOR_DISK):
            self.members.suspect(node.id)
            raise PeerUnavailable(f"node {node.id} at {node.address} waits for its disk")

    async def _ask(
        self,
        peer: RemoteNode,
        method: str,
        path: str,
        headers: Sequence[Header],
        query: str,
        body: bytes,
        within: float,
    ) -> StreamedResponse:
        """Send one request, again if its connection breaks: it is idempotent, or the node carries it out once."""
        address, target = peer.address, f"{path}?{query}" if query else path
        raw = []
        for name, value in headers:
            raw.append((name.lower().encode(), value.encode()))  # in Python 3.11 a comprehension is a call
        nonce = "" if method in _READS else token_hex(8)
        wire = WireRequest(method, path.encode(), query.encode(), raw)
        signed = self._signer.headers(wire, body, time.time(), nonce)
        sent = (("Host", address.name), *headers, *signed)
        began = time.perf_counter()
        answer = await self._connections.ask(peer, method, address, target, sent, body, within=within, repeat=True)
        return self._received(peer, answer, time.perf_counter() - began)

    def get_kept(
        self, peer: RemoteNode, path: str, principal: Header, expected: KnownHead, begun: Begun
    ) -> StreamedResponse | None:
        """Send a plain GET over a kept connection, if there is one.

        Args:
            peer: the receiver, from ``remote``.
            path: percent-encoded, from ``/-/peer/`` on, sent byte for byte.
            principal: the only header that is not the connection's.
            expected: the head that the answer is expected to have.
            begun: called when the answer begins.

        Returns:
            The answer that is to come: pass it to ``passed_on`` or ``answer``. ``None`` if nothing is sent.
        """
        request = self._signer.get(path, peer.address.name, principal[1], time.time())
        return self._connections.get_kept(peer, peer.address, request, expected, begun, _LONGEST)

    def passed_on(self, answer: StreamedResponse, length: int) -> None:
        """Count an expected answer whose body of ``length`` bytes was passed on at once."""
        self._answers.observe(answer.loop.time() - answer.asked)
        self.bytes.inc(length)

    async def answer(self, sent: StreamedResponse) -> StreamedResponse | None:
        """The answer to a read of ``get_kept``, as ``request`` returns it; ``None`` if the connection broke before it.

        Raises:
            PeerUnavailable: as ``request``.
        """
        shared = sent.remote
        assert isinstance(shared, RemoteNode)
        peer = sent.remote = self.remote(shared.node)  # its result is that of this read alone
        if sent.status or await sent.come():
            return self._received(peer, sent, sent.loop.time() - sent.asked)
        return None

    def remote(self, node: Node) -> RemoteNode:
        """A node as the other side of reads."""
        return RemoteNode(node, self, SILENCE)

    def _received(self, peer: RemoteNode, answer: StreamedResponse, seconds: float) -> StreamedResponse:
        """Count an answer whose head has come after ``seconds``.

        Raises:
            PeerUnavailable: it refuses the call.
        """
        node = peer.node
        peer.result = "broken"
        self._latency.observe(seconds)
        if (reason := answer.fields.get(REFUSED)) is not None:
            answer.abort()
            metrics.PEER_REQUESTS.labels("refused").inc()
            self.members.suspect(node.id, reason)
            raise PeerUnavailable(f"node {node.id} at {node.address} refuses calls of this node: {reason}")
        (self._failed if answer.status >= 500 else self._answered).inc()
        return answer

    async def close(self) -> None:
        """Close every connection; answers still coming break off."""
        await self._connections.close()
