"""Answers whose other side turns out not to be alive."""

from __future__ import annotations

import pytest
from prometheus_client import Counter

from gateway.model.errors import LarderError, OriginUnavailable
from gateway.net.connection import ClientConnection
from gateway.net.dialing import ExchangeFailed
from gateway.net.exchange import Connections, StreamedResponse
from tests.net.wire import ADDRESS, REQUEST, Keeper, Wire


class DeadRemote:
    """A remote side that is checked at once, and is not alive."""

    bytes = Counter("test_dead_remote_bytes", "Bytes that these tests received.")
    silence: float | None = 0.0

    def failed(self, what: str, cause: ExchangeFailed | None) -> LarderError:
        """See ``Remote``."""
        return OriginUnavailable(what)

    async def check(self) -> None:
        """It does not confirm."""
        raise OriginUnavailable("hangs")


async def test_an_answer_of_a_dead_remote_ends_its_connection() -> None:
    """Rule: an answer that is not waited for any more holds neither a descriptor nor a place."""
    connections, wire = Connections(limit=1, connect=None, silence=None, buffer=2**40), Wire()
    connections.active = 1
    begun = connections.loop.create_future()
    response = StreamedResponse(connections.loop, begun, remote=DeadRemote(), connections=connections)
    made = ClientConnection(Keeper(), ADDRESS, 60.0, 2**40)
    made.connection_made(wire)
    made.send(response, REQUEST, bodiless=False, last=False, within=60.0)
    made.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nabc")
    with pytest.raises(OriginUnavailable, match="hangs"):
        await response.read(1_000_000)
    assert (wire.is_closing(), connections.active) == (True, 0)
