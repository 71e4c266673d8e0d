"""The road between two HTTP parties: a TCP relay that can be closed and opened again, and that notes request headers.

Between a gateway and its origin it stands for an origin that is unreachable and loses nothing. Between a client and a
gateway it shows what the client really sends; there it speaks TLS on both sides when the gateway does.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

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
    """The two sides of a road for TLS: what it shows to those who come, and whom it trusts."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class Road:
    """A relay to ``target`` with a thread and an event loop of its own: ``with Road(endpoint) as road``."""

    def __init__(self, target: str, *, tls: Tls | None = None, record: bool = False) -> None:
        self._target = urlsplit(target)
        self._tls = tls
        self._record = record
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="road", daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None] | None] = set()
        self._port = 0
        self.heads: list[Head] = []

    @property
    def endpoint(self) -> str:
        """The address to use instead of the target's."""
        return f"{self._target.scheme}://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self) -> None:
        """Take connections, on the same port as before."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)

    def close(self) -> None:
        """Refuse connections, and break those that are there."""
        asyncio.run_coroutine_threadsafe(self._refuse(), self._loop).result(30)

    async def _listen(self) -> None:
        tls = self._tls.server if self._tls else None
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._port, ssl=tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.gather(*filter(None, self._carrying), return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        task = asyncio.current_task()
        self._carrying.add(task)
        onward = None
        try:
            tls = self._tls.client if self._tls else None
            back, onward = await asyncio.open_connection(self._target.hostname, self._target.port, ssl=tls)
            self._open.add(onward)
            await asyncio.gather(self._pump(reader, onward, self._record), self._pump(back, writer, False))
        except OSError:
            pass  # one side left in the middle; both are closed below
        finally:
            for each in filter(None, (writer, onward)):
                each.transport.abort()
                self._open.discard(each)
            self._carrying.discard(task)

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
