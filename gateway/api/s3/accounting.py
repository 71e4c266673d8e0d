"""Accounting of each S3 request after its answer: metrics, the tally by tenant and bucket, the line of the access log, and the
entry for live followers."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from prometheus_client import Counter, Histogram

from gateway.api.s3.access_log import AccessLine, AccessLog
from gateway.api.s3.answer import Answer, RemoteHit, cache_status, date_header
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.hot import Hit, Unresolved
from gateway.api.s3.signer import LoggedSigner, signer_of
from gateway.base import metrics, tracing
from gateway.edge import exposition
from gateway.engine.objects.cold import Answer as OriginAnswer
from gateway.engine.operations.live import LiveRequests
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.engine.operations.traffic import Traffic, TrafficTally
from gateway.model.errors import LarderError
from gateway.model.fleet import Node
from gateway.model.keys import ObjectKey
from gateway.model.live import LiveRequest
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.redaction import redact_path
from gateway.model.s3.sigv4 import WireRequest
from gateway.net.exchange import StreamedResponse
from gateway.policies.fleet.ring import Ring
from gateway.server.asgi_types import Scope

METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"})
"""The methods of S3."""


_NOT_MODIFIED = 304
_FASTEST = min(metrics.LATENCY._upper_bounds)
"""Seconds of the first bucket of the latencies."""


class Trace:
    """The facts about a request gathered so far, for its answer and its log line.

    ``started`` is on the performance counter, ``time`` in seconds since the epoch. ``refusal`` is why it was not verified.
    """

    # Class attributes, so that a new trace need not set them.
    found: Hit | RemoteHit | Unresolved = Unresolved.OTHER
    refusal: LarderError | None = None
    bucket: str = ""
    key: ObjectKey | None = None
    signer: LoggedSigner | None = None
    home: Node | None = None
    ring: Ring | None = None
    """The ring by which ``home`` is the home of the object to read; without ``home``, this node is."""
    client: tuple[str, int] | None = None
    """The address of the client's connection."""
    sent: StreamedResponse | None = None
    """The request to the home, if it was sent before the long path began."""
    begun: asyncio.Future[OriginAnswer] | None = None
    """The origin's answer, if it came before the long path began."""

    def __init__(
        self, started: float, time: float, request_id: str, request: WireRequest, auth: Authenticated | None = None
    ) -> None:
        self.started = started
        self.time = time
        self.request_id = request_id
        self.request = request
        self.auth = auth

    def head(self, lines: bytes) -> bytes:
        """The header lines of a hit, completed for this request's answer."""
        return b"%bx-amz-request-id: %b\r\ndate: %b\r\n" % (
            lines, self.request_id.encode(), date_header(int(self.time))[1],
        )  # fmt: skip


class _Series:
    """The metrics of one kind of answer.

    Only the event loop counts answers. So it adds to the values themselves (``Accounting.note``), as ``metrics.LoopSum`` does.
    """

    __slots__ = ("bounds", "buckets", "requests", "seconds", "sent")

    def __init__(self, requests: Counter, seconds: Histogram, sent: Counter) -> None:
        self.requests: Any = requests._value
        self.sent: Any = sent._value
        self.seconds: Any = seconds._sum
        self.bounds: Sequence[float] = seconds._upper_bounds
        self.buckets: Sequence[Any] = seconds._buckets
        metrics.counted_in_loop(self.requests, self.sent, self.seconds, *self.buckets)


@cache  # one entry per series
def _series(method: str, hundreds: int, outcome: Outcome, reason: Reason | None) -> _Series:
    """The metrics of answers by method, class of the status, outcome and reason, looked up once for each kind."""
    labels = (method, f"{hundreds}xx", outcome.value, "" if reason is None else reason.value)
    return _Series(
        metrics.REQUESTS.labels(*labels),
        metrics.LATENCY.labels(outcome.value),
        metrics.SENT_BYTES.labels(outcome.value),
    )


class CountedHits:
    """Repeated hits of one bucket by one tenant, since the last ``Accounting.publish``, which counts them together as ``count``
    would.

    Attributes:
        requests: their answers.
        sent: bytes of objects in these.
        seconds: their total time.
    """

    __slots__ = ("_series", "_slow", "_traffic", "requests", "seconds", "sent")

    def __init__(self, series: _Series, traffic: Traffic) -> None:
        self._series = series
        self._traffic = traffic
        self._slow: list[int] = []
        self.requests = self.sent = 0
        self.seconds = 0.0

    def add(self, sent: int, seconds: float) -> None:
        """Count an answer."""
        self.requests += 1
        self.sent += sent
        self.seconds += seconds
        if seconds > _FASTEST:
            self._slow.append(bisect_left(self._series.bounds, seconds))

    def publish(self) -> int:
        """Hand the counts to the metrics; returns the number of answers."""
        series, traffic, slow, requests = self._series, self._traffic, self._slow, self.requests
        series.requests._value += requests
        series.seconds._value += self.seconds
        series.sent._value += self.sent
        series.buckets[0]._value += requests - len(slow)
        for place in slow:
            series.buckets[place]._value += 1
        traffic.requests += requests
        traffic.sent += self.sent
        self._slow, self.requests, self.sent, self.seconds = [], 0, 0, 0.0
        return requests


class Accounting:
    """Counts and logs requests, from the same answer as the client's header."""

    def __init__(
        self, node: str, access: AccessLog, tally: TrafficTally, live: LiveRequests, rates: TenantRates
    ) -> None:
        self.node = node
        self.tally = tally
        self.live = live
        self.rates = rates
        self._access = access
        self._hits: dict[tuple[str, str], CountedHits] = {}
        self.repeated = metrics.LoopSum(metrics.REPEATED)
        self.drain: Callable[[], None] = lambda: None
        """Counts the answers that have been sent and not counted."""

    def note(self, scope: Scope, trace: Trace, answer: Answer | Hit | RemoteHit, turned_around: float) -> None:
        """Account for a request.

        Args:
            scope: of ASGI.
            trace: the request.
            answer: its answer.
            turned_around: when the answer began, on the performance counter; it ends now.
        """
        seconds = time.perf_counter() - trace.started
        method = trace.request.method
        sent = 0 if method == "HEAD" or answer.status == _NOT_MODIFIED else answer.length
        tenant = None if trace.auth is None else trace.auth.principal.tenant
        self.count(method if method in METHODS else "OTHER", answer, tenant, trace.bucket, sent, seconds)
        if tracing.telemetry is not None and (trace_of := tracing.sampled_trace_id()) is not None:
            exposition.note(answer.outcome.value, seconds, trace_of)
        if answer.reason is not None and tenant is not None and trace.key is not None and method == "GET":
            self.tally.missed.append((trace.key, answer.reason, sent))
        if self.live.followers:
            self.live.note(self._seen(scope, trace, answer, seconds))
        if self._access.enabled:
            self._access.write(_line(scope, trace, answer, seconds, turned_around - trace.started))

    def count(
        self,
        method: str,
        answer: Answer | Hit | RemoteHit,
        tenant: str | None,
        bucket: str,
        sent: int,
        seconds: float,
    ) -> None:
        """Count an answer: ``sent`` are the object's bytes in it, ``tenant`` is ``None`` for a request that was not verified."""
        outcome = answer.outcome
        series = _series(method, answer.status // 100, outcome, answer.reason)
        series.requests._value += 1
        series.seconds._value += seconds
        if method == "GET":
            series.sent._value += sent
        series.buckets[bisect_left(series.bounds, seconds)]._value += 1
        if tenant is not None:
            traffic = self.tally.kinds.get((tenant, bucket, outcome))
            if traffic is None:
                traffic = self.tally.begin(tenant, bucket, outcome, answer.status)
            traffic.requests += 1
            traffic.sent += sent
            if self.rates.limits:
                self.rates.spend(tenant, sent)

    def hits(self, tenant: str, bucket: str) -> CountedHits:
        """The count of repeated hits of a bucket by a tenant; ``count`` has counted the first one."""
        counted = self._hits.get((tenant, bucket))
        if counted is None:
            traffic = self.tally.begin(tenant, bucket, Outcome.HIT, 200)
            counted = self._hits[tenant, bucket] = CountedHits(_series("GET", 2, Outcome.HIT, None), traffic)
        return counted

    def publish(self) -> None:
        """Hand the counts to the metrics."""
        self.drain()
        self.repeated.inc(sum(counted.publish() for counted in self._hits.values()))
        self.tally.publish()

    @property
    def recorded(self) -> bool:
        """Whether each answer needs more than ``count``: a line in the access log, or an entry for live followers."""
        return self._access.enabled or tracing.telemetry is not None

    def _seen(self, scope: Scope, trace: Trace, answer: Answer | Hit | RemoteHit, seconds: float) -> LiveRequest:
        principal = None if trace.auth is None else trace.auth.principal
        return LiveRequest(
            at=time.time(),
            node=self.node,
            request_id=trace.request_id,
            trace_id=tracing.trace_id() or "",
            tenant="" if principal is None else principal.tenant,
            access_key_id="" if principal is None else principal.access_key_id,
            address=(scope.get("client") or ("", 0))[0],
            method=trace.request.method,
            bucket=trace.bucket,
            key="" if trace.key is None else redact_path(trace.key.key),
            status=answer.status,
            outcome=answer.outcome.value,
            reason="" if answer.reason is None else answer.reason.value,
            bytes=answer.length,
            seconds=round(seconds, 6),
        )


def _line(
    scope: Scope, trace: Trace, answer: Answer | Hit | RemoteHit, seconds: float, turn_around: float
) -> AccessLine:
    request = trace.request
    target = (request.raw_path + (b"?" + request.query if request.query else b"")).decode("ascii", "replace")
    signer = trace.signer or signer_of(request, trace.auth)
    client = scope.get("client") or ("-", 0)

    def text(name: bytes) -> str:
        return (request.fields.get(name) or b"").decode("latin-1")

    cache_field = cache_status(answer.outcome, answer.reason)[1].decode()
    return AccessLine(
        trace.bucket, trace.key.key if trace.key else None, client[0],
        signer.access_key_id, trace.request_id, request.method, target, answer.status,
        answer.code, answer.length, seconds, turn_around, text(b"referer"), text(b"user-agent"),
        signer.version, signer.place, text(b"host"), request.scheme == "https", cache_field,
    )  # fmt: skip
