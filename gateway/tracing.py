"""Traces by OpenTelemetry: a span for each request that a gateway answers, and for each that it sends to an origin or a node.

W3C Trace Context (https://www.w3.org/TR/trace-context/) connects them: the span of a request is a child of the client's
``traceparent``, the spans of what the gateway sends are its children, and their ``traceparent`` goes to the other node or the
origin. So one trace shows a read from the training loop through the fleet to the store.

Without ``tracing.enabled`` nothing of OpenTelemetry is imported, and a request pays for one comparison. Where spans go, and which
are kept, is said by OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_SAMPLER.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gateway import __version__
from gateway.model.errors import ConfigError
from gateway.model.objects import Header
from gateway.model.redaction import redact_path

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_CACHE = b"x-larder-cache"
_SERVICE = "larder-gateway"
_tracer: Tracer | None = None


def start() -> Callable[[], None]:
    """Trace in this process from now on.

    Returns:
        Exports the remaining spans and ends it.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    global _tracer
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "tracing.enabled: OpenTelemetry is not installed; install larder-gateway[tracing], or set it to false"
        ) from None
    own = Resource({SERVICE_NAME: _SERVICE, SERVICE_VERSION: __version__})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer = provider.get_tracer("gateway", __version__)

    def end() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return end


def trace_id() -> str | None:
    """The id of the current trace in hex, for a log line."""
    if _tracer is None:
        return None
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


@contextmanager
def sending(
    method: str, target: str, address: str, headers: Sequence[Header]
) -> Iterator[tuple[Sequence[Header], Callable[[int], None]]]:
    """The span of a request to an origin or a node, until the head of its answer.

    Yields:
        The request's headers, with ``traceparent`` if it is traced; and a function that is told the status of the answer.
    """
    if _tracer is None:
        yield headers, _untold
        return
    from opentelemetry.propagate import inject
    from opentelemetry.trace import SpanKind

    about = {"http.request.method": method, "url.path": _path(target), "server.address": address}
    with _tracer.start_as_current_span(method, kind=SpanKind.CLIENT, attributes=about) as span:
        added: dict[str, str] = {}
        inject(added)
        yield [*headers, *added.items()], lambda status: _answered(span, status)


class Traced:
    """An ASGI application whose requests are traced."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request within a span of its own."""
        if _tracer is None or scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        told = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        about = {
            "http.request.method": scope["method"],
            "url.path": _path(scope["raw_path"].decode("ascii", "replace")),
        }
        with _tracer.start_as_current_span(
            scope["method"], context=extract(told), kind=SpanKind.SERVER, attributes=about
        ) as span:

            async def watched(message: Any) -> None:
                if "status" in message:
                    _answered(span, message["status"])
                    span.set_attribute("larder.cache", _cache_of(message))
                await send(message)

            await self._application(scope, receive, watched)


def _cache_of(message: Any) -> str:
    """What ``x-larder-cache`` says; empty if it is not there. Hits of the short path have their head encoded."""
    if "head" in message:
        return "HIT"
    return next((value.decode("latin-1") for name, value in message.get("headers", ()) if name == _CACHE), "")


def _path(target: str) -> str:
    return redact_path(target.partition("?")[0])


def _answered(span: Span, status: int) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def _untold(_status: int) -> None:
    return
