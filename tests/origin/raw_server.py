"""A raw HTTP server whose answers are written down byte for byte, and clients of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from gateway.base.config import Credential, Origin
from gateway.model.keys import OriginIdentity
from gateway.origin.client import OriginClient
from rig.origin import ALICE

ANONYMOUS = OriginIdentity("default", "")
AS_ALICE = OriginIdentity("default", ALICE.access_key_id)
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def origin_at(endpoint: str, **settings: object) -> Origin:
    """An origin that is asked with Alice's keys."""
    keys = {"access_key_id": ALICE.access_key_id, "secret_access_key": ALICE.secret_access_key}
    return Origin.model_validate({"endpoint": endpoint, **keys, **settings})


class RawServer:
    """Answers each request on a connection with the next scripted bytes; an empty script entry closes the connection."""

    def __init__(self, answers: list[list[bytes]]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._answers = answers

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._answers[min(self.connections, len(self._answers) - 1)]
        self.connections += 1
        try:
            for answer in script:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client closed the connection instead of using it again
        finally:
            writer.close()


async def client_for(origin: Origin, *credentials: Credential) -> OriginClient:
    """A client of one origin."""
    return OriginClient([origin], credentials, now=time.time)


async def content(*pieces: bytes) -> AsyncIterator[bytes]:
    """A body in pieces."""
    for piece in pieces:
        yield piece


async def status_of(client: OriginClient) -> int:
    """The status of a GET."""
    response = await client.send(AS_ALICE, "GET", "/b/k", "", ())
    await response.read(10_000)
    return response.status
