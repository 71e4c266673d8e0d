"""Accounting of each request under ``/-/v1`` after its answer: traffic and limits of tenants, and live followers.

Among buckets, a dataset appears as ``dataset:NAME``: its items may be in several buckets, and no bucket's name has a colon.
Requests that read no items appear under their kind, as in ``(jobs)``. Addresses of blobs have digests, and are not shown.
"""

from __future__ import annotations

import time

from gateway.api.s3.accounting import Accounting
from gateway.api.v1.batch_body import ItemTally
from gateway.api.v1.identity import CALLER
from gateway.base import metrics, tracing
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.model.keys import Principal
from gateway.model.live import LiveRequest
from gateway.model.outcomes import Outcome, Reason
from gateway.server.asgi_types import Application, Message, Receive, Scope, Send
from gateway.server.cycle import PIECES

_KINDS = frozenset({"blobs", "datasets", "importance", "jobs", "lookup", "results"})
_OTHERS = "(others)"
_FROM_CACHE = ("(blobs)", "(results)")
BAD_REQUEST = 400
OF_DATASET = "dataset:"
"""The prefix of a dataset's name among buckets."""


class AnswerTally(ItemTally):
    """Counts the items of one answer, for the worker's metrics and for the answer's own record.

    Attributes:
        items: delivered.
        failed: not delivered.
        hits: delivered from the cache.
        sent: bytes.
        cached: bytes from the cache.
    """

    def __init__(self) -> None:
        super().__init__(metrics.BATCH_ITEMS, metrics.BATCH_BYTES)
        self.items = self.failed = self.hits = self.sent = self.cached = 0

    def item(self, flags: ItemFlag, status: ItemStatus, size: int) -> None:
        """Count one item of the answer."""
        self.failed += status is not ItemStatus.OK
        super().item(flags, status, size)

    def delivered(self, result: str, count: int, size: int) -> None:
        """Count ``count`` items of ``size`` bytes in total."""
        super().delivered(result, count, size)
        self.items += count
        self.sent += size
        if result == "hit":
            self.hits += count
            self.cached += size

    @property
    def outcome(self) -> tuple[Outcome, Reason | None]:
        """The outcome of the whole batch: a hit if every item was one."""
        if self.hits == self.items and not self.failed:
            return Outcome.HIT, None
        return Outcome.MISS, Reason.PARTIAL if self.hits else Reason.COLD


class BatchAccounting:
    """Counts batches in the place where ``accounting`` counts S3 requests."""

    def __init__(self, accounting: Accounting) -> None:
        self._node = accounting.node
        self._tally = accounting.tally
        self._live = accounting.live
        self._rates = accounting.rates

    def note(self, scope: Scope, principal: Principal, dataset: str, counted: AnswerTally, seconds: float) -> None:
        """Account for a batch of the dataset with this name, which took ``seconds``."""
        outcome, reason = counted.outcome if counted.items or counted.failed else (Outcome.BYPASS, None)
        bucket = f"{OF_DATASET}{dataset}"
        self._tally.begin(principal.tenant, bucket, outcome, 200).requests += 1
        parts = ((Outcome.HIT, counted.cached), (Outcome.MISS, counted.sent - counted.cached))
        for kind, size in parts:
            if size:
                self._tally.begin(principal.tenant, bucket, kind, 200).sent += size
        self._rates.spend(principal.tenant, counted.sent)
        if self._live.followers:
            what = f"{counted.hits} hits of {counted.items + counted.failed} items"
            self._live.note(self._seen(scope, principal, bucket, what, 200, (outcome, reason), counted.sent, seconds))

    def note_call(self, scope: Scope, sent: SentBody, seconds: float) -> None:
        """Account for any other request whose caller is known; ``sent`` has its answer, which took ``seconds``."""
        principal: Principal | None = scope.get(CALLER)
        if principal is None:
            return
        kind = _kind_of(scope["path"])
        outcome = Outcome.HIT if kind in _FROM_CACHE and sent.status < BAD_REQUEST else Outcome.BYPASS
        traffic = self._tally.begin(principal.tenant, kind, outcome, sent.status)
        traffic.requests += 1
        traffic.sent += sent.size
        self._rates.spend(principal.tenant, sent.size)
        if self._live.followers:
            self._live.note(self._seen(scope, principal, kind, "", sent.status, (outcome, None), sent.size, seconds))

    def _seen(
        self,
        scope: Scope,
        principal: Principal,
        bucket: str,
        what: str,
        status: int,
        outcome: tuple[Outcome, Reason | None],
        size: int,
        seconds: float,
    ) -> LiveRequest:
        """The record of the request for live followers; ``what`` replaces the key."""
        reason = outcome[1]
        return LiveRequest(
            at=time.time(),
            node=self._node,
            request_id="",
            trace_id=tracing.trace_id() or "",
            tenant=principal.tenant,
            access_key_id=principal.access_key_id,
            address=(scope.get("client") or ("", 0))[0],
            method=scope["method"],
            bucket=bucket,
            key=what,
            status=status,
            outcome=outcome[0].value,
            reason="" if reason is None else reason.value,
            bytes=size,
            seconds=round(seconds, 6),
        )


class SentBody:
    """The ``send`` of one answer, which counts the bytes of its body.

    Attributes:
        status: of the answer; 0 before it has begun.
        size: bytes of the body.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = self.size = 0

    async def __call__(self, message: Message) -> None:
        """Send an event of the response, and count it."""
        await self._send(message)
        kind = message["type"]
        if kind == "http.response.start":
            self.status = message["status"]
        elif kind == "http.response.body":
            self.size += len(message.get("body", b""))
        elif kind == "http.response.zerocopysend":
            self.size += message["count"]
        elif kind == PIECES:
            self.size += sum([len(piece) if isinstance(piece, bytes) else piece[2] for piece in message["pieces"]])


class AccountedCalls:
    """An application whose verified requests count for their tenants.

    Args:
        application: answers them.
        accounting: counts them.
    """

    def __init__(self, application: Application, accounting: BatchAccounting) -> None:
        self._application = application
        self._accounting = accounting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began, sent = time.perf_counter(), SentBody(send)
        try:
            await self._application(scope, receive, sent)
        finally:
            self._accounting.note_call(scope, sent, time.perf_counter() - began)


def _kind_of(path: str) -> str:
    """The name of a kind of requests, from a path without "/-": there are as many as ``_KINDS``."""
    parts = path.split("/")[2:]
    for part in (*parts[2:3], *parts[:1]):
        if part in _KINDS:
            return f"({part})"
    return _OTHERS
