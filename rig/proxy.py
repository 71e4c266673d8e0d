"""A TCP proxy that a test controls: a link that can be cut, silent, slow or redirected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rig.listener import Listener

_PIECE = 1 << 16


class Proxy:
    """A TCP proxy on a fixed port that forwards connections to ``target``, another port of this machine."""

    def __init__(self, target: int = 0) -> None:
        self._target = target
        self._delay = 0.0
        self._refusing = False
        self.losing: int | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener = Listener(self._link)

    @property
    def port(self) -> int:
        """The port that the proxy listens on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Its address, for HTTP."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.stop()

    def lead_to(self, target: int, *, drop: bool = True) -> None:
        """Forward new connections to another port; existing ones are dropped, or stay connected to the old port."""
        self._target = target
        if drop:
            self._listener.drop()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Disconnect all connections, present and future."""
        self._refusing = True
        self._listener.drop()
        try:
            yield
        finally:
            self._refusing = False

    def lose_reply(self, after: int = 0) -> None:
        """Disconnect instead of passing on the next reply, or a later one; the other side has carried out the request."""
        self.losing = after

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Connections stay open and new ones succeed, but nothing arrives, as behind a firewall that drops packets."""
        self._listener.call(self._flowing.clear)
        try:
            yield
        finally:
            self._listener.call(self._flowing.set)

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Delay everything."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            return
        back, onward = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, onward))
                both.create_task(self._pump(back, writer, replies=True))
        except* OSError:
            pass
        finally:
            onward.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool = False) -> None:
        while data := await reader.read(_PIECE):
            if replies and self.losing is not None:
                self.losing = self.losing - 1 if self.losing else None
                if self.losing is None:
                    raise ConnectionResetError("the reply is lost")
            await self._flowing.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            writer.write(data)
            await writer.drain()
        writer.write_eof()
