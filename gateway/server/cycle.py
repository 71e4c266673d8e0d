"""One request and its response, as the application sees them: ``receive``, ``send``, and the handling of failures.

A response that has begun can end in only two ways: complete, or with a broken connection. The application breaks it by raising;
``BrokenBody`` and every other ``LarderError`` are expected and logged in a line, other exceptions with their traceback. After
the client has left, ``receive`` returns ``http.disconnect`` and ``send`` raises ``ClientGone`` (an ``OSError``, as ASGI 2.4
requires), so an application that streams stops at its next piece.

A connection accepts another request only if this one was read completely, and received 100 Continue if it waited for that.
Otherwise the rest of a body would be parsed as the next request. A client that still waits for 100 Continue may be confused:
botocore up to 1.43.11 misreads the answer to its next upload over the same connection, and waits for more.

The head is held back until the first piece of the body, as ASGI allows: both leave in one packet.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from gateway.base.shortages import SHORTAGES
from gateway.model.errors import BrokenBody, ClientGone, LarderError
from gateway.model.holders import HOLDER
from gateway.model.s3.redaction import redact_path
from gateway.policies.pace import ClientPace
from gateway.server.asgi_types import Application, Message, Scope
from gateway.server.channel import SMALL, Channel
from gateway.server.files import FileSpan, read_exactly
from gateway.server.head import STATUS_LINES, Head, encode_head
from gateway.server.place import PLACE, RequestPlace
from gateway.server.refusals import internal_error

FILES = "larder.files"
"""Extension: a whole response to a GET made of files, in one message. See ``Cycle.send_files``."""
PIECES = "larder.pieces"
"""Extension: a part of a response's body made of bytes and spans of files, in one message. See ``Cycle._send_pieces``."""
DESCRIPTORS = "larder.descriptors"
"""Extension: a piece of a response's body, together with open files, in one message. See ``Cycle._send_descriptors``. Its value
in the scope is the connection's ``local.Passing``, which must admit the descriptors first."""
DIRECT = "larder.direct"
"""Extension: returns the cycle of the request being answered, for an answer without a task. See ``Cycle.deferred``."""
REPEATS = "larder.repeats"
"""Scope key of the connection and the head of a request in the usual form. An application that answered such a request at once
may set the connection's ``repeated``, whose ``answer`` takes further heads that differ little from this head (template.py).
"""
HIGH_WATER = 256 * 1024
"""Bytes of a request body buffered for the application before reading pauses."""

logger = logging.getLogger("larder.server")
Piece = bytes | FileSpan


class RepeatedHeads(Protocol):
    """Answers later heads of a connection without parsing them."""

    answer: Callable[[bytes], bool]
    """Answers bytes that arrived, if they are one such head; returns whether it has."""


class Connection(Protocol):
    """The connection, as seen by its cycles."""

    channel: Channel
    tasks: set[Any]

    def await_body(self, cycle: Cycle) -> None:
        """Read more of the body, for which the application waits, and enforce its rate."""

    def body_came(self, cycle: Cycle) -> None:
        """Note that the application has received it."""

    def resume_reading(self) -> None:
        """Continue reading: the application has consumed the buffered body."""

    def on_response_complete(self, cycle: Cycle) -> None:
        """Note that the response has ended, so that the next request may be answered."""

    def run(self, cycle: Cycle, rest: Coroutine[Any, Any, None]) -> None:
        """Finish a request, in a task."""


class Cycle:
    """One request and its response; ``protocol`` is its connection.

    An application that sets ``deferred`` in its ``begin`` returns ``None`` there, and calls ``send_now`` or ``go_on`` later.
    """

    # Attributes that few requests change are on the class, so that a new request need not set them.
    more_body = True
    started = complete = gone = waiting = deferred = False
    task: asyncio.Task[None] | None = None
    pace: ClientPace | None = None
    """The pace of the body, set once the application has waited for it."""
    _size = _left = 0
    _body_given = False
    _event: asyncio.Event | None = None
    _head: Head | None = None
    _held = b""

    def __init__(self, protocol: Connection, scope: Scope, *, keep_alive: bool, expects: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self._protocol = protocol
        self._channel = protocol.channel
        self._expects = expects
        self._body: list[bytes] = []

    def feed(self, piece: bytes) -> bool:
        """Buffer a piece of the request body; returns whether reading should pause."""
        self._body.append(piece)
        self._size += len(piece)
        self.wake()
        return self._size > HIGH_WATER

    @property
    def place(self) -> RequestPlace | None:
        """The request's place among those in progress; ``None`` if requests are not limited."""
        return self.scope.get(PLACE)

    def wake(self) -> None:
        """Wake ``receive``, because its condition may have changed."""
        if self._event is not None:
            self._event.set()

    def leave(self) -> None:
        """Note that the client has left: nothing more can be received or sent."""
        self.gone = True
        self.wake()

    def begin(self, application: Application, *, at_once: bool) -> Coroutine[Any, Any, None] | None:
        """Have the application answer the request.

        Args:
            application: may have a method ``begin`` (``edge/asgi.py``), which can answer a request before it returns.
            at_once: whether it may answer before it returns.

        Returns:
            The remaining work, for a task; ``None`` if the request is answered.
        """
        begin = getattr(application, "begin", None) if at_once else None
        try:
            if begin is None:
                return self._run(application(self.scope, self.receive, self.send))
            rest = begin(self.scope, self.receive, self.send, self.send_files)
        except Exception as error:
            rest = failing(error)
        return None if rest is None and (self.complete or self.deferred) else self._run(rest)

    def go_on(self, rest: Awaitable[None]) -> None:
        """Answer a deferred request in a task."""
        self._protocol.run(self, self._run(rest))

    def send_now(self, status: int, head: bytes, body: Sequence[bytes | memoryview]) -> bool:
        """Send a whole response, unless the client has yet to accept bytes of an earlier one, or has left.

        Args:
            status: of the response.
            head: header lines from ``encode_lines``, with the content-length.
            body: the body, in pieces that may be overwritten afterwards.

        Returns:
            Whether it is sent; the transport keeps the bytes that the client does not accept at once.
        """
        channel = self._channel
        if self.gone or channel.paused or channel.lost or channel.transport.is_closing():
            return False
        self.started = True
        if self.more_body or self._expects:
            self.keep_alive = False
        ending = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        channel.write_now([STATUS_LINES[status] + head + ending, *body])
        self._finish()
        return True

    async def _run(self, answer: Awaitable[None] | None) -> None:
        """Run the application, and ensure that the response ends in one of the two ways."""
        HOLDER.set(None)  # until the caller is known
        try:
            if answer is not None:
                await answer
            if not self.complete and not self.gone:
                raise RuntimeError("the application returned without completing its response")
        except (ClientGone, asyncio.CancelledError):
            self._break_off()
        except LarderError as error:
            await self._fail(error, expected=self.started or isinstance(error, BrokenBody))
        except Exception as error:
            await self._fail(error, expected=False)
        finally:
            self._protocol.tasks.discard(self.task)
            self._event = None

    async def _fail(self, error: Exception, *, expected: bool) -> None:
        where = f"{self.scope['method']} {redact_path(self.scope['path'])}"
        wanting = "" if expected else SHORTAGES.record(error, f"answering {where}")
        if not expected:
            logger.error("%(request)s failed", {"request": where}, exc_info=error)
        elif not self.gone:
            logger.info("%(request)s broken off: %(error)s", {"request": where, "error": error})
        if not self.started and not self.gone and not isinstance(error, BrokenBody):
            try:
                await internal_error(self.send, "SlowDown" if wanting else "InternalError")
            except ClientGone:
                self._break_off()
        else:
            self._break_off()

    def _break_off(self) -> None:
        if not self.complete and not self.gone:
            self.leave()
            self._channel.break_off()

    async def receive(self) -> Message:
        """The next piece of the request body, or ``http.disconnect`` (ASGI HTTP specification)."""
        if self._expects:
            self._expects = False
            # The first call requests the body (RFC 9110 section 10.1.1), which may have arrived unrequested. Request an empty
            # body too: see above.
            if not self._body and not self.started and not self.gone:
                self._channel.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self.gone and not self.complete:
            if self._body or (not self.more_body and not self._body_given):
                return self._take_body()
            if self._event is None:
                self._event = asyncio.Event()
            self._event.clear()
            self._protocol.await_body(self)
            self.waiting = True
            place = self.place if self.more_body else None
            if place is not None:
                place.rest()
            await self._event.wait()
            self.waiting = False
            self._protocol.body_came(self)
            if place is not None:
                place.go_on_reading()
        return {"type": "http.disconnect"}

    def _take_body(self) -> Message:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._size = 0
        self._body_given = not self.more_body
        self._protocol.resume_reading()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Handle an event of the response.

        Raises:
            ClientGone: the client has closed the connection.
            BlobGone: a file is shorter than announced.
            DiskUnavailable: a file could not be read.
            RuntimeError: the application violated ASGI or its own content-length.
            ValueError: a header is invalid.
        """
        kind = message["type"]
        head = self._head
        if kind == FILES:
            rest = self.send_files(message["status"], message["head"], message["files"], message.get("memory"))
            if rest is not None:
                await rest
            return
        if head is None:
            if kind != "http.response.start" or self.started:
                raise RuntimeError(f"{kind} came before http.response.start")
            self._begin(message)
            return
        if self.complete:
            raise RuntimeError(f"{kind} came after the response was complete")
        if self.gone:
            raise ClientGone("the client is gone")
        more = bool(message.get("more_body", False))
        if kind == "http.response.body":
            await self._send_bytes(head, message.get("body", b""), more)
        elif kind == "http.response.zerocopysend" and self._channel.zero_copy:
            await self._send_file(head, message, more)
        elif kind == PIECES and self._channel.zero_copy:
            await self._send_pieces(head, message["pieces"], more)
        elif kind == DESCRIPTORS and DESCRIPTORS in self.scope["extensions"]:
            await self._send_descriptors(head, message["body"], message["files"])
        else:
            raise RuntimeError(f"{kind} cannot be sent here")
        if not more:
            if self._left:
                raise RuntimeError(f"the response is {self._left} bytes shorter than its content-length")
            if self.gone:
                raise ClientGone("the client is gone")
            self._finish()

    def send_files(
        self, status: int, head: bytes, files: Sequence[FileSpan], memory: bytes | memoryview | None = None
    ) -> Coroutine[Any, Any, None] | None:
        """Send a complete response of files.

        Args:
            status: of the response.
            head: header lines from ``encode_lines``, with the content-length, which the spans must add up to.
            files: spans of open files.
            memory: the bytes of the only file, if they are in memory; without files, the body.

        Returns:
            The rest, to be awaited; ``None`` if all is sent.

        Raises: like ``send``.
        """
        if self.started or not self._channel.zero_copy:
            raise RuntimeError(f"{FILES} cannot be sent here")
        if self.gone:
            raise ClientGone("the client is gone")
        self.started = True
        if self.more_body or self._expects:
            self.keep_alive = False
        ending = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        if not self._channel.send_now(STATUS_LINES[status] + head + ending, files, memory):
            return self.rest()
        self._finish()
        return None

    async def rest(self) -> None:
        """Send the part of a whole response that ``Channel.send_now`` did not send."""
        await self._channel.send_rest()
        self._finish()

    def _begin(self, message: Message) -> None:
        scope = self.scope
        head = encode_head(
            message["status"],
            message.get("headers", ()),
            method=scope["method"],
            http_10=scope["http_version"] == "1.0",
            keep_alive=self.keep_alive and not self.more_body and not self._expects,
        )
        self._head = head
        self.started = True
        self.keep_alive = not head.close
        self._held = head.data
        self._left = 0 if head.bodiless or head.length is None else head.length

    def _account(self, head: Head, count: int) -> None:
        if head.length is not None:
            if count > self._left:
                raise RuntimeError("the response is longer than its content-length")
            self._left -= count

    async def _send_bytes(self, head: Head, body: bytes, more: bool) -> None:
        data, self._held = self._held, b""
        if not head.bodiless:
            if body:
                self._account(head, len(body))
                if len(body) > SMALL and not head.chunked:
                    await self._write(data, body)
                    return
                data = data + (b"%x\r\n%b\r\n" % (len(body), body) if head.chunked else body)
            if head.chunked and not more:
                data += b"0\r\n\r\n"
        await self._write(data)

    async def _send_file(self, head: Head, message: Message, more: bool) -> None:
        file = message["file"]
        fd = file if isinstance(file, int) else file.fileno()
        offset, count, status = message.get("offset"), message.get("count"), os.fstat(fd)
        if offset is None:
            offset = os.lseek(fd, 0, os.SEEK_CUR)
        if count is None:
            count = status.st_size - offset
        if head.bodiless or count <= 0:
            await self._send_bytes(head, b"", more)
            return
        self._account(head, count)
        data, self._held = self._held, b""
        span = fd, offset, count, status.st_ino
        if not head.chunked:
            await self._channel.send_files(data, [span])
            return
        await self._channel.send_files(data + b"%x\r\n" % count, [span])
        await self._write(b"\r\n" if more else b"\r\n0\r\n\r\n")

    async def _send_pieces(self, head: Head, pieces: Sequence[Piece], more: bool) -> None:
        """Send bytes and spans of open files as one chunk, joining small ones.

        Small chunks slow readers down greatly, and for small files sendfile is not worth its system calls.
        """
        count = sum([len(piece) if isinstance(piece, bytes) else piece[2] for piece in pieces])
        if head.bodiless or not count:
            await self._send_bytes(head, b"", more)
            return
        self._account(head, count)
        waiting, self._held = [self._held], b""
        if head.chunked:
            waiting.append(b"%x\r\n" % count)
        waiting = await self._send_each(waiting, pieces)
        if head.chunked:
            waiting.append(b"\r\n" if more else b"\r\n0\r\n\r\n")
        await self._write(b"".join(waiting))

    async def _send_descriptors(self, head: Head, body: bytes, files: Sequence[int]) -> None:
        """Send a piece of the body, which is not the last one, with descriptors attached."""
        self._account(head, len(body))
        if head.chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        data, self._held = self._held + body, b""
        await self._channel.send_descriptors(data, files)

    async def _send_each(self, waiting: list[bytes], pieces: Sequence[Piece]) -> list[bytes]:
        """Send buffered bytes and the pieces; returns the rest if it is too small to be sent alone."""
        size = 0
        spans: list[FileSpan] = []
        for piece in pieces:
            if not isinstance(piece, bytes) and piece[2] > SMALL:
                spans.append(piece)
                continue
            if spans:
                await self._channel.send_files(b"".join(waiting), spans)
                waiting, size, spans = [], 0, []
            if isinstance(piece, bytes) and len(piece) > HIGH_WATER:
                await self._write_slowly(b"".join(waiting), piece)
                waiting, size = [], 0
                continue
            waiting.append(piece if isinstance(piece, bytes) else await read_exactly(piece[0], piece[2], piece[1]))
            size += len(waiting[-1])
            if size >= HIGH_WATER:
                await self._write(b"".join(waiting))
                waiting, size = [], 0
        if spans:
            await self._channel.send_files(b"".join(waiting), spans)
            return []
        return waiting

    async def _write_slowly(self, head: bytes, body: bytes) -> None:
        """Write a large piece in parts, because a transport's buffer for a slow reader is unbounded."""
        await self._write(head)
        view = memoryview(body)
        for start in range(0, len(body), HIGH_WATER):
            await self._write(bytes(view[start : start + HIGH_WATER]))

    async def _write(self, data: bytes, large: bytes = b"") -> None:
        """Write ``data`` and then ``large``, without copying ``large``."""
        channel = self._channel
        if channel.paused or channel.lost or channel.transport.is_closing():
            await channel.drain()
        if large:
            channel.transport.writelines((data, large) if data else (large,))
        elif data:
            channel.transport.write(data)

    def _finish(self) -> None:
        self.complete = True
        if self._event is not None:
            self._event.set()
        self._protocol.on_response_complete(self)


async def failing(error: Exception) -> None:
    """Raise an error in the task that answers a request."""
    raise error
