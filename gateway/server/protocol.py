"""One HTTP/1.1 connection under uvicorn: the order of its requests, its deadlines, and how it ends.

It is written from scratch, because a hit should cost little more than its system calls: no access log, no needless object per
request, no timer per request (one sweep a second finds overdue connections).

Its rules:

* Requests of one connection are answered in order; the next one starts when its predecessor is complete.
* A head has ``head_timeout`` seconds to arrive. A client must keep a minimum rate when the application waits for its body, or an
  answer waits for the client (gateway/policies/pace.py).
* A request whose body was not read completely ends the connection. The answer could get lost if the kernel resets a connection
  with unread bytes, so the rest is read and discarded for a while (RFC 9112 section 9.6).
* A connection may be closed while it waits for its client, if its caller has too many (gateway/server/callers.py).
* An invalid request is answered after its predecessors, with 400, and ends the connection.
* A client may close its sending side after its last request, and is still answered. A client that has left looks the same; that
  is noticed when its answer is sent, or at once if the application waits in ``receive``. TLS has no half-close.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.base import metrics
from gateway.model.holders import Holder
from gateway.net.deadlines import NEVER, watch
from gateway.policies.pace import ClientPace
from gateway.server.asgi_types import Application, RawHeaders, Scope
from gateway.server.callers import AUTHENTICATED, callers_of
from gateway.server.channel import Channel
from gateway.server.cycle import DESCRIPTORS, DIRECT, FILES, PIECES, REPEATS, Cycle, RepeatedHeads
from gateway.server.limits import ClientLimits
from gateway.server.local import Passing, in_flight_of, is_another_user
from gateway.server.parsing import BadRequest, RequestParser, TlsClient
from gateway.server.refusals import refusal, slow_down

LINGER_BYTES = 64 * 1024**2
"""Bytes of an unwanted request body that are read so that the client can receive the answer; the largest part that clients
send by default is 50 MiB."""
_LIMITS = ClientLimits()
_ASGI = {"version": "3.0", "spec_version": "2.4"}
_ZERO_COPY: dict[str, Any] = {"http.response.zerocopysend": {}, FILES: {}, PIECES: {}}


class GatewayProtocol(asyncio.Protocol):
    """One connection. uvicorn creates it and, to stop, calls ``shutdown`` on each and waits until all are closed."""

    head_timeout = 30.0
    """Seconds from a request's first byte to the end of its head."""
    body_timeout = _LIMITS.body_timeout
    """Seconds of waiting for a body, within which this many times ``min_rate`` bytes must arrive."""
    min_rate = _LIMITS.min_rate
    """Bytes per second."""
    linger_timeout = 10.0
    """Seconds for which an unwanted body is read and dropped."""
    unread_timeout = 600.0
    """Seconds for which a peer may accept no byte (tcp(7), TCP_USER_TIMEOUT), and seconds of waiting for the peer within which
    this many times ``min_rate`` bytes must be accepted. A loader that computes for minutes between two reads is healthy; one
    that never reads again, or reads a byte a minute, would keep a file or another node's answer open indefinitely.
    """
    goodbye_timeout = 5.0
    """Seconds that the peer of an idle TLS connection has to answer close_notify. Connection pools never answer, and RFC 8446
    section 6.1 does not require it; asyncio would wait for 30 seconds and delay a stop by that time.
    """

    channel: Channel
    transport: asyncio.Transport

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.loop = _loop or asyncio.get_running_loop()
        self.tasks: set[Any] = server_state.tasks
        self.deadline = NEVER
        self._application: Application = config.loaded_app
        self._limit = config.limit_concurrency
        self._keep_alive = float(config.timeout_keep_alive)
        self._state = server_state
        self._app_state = app_state
        self._connections: set[Any] = server_state.connections
        limits: ClientLimits | None = getattr(config, "limits", None)
        if limits is not None:
            self.body_timeout, self.min_rate = limits.body_timeout, limits.min_rate
        self._callers = callers_of(server_state, self.loop, (limits or _LIMITS).connections)
        self._caller: Holder = None
        self._parser: RequestParser | None = RequestParser(self)
        self._active: Cycle | None = None
        self._parsing: Cycle | None = None
        self._pipeline: deque[Cycle] = deque()
        self._refused: BadRequest | None = None
        self._reading = True
        self._ended = False
        self._linger: int | None = None
        self._reading_pace: ClientPace | None = None
        self._taken = 0
        self._behind = False
        self._usual_length = 0
        """Bytes of the last head in the usual form, without its path."""
        self.repeated: RepeatedHeads | None = None
        """Answers a head that resembles an earlier one without parsing it, if possible; see ``REPEATS``."""
        self._again: Callable[[bytes], bool] | None = None
        """``repeated.answer``, while no request is being answered and none has begun to arrive."""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up a new connection."""
        self.transport = cast(asyncio.Transport, transport)
        self.channel = Channel(self.transport, self.loop, self)
        self.channel.give_up_after(self.unread_timeout)
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        server = (str(local[0]), int(local[1])) if isinstance(local, tuple) else None
        choose = getattr(self._application, "at", None)
        if choose is not None:
            self._application = choose(server)
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        extensions: dict[str, Any] = {**_ZERO_COPY, DIRECT: self._answered_now} if self.channel.zero_copy else {}
        if is_another_user(transport.get_extra_info("socket")):
            extensions[DESCRIPTORS] = Passing(in_flight_of(self._state), self.channel)
        self._shared = {
            "type": "http",
            "asgi": _ASGI,
            "scheme": self._scheme,
            "root_path": "",
            "client": client,
            "server": server,
            "extensions": extensions,
        }
        self._connections.add(self)
        metrics.OPENED_CONNECTIONS.inc()
        metrics.CONNECTIONS.inc()
        self.deadline = self.loop.time() + self.head_timeout
        self._callers.add(self, None)
        watch(self._connections, self.loop, min(self._keep_alive, self.head_timeout, self.body_timeout))

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the application, at whatever point of its response."""
        self._connections.discard(self)
        self._callers.discard(self, self._caller)
        metrics.CONNECTIONS.dec()
        self.channel.lose()
        self._drop_waiting()
        self.repeated = self._again = None
        if self._active is not None:
            self._active.leave()
        if self._parser is not None:
            self._parser.close()
            self._parser = None

    def pause_writing(self) -> None:
        """Note that the transport's buffer is no longer empty."""
        self.channel.pause()

    def resume_writing(self) -> None:
        """Note that the transport's buffer is empty again."""
        self.channel.resume()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and start the completed request if it is first in line."""
        if self._again is not None:
            if (self._limit is None or len(self.tasks) < self._limit) and self._again(data):
                if self._active is None:  # else ``adopt`` was called
                    self.deadline = self.loop.time() + self._keep_alive
                return
            self._again = None
        if self._linger is not None:
            self._linger -= len(data)
            if self._linger < 0:
                self.transport.close()
            return
        parser = self._parser
        if self._refused is not None or parser is None:
            return
        was_in_head = parser.in_head
        try:
            parser.feed(data)
        except BadRequest as refused:
            if isinstance(refused, TlsClient):
                self._callers.meet_tls()
            self._refuse(refused)
        if parser.in_head and not was_in_head and self._active is None:
            self.deadline = self.loop.time() + self.head_timeout
        if self._active is None and self._pipeline:
            self._start_next()

    def eof_received(self) -> bool:
        """Handle the end of the client's input; returns whether requests remain to be answered."""
        active, parser = self._active, self._parser
        cut = self._parsing is not None or parser is None or parser.in_head
        if active is None or active.waiting or cut or self._scheme == "https":
            return False
        (self._pipeline[-1] if self._pipeline else active).keep_alive = False
        self._ended = True
        return True

    # Called by the parser

    def on_request(
        self,
        method: str,
        target: tuple[bytes, bytes],
        version: str,
        headers: RawHeaders,
        keep_alive: bool,
        expects: bool,
        ended: bool,
        /,
    ) -> None:
        """Queue the request."""
        self.deadline = NEVER
        raw_path, query = target
        path = raw_path.decode("ascii")
        scope: Scope = {
            **self._shared,
            "http_version": version,
            "method": method,
            "path": _decoded(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
            "state": self._app_state.copy(),
        }
        if self._caller is None:
            scope[AUTHENTICATED] = self._authenticated
        parser = self._parser
        if parser is not None and parser.plain is not None and not query:
            # Two heads of equal length, apart from their paths, suggest that more will follow.
            before, self._usual_length = self._usual_length, len(parser.plain) - len(raw_path)
            if before == self._usual_length:
                scope[REPEATS] = self, parser.plain
        cycle = Cycle(self, scope, keep_alive=keep_alive, expects=expects)
        self._pipeline.append(cycle)
        if ended:
            cycle.more_body = False
        else:
            self._parsing = cycle
        if self._active is not None:
            self._pause_reading()

    def on_piece(self, piece: bytes) -> None:
        """Take a piece of a request body."""
        cycle = self._parsing
        if cycle is None or cycle.complete:
            return
        if cycle.pace is not None:
            by = cycle.pace.got(len(piece), self.loop.time())
            if cycle.waiting:
                self.deadline = by
        if cycle.feed(piece):
            self._pause_reading()

    def on_end(self) -> None:
        """Note that a request is complete."""
        cycle = self._parsing
        if cycle is None:
            return
        cycle.more_body = False
        self._parsing = None
        if cycle is self._active:
            self.deadline = NEVER
            cycle.wake()

    # Called by requests

    def _start_next(self) -> None:
        cycle = self._active = self._pipeline.popleft()
        application = self._application
        if (
            self._limit is not None
            and len(self.tasks) >= self._limit
            and not cycle.scope["raw_path"].startswith(b"/-/")
        ):
            application = slow_down
        # If answered at once, a long pipeline would recurse deeply.
        rest = cycle.begin(application, at_once=not self._pipeline)
        if rest is not None:
            self.run(cycle, rest)

    def run(self, cycle: Cycle, rest: Coroutine[Any, Any, None]) -> None:
        """Run in a task what remains to be done for a request."""
        cycle.task = self.loop.create_task(rest)
        self.tasks.add(cycle.task)

    def _answered_now(self) -> Cycle | None:
        return self._active

    def await_body(self, cycle: Cycle) -> None:
        """Read more of the body, for which the application waits, and enforce its rate."""
        if self._ended:
            self.transport.close()
            return
        self.resume_reading()
        if cycle.more_body:
            if cycle.pace is None:
                cycle.pace = ClientPace(self.body_timeout, self.min_rate)
            self.deadline = cycle.pace.wait(self.loop.time())

    def body_came(self, cycle: Cycle) -> None:
        """Note that the application has received a piece; its processing time does not count as waiting."""
        if cycle is self._active and cycle.pace is not None:
            cycle.pace.stop(self.loop.time())
            self.deadline = NEVER

    def reader_is_behind(self) -> None:
        """An answer waits for the client to accept more: stop counting it as work, and enforce the client's progress."""
        cycle = self._active
        if cycle is not None and cycle.place is not None:
            cycle.place.rest()
        self._behind = True
        if self._reading_pace is None:
            taken = self.channel.taken()
            if taken is None:
                return  # a unix socket: its timers enforce this
            self._reading_pace, self._taken = ClientPace(self.unread_timeout, self.min_rate), taken
        self.deadline = self._reading_pace.wait(self.loop.time())

    def reader_came(self) -> None:
        """Continue the answer."""
        cycle = self._active
        if cycle is not None and cycle.place is not None:
            cycle.place.go_on()
        self._behind = False
        if self._reading_pace is not None:
            self._reading_pace.stop(self.loop.time())
            self.deadline = NEVER

    def on_response_complete(self, cycle: Cycle) -> None:
        """Start the next request, or end the connection."""
        self._state.total_requests += 1
        self._active = self._reading_pace = None
        self.deadline = NEVER
        if self.transport.is_closing():
            return
        if self._caller is None:
            self._callers.rest(self, None)
        if cycle.more_body:
            self._begin_linger()
        elif not cycle.keep_alive:
            self._drop_waiting()
            self._close()
        elif self._pipeline:
            self._start_next()
        elif self._refused is not None:
            self._send_refusal(self._refused)
        else:
            in_head = self._parser is not None and self._parser.in_head
            self.deadline = self.loop.time() + (self.head_timeout if in_head else self._keep_alive)
            if not in_head:
                self._again = None if self.repeated is None else self.repeated.answer
            if not self._reading:
                self.resume_reading()

    def adopt(self, path: bytes, headers: RawHeaders) -> Cycle:
        """Make the request that ``repeated`` is answering active; returns its cycle, whose response has begun."""
        self._again = None
        self.on_request("GET", (path, b""), "1.1", headers, True, False, True)
        cycle = self._active = self._pipeline.popleft()
        cycle.started = True
        return cycle

    def _drop_waiting(self) -> None:
        """Drop the requests after the active one; the last of them may still be arriving."""
        self._pipeline.clear()
        if self._parsing is not self._active:
            self._parsing = None

    def _begin_linger(self) -> None:
        self._drop_waiting()
        self._linger = LINGER_BYTES
        self.deadline = self.loop.time() + self.linger_timeout
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.resume_reading()

    def _refuse(self, refused: BadRequest) -> None:
        """Record that the rest of the input is invalid, and answer once all earlier requests are answered."""
        self._refused = refused
        broken, self._parsing = self._parsing, None
        if broken is not None and broken is self._active:
            self._active = None
            broken.leave()
            if broken.started:
                self.channel.break_off()
            else:
                self._send_refusal(refused)
        else:
            if broken is not None:
                self._pipeline.remove(broken)
            if self._active is None and not self._pipeline:
                self._send_refusal(refused)

    def _send_refusal(self, refused: BadRequest) -> None:
        self.transport.write(refusal(refused.code, refused.explain))
        self._begin_linger()

    # Reading, time, and the end

    def _pause_reading(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless pipelined requests are waiting."""
        if not self._reading and not self._pipeline and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    def expire(self) -> None:
        """Act on the deadline, which has passed."""
        self.deadline = NEVER
        if self.transport.is_closing():  # and it has unread bytes
            self.transport.abort()
            return
        if self._behind and self._reading_pace is not None:
            self._judge_reader(self._reading_pace)
            return
        if self._active is not None and not self._active.waiting:
            return
        in_head = self._parser is not None and self._parser.in_head
        if self._active is not None or (in_head and self._linger is None):
            self._refuse(BadRequest("RequestTimeout"))
        else:
            self.hang_up()

    def _judge_reader(self, pace: ClientPace) -> None:
        """End the connection of a client that accepts its answer too slowly."""
        taken, now = self.channel.taken() or self._taken, self.loop.time()
        self.deadline = pace.got(taken - self._taken, now)
        self._taken = taken
        if self.deadline <= now:
            self.channel.break_off()

    def shutdown(self) -> None:
        """Stop: end the connection now, or after the response in progress."""
        self._drop_waiting()
        if self._active is None:
            self.hang_up()
        else:
            self._active.keep_alive = False

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self._active is None

    @property
    def waits(self) -> bool:
        """Whether the request being answered is waiting for the client."""
        active = self._active
        return active is not None and (self._behind or (active.waiting and active.more_body))

    def _authenticated(self, caller: Holder) -> None:
        if caller is not None and self._caller is None and not self.transport.is_closing():
            self._callers.discard(self, None)
            self._caller = caller
            self._callers.add(self, caller)

    def turn_away(self) -> None:
        """Close the connection, because its caller has too many. A request that waits for its body is answered first."""
        active = self._active
        if active is None and not self.transport.get_write_buffer_size():
            self.hang_up()
        elif active is None or active.started:
            self.channel.break_off()
        else:
            self._active = None
            active.leave()
            self.transport.write(refusal("SlowDown"))
            self._close()

    def _close(self) -> None:
        """Close the connection once the client has accepted the transport's buffer, within a bounded time."""
        self.transport.close()
        self.deadline = self.loop.time() + self.unread_timeout

    def hang_up(self) -> None:
        """Close the connection after sending the transport's buffer."""
        self._close()
        if self._scheme == "https":
            self.loop.call_later(self.goodbye_timeout, self.transport.abort)


def _decoded(path: str) -> str:
    """A percent-decoded path. Most paths from other nodes have only the escaped slashes of a key, and ``unquote`` is slow."""
    path = path.replace("%2F", "/")
    return unquote(path) if "%" in path else path
