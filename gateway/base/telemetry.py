"""Spans by OpenTelemetry's SDK, for ``gateway/base/tracing.py``; imported only by a gateway that traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract, inject
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span

from gateway import __version__

Answered = Callable[[int, str], None]
"""Records the status of an answer, and its cache status if known."""
_SERVICE = "larder-gateway"


class Telemetry:
    """The spans of one process, exported in batches by a thread."""

    def __init__(self) -> None:
        own = Resource({SERVICE_NAME: _SERVICE, SERVICE_VERSION: __version__})
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("gateway", __version__)

    def close(self) -> None:
        """Export the remaining spans."""
        self._provider.shutdown()

    def trace_id(self, *, sampled: bool = False) -> str | None:
        """The id of the current trace in hex; with ``sampled``, only if its spans are exported."""
        context = get_current_span().get_span_context()
        known = context.is_valid and (context.trace_flags.sampled or not sampled)
        return f"{context.trace_id:032x}" if known else None

    @contextmanager
    def received(self, method: str, path: str, headers: Mapping[str, str]) -> Iterator[Answered]:
        """The span of a request that this gateway answers, a child of the client's span."""
        about = {"http.request.method": method, "url.path": path}
        with self._tracer.start_as_current_span(
            method, context=extract(headers), kind=SpanKind.SERVER, attributes=about
        ) as span:
            yield lambda status, cache: _answered(span, status, cache)

    @contextmanager
    def sent(self, method: str, path: str, address: str) -> Iterator[tuple[dict[str, str], Answered]]:
        """The span of a request to another server, until the head of its answer; and headers that announce it there."""
        about = {"http.request.method": method, "url.path": path, "server.address": address}
        with self._tracer.start_as_current_span(method, kind=SpanKind.CLIENT, attributes=about) as span:
            headers: dict[str, str] = {}
            inject(headers)
            yield headers, lambda status, cache: _answered(span, status, cache)


def _answered(span: Span, status: int, cache: str) -> None:
    span.set_attribute("http.response.status_code", status)
    if cache:
        span.set_attribute("larder.cache", cache)
    if status >= 500:
        span.set_status(StatusCode.ERROR)
