"""One HTTP/1.1 connection to an origin or a node: one exchange at a time.

llhttp checks the grammar of heads and chunked bodies (RFC 9112). This module finds the end of a head and handles the framing of
the body, so that a body with a length goes from the socket to its reader untouched. Its rules:

* The heads of an answer, interim ones included, have at most ``MAX_HEAD`` bytes, and so do the extensions and trailers between
  two pieces of a chunked body. Trailers are dropped.
* An answer ends by its length, its last chunk, or the end of the connection if it has neither. HEAD, 204 and 304 have no body.
* A connection serves another exchange only if both sides have ended the last one, the peer permits that and has sent nothing
  else. An unrequested byte ends the connection.
* Silence is limited only while waiting for the peer: not while the reader or the sender of a request's body is slow. Interim
  answers do not prolong the limit on the head.

docs/decisions/0046-no-place-waits-for-a-client.md lists the states, and the deadline of each.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.model.holders import OWN, Holder
from gateway.model.objects import Header
from gateway.net.deadlines import NEVER
from gateway.net.dialing import ExchangeFailed, ServerAddress

MAX_HEAD = 64 * 1024
GATHER = 0.005
"""Seconds for which the head of an answer waits for a small body, so that the waiting task is woken only once."""
_SMALL = 256 * 1024
"""Maximum bytes of such a body."""
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection"})
_KEEP_IDLE = 15.0
"""Seconds for which an idle connection is kept."""


class KnownHead(NamedTuple):
    """A parsed head of an earlier answer, whose body had ``length`` bytes. The same bytes need not be parsed again."""

    data: bytes
    status: int
    headers: list[Header]
    fields: dict[str, str]
    length: int


class Begun(Protocol):
    """Waits for the beginning of an answer: a future, or an object that acts at once."""

    def done(self) -> bool:
        """Whether it no longer waits."""

    def set_result(self, result: None, /) -> None:
        """Note that the answer has begun."""

    def set_exception(self, exception: Exception, /) -> None:
        """Note that there is no answer."""


@dataclass(slots=True, eq=False)
class IncomingAnswer:
    """An answer, filled by its connection.

    Attributes:
        asked: when the request was sent, on the loop's clock; not set for a streamed body.
        begun: ``Begun``, done when the head is complete, with a small body, unless that takes longer than ``GATHER`` or exceeds
            the read-ahead; its exception says why there is no head.
        head: its bytes; ``expected`` is a head that may come.
        headers: order, spelling and repetitions are the peer's; each character of a value is one byte.
        fields: the first value of each header, by its name in lower case.
        pieces: the unread pieces of the body; ``size`` bytes in all.
        complete: whether the body has ended; its last pieces may be unread.
        failure: why no more pieces will come.
        waiter: woken when any of these change.
    """

    loop: asyncio.AbstractEventLoop
    begun: Any
    asked: float = 0.0
    expected: KnownHead | None = None
    head: bytes = b""
    status: int = 0
    headers: list[Header] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    complete: bool = False
    failure: ExchangeFailed | None = None
    waiter: asyncio.Future[None] | None = None
    gathering: asyncio.TimerHandle | None = None
    connection: ClientConnection | None = None

    def begin(self) -> None:
        """Wake the waiting task: the head is complete, and the body is no longer waited for."""
        if not self.begun.done():
            self.begun.set_result(None)


class ConnectionOwner(Protocol):
    """The owner of connections, which keeps them for later exchanges."""

    def ended(self, connection: ClientConnection, *, reusable: bool) -> None:
        """Note that the exchange is over."""

    def lost(self, connection: ClientConnection) -> None:
        """Note that the connection is gone."""


class ClientConnection(asyncio.BaseProtocol):
    """One connection, by the rules of this module.

    Args:
        owner: notified when the connection ends.
        address: of the peer.
        silence: seconds without a byte from the peer after which an exchange fails.
        buffer: bytes of a body that are read ahead of its reader.
        whole: a body, or the rest of one, of at most this many bytes is read ahead whole: a pause would cost more than the
            memory.

    Attributes:
        holder: the account of the exchange in progress.
    """

    holder: Holder = OWN

    def __init__(
        self, owner: ConnectionOwner, address: ServerAddress, silence: float, buffer: int, whole: int = 0
    ) -> None:
        self.address = address
        self.deadline = NEVER
        self.closed = False
        self._owner = owner
        self._silence = silence
        self._buffer = buffer
        self._whole = whole
        self._loop = asyncio.get_running_loop()
        self._incoming: IncomingAnswer | None = None
        self._parser: Any = None
        self._head = b""
        self._heads = 0
        self._head_by = NEVER
        self._left: float | None = None
        self._until_close = self._bodiless = self._reusable = False
        self._sending = self.paused = False
        self._message_over = False
        self._overhead = 0
        self._stuck = False
        self._writable: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    # -- the request

    def send(
        self,
        incoming: IncomingAnswer,
        request: bytes,
        body: bytes = b"",
        *,
        bodiless: bool,
        last: bool,
        within: float,
        streamed: bool = False,
    ) -> None:
        """Begin an exchange.

        Args:
            incoming: takes the answer.
            request: the request's head.
            body: the whole body, unless ``streamed``.
            bodiless: the answer has no body, whatever its head says.
            last: the request asks for the connection to be closed.
            within: seconds to the head of the answer.
            streamed: the body follows by ``write``; ``sent`` ends it.
        """
        self._incoming, incoming.connection = incoming, self
        self._head, self._heads, self._left, self._parser = b"", 0, None, None
        self._until_close, self._bodiless, self._reusable = False, bodiless, not last
        self._sending, self.paused = streamed, False
        if streamed:
            self._head_by = self.deadline = NEVER  # it had the deadline of an idle connection
        else:
            now = incoming.asked = self._loop.time()
            self._head_by = now + within
            self.deadline = min(self._head_by, now + self._silence)
        if body:
            self.transport.writelines((request, body))
        else:
            self.transport.write(request)

    async def write(self, piece: bytes, patience: float) -> None:
        """Send a piece of the request's body; returns when the next piece may follow, at once if the connection is gone.

        ``patience``: seconds for the peer to take it.
        """
        if self._incoming is None:
            return
        self.transport.write(piece)
        if self._stuck and not self.closed:
            self.deadline = self._loop.time() + patience
            self._writable = self._loop.create_future()
            await self._writable
            self.deadline = NEVER

    def sent(self, within: float) -> None:
        """Note that the request's body is complete; ``within``: seconds to the head of the answer."""
        self._sending = False
        if self._incoming is None:
            return
        now = self._loop.time()
        if self._in_head:
            self._head_by = now + within
            self.deadline = min(self._head_by, now + self._silence)
        elif not self.paused:
            self.deadline = now + self._silence

    def pause_writing(self) -> None:
        """Note that the peer is slower than the sender."""
        self._stuck = True

    def resume_writing(self) -> None:
        """Note that the peer has accepted enough."""
        self._stuck = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # -- the answer

    @property
    def _in_head(self) -> bool:
        return self._left is None and self._parser is None

    def data_received(self, data: bytes) -> None:
        """Take bytes of the answer."""
        if self._incoming is None:
            self.transport.abort()  # unrequested
        elif self._left is not None:
            self._take(data)
        elif self._parser is not None:
            self._parse(data)
        else:
            self._read_heads(self._head + data if self._head else data)

    def _read_heads(self, data: bytes) -> None:
        while (end := data.find(b"\r\n\r\n") + 4) > 3:
            self._heads += end
            if self._heads > MAX_HEAD:
                break
            parser, self._message_over = HttpResponseParser(self), False
            try:
                parser.feed_data(data[:end])
            except (HttpParserError, HttpParserUpgrade):
                self._give_up("invalid", "its answer is not valid HTTP")
                return
            status = parser.get_status_code()
            if status >= 200:
                self._begin(parser, status, data[:end], memoryview(data)[end:])
                return
            if status < 100:
                self._give_up("invalid", "its answer is not valid HTTP")
                return
            data = data[end:]
        self._head = data
        if self._heads + len(data) > MAX_HEAD:
            self._give_up("invalid", "the header of its answer is too long")
        elif not self._sending:
            self.deadline = min(self._head_by, self._loop.time() + self._silence)

    def _begin(self, parser: Any, status: int, head: bytes, rest: memoryview) -> None:
        """Handle the complete head of the final answer; ``rest``, often the whole body, follows it and is not copied."""
        incoming = self._incoming
        assert incoming is not None
        coding = length = None
        connection = ""
        headers, fields = incoming.headers, incoming.fields
        for line in head[:-4].decode("latin-1").split("\r\n")[1:]:
            name, colon, value = line.partition(":")
            if not colon or name[0] in " \t":  # a folded line
                self._give_up("invalid", "its answer is not valid HTTP")
                return
            value = value.strip(" \t")
            headers.append((name, value))
            lowered = name.lower()
            fields.setdefault(lowered, value)
            if lowered not in _FRAMING:
                continue
            if lowered == "content-length":
                length = value
            elif lowered == "transfer-encoding":
                coding = value.lower()
            else:
                connection += value.lower()
        incoming.status, incoming.head = status, head
        kept = "close" not in connection if head.startswith(b"HTTP/1.1") else "keep-alive" in connection
        self._reusable = self._reusable and kept
        left: float = 0
        if self._bodiless or self._message_over:
            pass
        elif coding is not None and coding.endswith("chunked"):
            parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)  # some servers pad them
            self._parser, self._overhead = parser, 0
            incoming.begin()
            self._parse(rest)
            return
        else:
            self._until_close = coding is not None or length is None
            left = math.inf if self._until_close else int(length or 0)
        self._begin_body(incoming, left, rest)

    def _begin_body(self, incoming: IncomingAnswer, left: float, rest: memoryview) -> None:
        """Begin a body with ``left`` more bytes, of which ``rest`` has arrived; infinity if it ends with the connection."""
        if left and len(rest) == left:
            incoming.pieces, incoming.size = [rest], len(rest)
            self._end(None)
            return
        self._left = left
        if left > _SMALL:
            incoming.begin()
        self._take(rest)
        if incoming.connection is not None and not incoming.begun.done():
            incoming.gathering = self._loop.call_later(GATHER, incoming.begin)

    def _take(self, data: bytes | memoryview) -> None:
        """Take bytes of a body that ends with its length, or with the connection."""
        incoming, left = self._incoming, self._left
        assert incoming is not None
        assert left is not None
        if len(data) > left:
            self._reusable = False
            data = data[: int(left)]
        self._left = left = left - len(data)
        if data:
            incoming.pieces.append(data)
            incoming.size += len(data)
        if left:
            self._advance(incoming, left)
        else:
            self._end(None)

    def _parse(self, data: bytes | memoryview) -> None:
        """Take bytes of a chunked body."""
        incoming = self._incoming
        assert incoming is not None
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._reusable = False
            if not self._message_over:
                self._give_up("invalid", "its answer is not valid HTTP")
                return
        if self._overhead > MAX_HEAD and not self._message_over:
            self._give_up("invalid", "its answer is not valid HTTP")
            return
        if self._message_over:
            self._end(None)
        else:
            self._advance(incoming, math.inf)

    def on_message_begin(self) -> None:
        """Note that a message begins, perhaps after the end of the answer."""
        if self._message_over:
            self._reusable = False

    def on_body(self, piece: bytes) -> None:
        """Take a piece of a chunked body."""
        incoming = self._incoming
        if incoming is not None and not self._message_over:
            self._overhead = 0
            incoming.pieces.append(piece)
            incoming.size += len(piece)

    def on_message_complete(self) -> None:
        """The end of a chunked body, or of a head without a body."""
        self._message_over = True

    def _advance(self, incoming: IncomingAnswer, left: float) -> None:
        """Note that bytes have arrived; ``left`` are still to come, infinity if unknown."""
        waiter = incoming.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if incoming.size > self._buffer and incoming.size + left > self._whole:
            incoming.begin()
            self.deadline, self.paused = NEVER, True
            self.transport.pause_reading()
        elif not self._sending:
            self.deadline = self._loop.time() + self._silence

    def resume(self) -> None:
        """Continue, because the reader has read everything."""
        if self.paused and not self.closed:
            self.paused = False
            if not self._sending:
                self.deadline = self._loop.time() + self._silence
            self.transport.resume_reading()

    # -- the end

    def _end(self, failure: Exception | None) -> None:
        """Separate the connection from its exchange."""
        incoming, self._incoming, self._parser = self._incoming, None, None
        if incoming is None:
            return
        reusable = failure is None and self._reusable and not self._sending and not self.closed
        self.deadline = self._loop.time() + _KEEP_IDLE if reusable else NEVER
        if not reusable:
            self.transport.abort()
        incoming.connection = None
        if failure is None:
            incoming.complete = True
        elif isinstance(failure, ExchangeFailed):
            incoming.failure = failure
        else:
            incoming.failure = ExchangeFailed("broken", "the request failed")
        if incoming.gathering is not None:
            incoming.gathering.cancel()
        if not incoming.begun.done():
            if incoming.status:
                incoming.begun.set_result(None)
            else:
                incoming.begun.set_exception(failure or ExchangeFailed("broken", "the exchange was given up"))
        if incoming.waiter is not None and not incoming.waiter.done():
            incoming.waiter.set_result(None)
        self._owner.ended(self, reusable=reusable)

    def _give_up(self, kind: str, text: str) -> None:
        self._end(ExchangeFailed(kind, text))

    def abort(self, failure: Exception | None = None) -> None:
        """Close the connection; an exchange in progress fails."""
        self._end(failure or ExchangeFailed("broken", "the exchange was given up"))
        self.transport.abort()

    def expire(self) -> None:
        """Fail, because the deadline has passed."""
        self.abort(ExchangeFailed("timeout", "it was silent for too long"))

    def eof_received(self) -> None:
        """Note that the peer will send nothing more."""
        self._lose("")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        self.closed = True
        self.resume_writing()
        self._lose(f": {exc}" if exc else "")
        self._owner.lost(self)

    def _lose(self, why: str) -> None:
        """Note the loss: an answer framed by the connection's end is complete, unless the connection broke; others are not."""
        self._reusable = False
        if self._in_head:
            unanswered = not self._head and not self._heads
            self._end(ExchangeFailed("broken", f"the connection was closed{why}", unanswered=unanswered))
        elif self._until_close and not why:
            self._end(None)
        else:
            self._end(ExchangeFailed("broken", f"the connection was closed early{why}"))


class ReusingConnection(ClientConnection, asyncio.BufferedProtocol):
    """A connection that reads into the same memory, ``room``, as all others of its loop.

    The body of an answer with the expected head stays there while ``begun`` is called, and is copied only if ``begun`` does not
    take it. So a body that is passed on at once needs no memory of its own, whose page faults would cost more than the copy.
    """

    def __init__(self, room: memoryview, *args: Any) -> None:
        super().__init__(*args)
        self._room = room

    def get_buffer(self, _hint: int) -> memoryview:
        """Where to put the next bytes."""
        return self._room

    def buffer_updated(self, count: int) -> None:
        """Take bytes of the answer."""
        incoming, room = self._incoming, self._room
        known = None if incoming is None else incoming.expected
        if known is None or self._heads or self._head or room[: len(known.data)].tobytes() != known.data:
            self.data_received(room[:count].tobytes())
            return
        assert incoming is not None
        incoming.expected = None
        incoming.head, incoming.status, incoming.headers, incoming.fields, length = known
        self._begin_body(incoming, length, room[len(known.data) : count])
        if incoming.pieces:
            incoming.pieces = [bytes(piece) for piece in incoming.pieces]
