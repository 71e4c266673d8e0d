"""One HTTP exchange with an origin or another node: sends a request, and reads its answer as it arrives.

The caller (``Remote``) provides signatures, addresses and the meaning of failures; this module keeps a bounded number of
connections (gateway/net/connection.py), and passes answers to their readers. Each tenant has a share of the connections
(gateway/policies/shares.py). Streamed uploads, which wait for their clients, get at most half of them, so that reads keep the
rest.

A complete request is repeated once, over a new connection, if its connection ended before the first byte of an answer and its
method is idempotent (RFC 9110, 9.2.2 and RFC 9112, 9.3.1). That hides kept connections that the other side had just closed.
Streamed bodies and conditional writes are never repeated: the first attempt may have made the condition false.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from prometheus_client import Counter

from gateway.base import tracing
from gateway.base.metrics import LoopSum
from gateway.model.errors import LarderError
from gateway.model.holders import HOLDER, Holder
from gateway.model.objects import Header
from gateway.net.connection import Begun, ClientConnection, IncomingAnswer, KnownHead, ReusingConnection
from gateway.net.deadlines import watch
from gateway.net.dialing import BUSY, Dialer, ExchangeFailed, ServerAddress
from gateway.net.places import WITHIN, Places
from gateway.net.requests import OWN_HEADERS, SAFE, Upload, encoded, is_repeatable

T = TypeVar("T")
_CLOSE: Header = ("Connection", "close")
_ROOM = 256 * 1024
"""Bytes that are read from a socket at once into our own memory; uvloop's buffer has the same size."""
_MOST_PATIENCE = 4.0
"""Seconds; shorter limits make the search for overdue connections more frequent."""


class Remote(Protocol):
    """The other side of an exchange: the counter of its bytes, and the meaning of its failures.

    ``silence`` is the number of seconds to wait for a connection, the head of an answer, or more of its body, before ``check``
    is called; ``None`` for never.
    """

    silence: float | None

    @property
    def bytes(self) -> Counter | LoopSum:
        """Counts the bytes of bodies."""

    def failed(self, what: str, cause: ExchangeFailed | None) -> LarderError:
        """The error to raise when the other side fails; ``what`` follows its name in the sentence."""

    async def check(self) -> None:
        """Return if the other side is alive; otherwise raise the error made by ``failed``."""


@dataclass(slots=True, eq=False, kw_only=True)
class StreamedResponse(IncomingAnswer):
    """An answer whose head is complete; end it with ``release`` or ``abort``.

    ``headers`` keeps order, spelling and repetitions; each character of a value is one byte. ``remote`` is the other side,
    ``sending`` sends the request's body. ``counted``: it is one of the active ones of ``connections``.
    """

    remote: Remote
    connections: Connections
    sending: asyncio.Task[None] | None = None
    counted: bool = True

    def header(self, name: str) -> str | None:
        """The first value of a header, by case-insensitive name, or ``None``."""
        return self.fields.get(name.lower())

    async def next_chunk(self) -> bytes:
        """The bytes received since the last call, waiting for at least one; ``b""`` at the end of the body.

        Raises:
            LarderError: ``Remote.failed``. The body ended before its Content-Length, the connection broke, nothing arrived
                within the limit, or the other side is not alive.
        """
        if not self.pieces and self.connection is not None:
            await self._wait()
        if not self.pieces:
            if self.failure is None:
                return b""
            raise self._broken(self.failure)
        pieces, self.pieces, self.size = self.pieces, [], 0
        if self.connection is not None and self.connection.paused:
            self.connection.resume()
        first = pieces[0]
        chunk = first if len(pieces) == 1 and isinstance(first, bytes) else b"".join(pieces)
        self.remote.bytes.inc(len(chunk))
        return chunk

    def at_once(self, length: int) -> bytes | memoryview | None:
        """A whole body of ``length`` bytes, uncopied if it came in one piece; ``None`` if some is missing or was taken."""
        if not self.complete or not self.pieces or self.size != length:
            return None
        pieces, self.pieces, self.size = self.pieces, [], 0
        self.remote.bytes.inc(length)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def beginning(self) -> bytes:
        """The bytes that ``next_chunk`` will return, or the first ones. Raises the same errors."""
        if not self.pieces and self.connection is not None:
            await self._wait()
        if not self.pieces and self.failure is not None:
            raise self._broken(self.failure)
        return b"".join(self.pieces)

    def _broken(self, failure: ExchangeFailed) -> LarderError:
        self.abort()
        error = self.remote.failed(f"broke off its answer: {failure}", failure)
        error.__cause__ = failure
        return error

    async def _wait(self) -> None:
        """Wait until a chunk can be taken, or no more will come."""
        while not self.pieces and self.connection is not None:
            self.waiter = self.loop.create_future()
            try:
                await self.alive(self.waiter)
            except LarderError:  # the other side is not alive
                self.abort()
                raise

    async def come(self) -> bool:
        """Wait for an answer of ``Connections.get_kept`` as ``ask`` does; returns false if the connection has broken.

        Raises:
            LarderError: the other side is not alive.
        """
        if self.connection is None:
            return False
        self.begun = self.loop.create_future()
        try:
            await self.alive(self.begun)
        except ExchangeFailed:
            return False
        except BaseException:
            self.abort()
            raise
        return True

    def alive(self, waited: asyncio.Future[T]) -> Awaitable[T]:
        """The result of a future, as long as the other side confirms that it is alive."""
        return waited if self.remote.silence is None else _while_alive(self.remote, waited)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece as it arrives. Raises what ``next_chunk`` raises."""
        while chunk := await self.next_chunk():
            yield chunk

    async def read(self, limit: int) -> bytes:
        """Read the whole body, and release the connection in any case.

        Raises:
            LarderError: like ``next_chunk``; or the body exceeds ``limit`` bytes, and the connection is closed.
        """
        pieces: list[bytes] = []
        size = 0
        try:
            while chunk := await self.next_chunk():
                pieces.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise self.remote.failed(f"gave an answer larger than {limit} bytes", None)
        finally:
            self.release()
        return b"".join(pieces)

    def release(self) -> None:
        """Abort: the answer is no longer needed. Idempotent.

        Its connection serves other exchanges if the body has ended; otherwise it is closed.
        """
        if self.connection is not None:
            self.connection.abort()
        if self.sending is not None:
            self.sending.cancel()
        if self.counted:
            self.counted = False
            self.connections.active -= 1

    abort = release


class Connections:
    """Kept connections, to one origin or to the nodes of a fleet. Create it inside a running event loop.

    Args:
        limit: maximum number of exchanges at once; 0 for no limit.
        connect: time-out of a connection attempt in seconds; ``None`` for none.
        silence: seconds without a byte from the other side after which an exchange fails; ``None`` for never.
        buffer: bytes of an answer to read ahead of the reader.
        whole: an answer, or the rest of one, of at most this many bytes is read ahead whole.
        reusing: all connections read into the same memory.
    """

    def __init__(
        self,
        *,
        limit: int,
        connect: float | None,
        silence: float | None,
        buffer: int,
        whole: int = 0,
        reusing: bool = False,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.active = 0
        """Requests of ``ask`` and ``upload`` in progress, each until it fails or its answer is released."""
        self._places = Places(limit) if limit else None
        self._uploads = Places(max(1, limit // 2)) if limit else None
        self._dialer = Dialer(connect)
        self._silence = silence or math.inf
        self._read_ahead = (self._silence, buffer, whole)
        self._make = partial(ReusingConnection, memoryview(bytearray(_ROOM))) if reusing else ClientConnection
        self._open: set[ClientConnection] = set()
        self._idle: dict[ServerAddress, list[ClientConnection]] = {}
        self._closed = False

    async def ask(
        self,
        remote: Remote,
        method: str,
        address: ServerAddress,
        target: str,
        headers: Sequence[Header],
        body: bytes = b"",
        *,
        within: float | None,
        repeat: bool = False,
        traced: bool = False,
    ) -> StreamedResponse:
        """Send a complete request; returns at the head of its answer, or when a small body has followed the head.

        Args:
            remote: the other side.
            method: upper-case HTTP method.
            address: of the other side.
            target: path and query, sent byte for byte.
            headers: in the order in which they are sent, with Host.
            body: the whole body.
            within: seconds from getting a connection to the head of the answer; ``None`` for no limit.
            repeat: whether to send it again, whatever the method, if its connection broke before an answer began.
            traced: whether the request already has its span.

        Raises:
            LarderError: ``Remote.failed``.
        """
        if tracing.telemetry is not None and not traced:
            ask = partial(
                self.ask, remote, method, address, target, body=body, within=within, repeat=repeat, traced=True
            )
            return await tracing.sent(method, target, address.name, headers, ask)
        if body or method not in SAFE:
            headers = [*headers, ("Content-Length", str(len(body)))]
        request = encoded(method, target, headers)
        bodiless, last, kept = method == "HEAD", _CLOSE in headers, True
        self.active += 1
        try:
            while True:
                connection = await self._take(remote, address, kept=kept)
                response = StreamedResponse(self.loop, self.loop.create_future(), remote=remote, connections=self)
                try:
                    connection.send(response, request, body, bodiless=bodiless, last=last, within=within or math.inf)
                    await (response.begun if remote.silence is None else _while_alive(remote, response.begun))
                    return response
                except ExchangeFailed as failure:
                    if not (failure.unanswered and kept and (repeat or is_repeatable(method, headers))):
                        raise
                    kept = False
                except BaseException:
                    connection.abort()
                    raise
        except BaseException as failure:
            self.active -= 1
            if isinstance(failure, ExchangeFailed):
                raise remote.failed(f"gave no answer: {failure}", failure) from failure
            raise

    def get_kept(
        self, remote: Remote, address: ServerAddress, request: bytes, expected: KnownHead, begun: Begun, within: float
    ) -> StreamedResponse | None:
        """Send a GET over a kept connection, if there is one, without waiting for anything.

        Args:
            remote: the other side.
            address: of the other side.
            request: the whole request.
            expected: the head that its answer probably has.
            begun: acts at the beginning of the answer.
            within: seconds to the head of the answer.

        Returns:
            The future answer; ``None`` if nothing is sent.
        """
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                response = StreamedResponse(self.loop, begun, remote=remote, connections=self, counted=False)
                response.expected = expected
                connection.send(response, request, bodiless=False, last=False, within=within)
                return response
        return None

    def upload(
        self, remote: Remote, method: str, address: ServerAddress, target: str, headers: Sequence[Header], body: Upload
    ) -> Awaitable[StreamedResponse]:
        """Send a request with a streamed body; returns at the head of its answer.

        Raises:
            LarderError: ``Remote.failed``.
            Exception: raised by the body.
        """
        send = partial(self._upload, remote, method, address, target, body)
        return send(headers) if tracing.telemetry is None else tracing.sent(method, target, address.name, headers, send)

    async def _upload(
        self, remote: Remote, method: str, address: ServerAddress, target: str, body: Upload, headers: Sequence[Header]
    ) -> StreamedResponse:
        request = encoded(method, target, [*headers, ("Content-Length", str(body.length))])
        holder = HOLDER.get()
        self.active += 1
        try:
            await _place(self._uploads, holder)
            try:
                connection = await self._take(remote, address, kept=True)
            except BaseException:
                _give_back(self._uploads, holder)
                raise
            response = StreamedResponse(self.loop, self.loop.create_future(), remote=remote, connections=self)
            connection.send(response, request, bodiless=False, last=False, within=math.inf, streamed=True)
            response.sending = self.loop.create_task(body.send(connection))
            response.sending.add_done_callback(lambda _: _give_back(self._uploads, holder))
            try:
                await response.begun
                return response
            except BaseException:
                response.sending.cancel()
                connection.abort()
                raise
        except BaseException as failure:
            self.active -= 1
            if isinstance(failure, ExchangeFailed):
                raise remote.failed(f"gave no answer: {failure}", failure) from failure
            raise

    async def _take(self, remote: Remote, address: ServerAddress, *, kept: bool) -> ClientConnection:
        """A connection for one exchange; ``kept`` says whether it may have served others.

        Raises:
            ExchangeFailed: none could be opened, or none was free for ``places.WITHIN`` seconds.
            LarderError: the other side is not alive.
        """
        holder = HOLDER.get()
        if self._places is not None and (self._places.waiting or not self._places.claim(holder)):
            await _place(self._places, holder)
        idle = self._idle.get(address) if kept else None
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                connection.holder = holder
                return connection
        dialed = self._dialer.dial(address, lambda: self._make(self, address, *self._read_ahead))
        try:
            made = await (dialed if remote.silence is None else self._dialed_while_alive(remote, dialed))
            if made.transport.is_closing():  # by the other side, before this task continued
                raise ExchangeFailed("broken", "the connection was closed at once", unanswered=True)
        except BaseException:
            _give_back(self._places, holder)
            raise
        made.holder = holder
        self._open.add(made)
        watch(self._open, self.loop, min(self._silence, _MOST_PATIENCE))
        if self._closed:
            made.abort()
        return made

    async def _dialed_while_alive(
        self, remote: Remote, dialed: Coroutine[Any, Any, ClientConnection]
    ) -> ClientConnection:
        attempt = self.loop.create_task(dialed)
        try:
            while not (await asyncio.wait([attempt], timeout=remote.silence))[0]:
                await remote.check()
            return attempt.result()
        except BaseException:
            attempt.add_done_callback(_abort_made)
            attempt.cancel()
            raise

    def ended(self, connection: ClientConnection, *, reusable: bool) -> None:
        """See ``ConnectionOwner``."""
        if self._places is not None:
            self._places.give_back(connection.holder)
        if reusable:
            self._idle.setdefault(connection.address, []).append(connection)

    def lost(self, connection: ClientConnection) -> None:
        """See ``ConnectionOwner``."""
        self._open.discard(connection)
        idle = self._idle.get(connection.address, [])
        if connection in idle:
            idle.remove(connection)
        if not idle:
            self._idle.pop(connection.address, None)

    async def close(self) -> None:
        """Close every connection; answers in progress break off."""
        self._closed = True
        for connection in tuple(self._open):
            connection.abort()
        await asyncio.sleep(0)  # so that the transports are closed, too


async def _place(places: Places | None, holder: Holder) -> None:
    """Take a place, if places are limited; raises ExchangeFailed if the wait takes too long."""
    if places is None:
        return
    try:
        await places.wait(holder)
    except TimeoutError:
        raise ExchangeFailed(BUSY, f"no connection was free for {WITHIN:g} s") from None


def _give_back(places: Places | None, holder: Holder) -> None:
    if places is not None:
        places.give_back(holder)


async def _while_alive(remote: Remote, waited: asyncio.Future[T]) -> T:
    """The result of a future while the other side confirms that it is alive; after that, waiters get the failure."""
    assert remote.silence is not None
    checking: list[asyncio.Task[None]] = []
    alarm = waited.get_loop().call_later(
        remote.silence, lambda: checking.append(asyncio.create_task(_check(remote, waited)))
    )
    try:
        return await waited
    finally:
        alarm.cancel()
        for check in checking:
            check.cancel()


async def _check(remote: Remote, waited: asyncio.Future[T]) -> None:
    """Check the other side until it fails, or nobody waits for the future."""
    try:
        while True:
            await remote.check()
            await asyncio.sleep(remote.silence or 0)
    except Exception as failure:
        if not waited.done():
            waited.set_exception(failure)


def _abort_made(attempt: asyncio.Task[ClientConnection]) -> None:
    """Close a connection that was opened after its waiter had left."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().transport.abort()


class _Unkept:
    """The owner of a connection that serves one exchange."""

    def ended(self, connection: ClientConnection, *, reusable: bool) -> None:
        connection.transport.abort()

    def lost(self, connection: ClientConnection) -> None:
        return


async def probe(address: ServerAddress) -> None:
    """Request any answer from a server over a new connection, because kept ones may be dead, or none may be free.

    Raises:
        ExchangeFailed: there was no answer.
    """
    connection = await Dialer(None).dial(address, lambda: ClientConnection(_Unkept(), address, math.inf, 1))
    loop = asyncio.get_running_loop()
    answer = IncomingAnswer(loop, loop.create_future())
    try:
        request = encoded("HEAD", "/", [("Host", address.name), *OWN_HEADERS])
        connection.send(answer, request, bodiless=True, last=True, within=math.inf)
        await answer.begun
    finally:
        connection.abort()
