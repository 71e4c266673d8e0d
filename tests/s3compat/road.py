"""The road between two HTTP parties: a TCP relay that can be closed and reopened, and that records request headers.

Between a gateway and its origin it simulates an unreachable origin that keeps its data. Between a client and a gateway it
shows the client's actual requests; there it uses TLS on both sides if the gateway does.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from rig.listener import Listener

_HEAD = re.compile(rb"(?:^|\r\n|\n)([A-Z]+) (/[^ \r\n]*) HTTP/1\.1\r\n((?:[^\r\n]+\r\n)+)\r\n")
_LONGEST_HEAD = 32 * 1024


@dataclass(frozen=True)
class Head:
    """The header of one request that passed."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """The first value of a header (lower-case name), or ``""``."""
        return next((value for candidate, value in self.headers if candidate == name), "")


@dataclass(frozen=True)
class Tls:
    """The two TLS sides of a road: its server context and its client context."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class Road:
    """A relay to ``target`` in its own thread and event loop: ``with Road(endpoint) as road``."""

    def __init__(self, target: str, *, tls: Tls | None = None, record: bool = False) -> None:
        self._target = urlsplit(target)
        self._tls = tls
        self._record = record
        self._listener = Listener(self._carry, tls.server if tls else None)
        self.heads: list[Head] = []

    @property
    def endpoint(self) -> str:
        """The address to use instead of the target's."""
        return f"{self._target.scheme}://127.0.0.1:{self._listener.port}"

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.stop()

    def open(self) -> None:
        """Take connections, on the same port as before."""
        self._listener.open()

    def close(self) -> None:
        """Refuse new connections, and break the existing ones."""
        self._listener.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = self._tls.client if self._tls else None
        back, onward = await asyncio.open_connection(self._target.hostname, self._target.port, ssl=tls)
        try:
            await asyncio.gather(self._pump(reader, onward, self._record), self._pump(back, writer, False))
        finally:
            onward.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bool) -> None:
        tail = b""
        while data := await source.read(1 << 18):
            if record:
                tail = self._note(tail + data)[-_LONGEST_HEAD:]
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
        else:
            sink.transport.close()  # TLS has no half-closed connections

    def _note(self, seen: bytes) -> bytes:
        """Note the headers that are whole; returns what may be the beginning of another."""
        end = 0
        for match in _HEAD.finditer(seen):
            lines = match[3].decode("latin-1").splitlines()
            headers = tuple((name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
            self.heads.append(Head(match[1].decode(), match[2].decode("latin-1"), headers))
            end = match.end()
        return seen[end:]
