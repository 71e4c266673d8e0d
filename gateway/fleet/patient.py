"""Waiting for another node for as long as it is alive.

A home that is silent may be waiting for its origin, and then there is nothing better to do than to wait as well: whoever gave up
would ask the same origin a second time, and take a good node for a dead one. A home that hangs, or has become unreachable over a
connection that is still there, is silent too, and nobody should wait for that. So whoever has waited for a while asks the node
whether it is alive, over another connection; a node that does not say so is suspected, and the wait is over. As that question
may reach a sibling of the process that hangs, there is a last limit besides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.fleet.peers import PeerResponse, Peers, PeerUnavailable, Suspecting
from gateway.model.fleet import Node
from gateway.model.objects import Header

SILENCE = 2.0
"""Seconds: how long a node may be silent before it is asked, and how long it may take to say that it is alive."""
_LONGEST = 120.0


class PatientPeers:
    """Other nodes, waited for while they are alive.

    Args:
        peers: how they are asked.
        members: is told of those that are not.
    """

    def __init__(self, peers: Peers, members: Suspecting) -> None:
        self._peers = peers
        self._members = members

    async def request(
        self,
        node: Node,
        method: str,
        path: str,
        headers: Sequence[Header] = (),
        *,
        query: str = "",
        body: bytes = b"",
    ) -> PatientResponse:
        """Ask a node; return when the head of its answer is there. See ``Peers.request``.

        Raises:
            PeerUnavailable: it did not answer, or is not alive. It has been suspected.
        """
        asking = self._peers.request(node, method, path, query=query, headers=headers, body=body, timeout=_LONGEST)
        call = asyncio.get_running_loop().create_task(asking)
        try:
            while not (await asyncio.wait([call], timeout=SILENCE))[0]:
                await self.check(node)
            return PatientResponse(call.result(), node, self)
        except BaseException:
            call.add_done_callback(_let_go)
            call.cancel()
            raise

    async def check(self, node: Node) -> None:
        """Ask a node whether it is alive.

        Raises:
            PeerUnavailable: it does not say so. It has been suspected.
        """
        try:
            async with asyncio.timeout(SILENCE):
                answer = await self._peers.request(node, "GET", "/-/healthz")
                answer.abort()
        except TimeoutError:
            self._members.suspect(node.id)
            raise PeerUnavailable(f"node {node.id} at {node.address} hangs") from None


class PatientResponse:
    """An answer, as ``PeerResponse``; its body is waited for while the node is alive."""

    def __init__(self, response: PeerResponse, node: Node, peers: PatientPeers) -> None:
        self._response = response
        self._node = node
        self._peers = peers
        self.status = response.status
        self.headers = response.headers
        self.header = response.header
        self.release = response.release
        self.abort = response.abort

    async def next_chunk(self) -> bytes:
        """Whatever has arrived since the last call, waiting for at least one byte; ``b""`` at the end of the body.

        Raises:
            PeerUnavailable: the body broke off, or the node is not alive; it has been suspected.
        """
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    return await self._response.next_chunk()
            except TimeoutError:
                await self._peers.check(self._node)

    async def read(self, limit: int) -> bytes:
        """The whole body, if it has at most ``limit`` bytes, and the connection released.

        Raises:
            PeerUnavailable: as ``next_chunk``; or there are more.
        """
        body = bytearray()
        while chunk := await self.next_chunk():
            body += chunk
            if len(body) > limit:
                self.abort()
                raise PeerUnavailable(f"node {self._node.id}: its answer is larger than {limit} bytes")
        self.release()
        return bytes(body)


def _let_go(call: asyncio.Task[PeerResponse]) -> None:
    """Nobody waits for the answer any more; it may have come at the same moment."""
    if not call.cancelled() and call.exception() is None:
        call.result().abort()
