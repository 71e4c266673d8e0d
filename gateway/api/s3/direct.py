"""Repeated hits of objects whose home is another node, relayed without a task.

The long path (``relayed.py``) has learned the head of the home's answer. The request is sent over a kept connection before
``begin`` returns. If the same head comes again, and the whole body with it, both are sent on where they are received. Everything
else is left to the long path, in a task, before a byte is sent: another head, a large or slow body, an answer that takes
``_PATIENCE``, a broken connection, a client that has not received its last answer.
"""

from __future__ import annotations

import asyncio
import time

from gateway.api.s3.accounting import Accounting, Trace
from gateway.api.s3.answer import RemoteHit
from gateway.api.s3.hot import Unresolved
from gateway.base import tracing
from gateway.base.metrics import RELAYED, LoopSum
from gateway.edge.asgi import Edge
from gateway.engine.engine import Engine
from gateway.fleet.nodes.peers import Peers
from gateway.model.peer.principal import principal_header
from gateway.server.asgi_types import Scope
from gateway.server.cycle import DIRECT, Cycle
from gateway.store.shared.accesses import Note

_PATIENCE = 0.05
"""Seconds within which the whole answer must come; at most twice that. A task waits for a slower answer, and finds out whether
the home is alive."""


class DirectReads:
    """Relays hits without a task.

    Args:
        engine: the rules, and the writes that the home may not know.
        peers: sends requests to other nodes.
        note: records every read that is answered.
        accounting: counts and logs answers.
    """

    def __init__(self, engine: Engine, peers: Peers, note: Note, accounting: Accounting) -> None:
        self.peers = peers
        self.note = note
        self.accounting = accounting
        self.answered = LoopSum(RELAYED.labels("answered"))
        self.waiting: set[_Relay] = set()
        self._engine = engine
        self._alarm: asyncio.TimerHandle | None = None

    def begin(self, edge: Edge, scope: Scope, trace: Trace, hit: RemoteHit) -> bool:
        """Ask the home; returns whether ``edge`` need not answer: the request is answered later."""
        engine, auth = self._engine, trace.auth
        assert auth is not None
        trace.found = Unresolved.PLAIN
        if tracing.telemetry is not None or engine.services.rules is not hit.rules or engine.owes_at(hit.slots):
            return False
        principal = auth.principal
        told = principal_header(principal.tenant, principal.identity)
        relay = _Relay(self, edge, scope["extensions"][DIRECT](), trace, hit)
        sent = trace.sent = self.peers.get_kept(hit.peer, hit.path, told, hit.known, relay)
        if sent is None:
            return False
        edge.places.used += 1
        relay.cycle.deferred = True
        self.waiting.add(relay)
        if self._alarm is None:
            self._alarm = sent.loop.call_later(_PATIENCE, self._look, sent.loop)
        return True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave the reads that have waited too long: one timer serves all, because most answers come at once."""
        late = loop.time() - _PATIENCE
        for relay in [each for each in self.waiting if each.asked <= late]:
            relay.leave()
        self._alarm = loop.call_later(_PATIENCE, self._look, loop) if self.waiting else None


class _Relay:
    """One read; it waits for the beginning of its answer (``net.connection.Begun``)."""

    __slots__ = ("_edge", "_hit", "_reads", "_trace", "cycle")

    def __init__(self, reads: DirectReads, edge: Edge, cycle: Cycle, trace: Trace, hit: RemoteHit) -> None:
        self._reads = reads
        self._edge = edge
        self._trace = trace
        self._hit = hit
        self.cycle = cycle

    @property
    def asked(self) -> float:
        """When the home was asked, on the loop's clock."""
        assert self._trace.sent is not None
        return self._trace.sent.asked

    def done(self) -> bool:
        """See ``Begun``."""
        return self not in self._reads.waiting

    def set_exception(self, _failure: Exception, /) -> None:
        """No answer came: the long path asks again."""
        self.leave()

    def set_result(self, _result: None, /) -> None:
        """The answer has begun. If it is whole, send it."""
        hit, trace, reads, cycle = self._hit, self._trace, self._reads, self.cycle
        response, turned_around = trace.sent, time.perf_counter()
        assert response is not None
        assert trace.auth is not None
        whole = response.complete and response.head is hit.known.data and response.size == hit.length
        if not whole or not cycle.send_now(hit.status, trace.head(hit.head), response.pieces):
            self.leave()
            return
        response.pieces, trace.sent = [], None  # a reference cycle would be left to the garbage collector
        reads.waiting.discard(self)
        self._edge.places.used -= 1
        reads.peers.passed_on(response, hit.length)
        reads.answered.inc()
        trace.key, trace.bucket = hit.key, hit.key.bucket
        scope, who = cycle.scope, trace.auth.principal.access_key_id
        waited = turned_around - trace.started
        reads.note(hit.key, 0, hit.length, hit.length, True, trace.time, who, scope.get("client"), waited)
        reads.accounting.note(scope, trace, hit, turned_around)

    def leave(self) -> None:
        """Let the long path continue, in a task."""
        self._reads.waiting.discard(self)
        self._edge.places.used -= 1
        cycle = self.cycle
        cycle.go_on(self._edge(cycle.scope, cycle.receive, cycle.send))
