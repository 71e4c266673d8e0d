"""A TCP proxy that a test controls: a link that can be cut, stand still, be slow, or lead elsewhere from now on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

_PIECE = 1 << 16
_Value = TypeVar("_Value")


class Proxy:
    """Listens on a port of its own, which stays the same, and passes on what comes to ``target``, a port of this machine."""

    def __init__(self, target: int = 0) -> None:
        self.port = 0
        self._target = target
        self._delay = 0.0
        self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._flowing = asyncio.Event()
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Its address, for HTTP."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def lead_to(self, target: int, *, drop: bool = True) -> None:
        """Lead to another port from now on; who is connected is disconnected, or stays connected to the old one."""
        self._target = target
        if drop:
            self._do(self._drop())

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Disconnect everybody, and whoever comes."""
        self._refusing = True
        self._do(self._drop())
        try:
            yield
        finally:
            self._refusing = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Connections stay open and are made, and nothing arrives, as behind a firewall that drops packets."""
        self._loop.call_soon_threadsafe(self._flowing.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flowing.set)

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Everything arrives so much later."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    def _do(self, work: Coroutine[Any, Any, _Value]) -> _Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._drop()

    async def _drop(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        link = asyncio.ensure_future(self._link(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)
        link.add_done_callback(lambda _: writer.transport.abort())

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, onward = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, onward))
                both.create_task(self._pump(back, writer))
        except* OSError:
            pass
        finally:
            onward.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE):
            await self._flowing.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            writer.write(data)
            await writer.drain()
        writer.write_eof()
