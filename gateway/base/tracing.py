"""Traces by OpenTelemetry: a span for each request that a gateway answers, and for each that it sends to an origin or a node.

W3C Trace Context (https://www.w3.org/TR/trace-context/) connects them: the span of a request is a child of the client's
``traceparent``, the spans of the gateway's own requests are its children, and their ``traceparent`` goes to the other node or
the origin. So one trace follows a read from the training loop through the fleet to the store.

Without ``tracing.enabled``, the gateway does not import OpenTelemetry. OpenTelemetry's own variables, such as
OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_SAMPLER, set the exporter and the sampling.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gateway.model.errors import ConfigError
from gateway.model.objects import Header
from gateway.model.s3.redaction import redact_path

if TYPE_CHECKING:
    from gateway.base.telemetry import Telemetry

_CACHE = b"x-larder-cache"
telemetry: Telemetry | None = None
"""This process's; ``None`` if it does not trace. The exchange reads it, so that a request costs no call without tracing."""


class Answered(Protocol):
    """An answer with its HTTP status."""

    status: int


A = TypeVar("A", bound=Answered)


def start() -> Callable[[], None]:
    """Trace in this process from now on.

    Returns:
        A function that exports the remaining spans and ends tracing.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    global telemetry
    try:
        from gateway.base.telemetry import Telemetry
    except ImportError:
        raise ConfigError(
            "tracing.enabled: OpenTelemetry is not installed; install larder-gateway[tracing], or set it to false"
        ) from None
    started = telemetry = Telemetry()

    def end() -> None:
        global telemetry
        telemetry = None
        started.close()

    return end


def trace_id() -> str | None:
    """The id of the current trace in hex, for a log line."""
    return None if telemetry is None else telemetry.trace_id()


def sampled_trace_id() -> str | None:
    """The id of the current trace in hex, if its spans are exported."""
    return None if telemetry is None else telemetry.trace_id(sampled=True)


async def sent(
    method: str, target: str, address: str, headers: Sequence[Header], send: Callable[[Sequence[Header]], Awaitable[A]]
) -> A:
    """Send a request to an origin or a node within a span, which ends at the head of its answer.

    Args:
        method: of the request.
        target: the request's path and query.
        address: the other side's address.
        headers: of the request.
        send: sends the request with the headers that it is given: ``headers`` and ``traceparent``.
    """
    assert telemetry is not None
    with telemetry.sent(method, _path(target), address) as (added, answered):
        answer = await send([*headers, *added.items()])
        answered(answer.status, "")
        return answer


class Traced:
    """An ASGI application whose requests are traced."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def at(self, server: tuple[str, int] | None) -> Traced:
        """The application for connections to one of the gateway's addresses."""
        return Traced(self._application.at(server))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request within its own span."""
        if telemetry is None or scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = _path(scope["raw_path"].decode("ascii", "replace"))
        with telemetry.received(scope["method"], path, headers) as answered:

            async def watched(message: Any) -> None:
                if "status" in message:
                    answered(message["status"], _cache_of(message))
                await send(message)

            await self._application(scope, receive, watched)


def _cache_of(message: Any) -> str:
    """The value of ``x-larder-cache``; empty if there is none. Hits of the short path have only an encoded head."""
    if "head" in message and "headers" not in message:
        return "HIT"
    return next((value.decode("latin-1") for name, value in message.get("headers", ()) if name == _CACHE), "")


def _path(target: str) -> str:
    return redact_path(target.partition("?")[0])
